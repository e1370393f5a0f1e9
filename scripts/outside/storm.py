"""A storm: many more sessions than places, crashes, a full disk, and no silent loss.

    storm.py --shoal PATH [--seconds N] [--seed S] [--sessions 200] [--places 20]

Two servers, one with workspaces in memory and one with workspaces on disk, each on a small disk of its own
with half of the sessions and half of the places. Clients write files by every way there is, read them back,
pause, resume, stop, fork, abort and delete, while `kill -9` strikes every few seconds and each disk is full
for a while. Every acknowledged write is read back, or its loss was reported to its reader before; on disk
nothing is lost at all. At the end all sessions are deleted, and within ten seconds nothing of their files is
in the data directories.
"""

import collections
import random
import threading
import time

from ledger import Books
from outside import DidNotStart, Server, SmallDisk, Test, search_disk, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = {places}
max_sandboxes = {entries}
workspace_free_floor_mb = 8
archive_after_ms = 1500
bind_timeout_ms = 15000
control_timeout_ms = 15000
wait_ms = 10000
[[templates]]
name = "{kind}"
freeze_after_ms = 400
idle_timeout_ms = 1200
[templates.limits]
memory_mb = 128
workspace_mb = 8
[templates.pool]
pool_size = 2
max_overflow = {places}
[templates.workspace]
kind = "{kind}"
{limit}
"""
GONE_WITHIN_S = 10
DISK_MB, LONG_DISK_MB = 384, 2048
MADE_WITHIN_S = 40
WAYS = (
    ("put", 24), ("exec", 14), ("turn", 7), ("stream", 6), ("read", 26), ("run", 5), ("say", 4),
    ("pause", 4), ("resume", 3), ("stop", 2), ("fork", 4), ("abort", 3), ("delete", 4),
)


class Sea:
    """One server with its sessions, its clients and its weather."""

    def __init__(self, test, kind, sessions, places):
        self.test, self.kind, self.wanted = test, kind, sessions
        self.disk = SmallDisk(test, f"storm-{kind}", DISK_MB if test.options.seconds < 60 else LONG_DISK_MB)
        limit = 'limit = "soft"' if kind == "disk" else ""
        # Fewer entries than sessions: a limit on their number is part of the storm.
        config = CONFIG.format(places=places, entries=test.options.entries or max(places, sessions // 2), kind=kind, limit=limit)
        self.server = Server(test, f"storm-{kind}", config, data=self.disk.data)
        self.books = Books(test)
        self.sessions, self.deleted, self.lock = [], [], threading.Lock()
        self.over = threading.Event()
        self.full_from = self.full_until = None
        self.broken, self.down_s = [], 0
        self.random = random.Random(f"{test.options.seed} {kind}")

    # Clients.

    def pick(self, chance):
        with self.lock:
            if len(self.sessions) < self.wanted:
                return None
            return chance.choice(self.sessions)

    def create(self, chance):
        session, answer = self.books.create(self.server, self.kind)
        if session:
            with self.lock:
                self.sessions.append(session)
            self.books.write(session, session.file("f0"), "put")
        else:
            self.pause_after(answer)

    def pause_after(self, answer):
        if answer.status == 500 and not self.was_full_lately():
            with self.lock:
                self.broken.append(str(answer)[:300])
        time.sleep(0.05 if answer.unanswered else 0.01)

    def was_full_lately(self):
        """Whether the disk is full, or was until five seconds ago."""
        now = time.monotonic()
        return self.full_from is not None and (self.full_until is None or now < self.full_until + 5)

    def client(self, seed):
        chance = random.Random(seed)
        names, weights = zip(*WAYS)
        while not self.over.is_set():
            session = self.pick(chance)
            if session is None:
                self.create(chance)
                continue
            self.act(session, chance.choices(names, weights)[0], chance)

    def act(self, session, way, chance):
        file = session.file(f"f{chance.randrange(3)}")
        # One client at a time at one file; others use the session meanwhile.
        if file.uncertain or not file.busy.acquire(blocking=False):
            return
        try:
            if way in ("put", "exec", "turn", "stream"):
                self.books.write(session, file, way)
            elif way in ("read", "run", "say"):
                self.books.read(session, file, "get" if way == "read" else way)
            elif way in ("pause", "resume"):
                self.told(session, session.call(way, "POST", f"/{way}"))
            elif way == "stop":
                self.told(session, session.call("stop", "POST", "/stop"))
                self.told(session, session.call("resume", "POST", "/resume"))
            elif way == "fork":
                self.fork(session)
            elif way == "abort":
                self.abort(session, file, chance)
            else:
                self.delete(session)
        finally:
            file.busy.release()
        last = session.history[-1] if session.history else ""
        if ": 409 session_stopped" in last:
            self.told(session, session.call("resume", "POST", "/resume"))
        elif ": 0 no_connection" in last or ": 503 store_unavailable" in last:
            time.sleep(0.05)
        elif ": 500" in last and not self.was_full_lately():
            with self.lock:
                self.broken.append(last)

    def told(self, session, answer):
        with session.lock:
            session.note(answer)

    def fork(self, session):
        fork = self.books.fork(session)
        if not fork:
            return
        with self.lock:
            self.sessions.append(fork)
        for file in list(fork.files.values()):
            if not file.uncertain:
                self.books.read(fork, file)

    def abort(self, session, file, chance):
        """A turn that writes, called off in the middle."""
        writer = threading.Thread(target=self.books.write, args=(session, file, "slow"), daemon=True)
        writer.start()
        time.sleep(chance.choice((0, 0.01, 0.05)))
        self.told(session, session.call("abort", "POST", "/abort", {}))
        writer.join(60)

    def delete(self, session):
        with self.lock:
            if session not in self.sessions:
                return
            self.sessions.remove(session)
        if self.books.delete(session):
            self.books.count("sessions deleted")
            with self.lock:
                self.deleted.append(session)
        else:
            with self.lock:
                self.sessions.append(session)

    # Weather.

    def weather(self, seconds):
        began = time.monotonic()
        fill_at, full_for = seconds * 0.4, min(15, max(1.5, seconds * 0.12))
        pauses_s = (1, 2.5) if seconds < 60 else (2, 6)
        next_kill = self.random.uniform(*pauses_s)
        while not self.over.is_set():
            at = time.monotonic() - began
            if at > seconds:
                return
            if self.full_from is None and at > fill_at:
                self.full_from = time.monotonic()
                self.disk.fill()
                self.over.wait(full_for)
                # In a long storm a server starts on a full disk, too.
                if seconds >= 60:
                    self.crash()
                    self.over.wait(full_for / 3)
                self.disk.free()
                self.full_until = time.monotonic()
                self.books.count("full disks")
            elif at > next_kill:
                self.crash()
                next_kill = time.monotonic() - began + self.random.uniform(*pauses_s)
            self.over.wait(0.05)

    def crash(self):
        self.server.kill()
        self.over.wait(self.random.choice((0, 0, 0.1)))
        began = time.monotonic()
        try:
            self.server.start(40)
        except DidNotStart as error:
            full = " on a full disk" if self.disk.ballast.exists() else ""
            self.test.lie(f"{self.kind}: after kill -9 the server does not start{full}: {error}")
            self.start_at_all()
        self.books.count("kills")
        self.down_s += time.monotonic() - began

    def start_at_all(self):
        """With space on the disk; without a server there is no storm."""
        self.disk.free()
        self.server.kill()
        try:
            self.server.start(40)
        except DidNotStart as error:
            self.test.lie(f"{self.kind}: the server does not start at all: {error}")
            self.over.set()

    # The end.

    def read_at_last(self, session, file):
        if self.books.read(session, file):
            return True
        last = session.history[-1]
        if session.delete_unanswered and ("session_unknown" in last or "session_ended" in last):
            self.books.count("deletes that took effect without an answer")
            session.deleted = True
            return True
        if "session_stopped" in last:
            self.told(session, session.call("resume", "POST", "/resume"))
        return False

    def read_everything(self):
        """If there is a server: every file of every session, each within a time in which every refusal for a moment is over."""
        if not self.server.health().ok:
            self.test.lie(f"{self.kind}: the server is gone: {self.server.log()[-300:]}")
            return
        for session in list(self.sessions):
            for file in list(session.files.values()):
                if session.deleted:
                    break
                if file.uncertain:
                    self.books.count("files of which nothing can be said")
                    continue
                if not wait_until(20, lambda: self.read_at_last(session, file), 0.2):
                    self.test.lie(f"{self.kind}: {file.name} cannot be read for 20 s\n    {session.account()}")
                    return

    def delete_everything(self):
        if not self.server.health().ok:
            return
        for session in list(self.sessions):
            if not wait_until(20, lambda: self.books.delete(session), 0.1):
                self.test.lie(f"{self.kind}: a session cannot be deleted\n    {session.account()}")
                return
        self.deleted += self.sessions
        self.delete_unknown()
        pattern = self.books.pattern()
        if wait_until(GONE_WITHIN_S, lambda: not search_disk(self.disk.at, pattern), 0.5):
            self.test.saw(f"{self.kind}: nothing of {len(self.deleted)} deleted sessions is in the data directory")
        else:
            found = search_disk(self.disk.at, pattern)
            where = sorted({path.split("/")[1] if "/" in path else path for path in found})
            some = "\n      ".join(sorted(found)[:5])
            self.test.lie(f"{self.kind}: {len(found)} files with contents of deleted sessions, in {where}:\n      {some}")
        answers = [self.server.call("POST", f"/v1/sessions/{one.id}/fork") for one in self.deleted[:40]]
        others = collections.Counter(answer.code for answer in answers if answer.status not in (404, 410))
        text = f"{self.kind}: forks of {len(answers)} deleted sessions were not refused with 404 or 410: {dict(others)}"
        self.test.check(not others, f"{self.kind}: no deleted session can be forked", text)
        for answer in answers:
            if answer.ok:
                self.server.call("DELETE", f"/v1/sessions/{answer.json['id']}")
        wait_until(5, lambda: self.server.call("GET", "/v1/stats").json["pool"]["cold"] == 0, 0.2)
        cold = self.server.call("GET", "/v1/stats").json["pool"]["cold"]
        self.test.check(cold == 0, f"{self.kind}: no cold entry is left", f"{self.kind}: {cold} cold entries of deleted sessions")

    def delete_unknown(self):
        """Sessions that were made though their client got no answer: no client can delete them."""
        after = ""
        while after is not None:
            page = self.server.call("GET", f"/v1/sessions?limit=100{after}").json
            after = f"&after={page['next']}" if page.get("next") else None
            for one in page["sessions"]:
                if one["status"] == "ended":
                    continue
                self.books.count("sessions deleted of which no client knew")
                answer = self.server.call("DELETE", f"/v1/sessions/{one['id']}")
                if not answer.ok:
                    self.test.lie(f"{self.kind}: a session cannot be deleted: {answer}")

    def finish(self):
        self.test.saw(f"{self.kind}: {self.books.summary()}")
        self.test.saw(f"{self.kind}: calls {self.books.calls_summary()}")
        counts = self.books.counts
        acknowledged = sum(number for what, number in counts.items() if what.startswith("writes ack"))
        if acknowledged < 50 or counts["reads as acknowledged"] < 50:
            self.test.lie(f"{self.kind}: hardly anything worked: {acknowledged} writes")
        if self.kind == "disk" and counts["losses reported"]:
            self.test.lie(f"disk: {counts['losses reported']} writes were lost, and their loss reported; on disk none may be")
        hung = {what: number for what, number in self.books.calls.items() if what.endswith("patience_over")}
        if hung:
            self.test.lie(f"{self.kind}: calls without an answer within 30 s: {hung}")
        if self.broken:
            some = "\n      ".join(self.broken[:5])
            self.test.lie(f"{self.kind}: {len(self.broken)} answers were 500 while the disk was not full:\n      {some}")
        database = sum(path.stat().st_size for path in self.disk.data.glob("shoal.db*"))
        self.test.saw(f"{self.kind}: starts after kills took {self.down_s:.1f} s in all")
        self.test.saw(f"{self.kind}: the database takes {database >> 10} KiB")
        code = self.server.stop()
        self.test.check(code == 0, f"{self.kind}: the server stopped in order", f"{self.kind}: exit code {code}: {self.server.log()[-500:]}")


def in_parallel(tasks):
    threads = [threading.Thread(target=task, args=arguments, daemon=True) for task, *arguments in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def body(test):
    options = test.options
    test.saw(f"seed {options.seed}, {options.seconds:g} s, {options.sessions} sessions on {options.places} places")
    seas = [Sea(test, kind, options.sessions // 2, options.places // 2) for kind in ("memory", "disk")]
    for sea in seas:
        sea.server.start()
    clients = []
    for sea in seas:
        for number in range(options.clients):
            clients.append(threading.Thread(target=sea.client, args=(f"{options.seed} {sea.kind} {number}",), daemon=True))
    for client in clients:
        client.start()
    made = wait_until(MADE_WITHIN_S, lambda: all(len(sea.sessions) >= sea.wanted for sea in seas))
    test.check(made, "all sessions were made", f"sessions made within {MADE_WITHIN_S} s: {[len(sea.sessions) for sea in seas]}")
    in_parallel([(sea.weather, options.seconds) for sea in seas])
    for sea in seas:
        sea.over.set()
    for client in clients:
        client.join(90)
    test.check(not any(client.is_alive() for client in clients), "every client came back", "clients wait for ever")
    in_parallel([(sea.read_everything,) for sea in seas])
    in_parallel([(sea.delete_everything,) for sea in seas])
    for sea in seas:
        sea.finish()


def more(parser):
    parser.add_argument("--seconds", type=float, default=10, help="how long the weather lasts")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--places", type=int, default=20)
    parser.add_argument("--entries", type=int, help="`max_sandboxes` of each server; half of its sessions if not given")
    parser.add_argument("--clients", type=int, default=5, help="of each server")


if __name__ == "__main__":
    Test(__doc__, deadline_s=lambda options: options.seconds + 240, more=more).run(body)
