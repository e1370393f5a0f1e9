"""Ends are reported as they are: forks while the parent ends, programs whose time is over, sandboxes that are gone.

    ends.py --shoal PATH [--seconds N]

A fork of a session that is being stopped, paused, evicted or deleted succeeds, or is refused so that the client
knows what to do: never with 500. An exec has either an exit code of its own or `timed_out`. A sandbox that is
gone says why, also right after `kill -9` and a start.
"""

import collections
import concurrent.futures
import threading
import time

from ledger import Books
from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 6
[[templates]]
name = "memory"
ready_timeout_ms = 8000
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "memory"
[[templates]]
name = "disk"
ready_timeout_ms = 8000
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "disk"
limit = "soft"
"""
# A launch takes milliseconds; these are answers to one that hung.
LATE = ("patience_over", "ready_timeout", "deadline_exceeded")


def forks(test, server, template):
    books = Books(test)
    until = time.monotonic() + test.options.seconds
    codes, mistakes, lock = collections.Counter(), [], threading.Lock()

    def parent(number):
        while time.monotonic() < until:
            session, _ = books.create(server, template)
            if not session:
                time.sleep(0.02)
                continue
            books.write(session, session.file("own"), "put")
            for way in ("pause", "resume", "stop", "resume", "delete"):
                ending = threading.Thread(target=end, args=(session, way))
                ending.start()
                for _ in range(2):
                    fork_once(session)
                ending.join(60)
            wait_until(10, lambda session=session: books.delete(session))

    def end(session, way):
        if way == "delete":
            books.delete(session)
        else:
            session.call(way, "POST", f"/{way}")

    def fork_once(session):
        answer = server.call("POST", f"/v1/sessions/{session.id}/fork")
        with lock:
            codes[answer.status if answer.ok else f"{answer.status} {answer.code}"] += 1
            if answer.status in (0, -1) or answer.status == 500:
                mistakes.append(str(answer)[:300])
        if answer.ok:
            wait_until(10, lambda: not server.call("DELETE", f"/v1/sessions/{answer.json['id']}").status == 503)

    with concurrent.futures.ThreadPoolExecutor(3) as crowd:
        list(crowd.map(parent, range(3)))
    test.saw(f"{template}: forks while the parent ends: {dict(codes)}")
    late = {what: number for what, number in books.calls.items() if what.split(" ")[1] in LATE}
    test.check(not late, f"{template}: every launch was answered in time", f"{template}: launches that were not done in time: {late}")
    test.check(not mistakes, f"{template}: none was a mistake of the server", f"{template}: {len(mistakes)} forks failed, such as {mistakes[:1]}")


def timeouts(test, server):
    """Programs that end just when their time is over."""
    session, answer = Books(test).create(server, "memory")
    if session is None:
        raise RuntimeError(f"no session: {answer}")
    seen, both = collections.Counter(), []
    for number in range(120):
        body = {"command": "sleep 0.03", "timeout_ms": 24 + number % 16}
        answer = session.call("exec", "POST", "/exec", body)
        if answer.ok:
            seen["over in time" if not answer.json["timed_out"] else "timed out"] += 1
            if answer.json["timed_out"] and answer.json["exit_code"] == 0:
                both.append(answer.json)
    test.check(not both, f"programs at the end of their time: {dict(seen)}", f"{len(both)} programs have exit code 0 and timed_out: {both[:1]}")


def gone(test, server):
    """A sandbox that was deleted, one of a session, and one that lived when the server was killed."""
    ids = {}
    for what in ("deleted", "lived when the server was killed"):
        answer = server.call("POST", "/v1/sandboxes", {"template": "disk"})
        if not answer.ok:
            raise RuntimeError(f"no sandbox: {answer}")
        ids[what] = answer.json["id"]
    session, answer = Books(test).create(server, "disk")
    if session is None:
        raise RuntimeError(f"no session: {answer}")
    ids["of a session, deleted"] = answer.json["sandbox_id"]
    for what in ("deleted", "of a session, deleted"):
        server.call("DELETE", f"/v1/sandboxes/{ids[what]}")

    def ask(what, when):
        answer = server.call("POST", f"/v1/sandboxes/{ids[what]}/exec", {"command": "true"})
        reason = answer.json.get("reason") if isinstance(answer.json, dict) else None
        told = answer.status == 410 and (reason or answer.code == "lease_lost")
        test.check(told, f"{what}, {when}: 410 {answer.code}, reason {reason}", f"{what}, {when}: no reason in {answer}")

    for what in ("deleted", "of a session, deleted"):
        ask(what, "at once")
    server.kill()
    server.start()
    for what in ids:
        ask(what, "right after a start")


def body(test):
    server = Server(test, "ends", CONFIG).start()
    for template in ("memory", "disk"):
        forks(test, server, template)
    timeouts(test, server)
    gone(test, server)
    test.check(server.stop() == 0, "the server stopped in order")


def more(parser):
    parser.add_argument("--seconds", type=float, default=3, help="of forks, for each kind of workspace")


if __name__ == "__main__":
    Test(__doc__, deadline_s=180, more=more).run(body)
