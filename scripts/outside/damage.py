"""Damage to the store: a server refuses to start rather than forget, and changes nothing.

    damage.py --shoal PATH

One data directory is made, with sessions on disk and in archives, and its server is killed. Each case damages
a copy of it. Damage in the middle of the log, a log that is missing after a crash, an empty database and
garbled ids are refused with a remedy, and every file stays as it was; with the damage undone the server starts
and every session has its files. A torn end of the log is what a power cut leaves: it starts, and reports it.
An older database beside newer workspaces removes none of them.
"""

import hashlib
import os
import shutil
import sqlite3
import time

from ledger import Books
from outside import DidNotStart, Server, Test, search_disk, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 30
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
[[templates]]
name = "memory"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "memory"
"""
SESSIONS = 12
WAL_HEAD, FRAME_HEAD = 32, 24
LOG_WORDS = ["wal", "write-ahead"]
# More than this in the log and nothing in the main file is far behind.
LOG_BEHIND_MAX = 2 << 20


def make_data(test):
    """A data directory after a crash, the copy of the database of an earlier moment, and the books."""
    server = Server(test, "original", CONFIG).start()
    books = Books(test)
    sessions, early = [], None
    for number in range(SESSIONS):
        session, answer = books.create(server, "disk" if number % 3 else "memory")
        if session is None:
            raise RuntimeError(f"no session: {answer}")
        sessions.append(session)
        books.write(session, session.file("own"), "put")
        for _ in range(3):
            session.call("turn", "POST", "/turns", {"input": "true"}, accept="application/json")
        if number % 3 == 0:
            # In memory: saved as an archive, so that a crash takes nothing.
            session.call("stop", "POST", "/stop")
        if number == SESSIONS // 2:
            early = test.work / "early.db"
            test.check(
                backed_up(server.data / "shoal.db", early), "a copy of the database was made half-way"
            )
    server.kill()
    # A log that was just brought into the main file has nothing to damage: a little more, and another crash.
    for _ in range(5):
        if live_frames(server.data / "shoal.db-wal") >= 8:
            break
        server.start()
        for session in sessions[1:3]:
            session.call("turn", "POST", "/turns", {"input": "true"}, accept="application/json")
        server.kill()
    sizes = {path.name: path.stat().st_size for path in server.data.glob("shoal.db*")}
    test.saw(f"after the crash: {sizes}")
    return server.data, books, sessions, early


def backed_up(source, target):
    with sqlite3.connect(f"file:{source}?mode=ro", uri=True) as old, sqlite3.connect(target) as new:
        old.backup(new)
    return target.stat().st_size > 0


def prints(directory, but=()):
    """A digest of every file, by path; and what a start may always touch is left out."""
    found = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            relative = os.path.relpath(path, directory)
            if relative in but or not os.path.isfile(path) or os.path.islink(path):
                continue
            with open(path, "rb") as file:
                found[relative] = hashlib.sha256(file.read()).hexdigest()
    return found


# What says where a server runs and who holds the lock is no data; nor is SQLite's index of its log.
PASSING = ("address", "lock", "shoal.lock", "server.lock", ".lock", "shoal.db-shm", "pid")


class Case:
    """A copy of the data directory, damaged."""

    def __init__(self, test, name, original, damage):
        self.test, self.name = test, name
        self.data = test.work / f"case-{name.replace(' ', '-')}"
        shutil.copytree(original, self.data, symlinks=True)
        damage(self.data)
        self.before, self.started = prints(self.data, PASSING), False
        self.server = Server(test, f"case-{name.replace(' ', '-')}", CONFIG, data=self.data)

    def refused(self, words, wrong, may_change):
        """It does not start, says what to do and not something else, and has changed nothing."""
        try:
            self.server.start(20)
        except DidNotStart as refusal:
            text = refusal.log.replace(str(self.data), "DATA")
            code = refusal.exit_code
            good = isinstance(code, int) and code not in (0, 101) and code > 0
            self.test.check(good, f"{self.name}: refused to start, exit code {code}", f"{self.name}: exit code {code}: {text[-300:]}")
            low = text.lower()
            missing = [] if any(word in low for word in words) else words
            said = " ".join(text.split())[-420:]
            self.test.check(not missing, f"{self.name}: it said: {said}", f"{self.name}: nothing about any of {missing} in: {said}")
            misleading = [word for word in wrong if word in low]
            if misleading:
                self.test.lie(f"{self.name}: the remedy is the wrong one: {said}")
        else:
            health = self.server.health().json
            sessions = self.server.call("GET", "/v1/sessions?limit=100").json
            count = len(sessions.get("sessions", [])) if sessions else None
            self.test.lie(f"{self.name}: it started, health {health['status']}, {count} of {SESSIONS} sessions")
            self.server.stop()
            self.started = True
        changed = self.changed(may_change)
        self.test.check(not changed, f"{self.name}: nothing was changed", f"{self.name}: {len(changed)} files were changed: {changed[:6]}")

    def whole(self, books, sessions):
        """Whether it starts with everything that was there: then nothing was missing."""
        try:
            self.server.start(20)
        except DidNotStart:
            return False
        listed = self.server.call("GET", "/v1/sessions?limit=100").json["sessions"]
        whole = len(listed) == len(sessions) and "admin.key" not in self.changed()
        if whole:
            self.test.saw(f"{self.name}: it started, since the main file had everything")
            self.all_there(books, sessions, self.name)
        self.server.stop()
        return whole

    def changed(self, may_change=()):
        after = prints(self.data, PASSING)
        every = self.before.keys() | after.keys()
        return sorted(path for path in every if self.before.get(path) != after.get(path) and path not in may_change)

    def mended(self, original, names, books, sessions):
        """With the damage undone every session has its files. After a start there is nothing left to mend."""
        if self.started:
            return
        for name in names:
            if (original / name).exists():
                shutil.copy2(original / name, self.data / name)
        try:
            self.server.start()
        except DidNotStart as error:
            self.test.lie(f"{self.name}: mended, and still it does not start: {error}")
            return
        self.all_there(books, sessions, f"{self.name}, mended")
        self.server.stop()

    def all_there(self, books, sessions, what):
        books.counts.clear()
        until = time.monotonic() + 20
        for session in sessions:
            session.server, session.key = self.server, self.server.key
            if self.server.call("GET", f"/v1/sessions/{session.id}").json.get("status") == "stopped":
                session.call("resume", "POST", "/resume")
            wait_until(until - time.monotonic(), lambda session=session: books.read(session, session.file("own")), 0.2)
        kept = books.counts["reads as acknowledged"]
        self.test.check(kept == len(sessions), f"{what}: {kept} of {len(sessions)} sessions have their files")


def frames(wal):
    """Size of a page, and how many frames of the log count: those after the last restart of the log."""
    data = wal.read_bytes() if wal.exists() else b""
    if len(data) <= WAL_HEAD:
        return 4096, 0
    page, salts = int.from_bytes(data[8:12], "big"), data[16:24]
    count = 0
    while data[WAL_HEAD + count * (page + FRAME_HEAD) + 8 :][:8] == salts:
        count += 1
    return page, count


def live_frames(wal):
    return frames(wal)[1]


def garble(path, at, length=64):
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(length)
        file.seek(at)
        file.write(bytes(byte ^ 0x5A for byte in old))


def damage_middle(data):
    wal = data / "shoal.db-wal"
    page, count = frames(wal)
    garble(wal, WAL_HEAD + (count // 2) * (page + FRAME_HEAD) + FRAME_HEAD + page // 2)


def remove_log(data):
    (data / "shoal.db-wal").unlink(missing_ok=True)
    (data / "shoal.db-shm").unlink(missing_ok=True)


def empty_database(data):
    remove_log(data)
    (data / "shoal.db").write_bytes(b"")


def missing_database(data):
    remove_log(data)
    (data / "shoal.db").unlink()


def empty_database_keep_log(data):
    (data / "shoal.db").write_bytes(b"")


def tear_end(data):
    """Half of the last frame, as a power cut leaves it."""
    wal = data / "shoal.db-wal"
    page, count = frames(wal)
    with open(wal, "r+b") as file:
        file.truncate(WAL_HEAD + count * (page + FRAME_HEAD) - page // 2)


def garbled(name):
    return lambda data: (data / name).write_bytes(b"\x00\xffnot an id\n")


def body(test):
    original, books, sessions, early = make_data(test)
    wal = original / "shoal.db-wal"
    main = (original / "shoal.db").stat().st_size
    count = live_frames(wal)
    behind = count * (frames(wal)[0] + FRAME_HEAD)
    text = f"the main file has {main >> 10} KiB, what counts of the log {behind >> 10} KiB"
    test.check(main > 4096 or behind < LOG_BEHIND_MAX, text, f"the main file was never brought up to date: {text}")

    refused = [
        ("missing log", remove_log, LOG_WORDS, ["shoal.db-wal"]),
        ("empty database", empty_database, ["shoal.db"], ["shoal.db", "shoal.db-wal"]),
        ("empty database with its log", empty_database_keep_log, ["shoal.db"], ["shoal.db"]),
        ("missing database", missing_database, ["shoal.db"], ["shoal.db", "shoal.db-wal"]),
        ("garbled store.id", garbled("store.id"), ["store.id"], ["store.id"]),
        ("garbled node.id", garbled("node.id"), ["node.id"], ["node.id"]),
    ]
    if count >= 3:
        refused.insert(0, ("log damaged in the middle", damage_middle, LOG_WORDS, ["shoal.db-wal"]))
    else:
        test.saw("the log is too short to be damaged in the middle")
    for name, damage, words, undo in refused:
        if name.startswith("garbled") and not (original / name.split()[1]).exists():
            test.saw(f"{name}: there is no such file")
            continue
        case = Case(test, name, original, damage)
        # Nothing is wrong with the database beside a garbled id: it may be opened and closed.
        may_change = ("shoal.db", "shoal.db-wal") if name.startswith("garbled") else ()
        if name == "missing log" and case.whole(books, sessions):
            continue
        case.refused(words, ["permission"], may_change)
        case.mended(original, undo, books, sessions)
        shutil.rmtree(case.data, ignore_errors=True)

    torn_end(test, original, books, sessions, count)
    older_database(test, original, books, sessions, early)
    orderly(test, original, books, sessions)


def torn_end(test, original, books, sessions, count):
    if count < 2:
        test.saw("the log is too short to be torn")
        return
    case = Case(test, "torn end", original, tear_end)
    try:
        case.server.start()
    except DidNotStart as error:
        test.lie(f"torn end: what a power cut leaves is refused: {error}")
        return
    health = case.server.health().json
    warnings = [line.replace(str(case.data), "DATA") for line in case.server.log().splitlines() if " WARN " in line]
    said = [line for line in warnings if any(word in line.lower() for word in ("wal", "torn", "tail", "journal", "power"))]
    reported = (said + health["reasons"])[:1]
    test.check(reported, f"torn end: it started and reported: {reported}", "torn end: it started and reported nothing")
    left = search_disk(case.data, books.pattern())
    test.check(len(left) >= len(sessions), "torn end: no file is gone", f"torn end: only {len(left)} files of sessions are left on the disk")
    case.server.stop()


def older_database(test, original, books, sessions, early):
    """Point 6: the database of an earlier moment beside workspaces that it does not know."""

    def damage(data):
        remove_log(data)
        shutil.copy2(early, data / "shoal.db")

    case = Case(test, "older database", original, damage)
    before = search_disk(case.data, books.pattern())
    marks = set().union(*before.values())
    try:
        case.server.start()
    except DidNotStart as refusal:
        test.saw(f"older database: refused: {' '.join(refusal.log.split())[-300:]}")
    else:
        said = [line for line in case.server.log().splitlines() if "lost+found" in line]
        test.check(said, f"older database: it said: {said[:1]}", "older database: it started, and no line names lost+found")
        case.server.stop()
    after = search_disk(case.data, books.pattern())
    left = set().union(*after.values()) if after else set()
    kept = len(marks & left)
    test.check(marks <= left, f"older database: files of {kept} sessions are there, as before", f"older database: files of {len(marks) - kept} of {len(marks)} sessions were deleted")


def orderly(test, original, books, sessions):
    """After an orderly stop no log is missing: it starts."""
    case = Case(test, "orderly stop", original, lambda data: None)
    case.server.start()
    test.check(case.server.stop() == 0, "orderly stop: exit code 0")
    remove_log(case.data)
    try:
        case.server.start()
    except DidNotStart as error:
        test.lie(f"orderly stop: without a log it does not start: {error}")
        return
    case.all_there(books, sessions, "orderly stop, then without a log")
    case.server.stop()


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
