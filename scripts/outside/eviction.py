"""Eviction loses no acknowledged write; a session that rests keeps its files.

    eviction.py --shoal PATH [--seconds N] [--seed S]

Workspaces in memory, three places, six sessions: each writes files by every way there is and reads them back,
while sessions push each other out (workspaces.md: "saved before the sandbox goes"). No server is killed
meanwhile, so a loss is untrue even if it is reported. Then idle sessions: one whose sandbox is frozen was
saved before, so that `kill -9` of the server takes nothing that `session show` calls kept.
"""

import random
import threading
import time

from ledger import Books
from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = {places}
[[templates]]
name = "memory"
{more}
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "memory"
"""
PLACES, SESSIONS = 3, 6
WRITES_MIN, MORE_S = 300, 60


def acknowledged(books):
    return sum(number for what, number in list(books.counts.items()) if what.startswith("writes ack"))


def worker(books, session, seed, until):
    chance = random.Random(seed)
    files = [session.file(f"f{n}") for n in range(3)]
    # A busy machine gets more time, so that there is something to judge.
    while time.monotonic() < until or (acknowledged(books) < WRITES_MIN and time.monotonic() < until + MORE_S):
        file = chance.choice(files)
        books.write(session, file, chance.choice(("put", "put", "exec", "turn", "stream")))
        books.read(session, file, chance.choice(("get", "get", "run", "say")))
        if chance.random() < 0.2:
            books.read(session, chance.choice(files))
        # Pauses of different lengths, so that saves begin, are in progress and have ended.
        time.sleep(chance.choice((0, 0, 0.001, 0.005, 0.02)))


def pressure(test):
    server = Server(test, "evictions", CONFIG.format(places=PLACES, more="")).start()
    books = Books(test)
    sessions = []
    for _ in range(SESSIONS):
        session, answer = books.create(server, "memory")
        if session is None:
            test.lie(f"a session was refused: {answer}")
            return
        sessions.append(session)
    until = time.monotonic() + test.options.seconds
    threads = [
        threading.Thread(target=worker, args=(books, session, test.random.random(), until), daemon=True)
        for session in sessions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(test.options.seconds + MORE_S + 60)
    test.saw(f"{SESSIONS} sessions on {PLACES} places: {books.summary()}")
    test.saw(f"calls: {books.calls_summary()}")
    test.check(acknowledged(books) >= WRITES_MIN, f"{acknowledged(books)} writes were acknowledged", f"only {acknowledged(books)} writes worked")
    test.check(not books.counts["losses reported"], "no loss was reported", "eviction lost files, and reported it")
    broken = [what for what in books.calls if what.split(" ")[1] in ("internal", "persist_failed", "no_connection")]
    test.check(not broken, "no call failed by a mistake of the server", f"calls failed: {broken}")
    stats = server.call("GET", "/v1/stats").json["pool"]
    test.check(stats["resume_cold_hits"] > 0, f"{stats['resume_cold_hits']} cold resumes: sessions were pushed out")
    test.check(server.stop() == 0, "the server stopped in order", f"it did not stop in order: {server.log()[-600:]}")


def idle(test):
    """Point 10 of the promise: frozen means saved."""
    more = "freeze_after_ms = 300"
    server = Server(test, "idle", CONFIG.format(places=8, more=more)).start()
    books = Books(test)
    shown, frozen = {}, []
    sessions = [books.create(server, "memory")[0] for _ in range(4)]
    for session, how in zip(sessions, ("put", "exec", "turn", "stream")):
        test.check(books.write(session, session.file("kept"), how), f"a file was written by {how}")

    def is_frozen(session):
        sandbox = server.call("GET", f"/v1/sessions/{session.id}").json["sandbox_id"]
        return sandbox is None or server.call("GET", f"/v1/sandboxes/{sandbox}/status").json.get("frozen")

    for session in sessions:
        if wait_until(15, lambda session=session: is_frozen(session)):
            frozen.append(session)
            shown[session.id] = server.cli("session", "show", session.id).stdout
    test.check(len(frozen) == len(sessions), f"{len(frozen)} idle sessions were frozen after 0.3 s")
    server.kill()
    server.start()
    for session in frozen:
        file = session.file("kept")
        words = " ".join(line.strip() for line in shown[session.id].splitlines() if "file" in line or "kept" in line)
        test.saw(f"frozen; `session show` said: {words}")
        wait_until(20, lambda session=session, file=file: books.read(session, file), 0.2)
    lost = books.counts["losses reported"] + books.counts["SILENT LOSSES"]
    test.check(not lost, "frozen sessions kept their files", f"{lost} frozen sessions were not saved before they were frozen")
    test.saw(f"after kill -9: {books.summary()}")
    server.stop()


def body(test):
    pressure(test)
    idle(test)


def more(parser):
    parser.add_argument("--seconds", type=float, default=6, help="how long sessions push each other out")


if __name__ == "__main__":
    Test(__doc__, deadline_s=180, more=more).run(body)
