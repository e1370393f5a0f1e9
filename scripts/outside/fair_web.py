"""One hostile key cannot keep another from its due, with default settings.

    fair_web.py --shoal PATH

Eve leaves answers unread, stalls uploads, opens streams, archives a sparse file, floods with events and
takes connections without a key. Ada meanwhile runs a program, sends a large body, opens a stream and reads
her events, each within a few seconds. The server's memory and threads stay bounded. A limit of a key is
refused by its name, is shown with what is used of it, and outlives a restart.
"""

import concurrent.futures
import json
import socket
import time

from event_stream import Stream
from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[store]
events = 2000
[[templates]]
name = "default"
[templates.limits]
memory_mb = 128
workspace_mb = 64
[templates.pool]
pool_size = 2
"""
SOON_S = 15
UNREAD, STREAMS, STRANGERS = 50, 300, 600
MEMORY_MB_MAX, THREADS_MAX = 600, 120


def key_of(server, name, role="use", **more):
    made = server.call("POST", "/v1/keys", {"name": name, "role": role, **more})
    assert made.status == 201, str(made)
    return made.json


def sandbox_of(server, key):
    made = server.call("POST", "/v1/checkouts", {"template": "default"}, key=key)
    assert made.status == 201, str(made)
    return made.json["sandbox"]["id"]


def used_by(server):
    """Megabytes and threads of the server."""
    status = open(f"/proc/{server.process.pid}/status").read()
    values = dict(line.split(":", 1) for line in status.splitlines())
    return int(values["VmRSS"].split()[0]) // 1024, int(values["Threads"])


def socket_memory_mb():
    """What all TCP sockets of this machine have in buffers."""
    line = next(line for line in open("/proc/net/sockstat") if line.startswith("TCP:"))
    words = line.split()
    return int(words[words.index("mem") + 1]) * 4096 / 1e6


def opened(server, text, sent=b""):
    """A connection on which this was sent, and nothing is read."""
    wire = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    if text:
        wire.sendall(text.encode() + sent)
    return wire


def head(server, key, method, path, length, more=""):
    return (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n{more}\r\n"
    )


def post(server, key, path, value):
    body = json.dumps(value).encode()
    return opened(server, head(server, key, "POST", path, len(body)), body)


def closed(wires):
    for wire in wires:
        wire.close()


class Ada:
    """The key that wants its due."""

    def __init__(self, test, server):
        self.test, self.server = test, server
        self.key = key_of(server, "ada")["secret"]
        self.sandbox = sandbox_of(server, self.key)

    def has_her_due(self, while_what):
        began = time.monotonic()
        path = f"/v1/sandboxes/{self.sandbox}/exec"
        ran = self.server.call("POST", path, {"command": "echo due"}, key=self.key, patience_s=SOON_S)
        fine = ran.ok and ran.json["stdout"] == "due\n" and not ran.json["truncated"]
        asked = {"command": "wc -c", "stdin": "x" * (4 << 20)}
        large = self.server.call("POST", path, asked, key=self.key, patience_s=SOON_S)
        fine = fine and large.ok and large.json["stdout"].strip() == str(4 << 20)
        stream = Stream(self.server, "/v1/events", self.key, patience_s=SOON_S)
        fine = fine and stream.status == 200
        stream.close()
        took = time.monotonic() - began
        self.test.check(
            fine and took < SOON_S,
            f"{while_what}: Ada has her due in {took:.1f} s",
            f"{while_what}: Ada waits: {str(ran)[:200]} {str(large)[:200]} after {took:.1f} s",
        )


def bounded(test, server, what):
    memory_mb, threads = used_by(server)
    fine = memory_mb < MEMORY_MB_MAX and threads < THREADS_MAX
    test.check(fine, f"{what}: {memory_mb} MB, {threads} threads", f"{what}: {memory_mb} MB and {threads} threads")


def unread_answers(test, server, ada, eve, sandbox):
    command = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2"
    path = f"/v1/sandboxes/{sandbox}/exec"
    before_mb = socket_memory_mb()
    held = [post(server, eve, path, {"command": command}) for _ in range(UNREAD)]
    time.sleep(3)
    bounded(test, server, f"{UNREAD} unread answers")
    more_mb = socket_memory_mb() - before_mb
    test.check(more_mb < UNREAD / 2, f"the kernel holds {more_mb:.0f} MB of them", f"the kernel holds {more_mb:.0f} MB of unread answers")
    counted = [key["used"]["body_bytes"] for key in server.call("GET", "/v1/keys").json["keys"] if key["name"] == "eve"]
    test.check(counted[0] > 1_000_000, f"unread answers count: {counted[0]} bytes", f"unread answers count as {counted[0]} bytes")
    ada.has_her_due(f"{UNREAD} answers are unread")
    closed(held)
    asked = {"command": "head -c 500000 /dev/zero"}
    whole = wait_until(10, lambda: (lambda got: got if got.ok and not got.json["truncated"] else None)(server.call("POST", path, asked, key=eve)))
    test.check(whole, "answers that are gone no longer count", "answers that are gone still count")


def stalled_uploads(test, server, ada, eve, sandbox):
    path, size = f"/v1/sandboxes/{sandbox}/exec", 20 << 20
    part = b'{"command":"true","stdin":"' + b"x" * (size - 100)
    held = []
    for _ in range(10):
        try:
            held.append(opened(server, head(server, eve, "POST", path, size), part))
        except OSError:
            # Refused while it sent.
            pass
    bounded(test, server, "stalled uploads")
    ada.has_her_due("uploads of Eve stall")
    began = time.monotonic()

    def is_ended(wire):
        wire.settimeout(0.2)
        try:
            return b"HTTP/1.1" in wire.recv(100)
        except TimeoutError:
            return False
        except OSError:
            return True

    ended = wait_until(25, lambda: all(is_ended(wire) for wire in held[:1]), 0.5)
    test.check(ended, f"a stalled upload ended after {time.monotonic() - began:.0f} s")
    closed(held)


def streams(test, server, ada, eve):
    text = head(server, eve, "GET", "/v1/events?after=0", 0, "accept: text/event-stream\r\n")
    held = [opened(server, text) for _ in range(STREAMS)]
    time.sleep(2)
    bounded(test, server, f"{STREAMS} unread streams of events")
    ada.has_her_due(f"{STREAMS} streams are unread")
    closed(held)


def sparse_archive(test, server, ada, eve, sandbox):
    path = f"/v1/sandboxes/{sandbox}/exec"
    made = server.call("POST", path, {"command": "mkdir -p /workspace/s && truncate -s 8T /workspace/s/f"}, key=eve)
    if not made.ok or made.json["exit_code"]:
        test.saw(f"no sparse file of 8 TB here: {str(made)[:100]}")
        return
    archive = f"/v1/sandboxes/{sandbox}/archive?path=/workspace/s"
    text = head(server, eve, "GET", archive, 0, "accept: application/gzip\r\n")
    held = [opened(server, text) for _ in range(4)]
    time.sleep(1)
    ada.has_her_due("sparse files are archived")
    closed(held)
    server.call("POST", path, {"command": "rm /workspace/s/f"}, key=eve)


def flood_of_events(test, server, ada, eve):
    before = server.call("GET", "/v1/events?limit=1000", key=ada.key, accept="application/json").json["events"]

    def cycle(_):
        made = server.call("POST", "/v1/sessions", {"template": "default"}, key=eve)
        if made.ok:
            server.call("DELETE", f"/v1/sessions/{made.json['id']}", key=eve)
        return made.ok

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = sum(pool.map(cycle, range(1200)))
    after = server.call("GET", "/v1/events?limit=1000", key=ada.key, accept="application/json").json["events"]
    kept = [event["id"] for event in after][: len(before)] == [event["id"] for event in before]
    eves = server.call("GET", "/v1/events?limit=1", key=eve, accept="application/json").json
    test.saw(f"Eve made and ended {made} sessions; her events begin at {eves['oldest']}")
    test.check(kept and before, f"Ada's {len(before)} events are all there", "a flood of Eve deleted events of Ada")


def connections_without_a_key(test, server, ada):
    held = []
    for _ in range(STRANGERS):
        try:
            held.append(opened(server, "GET /v1/stats HTTP/1.1\r\nhost: localhost\r\nx-slow: "))
        except OSError:
            pass
    ada.has_her_due(f"{len(held)} connections are silent")
    closed(held)


def small_ones(test, server):
    two = opened(server, "GET /health HTTP/1.1\r\nhost: localhost\r\nhost: other\r\n\r\n")
    test.check(b" 400 " in two.recv(200), "two Host headers are refused")
    closed([two])
    health = server.call("GET", "/health", key=None)
    test.check(health.json == {"status": "ok"}, "without a key health shows its status alone", f"health shows {health}")
    headers = {"Idempotency-Key": "once"}
    made = [server.call("POST", "/v1/keys", {"name": "k", "role": "use"}, headers=headers) for _ in range(2)]
    secret = made[0].json["secret"]
    test.check(secret not in made[1].body.decode(), "a repeated creation shows no secret", "the secret was shown twice")
    stream = Stream(server, "/v1/events", secret)
    began = time.monotonic()
    server.call("DELETE", f"/v1/keys/{made[0].json['id']}")
    ended = stream.ended.wait(10)
    test.check(ended and time.monotonic() - began < 2, "the stream of a revoked key ended at once", "it lives on")


def limits(test, server):
    made = key_of(server, "limited", limits={"streams": 2, "live_sandboxes": 1})
    key, id_ = made["secret"], made["id"]
    sandbox_of(server, key)
    second = server.call("POST", "/v1/checkouts", {"template": "default", "wait_ms": 0}, key=key)
    said = (second.code, second.status, second.header("retry-after"))
    test.check(said[:2] == ("quota_exceeded", 429) and said[2], f"a second sandbox: {second.detail}", str(second))
    test.check("live_sandboxes" in second.detail, "the refusal names the limit")
    held = [Stream(server, "/v1/events", key) for _ in range(2)]
    third = server.call("GET", "/v1/events", key=key, accept="text/event-stream")
    test.check(third.code == "quota_exceeded" and "streams" in third.detail, f"a third stream: {third.detail}", str(third))

    def shown():
        keys = server.call("GET", "/v1/keys").json["keys"]
        return next(key for key in keys if key["id"] == id_)

    used = shown()["used"]
    test.check((used["streams"], used["live_sandboxes"]) == (2, 1), f"what is used is shown: {used}")
    for stream in held:
        stream.close()
    change = {"limits": {"streams": None, "requests_per_s": 5}}
    changed = server.call("PATCH", f"/v1/keys/{id_}", change)
    test.check(changed.ok and changed.json["limits"] == {"live_sandboxes": 1, "requests_per_s": 5}, "limits change", str(changed))
    keys_before = len(server.call("GET", "/v1/keys").json["keys"])
    server.kill()
    server.start()
    again = server.call("POST", "/v1/keys", {"name": "k", "role": "use"}, headers={"Idempotency-Key": "once"})
    keys_after = len(server.call("GET", "/v1/keys").json["keys"])
    test.check(again.status == 422 and keys_after == keys_before, "a creation repeated after kill -9 makes no second key", str(again))
    after = shown()
    test.check(after["limits"] == {"live_sandboxes": 1, "requests_per_s": 5}, "limits outlive a restart", str(after))
    answers = [server.call("GET", "/v1/sandboxes", key=key) for _ in range(20)]
    refused = [answer for answer in answers if not answer.ok]
    test.check(refused and all(one.code == "quota_exceeded" for one in refused), f"{len(refused)} of 20 requests are too many")
    listed = server.cli("key", "ls")
    test.check("live_sandboxes 0/1" in listed.stdout, "the command line shows them", listed.stdout + listed.stderr)
    limited = server.cli("key", "limit", id_, "live_sandboxes=7", "requests_per_s=none")
    test.check("live_sandboxes 0/7" in limited.stdout, "the command line changes them", limited.stdout + limited.stderr)
    metrics = server.call("GET", "/metrics").body.decode()
    test.check(f'shoal_key_limit{{key="{id_}",limit="live_sandboxes"}} 7' in metrics, "metrics have them")
    foreign = server.call("GET", "/metrics", key=key).body.decode()
    ids = {line.split('"')[1] for line in foreign.splitlines() if line.startswith("shoal_key_")}
    test.check(ids == {id_}, "another key sees its own alone", f"a key sees {ids}")


def stored_bytes(test, server):
    made = key_of(server, "hoarder", limits={"stored_bytes": 1_000_000})
    key = made["secret"]
    session = server.call("POST", "/v1/sessions", {"template": "default"}, key=key).json["id"]
    files = f"/v1/sessions/{session}/files?path=/workspace/"
    first = server.call("PUT", files + "a", b"x" * 3_000_000, key=key)
    test.check(first.ok, "a key below its limit writes a file", str(first))
    refused = lambda: server.call("PUT", files + "b", b"x", key=key).code == "quota_exceeded"
    test.check(wait_until(SOON_S, refused), "above stored_bytes it writes no more", "files above stored_bytes are accepted")
    other = server.call("POST", "/v1/sessions", {"template": "default"}, key=key)
    test.check(other.code == "quota_exceeded" and "stored_bytes" in other.detail, "and creates no session", str(other))
    freed = server.call("POST", f"/v1/sessions/{session}/exec", {"command": "rm a"}, key=key)
    test.check(freed.ok, "it can remove files", str(freed))
    again = lambda: server.call("PUT", files + "b", b"x", key=key).ok
    test.check(wait_until(SOON_S, again), "and then write again", "it cannot write after it removed its files")
    huge = key_of(server, "small", limits={"memory_mb": 1})["secret"]
    never = server.call("POST", "/v1/checkouts", {"template": "default"}, key=huge)
    said = never.code == "quota_exceeded" and never.json["retryable"] is False and not never.header("retry-after")
    test.check(said, f"what never fits is not retryable: {never.detail}", str(never))


def body(test):
    server = Server(test, "fair", CONFIG).start()
    ada = Ada(test, server)
    eve = key_of(server, "eve")["secret"]
    sandbox = sandbox_of(server, eve)
    ada.has_her_due("nothing happens")
    unread_answers(test, server, ada, eve, sandbox)
    stalled_uploads(test, server, ada, eve, sandbox)
    streams(test, server, ada, eve)
    sparse_archive(test, server, ada, eve, sandbox)
    flood_of_events(test, server, ada, eve)
    connections_without_a_key(test, server, ada)
    small_ones(test, server)
    stored_bytes(test, server)
    limits(test, server)
    test.check(server.stop() == 0, "the server stopped in order")


if __name__ == "__main__":
    Test(__doc__, deadline_s=300).run(body)
