"""A process that its caller polls goes on to its end; one that is only observed may be frozen.

    polling.py --shoal PATH [--seed S]

processes.md: while a process runs, each read of its state, its log or the list of processes counts as a use. So jobs
that take longer than the time after which an idle sandbox is frozen are polled by state, by log, by list, in the
dialect of Blaxel and by a tool of MCP, often and seldom: each must end by itself. The same job is left alone, and
looked at with `observe`: it stands still, as the guide says, until the first read that counts.
"""

import json
import threading
import time
import urllib.request

from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 20
[[templates]]
name = "usual"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
max_overflow = 4
[[templates]]
name = "tired"
freeze_after_ms = 1500
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
max_overflow = 16
"""
# Longer than the sandbox of a template without a setting runs when it is idle (10 s), or than one that is soon tired.
LONG_S, SHORT_S = 14, 5
PATIENCE_S = 60


def counting(seconds):
    return f"n=0; while [ $n -lt {seconds * 5} ]; do sleep 0.2; n=$((n+1)); echo $n; done; echo finished"


def started(server, template, seconds):
    lease = server.call("POST", "/v1/checkouts", {"template": template, "wait_ms": 20000, "ttl_s": 300})
    sandbox = lease.json["sandbox"]["id"]
    made = server.call("POST", f"/v1/sandboxes/{sandbox}/processes", {"command": counting(seconds), "name": "job"})
    assert made.status == 201, str(made)
    return sandbox


def by_state(server, sandbox):
    return server.call("GET", f"/v1/sandboxes/{sandbox}/processes/job").json["status"] != "running"


def by_log(server, sandbox):
    return "finished" in json.dumps(server.call("GET", f"/v1/sandboxes/{sandbox}/processes/job/logs").json["pieces"])


def by_list(server, sandbox):
    listed = server.call("GET", f"/v1/sandboxes/{sandbox}/processes").json["processes"]
    return listed[0]["status"] != "running"


def by_tool(server, sandbox):
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "processGet", "arguments": {"identifier": "job"}}}
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": f"Bearer {server.key}"}
    wanted = urllib.request.Request(f"http://127.0.0.1:{server.port}/v1/sandboxes/{sandbox}/mcp", json.dumps(call).encode(), headers)
    with urllib.request.urlopen(wanted, timeout=30) as answer:
        return json.load(answer)["result"]["structuredContent"]["status"] != "running"


def polled(test, server, what, poll, template, seconds, pause_s):
    sandbox = started(server, template, seconds)
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE_S:
        time.sleep(pause_s)
        if poll(server, sandbox):
            break
    took = time.monotonic() - began
    end = server.call("GET", f"/v1/sandboxes/{sandbox}/processes/job").json
    words = f"a job of {seconds} s, polled {what} every {pause_s} s"
    test.check(end["status"] == "completed", f"{words}, ended after {took:.0f} s", f"{words}, is {end['status']} after {took:.0f} s")


def observed(test, server):
    sandbox = started(server, "tired", SHORT_S)
    frozen = lambda: server.call("GET", f"/v1/sandboxes/{sandbox}/status").json.get("frozen")
    test.check(wait_until(15, frozen), "a job that no caller polls stands still with its sandbox")
    for path in ("processes/job", "processes", "processes/job/logs"):
        server.call("GET", f"/v1/sandboxes/{sandbox}/{path}?observe=true")
    server.cli("process", "ls", sandbox, "--observe")
    server.cli("why", sandbox)
    time.sleep(1)
    test.check(frozen(), "looking at it with `observe` does not thaw it", "`observe` thawed it")
    ended = lambda: by_state(server, sandbox)
    test.check(wait_until(PATIENCE_S, ended, 1), "the first poll thaws it, and it goes on to its end", "it stands still although it is polled")
    # On request it stays frozen.
    sandbox = started(server, "tired", SHORT_S)
    test.check(server.call("POST", f"/v1/sandboxes/{sandbox}/freeze").ok, "a caller freezes a sandbox with a job")
    for _ in range(10):
        by_state(server, sandbox)
        time.sleep(0.1)
    test.check(frozen(), "polls do not thaw what was frozen on request", "a poll thawed what was frozen on request")


def body(test):
    server = Server(test, "polled", CONFIG).start()
    plans = [
        ("by its state", by_state, "usual", LONG_S, 2),
        ("by its state", by_state, "tired", SHORT_S, 0.5),
        ("by its log", by_log, "tired", SHORT_S, 0.5),
        ("by the list", by_list, "tired", SHORT_S, 0.5),
        ("by a tool of MCP", by_tool, "tired", SHORT_S, 0.5),
        ("by its state", by_state, "tired", SHORT_S, 4),
    ]
    threads = [threading.Thread(target=polled, args=(test, server, *plan), daemon=True) for plan in plans]
    for thread in threads:
        thread.start()
    observed(test, server)
    for thread in threads:
        thread.join(PATIENCE_S + 30)
    test.check(not any(thread.is_alive() for thread in threads), "every poll was answered")
    test.check(server.stop() == 0, "the server stopped in order", f"it did not stop in order: {server.log()[-600:]}")


if __name__ == "__main__":
    Test(__doc__, deadline_s=150).run(body)
