"""A session ends or pauses at its deadline: not before, not only while the server runs, and with its files if it ends.

    deadlines.py --shoal PATH [--seed S]

sessions.md, "Deadline": at a time or after a time without use, the server ends or pauses a session by itself. So
sessions get deadlines over HTTP, with the command line and through Blaxel's API; some of them are in use at that
moment, some are cold, for some the server is killed with -9 before and started again after it, and some come back
from a backup.
"""

import json
import secrets
import time

from outside import Server, Test, run, search_disk, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
idle_timeout_ms = 3000
sweep_interval_ms = 500
freeze_after_ms = 1000
[[templates]]
name = "small"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 1
"""
# How late an answer may be on a slow machine.
LATE_S = 15


def create(test, server, deadline, what):
    made = server.call("POST", "/v1/sessions", {"template": "small", "deadline": deadline})
    test.check(made.status == 201, f"{what}: created", f"{what}: {made}")
    shown = made.json.get("deadline") or {}
    same = shown.get("action") == deadline["action"] and shown.get("idle_s") == deadline.get("idle_s")
    test.check(same, f"{what}: the answer shows the deadline", f"{what}: it shows {shown}")
    return made.json["id"]


def write(server, session, text):
    return server.call("POST", f"/v1/sessions/{session}/exec", {"command": f"echo {text} > note"}).ok


def status(server, session):
    answer = server.call("GET", f"/v1/sessions/{session}")
    return answer.json["status"] if answer.status == 200 else f"{answer.status} {answer.code}"


def is_gone(server, session):
    return status(server, session) in ("404 session_unknown", "410 session_ended")


def gone_in_time(test, server, session, due, what):
    """It is there until its time, and gone soon after."""
    early = is_gone(server, session) and time.time() < due - 0.5
    test.check(not early, f"{what}: it is there before its time", f"{what}: it is gone {due - time.time():.1f} s early")
    gone = wait_until(max(0, due - time.time()) + LATE_S, lambda: is_gone(server, session))
    at = time.time() - due
    test.check(gone and at > -0.5, f"{what}: gone at its time", f"{what}: gone {gone}, {at:.1f} s after its time")


def ends_in_use(test, server):
    mark = secrets.token_hex(12)
    due = time.time() + 6
    session = create(test, server, {"after_s": 6, "action": "end"}, "in use")
    test.check(write(server, session, mark), "a file was written", "no file was written")
    found = wait_until(5, lambda: search_disk(server.data, mark.encode()))
    turn = server.call("POST", f"/v1/sessions/{session}/turns", {"input": "sleep 60"},
                       accept="text/event-stream", patience_s=40)
    took = time.time() - due
    text = turn.body.decode(errors="replace")
    test.check(took < LATE_S, "the turn ended with its session", f"the turn ended {took:.1f} s after the deadline")
    test.check('"expired"' in text and "reached its deadline" in text, "the turn says why it ended", f"the turn says {text[-400:]}")
    test.check('"expired"' in text, "and that its sandbox expired", f"the turn does not say why: {text[-400:]}")
    gone_in_time(test, server, session, due, "in use")
    if found:
        left = wait_until(LATE_S, lambda: not search_disk(server.data, mark.encode()))
        test.check(left, "its files are gone from the disk", "its files outlive it")
    late = server.call("POST", f"/v1/sessions/{session}/exec", {"command": "true"})
    test.check("deadline" in late.detail, "a later call says why", f"a later call says {late}")
    shown = server.call("GET", f"/v1/sessions/{session}")
    test.check(shown.status == 410 and "deadline" in shown.detail, "so does a read", f"a read says {shown}")
    why = server.cli("why", session)
    test.check(why.returncode == 0 and "deadline" in why.stdout, "shoal why explains it", f"shoal why says {why}")
    events = server.call("GET", f"/v1/sessions/{session}/events", accept="application/json").json["events"]
    changes = [event["change"] for event in events if event["type"] == "session_changed"]
    test.check(changes == ["created", "ended"], "its history has no pause", f"its history is {changes}")


def pauses_when_idle(test, server):
    session = create(test, server, {"idle_s": 2, "action": "pause"}, "idle")
    for round_ in range(2):
        mark = secrets.token_hex(8)
        test.check(write(server, session, mark), "a file was written", "no file was written")
        paused = wait_until(LATE_S, lambda: status(server, session) == "paused")
        test.check(paused, f"paused ({round_})", f"it is {status(server, session)} ({round_})")
        cold = server.call("GET", f"/v1/sessions/{session}").json["sandbox_id"]
        test.check(cold is None, "it has no sandbox then", f"it still has {cold}")
        back = server.call("POST", f"/v1/sessions/{session}/exec", {"command": "cat note"})
        same = back.ok and back.json["stdout"].strip() == mark
        test.check(same, f"its file is there ({round_})", f"its file is not there: {back}")
    server.call("DELETE", f"/v1/sessions/{session}")


def stays_while_used(test, server):
    """Idle time does not count while a process keeps it alive, and a slow client polls it."""
    session = create(test, server, {"idle_s": 3, "action": "end"}, "kept alive")
    sandbox = server.call("GET", f"/v1/sessions/{session}").json["sandbox_id"]
    started = server.call("POST", f"/v1/sandboxes/{sandbox}/processes",
                          {"command": "sleep 8; echo done > /workspace/done", "keep_alive": True})
    test.check(started.status == 201, "a process was started", f"no process: {started}")
    time.sleep(9.5)
    read = server.call("GET", f"/v1/sessions/{session}/files?path=/workspace/done")
    test.check(read.ok, "the process could do its work", f"the session ended under its process: {read}")
    ended = wait_until(3 + LATE_S, lambda: is_gone(server, session))
    test.check(ended, "and then the session ended", f"it is {status(server, session)}")


def survives_restart(test, server):
    mark = secrets.token_hex(12)
    due = time.time() + 8
    soon = create(test, server, {"after_s": 8, "action": "end"}, "restart")
    later = create(test, server, {"after_s": 600, "idle_s": 300, "action": "end"}, "long")
    paused = create(test, server, {"after_s": 8, "action": "pause"}, "restart, pause")
    test.check(write(server, soon, mark) and write(server, later, "kept") and write(server, paused, "kept"),
               "files were written", "no files were written")
    server.kill()
    time.sleep(max(0, due - time.time()) + 1)
    server.start()
    ended = wait_until(LATE_S, lambda: is_gone(server, soon))
    test.check(ended, "a deadline that passed while the server was down is met", f"it is {status(server, soon)}")
    left = wait_until(LATE_S, lambda: not search_disk(server.data, mark.encode()))
    test.check(left, "with its files", "its files outlive it")
    for session, what in ((later, "one whose time has not come"), (paused, "one that only pauses")):
        kept = server.call("POST", f"/v1/sessions/{session}/exec", {"command": "cat note"})
        test.check(kept.ok and kept.json["stdout"] == "kept\n", f"{what} has its files", f"{what}: {kept}")
    shown = server.call("GET", f"/v1/sessions/{later}").json["deadline"]
    test.check(shown["idle_s"] == 300 and shown["at"], "a restart keeps the deadline", f"it is {shown}")


def survives_restore(test, server):
    idle = create(test, server, {"idle_s": 7, "action": "end"}, "idle, restored")
    due = time.time() + 8
    timed = create(test, server, {"after_s": 8, "action": "end"}, "timed, restored")
    test.check(write(server, idle, "kept") and write(server, timed, "gone"), "files were written", "no files were written")
    backup, data = test.work / "deadlines.tar.zst", test.work / "restored"
    saved = server.cli("backup", str(backup))
    test.check(saved.returncode == 0, "a backup was made", f"no backup: {saved}")
    server.stop()
    time.sleep(max(0, due - time.time()) + 1)
    back = run([test.shoal, "restore", backup, "--data-dir", data], env=server.env, patience_s=60)
    test.check(back.returncode == 0, "it was restored", f"it was not restored: {back}")
    other = Server(test, "restored", CONFIG, data=data)
    other.start()
    kept = other.call("POST", f"/v1/sessions/{idle}/exec", {"command": "cat note"})
    test.check(kept.ok and kept.json["stdout"] == "kept\n", "idle time counts from the restore", f"after the restore: {kept}")
    ended = wait_until(LATE_S, lambda: is_gone(other, timed))
    test.check(ended, "a time that passed meanwhile is met", f"it is {status(other, timed)}")
    ended = wait_until(7 + LATE_S, lambda: is_gone(other, idle))
    test.check(ended, "and then the idle one ends", f"it is {status(other, idle)}")
    other.stop()


def changes(test, server):
    made = server.cli("session", "create", "-T", "small", "--deadline-in", "5s", "--deadline-action", "end")
    session = made.stdout.strip()
    due = time.time() + 5
    removed = server.cli("session", "deadline", session, "--remove")
    test.check(removed.returncode == 0 and "none" in removed.stdout, "removed with the command line", f"{removed}")
    time.sleep(max(0, due - time.time()) + 1)
    test.check(status(server, session) in ("active", "paused"), "without a deadline it stays",
               f"it is {status(server, session)}")
    for bad in ({"at": "2001-01-01T00:00:00Z", "action": "end"}, {"action": "end"}, {"idle_s": 0, "action": "end"},
                {"idle_s": 5}, {"after_s": 5, "action": "explode"}, {"after_s": 5, "idle": 5, "action": "end"}):
        answer = server.call("PATCH", f"/v1/sessions/{session}", {"deadline": bad})
        test.check(answer.status in (400, 422), f"{json.dumps(bad)} is refused", f"{bad} is accepted: {answer}")
    due = time.time() + 4
    set_ = server.cli("session", "deadline", session, "--in", "4s", "--action", "end")
    test.check(set_.returncode == 0 and "ends at" in set_.stdout, "set with the command line", f"{set_}")
    gone_in_time(test, server, session, due, "changed")
    metrics = server.call("GET", "/metrics").body.decode()
    lines = [line for line in metrics.splitlines() if line.startswith('shoal_session_deadlines_total{action="end"}')]
    counted = lines and int(lines[0].split()[-1]) >= 1
    test.check(counted, "the metrics count it", f"the metrics say {lines}")


def blaxel(test, server):
    base = "/compat/blaxel/sandboxes"
    def make(name, spec):
        return server.call("POST", base, {"metadata": {"name": name}, "spec": {**spec, "runtime": {
            "image": "small", **spec.get("runtime", {})}}})
    made = make("short", {"runtime": {"ttl": "6s"}})
    due = time.time() + 6
    if made.status == 404:
        test.lie(f"there is no {base}: {made}")
        return
    left = made.json.get("expiresIn")
    test.check(made.ok and left is not None and 0 < left <= 6, "ttl: expiresIn counts down", f"ttl: {made}")
    idle = make("idle", {"lifecycle": {"expirationPolicies": [
        {"type": "ttl-idle", "value": "4s", "action": "delete"}]}})
    test.check(idle.ok, "a policy is accepted", f"a policy: {idle}")
    dated = make("dated", {"runtime": {"expires": "2001-01-01T00:00:00Z"}})
    test.check(dated.status == 400, "a date that has passed is refused", f"a past date: {dated}")
    vague = make("vague", {"runtime": {"ttl": "soon"}})
    test.check(vague.status == 400, "a ttl that is no time is refused", f"a vague ttl: {vague}")
    cleared = make("cleared", {"runtime": {"ttl": "5s"}})
    body = cleared.json
    body["spec"]["runtime"]["ttl"] = None
    put = server.call("PUT", f"{base}/cleared", body)
    test.check(put.ok and "expiresIn" not in put.json, "a cleared ttl is gone", f"a cleared ttl: {put}")
    ends = lambda name: server.call("GET", f"{base}/{name}").json.get("status") == "TERMINATED"
    test.check(not (ends("short") and time.time() < due - 0.5), "ttl: there before its time", "ttl: early")
    test.check(wait_until(LATE_S, lambda: ends("short")), "ttl: deleted at its time", "ttl: it is still there")
    test.check(wait_until(LATE_S, lambda: ends("idle")), "ttl-idle: deleted", "ttl-idle: it is still there")
    time.sleep(max(0, due - time.time()) + 1)
    test.check(not ends("cleared"), "a cleared ttl does nothing", "a cleared ttl deleted the sandbox")


def body(test):
    server = Server(test, "deadlines", CONFIG)
    server.start()
    ends_in_use(test, server)
    pauses_when_idle(test, server)
    stays_while_used(test, server)
    changes(test, server)
    blaxel(test, server)
    survives_restart(test, server)
    survives_restore(test, server)


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
