"""A full disk: reads are served, writes are refused with a reason, and it goes on by itself.

    fulldisk.py --shoal PATH

A server with sessions in memory and on disk, on a small disk of its own. The disk is filled while it runs;
it is stopped while the disk is full; it is started while the disk is full. `/health` says `degraded`, nothing
is lost, and everything works again once there is space. The database does not grow past 1 GB unless the
operator chose so.
"""

import re
import time

from ledger import Books
from outside import DidNotStart, Server, SmallDisk, Test, wait_until

GRACE_MS = 3000
FLOOR_MB = 16
CONFIG = f"""
[server]
shutdown_grace_ms = {GRACE_MS}
[node]
max_live = 20
workspace_free_floor_mb = {FLOOR_MB}
workspace_scan_interval_ms = 500
[[templates]]
name = "disk"
[templates.limits]
memory_mb = 128
workspace_mb = 8
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "disk"
limit = "soft"
[[templates]]
name = "memory"
[templates.limits]
memory_mb = 128
workspace_mb = 8
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "memory"
"""
# Beyond the grace: what an end costs besides waiting for what runs.
MARGIN_S = 12
DATABASE_MAX_MB = 1024


def degraded(server):
    answer = server.health()
    return answer.json if answer.ok and answer.json["status"] == "degraded" else None


def make_sessions(test, server):
    books = Books(test)
    sessions = []
    for template in ("disk", "memory") * 3:
        session, answer = books.create(server, template)
        if session is None:
            raise RuntimeError(f"no session: {answer}")
        books.write(session, session.file("own"), "put")
        sessions.append(session)
    # In memory: saved, so that nothing of the disk is needed to have it.
    for session in sessions[1::2]:
        if not session.call("stop", "POST", "/stop").ok or not session.call("resume", "POST", "/resume").ok:
            raise RuntimeError(f"stop and resume\n{session.account()}")
    return books, sessions


def refused_for_now(test, answer, what):
    """A refusal with 503, a cause and a remedy, that may be tried again."""
    problem = answer.json if isinstance(answer.json, dict) else {}
    good = answer.status == 503 and problem.get("remedy") and problem.get("retryable")
    test.check(good, f"{what}: refused with 503 {answer.code}", f"{what}: {answer}")


def at_the_floor(test, disk, server, books, sessions):
    """Less is free than the floor, and the journal can be written: writes and launches wait, reads do not."""
    disk.fill(leave_mb=FLOOR_MB // 2)
    shown = wait_until(15, lambda: degraded(server), 0.2)
    test.check(shown, f"floor: health is degraded: {shown and shown['reasons']}", f"floor: health stays {server.health()}")
    _, answer = books.create(server, "disk")
    refused_for_now(test, answer, "floor: a launch on disk")
    test.check(answer.code == "disk_full", "floor: its code is disk_full", f"floor: a launch: {answer}")
    written = sessions[0].call("put", "PUT", "/files?path=/workspace/more", b"x" * 1000)
    refused_for_now(test, written, "floor: a write on disk")
    before = books.counts["reads as acknowledged"]
    for one in sessions[0::2]:
        books.read(one, one.file("own"))
    reads = books.counts["reads as acknowledged"] - before
    failed = [one.history[-1] for one in sessions[0::2]]
    test.check(reads == len(failed), f"floor: {reads} of {len(failed)} files of live sessions were read", f"floor: only {reads} of {len(failed)} files could be read: {failed}")


def not_a_byte(test, disk, server, books, sessions):
    """Nothing fits any more, not even the journal: every request is answered, and nothing is made up."""
    disk.fill()
    shown = wait_until(15, lambda: degraded(server), 0.2)
    test.check(shown, f"full: health is degraded: {shown and shown['reasons']}", f"full: health stays {server.health()}")
    _, answer = books.create(server, "disk")
    refused_for_now(test, answer, "full: a launch on disk")
    written = sessions[0].call("put big", "PUT", "/files?path=/workspace/big", b"x" * (4 << 20))
    refused_for_now(test, written, "full: a write of 4 MiB")
    for one in sessions[0::2]:
        if not books.read(one, one.file("own")):
            test.saw(f"full: a read of a live session: {one.history[-1].strip()}")
            test.check(": 503 " in one.history[-1], "full: which may be tried again", f"full: a read: {one.history[-1]}")
    listed = server.call("GET", "/v1/sessions?limit=100")
    test.check(listed.ok, "full: sessions are listed", f"full: sessions: {listed}")


def recovers(test, server, books, sessions, what):
    """Once there is space: health is ok, and writes work without any intervention."""
    test.check(wait_until(25, lambda: server.health().ok and server.health().json["status"] == "ok", 0.2), f"{what}: health is ok again", f"{what}: health stays {server.health()}")
    for session in sessions:
        file = session.file("own")
        worked = wait_until(20, lambda session=session, file=file: books.write(session, file, "put"), 0.2)
        if not worked:
            test.lie(f"{what}: a session cannot be written for 20 s\n    {session.account()}")
        wait_until(20, lambda session=session, file=file: books.read(session, file), 0.2)
    session, answer = books.create(server, "disk")
    test.check(session, f"{what}: sessions are written, read and made again", f"{what}: no session can be made: {answer}")


def stop_while_full(test, disk, server):
    disk.fill()
    began = time.monotonic()
    code = server.stop(GRACE_MS / 1000 + MARGIN_S)
    took = time.monotonic() - began
    test.check(code is not None, f"SIGTERM on a full disk: over after {took:.1f} s, exit code {code}", f"SIGTERM on a full disk: not over {took:.0f} s later, with a grace of {GRACE_MS} ms")


def start_while_full(test, disk, server, books, sessions):
    # More than once: what the last start left behind may have been what this one needed.
    for again in range(3):
        disk.fill()
        try:
            server.start(20)
        except DidNotStart as error:
            test.lie(f"start {again + 1} on a full disk: {error}")
            server.kill()
            disk.free()
            server.start()
            return
        if again < 2:
            server.kill()
    test.saw("three starts on a full disk: it serves")
    shown = wait_until(10, lambda: degraded(server), 0.2)
    test.check(shown, f"started full: health is degraded: {shown and shown['reasons']}", f"started full: health says {server.health()}")
    listed = server.call("GET", "/v1/sessions?limit=100")
    count = len(listed.json["sessions"]) if listed.ok else 0
    test.check(count >= len(sessions), f"started full: {count} sessions are listed", f"started full: sessions: {listed}")
    turns = server.call("GET", f"/v1/sessions/{sessions[0].id}/turns")
    test.check(turns.ok, "started full: the history is read", f"started full: the history: {turns}")
    written = sessions[0].call("put", "PUT", "/files?path=/workspace/none", b"x" * (1 << 20))
    test.check(not written.unanswered and written.status != 500, f"started full: a write is answered with {written.status} {written.code}", f"started full: a write: {written}")
    disk.free()


def retention(test, server):
    """What the configuration lets the database hold by default."""
    shown = server.cli("config")
    section = shown.stdout.split("[store]", 1)[-1].split("\n[", 1)[0]
    sizes = {name: int(value) for name, value in re.findall(r"^(\w*turns_mb|process_logs_mb|database_mb|\w*_mb)\s*=\s*(\d+)", section, re.M)}
    sizes.pop("process_log_mb", None)
    total = sizes.get("database_mb") or sum(sizes.values())
    test.check(sizes and total <= DATABASE_MAX_MB, f"by default the store keeps at most {total} MB: {sizes}", f"by default the store may keep {total} MB: {sizes}")


def body(test):
    disk = SmallDisk(test, "full", 192)
    server = Server(test, "full", CONFIG, data=disk.data).start()
    retention(test, server)
    books, sessions = make_sessions(test, server)
    at_the_floor(test, disk, server, books, sessions)
    disk.free()
    recovers(test, server, books, sessions, "above the floor again")
    not_a_byte(test, disk, server, books, sessions)
    disk.free()
    recovers(test, server, books, sessions, "space again")
    # On disk, so that nothing has to be saved when it is killed or cannot be.
    on_disk = sessions[0::2]
    stop_while_full(test, disk, server)
    start_while_full(test, disk, server, books, on_disk)
    recovers(test, server, books, on_disk, "started full, space again")
    # In memory: what could not be saved may be lost, and not in silence.
    for session in sessions[1::2]:
        wait_until(20, lambda session=session: books.read(session, session.file("own")), 0.2)
    test.saw(books.summary())
    test.check(server.stop() == 0, "the server stopped in order")


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
