"""A loss is reported with the next answer about the files, and only an answer that reported it clears it.

    losses.py --shoal PATH

Workspaces in memory; each session writes a file that is not saved, then the server is killed. Every kind of
answer that touches files must carry the report if it is the first one: in JSON as a field, elsewhere as a
header, in a stream as `sandbox_active`. A second answer does not repeat it. A report that was not given yet
outlives another `kill -9`. Looking at a session (`GET`) does not clear it.
"""

import uuid

from dialects import ASH_TEMPLATE, Ash, Blaxel
from ledger import Books
from outside import Server, Test

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 60
freeze_after_ms = 600000
[ash]
template = "ash"
[[templates]]
name = "memory"
freeze_after_ms = 600000
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "memory"
"""
ASH = ASH_TEMPLATE.format(kind="memory").replace('limit = "soft"\n', "")
FILE = "/files?path=/workspace/f"
STREAM, JSON, LINES = "text/event-stream", "application/json", "application/x-ndjson"

# Each kind of answer: how it is asked for.
KINDS = {
    "turn as JSON": ("POST", "/turns", {"input": "true"}, JSON),
    "turn as a stream": ("POST", "/turns", {"input": "true"}, STREAM),
    "exec as JSON": ("POST", "/exec", {"command": "true"}, JSON),
    "exec as a stream": ("POST", "/exec", {"command": "true"}, STREAM),
    "exec as lines": ("POST", "/exec", {"command": "true"}, LINES),
    "file GET that finds nothing": ("GET", "/files?path=/workspace/new", None, None),
    "file GET": ("GET", "/files?path=/workspace/saved", None, None),
    "file PUT": ("PUT", FILE, b"new", None),
    "file DELETE": ("DELETE", "/files?path=/workspace/saved", None, None),
    "file list": ("GET", "/files/list?path=/workspace", None, None),
    "file stat": ("GET", "/files/stat?path=/workspace/saved", None, None),
    "file tree": ("GET", "/files/tree?path=/workspace", None, None),
    "file find": ("GET", "/files/find?path=/workspace", None, None),
    "file search": ("GET", "/files/search?path=/workspace&text=x", None, None),
    "file move": ("POST", "/files/move", {"from": "/workspace/saved", "to": "/workspace/moved"}, None),
    "directory": ("POST", "/files/directory", {"path": "/workspace/made"}, None),
    "archive GET": ("GET", "/archive?path=/workspace", None, None),
    "resume, then exec": ("POST", "/exec", {"command": "true"}, JSON),
    "look, then exec": ("POST", "/exec", {"command": "true"}, JSON),
    "fork": ("POST", "/fork", None, None),
}


def prepare(test, books, server, kind):
    """A session with one file that was saved and one write after that, which was not."""
    session, answer = books.create(server, "memory")
    if session is None:
        raise RuntimeError(f"no session: {answer}")
    session.call("put saved", "PUT", "/files?path=/workspace/saved", b"saved")
    stopped = session.call("stop", "POST", "/stop")
    resumed = session.call("resume", "POST", "/resume")
    if not (stopped.ok and resumed.ok):
        test.lie(f"{kind}: stop and resume do not work: {stopped} {resumed}")
    written = session.call("put", "PUT", FILE, b"not saved")
    if not written.ok or written.reports_loss:
        test.lie(f"{kind}: the first write: {written}, a loss: {written.reports_loss}")
    return session


def first_answer(test, session, kind):
    method, path, body, accept = KINDS[kind]
    if kind.startswith("resume"):
        resumed = session.call("resume", "POST", "/resume")
        if resumed.reports_loss:
            test.saw(f"{kind}: resume itself reported it")
            return resumed
    if kind.startswith("look"):
        for _ in range(2):
            session.call("look", "GET", "")
    return session.call(kind.replace(" ", "_"), method, path, body, accept=accept)


def v1(test, server):
    books = Books(test)
    sessions = {kind: prepare(test, books, server, kind) for kind in KINDS}
    # Two crashes: what was not reported in between stays to be reported.
    for _ in range(2):
        server.kill()
        server.start()
    for kind, session in sessions.items():
        answer = first_answer(test, session, kind)
        if answer.unanswered or (not answer.ok and "finds nothing" not in kind):
            test.lie(f"{kind}: {answer}")
            continue
        test.check(answer.reports_loss, f"{kind}: carried the report", f"{kind}: no report in {answer.status}")
        again = session.call("exec", "POST", "/exec", {"command": "cat f saved 2>/dev/null"}, accept=JSON)
        if again.reports_loss and answer.reports_loss:
            test.lie(f"{kind}: the report came twice")
        if not answer.reports_loss and again.reports_loss:
            test.saw(f"{kind}: the exec that followed carried it")


def processes(test, server):
    """A process is started in a sandbox: that of a session, by its id, after a look for it."""
    books = Books(test)
    session = prepare(test, books, server, "process")
    server.kill()
    server.start()
    resumed = session.call("resume", "POST", "/resume")
    sandbox = resumed.json.get("sandbox_id") if resumed.ok else None
    if not sandbox:
        test.lie(f"process start: no sandbox after resume: {resumed}")
        return
    answer = server.call("POST", f"/v1/sandboxes/{sandbox}/processes", {"command": "true", "wait": True})
    carried = resumed.reports_loss or answer.reports_loss
    test.check(carried, "process start: resume or the start carried the report", f"process start: no report: {answer}")


def dialects(test, server):
    mark = uuid.uuid4().hex
    agent = Ash.deploy(server)
    ways = {
        "message": lambda one: one.say("hello"),
        "exec": lambda one: one.execute("true"),
        "file read": lambda one: one.read("lost.txt"),
        "file list": lambda one: one.listing(),
        "file write": lambda one: one.write("new.txt", mark),
    }
    ash = {way: Ash(server, agent) for way in ways}
    blaxel = {way: Blaxel(server, "memory") for way in ways if way != "message"}
    for one in [*ash.values(), *blaxel.values()]:
        written = one.write("lost.txt", mark)
        if not written.ok:
            test.lie(f"{one.name}: a file cannot be written: {written}")
    server.kill()
    server.start()
    for sessions in (ash, blaxel):
        for way, one in sessions.items():
            answer = ways[way](one)
            kept = one.read("lost.txt")
            if kept.ok and mark in kept.body.decode():
                test.saw(f"{one.name}, {way}: nothing was lost")
                continue
            done = f"{one.name}, {way}: carried the report"
            test.check(answer.reports_loss, done, f"{one.name}, {way}: no report in {answer}")
            test.check(not kept.reports_loss or not answer.reports_loss, f"{one.name}, {way}: it came once")


def body(test):
    server = Server(test, "losses", CONFIG + ASH).start()
    v1(test, server)
    processes(test, server)
    dialects(test, server)
    test.check(server.stop() == 0, "the server stopped in order")


if __name__ == "__main__":
    Test(__doc__, deadline_s=180).run(body)
