"""Eve: one attack of a hostile key on a server, as a program of its own.

    hostile.py ATTACK --port PORT --key SECRET --seconds S [--sessions N]

attacks.py starts it, beside the client whose waits it measures. It says `begun` when the attack is in full swing,
goes on for S seconds or until its input ends, and gives back what it holds: leases, sessions, connections. Then it says
how much it did. Every attack is bounded: by numbers of connections and programs, by rates, and by the limits and
timeouts of its sandboxes, so that nothing is left if this program dies.
"""

import argparse
import base64
import concurrent.futures
import json
import os
import select
import socket
import struct
import sys
import threading
import time

from outside import request

TTL_S = 120
HELD = 8
UNREAD, STRANGERS, STALLED, DRIPS, STREAMS = 50, 600, 10, 50, 300
SESSIONS, TERMINALS, READ_TERMINALS, TUNNELS = 1000, 60, 6, 40
CONNECTIONS_PER_S, ANSWERS_PER_S = 300, 20

# Fills what the kernel buffers for sockets: pairs of TCP, UDP and local sockets that nothing is read from.
SOCKETS = r"""
import socket, sys, time
held, sent, until = [], 0, time.monotonic() + float(sys.argv[1])
def fill(end, address=None):
    global sent
    end.setblocking(False)
    try:
        while True:
            sent += end.send(b"x" * 65536) if address is None else end.sendto(b"x" * 60000, address)
            if address and sent > 32 << 20: return
    except OSError:
        pass
def fill_some():
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(60):
            end = socket.create_connection(server.getsockname())
            held.extend((end, server.accept()[0]))
            fill(end)
    for _ in range(60):
        pair = socket.socketpair()
        held.extend(pair)
        fill(pair[0])
    for _ in range(30):
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        end.bind(("127.0.0.1", 0))
        held.append(end)
        fill(end, end.getsockname())
while time.monotonic() < until:
    try:
        fill_some()
        time.sleep(0.2)
    except (OSError, MemoryError):
        time.sleep(0.2)
    for end in held: end.close()
    held.clear()
"""
TALKER = r"""
import socket, sys, threading, time
until = time.monotonic() + float(sys.argv[1])
server = socket.create_server(("127.0.0.1", 3000), backlog=200)
server.settimeout(1)
def talk(end):
    try:
        while time.monotonic() < until: end.send(b"x" * 65536)
    except OSError: pass
while time.monotonic() < until:
    try: threading.Thread(target=talk, args=(server.accept()[0],), daemon=True).start()
    except OSError: pass
"""


class Eve:
    """A key, what it holds, and when its attack is over."""

    def __init__(self, options):
        self.port, self.key, self.seconds = options.port, options.key, options.seconds
        self.beforehand = options.sessions
        self.leases, self.sessions, self.wires, self.done = [], [], [], 0
        self.lock = threading.Lock()
        self.until = time.monotonic() + options.seconds + 5

    def call(self, method, path, body=None, **more):
        return request(self.port, method, path, body, key=self.key, **more)

    def goes_on(self):
        return time.monotonic() < self.until

    def begun(self):
        """From now on the time counts."""
        self.until = time.monotonic() + self.seconds
        print("begun", flush=True)

    def count(self, number=1):
        with self.lock:
            self.done += number

    def sandbox(self):
        made = self.call("POST", "/v1/checkouts", {"template": "default", "ttl_s": TTL_S})
        if not made.ok:
            raise SystemExit(f"no sandbox for Eve: {made}")
        self.leases.append(made.json["id"])
        return made.json["sandbox"]["id"]

    def start(self, sandbox, argv):
        body = {"argv": argv, "timeout_s": int(self.seconds) + 10, "keep_alive": True}
        started = self.call("POST", f"/v1/sandboxes/{sandbox}/processes", body)
        self.count(started.ok)
        return started

    def opened(self, text=b""):
        """A connection on which this was sent, and nothing is read yet. None if it was refused."""
        try:
            wire = socket.socket()
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.settimeout(5)
            wire.connect(("127.0.0.1", self.port))
            wire.sendall(text)
        except OSError:
            wire.close()
            return None
        with self.lock:
            self.wires.append(wire)
            self.done += 1
        return wire

    def closes(self, wire):
        with self.lock:
            if wire in self.wires:
                self.wires.remove(wire)
        if wire:
            wire.close()

    def head(self, method, path, length=0, *more):
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {self.key}"]
        lines += [f"content-length: {length}"] if length else []
        return ("\r\n".join([*lines, *more]) + "\r\n\r\n").encode()

    def posted(self, path, value):
        body = json.dumps(value).encode()
        return self.opened(self.head("POST", path, len(body), "content-type: application/json") + body)

    def upgraded(self, path, protocol, *more):
        """A connection that was handed over to another protocol; what came after the head is lost."""
        wire = self.opened(self.head("GET", path, 0, "connection: upgrade", f"upgrade: {protocol}", *more))
        try:
            if wire and b" 101 " in wire.recv(4096):
                return wire
        except OSError:
            pass
        self.closes(wire)
        return None

    def at_once(self, crowd, work):
        """Several clients, each of which works until the time is over."""

        def client():
            while self.goes_on():
                work()

        clients = [threading.Thread(target=client) for _ in range(crowd)]
        for one in clients:
            one.start()
        self.begun()
        for one in clients:
            one.join()

    def gives_back(self):
        for wire in list(self.wires):
            wire.close()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            paths = [f"/v1/checkouts/{id_}" for id_ in self.leases] + [f"/v1/sessions/{id_}" for id_ in self.sessions]
            answers = list(pool.map(lambda path: self.call("DELETE", path), paths))
        # A lease whose sandbox died by the attack has ended by itself.
        return [str(answer) for answer in answers if not answer.ok and answer.status not in (404, 409, 410)]


def paced(eve, per_s, work):
    """Works so often in a second, until the time is over."""
    while eve.goes_on():
        began = time.monotonic()
        work()
        time.sleep(max(0, 1 / per_s - (time.monotonic() - began)))


def answers(eve):
    """Execs whose answers of two megabytes are never read; the oldest is dropped for the next."""
    path = f"/v1/sandboxes/{eve.sandbox()}/exec"
    command = {"command": "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2"}
    for _ in range(UNREAD):
        eve.posted(path, command)
    eve.begun()

    def next_one():
        eve.closes(eve.wires[0] if eve.wires else None)
        eve.posted(path, command)

    paced(eve, ANSWERS_PER_S, next_one)


def sessions(eve):
    """A thousand sessions, as fast as four clients can make them, or use them if they exist beforehand."""

    def create(_=None):
        if len(eve.sessions) >= SESSIONS:
            # Most have no sandbox any more: each use has to start one.
            eve.count()
            eve.call("POST", f"/v1/sessions/{eve.sessions[eve.done % SESSIONS]}/exec", {"command": "true"}, patience_s=60)
            return
        made = eve.call("POST", "/v1/sessions", {"template": "default"}, patience_s=60)
        if made.ok:
            eve.sessions.append(made.json["id"])
            eve.count()

    eve.until += 120
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(create, range(eve.beforehand)))
    eve.at_once(4, create)


def connections(eve):
    """Silent connections without a key, and hundreds of new ones in each second."""
    for _ in range(STRANGERS):
        eve.opened(b"GET /v1/stats HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
    eve.begun()
    kinds = [b"", b"GET /v1/stats HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong\r\n\r\n", eve.head("GET", "/v1/sandboxes")]

    def next_one():
        eve.closes(eve.opened(kinds[eve.done % len(kinds)]))

    paced(eve, CONNECTIONS_PER_S, next_one)


def uploads(eve):
    """Large bodies that stop before their end, and files that come in drips."""
    sandbox, size = eve.sandbox(), 20 << 20
    part = b'{"command":"true","stdin":"' + b"x" * (size - 100)
    for _ in range(STALLED):
        eve.opened(eve.head("POST", f"/v1/sandboxes/{sandbox}/exec", size, "content-type: application/json") + part)
    drips = []
    for at in range(DRIPS):
        path = f"/v1/sandboxes/{sandbox}/files?path=/workspace/drip-{at}"
        drips.append(eve.opened(eve.head("PUT", path, 1 << 20, "content-type: application/octet-stream")))
    eve.begun()

    def drip():
        for wire in [wire for wire in drips if wire]:
            try:
                wire.send(b"x" * 1024, socket.MSG_DONTWAIT)
            except OSError:
                pass

    paced(eve, 10, drip)


def events(eve):
    """Streams of events that are never read, and clients that make and end leases as fast as they can."""
    for _ in range(STREAMS):
        eve.opened(eve.head("GET", "/v1/events?after=0", 0, "accept: text/event-stream"))

    def cycle():
        made = eve.call("POST", "/v1/sessions", {"template": "default"}, patience_s=60)
        if made.ok:
            eve.call("DELETE", f"/v1/sessions/{made.json['id']}")
            eve.count()

    eve.at_once(4, cycle)


def typed(text):
    """A binary message of a WebSocket client."""
    mask = os.urandom(4)
    body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(text))
    return struct.pack("!BB", 0x82, 0x80 | len(text)) + mask + body


def terminals(eve):
    """Terminals that print without end. Most are never read, a few as fast as it goes."""
    sandboxes = [eve.sandbox() for _ in range(2)]
    more = ("sec-websocket-version: 13", f"sec-websocket-key: {base64.b64encode(os.urandom(16)).decode()}")
    wires = []
    for at in range(TERMINALS):
        wire = eve.upgraded(f"/v1/sandboxes/{sandboxes[at % 2]}/terminal", "websocket", *more)
        if wire:
            wire.sendall(typed(b"exec yes flood\n"))
            wires.append(wire)
    if len(wires) < TERMINALS:
        raise SystemExit(f"Eve has {len(wires)} terminals of {TERMINALS}")
    eve.begun()
    read = wires[:READ_TERMINALS]
    while eve.goes_on():
        ready = select.select(read, [], [], 0.2)[0]
        for wire in ready:
            eve.count(len(wire.recv(1 << 16)) >> 10)


def processor(eve):
    """Endless loops, eight in each of the sandboxes that she may have."""
    for sandbox in [eve.sandbox() for _ in range(HELD)]:
        for _ in range(8):
            eve.start(sandbox, ["sh", "-c", "while :; do :; done"])
    eve.begun()
    time.sleep(max(0, eve.until - time.monotonic()))


def disk_io(eve):
    """Programs that write and sync without end, large blocks and small files."""
    large = "while :; do dd if=/dev/zero of=/workspace/large bs=1M count=24 conv=fsync 2>/dev/null; done"
    small = "while :; do for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=/workspace/small-$i bs=4k count=4 conv=fsync 2>/dev/null; done; rm /workspace/small-*; done"
    for sandbox in [eve.sandbox() for _ in range(HELD // 2)]:
        for command in (large, small):
            eve.start(sandbox, ["sh", "-c", command])
    eve.begun()
    time.sleep(max(0, eve.until - time.monotonic()))


def disk_space(eve):
    """Programs that fill every place they can write to; a sandbox that is ended for it is replaced."""
    command = "for at in /workspace /tmp /dev/shm; do cat /dev/zero > $at/fill & mkdir $at/many; (cd $at/many && seq 1 200000 | xargs touch) & done; wait; sleep 60"
    full = []

    def fill():
        if len(full) < HELD * 3:
            full.append(eve.start(eve.sandbox(), ["sh", "-c", command]))
        time.sleep(0.3)
        if len(eve.leases) >= HELD // 2:
            eve.call("DELETE", f"/v1/checkouts/{eve.leases.pop(0)}")

    fill()
    eve.at_once(1, fill)


def sockets(eve):
    """Buffers of sockets inside, and tunnels through the server that are never read."""
    held = [eve.sandbox() for _ in range(HELD // 2)]
    seconds = str(eve.seconds + 5)
    for sandbox in held:
        eve.start(sandbox, ["python3", "-c", SOCKETS, seconds])
    eve.start(held[0], ["python3", "-c", TALKER, seconds])
    path = f"/v1/sandboxes/{held[0]}"
    eve.call("GET", f"{path}/ports?wait_for=3000")
    opened = [eve.upgraded(f"{path}/forward/3000", "shoal-tcp") for _ in range(TUNNELS)]
    if not any(opened):
        raise SystemExit("Eve has no tunnel")
    eve.begun()
    time.sleep(max(0, eve.until - time.monotonic()))


ATTACKS = {
    one.__name__: one
    for one in (answers, sessions, connections, uploads, events, terminals, processor, disk_io, disk_space, sockets)
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--sessions", type=int, default=0, help="how many exist before the attack of that name begins")
    options = parser.parse_args()
    eve = Eve(options)

    def orphaned():
        """Without the test that started it, it ends early."""
        sys.stdin.read()
        eve.until = 0

    threading.Thread(target=orphaned, daemon=True).start()
    try:
        ATTACKS[options.attack](eve)
    finally:
        refused = eve.gives_back()
    print(json.dumps({"done": eve.done, "not given back": refused[:3]}), flush=True)


if __name__ == "__main__":
    main()
