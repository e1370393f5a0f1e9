"""Every refusal and every end says why, and the command line never asks another server.

    explanations.py --shoal PATH [--seed S]

concepts.md and errors.md: `why` says how a sandbox ended, an eviction with what was short and what was considered, and
a refusal names the limit that was reached. So sessions push each other out, a checkout waits in vain for the node's
limit and for its pool's, the launcher is killed with -9, and a command names the directory of a stopped server while
another server listens.
"""

import json
import os
import pathlib
import signal

from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 2
[[templates]]
name = "small"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
max_overflow = 8
[[templates]]
name = "single"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
max_overflow = 1
"""


def session_with_sandbox(test, server):
    made = server.call("POST", "/v1/sessions", {"template": "small"})
    test.check(made.status == 201, "a session was made", f"no session: {made}")
    return made.json["id"]


def evicted(test, server):
    first = session_with_sandbox(test, server)
    sandbox = server.call("GET", f"/v1/sessions/{first}").json["sandbox_id"]
    for _ in range(2):
        session_with_sandbox(test, server)
    gone = lambda: server.call("GET", f"/v1/sessions/{first}").json["sandbox_id"] is None
    test.check(wait_until(15, gone), "the first of three sessions lost its sandbox: two may live")
    why = server.call("GET", f"/v1/sandboxes/{sandbox}/why").json
    end = why.get("last_end", why)
    eviction = end.get("eviction") or {}
    test.check(eviction.get("shortage") == "processes", "why names the shortage", f"why says {why}")
    considered = [candidate["sandbox"] for candidate in eviction.get("candidates", [])]
    test.check(sandbox in considered, "why names what was considered", f"why says {why}")
    for named in (sandbox, first):
        said = server.cli("why", named)
        test.check("node.max_live" in said.stdout, "`shoal why` names the setting", f"`why` says {said.stdout!r} {said.stderr!r}")
    shown = server.cli("session", "show", first).stdout
    test.check("evict" in shown, "`session show` says where its sandbox went", f"`session show` says {shown!r}")


def in_vain(test, server):
    held = [server.call("POST", "/v1/checkouts", {"template": "small"}) for _ in range(2)]
    test.check(all(answer.ok for answer in held), "two sandboxes are checked out", f"refused: {[str(a) for a in held]}")
    waited = server.call("POST", "/v1/checkouts", {"template": "small", "wait_ms": 300})
    test.check(waited.code == "checkout_timeout", "a third waits in vain", f"a third got {waited}")
    test.check("node.max_live" in waited.detail, "the refusal names node.max_live", f"it says {waited.detail!r}")
    for answer in held:
        server.call("DELETE", f"/v1/checkouts/{answer.json['id']}")
    server.call("POST", "/v1/checkouts", {"template": "single"})
    waited = server.call("POST", "/v1/checkouts", {"template": "single", "wait_ms": 300})
    test.check(waited.code == "checkout_timeout", "a full pool lets a caller wait in vain", f"it got {waited}")
    test.check("max_overflow 1" in waited.detail, "the refusal names max_overflow", f"it says {waited.detail!r}")


def launcher_killed(test, server):
    lease = server.call("POST", "/v1/checkouts", {"template": "small", "wait_ms": 5000}).json
    sandbox = lease["sandbox"]["id"]
    threads = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
    found = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
    test.check(bool(found), f"the server has children: {found}")
    for pid in found:
        os.kill(pid, signal.SIGKILL)

    def ended():
        why = server.call("GET", f"/v1/sandboxes/{sandbox}/why").json
        return why.get("status") == "ended" and why

    why = wait_until(20, ended)
    words = json.dumps(why)
    test.check("killed by signal 9" in words, "why says that a signal killed the launcher", f"why says {words}")
    refused = server.call("POST", f"/v1/sandboxes/{sandbox}/exec", {"argv": ["true"]})
    test.check(refused.code == "sandbox_gone", "an exec is refused", f"an exec got {refused}")
    test.check("crash (crash)" not in refused.detail and "signal 9" in refused.detail, "the refusal says the same", f"it says {refused.detail!r}")
    logged = [line for line in server.log().splitlines() if "launcher died" in line]
    test.check(len(logged) == 1 and "signal=9" in logged[0], "the log says it once", f"the log says {logged}")


def other_server(test, server):
    stopped = Server(test, "stopped", CONFIG).start()
    stopped.stop()
    test.check(server.health().ok, "another server listens")
    said = stopped.cli("ps", "--data-dir", stopped.data)
    test.check(said.returncode == 3, "a command for a stopped server is refused", f"exit {said.returncode}: {said.stdout!r} {said.stderr!r}")
    test.check(str(stopped.data) in said.stderr, "and names the directory", f"it says {said.stderr!r}")


def body(test):
    server = Server(test, "explained", CONFIG).start()
    evicted(test, server)
    for session in server.call("GET", "/v1/sessions").json["sessions"]:
        server.call("DELETE", f"/v1/sessions/{session['id']}")
    in_vain(test, server)
    launcher_killed(test, server)
    other_server(test, server)
    test.check(server.stop() == 0, "the server stopped in order", f"it did not stop in order: {server.log()[-600:]}")


if __name__ == "__main__":
    Test(__doc__, deadline_s=120).run(body)
