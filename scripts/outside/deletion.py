"""Deleted means gone: from the disk within seconds, and for forks at once.

    deletion.py --shoal PATH

Sessions in memory and on disk, deleted in every state, in `/v1` and in the dialects of Ash and Blaxel; the
whole data directory is searched for what their files held, archives included. Then the server is killed right
after the answer to DELETE, and started again: what was deleted is gone, and is not there for forks.
"""

import time
import uuid

from dialects import ASH_TEMPLATE, Ash, Blaxel
from ledger import Books
from outside import Server, Test, search_disk, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 40
archive_after_ms = {archive_after_ms}
[[templates]]
name = "memory"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "memory"
[[templates]]
name = "disk"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "disk"
limit = "soft"
"""
GONE_WITHIN_S = 10
STATES = ("active", "paused", "stopped", "in a turn", "seeded")


def must(answer, what):
    if not answer.ok:
        raise RuntimeError(f"{what}: {answer}")
    return answer


def bring_to(books, session, state):
    if state == "paused":
        must(session.call("pause", "POST", "/pause"), "pause")
    if state == "stopped":
        must(session.call("stop", "POST", "/stop"), "stop")
    if state == "in a turn":
        # The client goes away; the turn goes on.
        session.call("turn", "POST", "/turns", {"input": "sleep 60"}, patience_s=0.5)


def make(books, server, template, state):
    more = {}
    if state == "seeded":
        more["files"] = [{"path": "seed.txt", "content": f"{books.mark}-seed{uuid.uuid4().hex[:6]}\n"}]
    session, answer = books.create(server, template, **more)
    if session is None:
        raise RuntimeError(f"no session: {answer}")
    for how in ("put", "exec"):
        if not books.write(session, session.file(how), how):
            raise RuntimeError(f"a file cannot be written\n{session.account()}")
    bring_to(books, session, state)
    return session


def check_gone(test, server, sessions, pattern, what):
    """Nothing on the disk, nothing to fork, nothing in the counts."""
    # Once it is known that files stay, nothing is learned by waiting as long again.
    patience_s = 2 if test.lies else GONE_WITHIN_S
    if wait_until(patience_s, lambda: not search_disk(server.data, pattern), 0.3):
        test.saw(f"{what}: nothing of their files is in the data directory")
    else:
        found = search_disk(server.data, pattern)
        kinds = sorted({path.split("/")[0] for path in found})
        some = sorted(found)[:3]
        test.lie(f"{what}: {len(found)} files of deleted sessions are on the disk after {patience_s} s, in {kinds}: {some}")
    forked = []
    for session in sessions:
        identity = getattr(session, "id", session)
        answer = server.call("POST", f"/v1/sessions/{identity}/fork")
        if answer.ok:
            forked.append(answer.json["id"])
    test.check(not forked, f"{what}: none can be forked", f"{what}: {len(forked)} of {len(sessions)} deleted sessions were forked")
    for number, fork in enumerate(forked):
        if number == 0:
            got = server.call("GET", f"/v1/sessions/{fork}/files/list?path=/workspace")
            names = [entry["name"] for entry in got.json["entries"]] if got.ok else got.code
            test.saw(f"{what}: a fork of a deleted session has {names}")
        server.call("DELETE", f"/v1/sessions/{fork}")
    cold = wait_until(5, lambda: server.call("GET", "/v1/stats").json["pool"]["cold"] == 0, 0.2)
    test.check(cold, f"{what}: no cold entry is counted", f"{what}: {server.call('GET', '/v1/stats').json['pool']['cold']} cold entries")


def in_v1(test, server, template):
    books = Books(test)
    sessions = [make(books, server, template, state) for state in STATES]
    parent, _ = books.create(server, template)
    books.write(parent, parent.file("own"), "put")
    fork = books.fork(parent)
    on_disk = search_disk(server.data, books.pattern())
    test.saw(f"{template}: before, {len(on_disk)} files on the disk have their contents")
    for session in sessions:
        answer = session.call("delete", "DELETE", "")
        test.check(answer.ok, f"{template}: DELETE answered {answer.status}", f"{template}: DELETE: {answer}")
    # A fork has files of its own: those of its parent go, its own stay.
    if fork:
        must(parent.call("delete", "DELETE", ""), "delete")
        books.read(fork, fork.file("own"))
        test.check(not books.counts["SILENT LOSSES"], f"{template}: a fork keeps its files when its parent is deleted")
        must(fork.call("delete", "DELETE", ""), "delete")
    check_gone(test, server, sessions + [parent], books.pattern(), template)
    for session in sessions:
        for path in ("/exec", "/turns"):
            body = {"command": "true"} if path == "/exec" else {"input": "true"}
            answer = session.call("use", "POST", path, body, accept="application/json")
            if answer.ok:
                test.lie(f"{template}: a deleted session still works: {path} {answer}")


def archived(test, template):
    """Files that wait as an archive."""
    server = Server(test, f"archives-{template}", CONFIG.format(archive_after_ms=500)).start()
    books = Books(test)
    session = make(books, server, template, "stopped")
    there = wait_until(10, lambda: [path for path in search_disk(server.data, books.pattern()) if "archive" in path], 0.3)
    test.check(there, f"{template}: archived as {there}", f"{template}: nothing was archived, so nothing is tried")
    must(session.call("delete", "DELETE", ""), "delete")
    check_gone(test, server, [session], books.pattern(), f"{template}, archived")
    server.stop()


def killed_between(test, server, template):
    """DELETE was answered; then `kill -9`, at different moments."""
    books = Books(test)
    gone = []
    for pause_s in (0, 0, 0.002, 0.02):
        sessions = [make(books, server, template, state) for state in ("active", "stopped")]
        for session in sessions:
            must(session.call("delete", "DELETE", ""), "delete")
        time.sleep(pause_s)
        server.kill()
        server.start()
        gone += sessions
    check_gone(test, server, gone, books.pattern(), f"{template}, kill -9 after DELETE")
    # And after an orderly restart.
    server.stop()
    server.start()
    check_gone(test, server, gone, books.pattern(), f"{template}, after a restart")


def in_dialects(test):
    for kind in ("memory", "disk"):
        config = CONFIG.format(archive_after_ms=0) + ASH_TEMPLATE.format(kind=kind)
        if kind == "memory":
            config = config.replace('kind = "memory"\nlimit = "soft"', 'kind = "memory"')
        server = Server(test, f"dialects-{kind}", config + '\n[ash]\ntemplate = "ash"\n').start()
        mark = f"OUTSIDE-{uuid.uuid4().hex[:12]}"
        pattern = mark.encode() + rb"-\w+"
        agent = Ash.deploy(server)
        sessions = [Ash(server, agent), Ash(server, agent), Blaxel(server, kind), Blaxel(server, kind)]
        for one in sessions:
            must(one.write("own.txt", f"{mark}-{one.name}\n"), f"{one.name}: a write")
        before = {one["id"] for one in server.call("GET", "/v1/sessions").json["sessions"]}
        # Every second one is asleep.
        for one in sorted(before)[::2]:
            must(server.call("POST", f"/v1/sessions/{one}/pause"), "pause")
        for one in sessions:
            answer = one.delete()
            test.check(answer.ok, f"{one.name}, {kind}: deleted", f"{one.name}, {kind}: DELETE: {answer}")
        ash = sessions[0]
        answer = ash.fork()
        test.check(not answer.ok, f"Ash, {kind}: a deleted session is not forked", f"Ash, {kind}: fork of a deleted session: {answer}")
        check_gone(test, server, before, pattern, f"dialects, {kind}")
        server.kill()
        server.start()
        check_gone(test, server, before, pattern, f"dialects, {kind}, after kill -9")
        test.check(server.stop() == 0, "the server stopped in order")


def body(test):
    server = Server(test, "deletions", CONFIG.format(archive_after_ms=0)).start()
    for template in ("memory", "disk"):
        in_v1(test, server, template)
        killed_between(test, server, template)
    test.check(server.stop() == 0, "the server stopped in order")
    for template in ("memory", "disk"):
        archived(test, template)
    in_dialects(test)


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
