"""How much of the way out a sandbox and a key may use, and that nothing beyond it hurts others.

    egress_limits.py --shoal PATH [--long]

Two sandboxes of one key, one of them with a boundary secret, open as many connections and ask for as many
names as they can, while a sandbox of another key makes requests: none of these fails. The limits of the key
hold for its sandboxes together, in all egress processes. Descriptors, metrics and the log stay bounded.
Then more keys than the node allows want boundary secrets: they are refused at once, no sandbox is lost by
that, and a key that leaves makes room for another.

`--long` opens more, and takes as many keys as the node allows by default.
"""

import os
import re
import socketserver
import threading
import time

from network import Box, egress_processes
from outside import Server, Test, wait_until

HOST = "127.77.1.1"
HOLD, ECHO, BYTES = 8080, 8081, 8082
# The limits of the server. A second of `PER_KEY_S` is let through at once.
OF_SANDBOX, OF_KEY, PER_S, PER_KEY_S, BYTES_PER_KEY_S = 32, 40, 40, 60, 4_000_000
DOWNLOAD = 6_000_000
# Entries that the log keeps of a key.
LOG_MAX = 4096

CONFIG = f"""
[egress]
hosts = ["api.shoal.test={HOST}", "wild.shoal.test={HOST}"]
max_connections = {OF_SANDBOX}
max_connections_per_key = {OF_KEY}
connections_per_s = {PER_S}
connections_per_s_per_key = {PER_KEY_S}
bytes_per_s_per_key = {BYTES_PER_KEY_S}
max_boundary_keys = KEYS
[[templates]]
name = "net"
network = {{ allow = ["api.shoal.test:443", "api.shoal.test:{HOLD}-{BYTES}", "*.wild.shoal.test", "{HOST}"] }}
pool = {{ pool_size = 4, max_overflow = PLACES }}
"""

# Opens connections, as many at a time as it may have descriptors, and asks for names. It does not wait.
HOSTILE = r"""
import errno, os, resource, socket, struct, sys, time
connections, questions, seconds = map(int, sys.argv[1:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
address = socket.getaddrinfo("api.shoal.test", 8080, socket.AF_INET, socket.SOCK_STREAM)[0][4]
until = time.monotonic() + seconds
def question(number):
    name = b"n%d.wild.shoal.test" % number if number % 2 else b"n%d.evil.test" % number
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b"."))
    return struct.pack("!6H", number % 65536, 0x100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.connect(("127.0.0.1", 53))
names.setblocking(False)
held, opened, asked, answered = [], 0, 0, 0
while time.monotonic() < until and (opened < connections or asked < questions):
    for _ in range(50):
        if opened < connections:
            one = socket.socket()
            one.setblocking(False)
            try:
                one.connect_ex(address)
                held.append(one)
                opened += 1
            except OSError:
                one.close()
            if len(held) > min(hard - 20, 4000):
                for old in held[:1000]:
                    old.close()
                del held[:1000]
        if asked < questions:
            try:
                names.send(question(asked))
                asked += 1
            except OSError:
                time.sleep(0.001)
        try:
            while names.recv(512):
                answered += 1
        except OSError:
            pass
    time.sleep(0.001)
time.sleep(max(0, until - time.monotonic()))
print(opened, asked, answered)
"""

# One request after the other. What fails is printed.
CALM = r"""
import socket, sys, time
until = time.monotonic() + int(sys.argv[1])
done, failed = 0, []
while time.monotonic() < until:
    try:
        with socket.create_connection(("api.shoal.test", 8081), 20) as one:
            one.sendall(b"ping")
            if one.recv(4) != b"ping":
                failed.append("closed")
            else:
                done += 1
    except OSError as error:
        failed.append(repr(error))
    time.sleep(0.1)
print(done, len(failed), *failed[:3])
"""

FETCH = r"""
import socket
with socket.create_connection(("api.shoal.test", 8082), 30) as one:
    count = 0
    while piece := one.recv(65536):
        count += len(piece)
print(count)
"""


class Host:
    """A server of the test. It holds what comes to one port, answers on the second, and sends on the third."""

    def __init__(self):
        self.open, self.most, self.came, self.lock = 0, 0, 0, threading.Lock()
        for port, act in ((HOLD, self.hold), (ECHO, self.echo), (BYTES, self.send)):
            handler = type("Handler", (socketserver.BaseRequestHandler,), {"handle": lambda it, act=act: act(it.request)})
            server = socketserver.ThreadingTCPServer((HOST, port), handler, bind_and_activate=False)
            server.daemon_threads, server.allow_reuse_address, server.request_queue_size = True, True, 512
            server.server_bind()
            server.server_activate()
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def hold(self, connection):
        with self.lock:
            self.open, self.came = self.open + 1, self.came + 1
            self.most = max(self.most, self.open)
        try:
            while connection.recv(4096):
                pass
        except OSError:
            pass
        with self.lock:
            self.open -= 1

    @staticmethod
    def echo(connection):
        try:
            while piece := connection.recv(4096):
                connection.sendall(piece)
        except OSError:
            pass

    @staticmethod
    def send(connection):
        try:
            connection.sendall(b"x" * DOWNLOAD)
        except OSError:
            pass


class Of:
    """What `Box` needs of a server, for another key."""

    def __init__(self, server, key):
        self.server, self.key = server, key

    def call(self, method, path, body=None, **options):
        options.setdefault("key", self.key)
        return self.server.call(method, path, body, **options)


def new_key(server, name):
    made = server.call("POST", "/v1/keys", {"name": name, "role": "use"})
    return Of(server, made.json["secret"])


def with_secret(of):
    boundary = {"hosts": ["api.shoal.test"], "header": "authorization"}
    return Box(of, secrets=[{"secret": "own", "env": "OWN", "boundary": boundary}], secret_values={"own": "a value"})


def in_background(box, program, *arguments, said):
    """Runs a program in a sandbox; what it printed is put into `said`."""
    body = {"argv": ["python3", "-c", program, *map(str, arguments)], "timeout_ms": 120_000}

    def run():
        answer = box.server.call("POST", f"/v1/sandboxes/{box.id}/exec", body, patience_s=150)
        said.append(answer.json["stdout"] + answer.json["stderr"] if answer.ok else f"{answer}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def metrics(server):
    """The numbers of the way out."""
    text = server.call("GET", "/metrics").body.decode()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("shoal_egress_")}


def descriptors(server):
    """Of the server, and of its egress processes."""
    def count(pid):
        try:
            return len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            return 0
    return count(server.process.pid), sum(map(count, egress_processes(server)))


def flooded(test, server, host):
    eve, calm = new_key(server, "eve"), new_key(server, "calm")
    boxes = [Box(eve), with_secret(eve)]
    other = Box(calm)
    if not test.check(all(box.id for box in (*boxes, other)), "sandboxes of two keys are handed out", f"{[str(box.answer) for box in (*boxes, other)]}"):
        return
    test.check(len(egress_processes(server)) == 2, "those of one key are in two egress processes")
    many, seconds = (50_000, 60) if test.options.long else (5_000, 10)
    before, lines, most = descriptors(server), len(metrics(server)), (0, 0)
    said, calm_said, began = [], [], time.monotonic()
    running = [in_background(box, HOSTILE, many, many, seconds, said=said) for box in boxes]
    running.append(in_background(other, CALM, seconds, said=calm_said))
    while any(thread.is_alive() for thread in running):
        now = descriptors(server)
        most = (max(most[0], now[0]), max(most[1], now[1]))
        time.sleep(0.2)
    took = time.monotonic() - began
    done = [int(word) for text in said for word in re.findall(r"^\d+ \d+ \d+$", text.strip()) and text.split()]
    test.check(len(done) == 6 and min(done[0], done[1], done[3], done[4]) == many, f"each opened {many} connections and asked {many} questions", f"{said}")
    words = calm_said[0].split()
    test.check(int(words[0]) > 0 and words[1] == "0", f"none of {words[0]} requests of another key failed", f"{calm_said}")
    test.check(0 < host.most <= OF_KEY, f"never more than {OF_KEY} connections of a key, in two processes", f"{host.most} connections at once")
    allowed = PER_KEY_S * (took + 2)
    test.check(host.came <= allowed, f"no more new connections of a key than {PER_KEY_S} in a second", f"{host.came} in {took:.1f} s")
    grown = (most[0] - before[0], most[1] - before[1])
    # A connection has two descriptors, and pipes are shared.
    test.check(grown[0] <= 100 and grown[1] <= 4 * OF_KEY + 200, f"descriptors are bounded ({grown[0]} and {grown[1]} more)", f"{before}, then {most}")
    after = metrics(server)
    waits = {kind: after.get(f'shoal_egress_waits_total{{kind="{kind}"}}', 0) for kind in ("sandbox", "key", "process")}
    test.check(waits["sandbox"] + waits["key"] > 0 and waits["process"] == 0, f"the metrics count who waited: {waits}", f"{after}")
    test.check(len(after) == lines, "the number of metrics does not grow", f"{lines}, then {len(after)}")
    test.check(after.get("shoal_egress_deaths_total") == 0, "no egress process died")
    names = after.get('shoal_egress_names_total{kind="allowed"}', 0) + after.get('shoal_egress_names_total{kind="refused"}', 0)
    # In a second 100 of a sandbox, and 500 at once; `calm` asks twice for each request.
    test.check(0 < names <= 2 * (500 + 100 * (took + 2)) + 4 * int(words[0]) + 100, "questions for names are limited, too", f"{names} in {took:.1f} s")
    test.check(all(box.sh("echo fine") == "fine" for box in (*boxes, other)), "all sandboxes answer")
    test.check(wait_until(20, lambda: host.open == 0), "no connection is left", f"{host.open}")
    # It grows while it is read: entries up to the latest of now are counted.
    newest = eve.call("GET", "/v1/network/log?limit=1").json["entries"][-1]["seq"]
    entries, last = 0, 0
    while page := eve.call("GET", f"/v1/network/log?limit=1000&after={last}").json["entries"]:
        entries, last = entries + sum(entry["seq"] <= newest for entry in page), page[-1]["seq"]
        if last > newest:
            break
    test.check(0 < entries <= LOG_MAX, f"the log keeps at most {LOG_MAX} entries of a key", f"{entries}")
    for box in (*boxes, other):
        box.end()


def paced(test, server):
    of = new_key(server, "loads")
    boxes, said, began = [Box(of), with_secret(of)], [], time.monotonic()
    # In two processes each has half of it.
    for thread in [in_background(box, FETCH, said=said) for box in boxes]:
        thread.join()
    took, least = time.monotonic() - began, (2 * DOWNLOAD - BYTES_PER_KEY_S) / BYTES_PER_KEY_S
    whole = [text.strip() for text in said] == [str(DOWNLOAD)] * 2
    test.check(whole and took >= least, "bytes of a key are paced, for all of its sandboxes together", f"{said} in {took:.1f} s, not {least:.1f}")
    for box in boxes:
        box.end()


def too_many_keys(test, server, keys):
    def pool():
        stats = server.call("GET", "/v1/stats").json
        return next(pool for pool in stats["pools"] if pool["template"] == "net")

    boxes = [with_secret(new_key(server, f"k{number}")) for number in range(keys)]
    test.check(all(box.id for box in boxes), f"{keys} keys have boundary secrets", f"{[str(box.answer) for box in boxes if not box.id][:1]}")
    wait_until(20, lambda: pool()["idle"] >= 4)
    late, before = new_key(server, "late"), pool()
    refused = [with_secret(late) for _ in range(20)]
    answers = {(box.answer.status, box.answer.code) for box in refused}
    test.check(answers == {(503, "boundary_full")}, "one more key is refused with a code of its own", f"{answers}")
    one = refused[0].answer
    test.check(str(keys) in one.detail and one.header("retry-after"), "the refusal names the limit, and when to try again", f"{one}")
    after = pool()
    lost = {name: (before[name], after[name]) for name in ("idle", "launched", "crashed") if before.get(name) != after.get(name)}
    test.check(not lost, "no sandbox was taken for it, and none was lost", f"{lost}")
    session = late.call("POST", "/v1/sessions", {"template": "net", "secrets": [{"secret": "own", "env": "OWN", "boundary": {"hosts": ["api.shoal.test"]}}], "secret_values": {"own": "x"}})
    test.check(session.code == "boundary_full", "so is a session", f"{session}")
    plain = Box(late)
    test.check(plain.id, "without a boundary secret it gets its sandbox", f"{plain.answer}")
    plain.end()
    test.check(with_secret(boxes[0].server).id, "a key that has one gets another")
    boxes[1].end()
    got = []
    wait_until(20, lambda: got.append(with_secret(late)) or got[-1].id, 0.2)
    test.check(got[-1].id, "a key that has none any more makes room at once", f"{got[-1].answer}")
    back = with_secret(boxes[1].server)
    test.check(back.answer.code == "boundary_full", "and then it is the one too many", f"{back.answer}")


def body(test):
    keys = 64 if test.options.long else 3
    host = Host()
    config = CONFIG.replace("KEYS", str(keys)).replace("PLACES", str(keys + 6))
    server = Server(test, "egress_limits", f"[node]\nmax_live = {keys + 20}\n{config}").start()
    flooded(test, server, host)
    paced(test, server)
    too_many_keys(test, server, keys)
    log = server.log()
    test.check("panicked" not in log, "nothing of the server panicked", log[-2000:])
    test.check(server.stop() == 0, "the server stopped in order")


def more(parser):
    parser.add_argument("--long", action="store_true", help="more connections, more questions, more keys")


if __name__ == "__main__":
    Test(__doc__, deadline_s=lambda options: 600 if options.long else 240, more=more).run(body)
