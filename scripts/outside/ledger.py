"""What was acknowledged, and what was read back: the books of every file that a test writes.

Each write of a file has a version. A write that was acknowledged sets the floor of its file; a read that
finds less than the floor is a silent loss, unless an answer reported a loss to this client before, or with
the same answer. Writes that were not acknowledged may be there or not.

The books must never be kinder than the promise: a report of one session says nothing about another, and a
report lowers the floors of what was written before it only.
"""

import collections
import hashlib
import json
import threading
import time
import uuid
import zlib

# Bytes of file content beyond the head, at most.
FILLER_MAX = 24_000
HISTORY_KEPT = 60
ACCOUNTS_MAX = 3


def content(mark, label, path, version, size):
    """What a version of a file is: a head that says which it is, and bytes that follow from it."""
    head = f"{mark} {label} {path} {version} {size}\n".encode()
    seed = hashlib.sha256(head).hexdigest().encode()
    return head + (seed * (size // len(seed) + 1))[:size]


class File:
    """One file of one session."""

    def __init__(self, name):
        self.name, self.floor, self.attempted = name, 0, 0
        # Whose versions may be found here, up to which: a fork begins with its parent's.
        self.writers = {}
        self.busy = threading.Lock()
        # A request whose end is unknown may still write: nothing can be said about the file any more.
        self.uncertain = False


class Session:
    """One session, with everything that was done to it."""

    def __init__(self, books, server, key, identity, label, files=()):
        self.books, self.server, self.key = books, server, key
        self.id, self.label = identity, label
        self.lock = threading.Lock()
        self.files = {file.name: file for file in files}
        self.reports, self.deleted = 0, False
        # What became of calls to delete it. Without an answer it may be gone or not.
        self.deletes, self.delete_unanswered = 0, False
        self.history = collections.deque(maxlen=HISTORY_KEPT)
        # The session that this one is a fork of.
        self.parent = None

    @property
    def mark(self):
        return f"{self.books.mark}-{self.label}"

    def file(self, name):
        with self.lock:
            return self.files.setdefault(name, File(name))

    def call(self, what, method, path, body=None, **options):
        """A call about this session, written into its history."""
        began = time.monotonic()
        answer = self.server.call(method, f"/v1/sessions/{self.id}{path}", body, key=self.key, **options)
        lost = ", reports a loss" if answer.reports_loss else ""
        said = "" if answer.ok else f" {answer.code}: {answer.detail}"
        ended = time.monotonic() - self.books.began
        self.history.append(f"{began - self.books.began:8.3f} to {ended:8.3f} s  {what}: {answer.status}{lost}{said}"[:200])
        self.books.count_call(what.split(" ")[0], answer)
        return answer

    def note(self, answer):
        """Lowers the floors if the answer reports a loss. The caller holds the lock."""
        if answer.reports_loss:
            self.reports += 1
            for file in self.files.values():
                file.floor = 0

    def account(self):
        lines = [f"session {self.id} ({self.label}), {self.server.name}; its last calls:", *self.history]
        if self.parent:
            lines += [f"its parent {self.parent.id} ({self.parent.label}):", *self.parent.history]
        return "\n      ".join(lines)


class Books:
    """All sessions of one test, and what came of them."""

    def __init__(self, test):
        self.test, self.began = test, time.monotonic()
        self.mark = f"OUTSIDE-{uuid.uuid4().hex[:12]}"
        self.lock = threading.Lock()
        self.counts, self.calls = collections.Counter(), collections.Counter()
        self.made = self.accounts = 0

    def pattern(self):
        return self.mark.encode() + rb"-\w+"

    def count(self, what, number=1):
        with self.lock:
            self.counts[what] += number

    def count_call(self, what, answer):
        with self.lock:
            self.calls[f"{what} {answer.status if answer.ok else answer.code}"] += 1

    def label(self):
        with self.lock:
            self.made += 1
            return f"s{self.made:05d}"

    def create(self, server, template, *, key=None, **more):
        """A session, or the refusal."""
        answer = server.call("POST", "/v1/sessions", {"template": template, **more}, key=key or server.key)
        self.count_call("create", answer)
        if not answer.ok:
            return None, answer
        return Session(self, server, key or server.key, answer.json["id"], self.label()), answer

    # Writing.

    def write(self, session, file, how):
        """A new version, by `put`, `exec`, `turn` or `stream`; true if it was acknowledged."""
        with session.lock:
            version = file.attempted + 1
            file.attempted = version
            file.writers[session.label] = version
            before = session.reports
        size = 0 if how in ("turn", "stream", "slow") else zlib.crc32(f"{session.label} {version}".encode()) % FILLER_MAX
        text = content(session.mark, session.label, file.name, version, size)
        answer, done = getattr(self, f"write_by_{how}")(session, file, version, text)
        with session.lock:
            others = session.reports != before
            session.note(answer)
            if done and not others:
                file.floor = version
            if may_go_on(answer):
                file.uncertain = True
        self.count(f"writes acknowledged by {how}" if done else "writes not acknowledged")
        return done

    def write_by_put(self, session, file, version, text):
        path = f"/files?path=/workspace/{file.name}"
        answer = session.call(f"put {file.name} v{version}", "PUT", path, text)
        return answer, answer.ok

    def write_by_exec(self, session, file, version, text):
        name = file.name
        body = {"command": f"cat > .{name}.new && mv .{name}.new {name}", "stdin": text.decode()}
        answer = session.call(f"exec {name} v{version}", "POST", "/exec", body)
        return answer, answer.ok and answer.json["exit_code"] == 0 and not answer.json["timed_out"]

    def turn_input(self, file, text):
        # The mark is in two parts, so that the history of turns has it nowhere in one piece.
        quoted = text.decode().rstrip("\n").replace("OUTSIDE-", "OUT''SIDE-")
        return f"printf '%s\\n' '{quoted}' > .{file.name}.new && mv .{file.name}.new {file.name}"

    def write_by_turn(self, session, file, version, text):
        body = {"input": self.turn_input(file, text)}
        answer = session.call(f"turn {file.name} v{version}", "POST", "/turns", body, accept="application/json")
        return answer, answer.ok and turn_worked(answer.json)

    def write_by_stream(self, session, file, version, text):
        body = {"input": self.turn_input(file, text)}
        answer = session.call(f"stream {file.name} v{version}", "POST", "/turns", body, accept="text/event-stream")
        ends = [data for name, data in answer.events if name == "turn_ended"]
        return answer, bool(answer.ok and ends and turn_worked(ends[-1]))

    def write_by_slow(self, session, file, version, text):
        """A turn that has written and is not over yet, so that there is something to call off."""
        body = {"input": f"{self.turn_input(file, text)} && sleep 3"}
        answer = session.call(f"slow {file.name} v{version}", "POST", "/turns", body, accept="application/json")
        return answer, answer.ok and turn_worked(answer.json)

    # Reading.

    def read(self, session, file, how="get"):
        """Reads a file back by `get`, `run` (an exec) or `say` (a turn); false if it could not be read."""
        with session.lock:
            floor_before, before = file.floor, session.reports
        answer, found = getattr(self, f"read_by_{how}")(session, file)
        with session.lock:
            session.note(answer)
            if found is None:
                self.count("reads not answered")
                self.judge_refusal(session, answer)
                return False
            version = self.version_of(session, file, found)
            if version is None:
                text = f"{file.name} of session {session.id} has content that no client wrote: {found[:200]!r}"
                self.test.lie(f"{text}\n    {session.account()}")
                return True
            told = session.reports != before or floor_before > file.floor
            self.judge(session, file, version, floor_before, told)
            # What was read once may not go again without a report.
            if session.reports == before or answer.reports_loss:
                file.floor = version
        return True

    def judge_refusal(self, session, answer):
        """A session is gone only if a client asked for its end."""
        if answer.code in ("session_unknown", "session_ended") and not session.deletes:
            self.test.lie(f"session {session.id} is gone, and no client deleted it\n    {session.account()}")

    def judge(self, session, file, version, floor, told):
        if version >= floor:
            self.count("reads as acknowledged")
        elif told:
            self.count("losses reported")
        else:
            self.count("SILENT LOSSES")
            self.accounts += 1
            if self.accounts > ACCOUNTS_MAX:
                return
            # The first ones with everything that was done to their session; the rest are counted.
            text = f"silent loss: {file.name} of session {session.id}: version {floor} was acknowledged"
            text += f", {f'version {version}' if version else 'nothing'} was read, and no loss was reported"
            self.test.lie(f"{text}\n    {session.account()}")

    def version_of(self, session, file, found):
        """Which version this is; 0 if there is no file, None if no client wrote this content."""
        if found == b"":
            return 0
        try:
            head = found.split(b"\n", 1)[0].decode()
            _, label, name, version, size = head.split(" ")
            version, size = int(version), int(size)
        except (ValueError, UnicodeDecodeError):
            return None
        whole = content(f"{self.mark}-{label}", label, name, version, size)
        wrote = version <= file.writers.get(label, 0)
        return version if name == file.name and wrote and found == whole else None

    def read_by_get(self, session, file):
        answer = session.call(f"get {file.name}", "GET", f"/files?path=/workspace/{file.name}")
        if answer.code == "path_not_found":
            return answer, b""
        return answer, answer.body if answer.ok else None

    def read_by_run(self, session, file):
        body = {"command": f"if [ -e {file.name} ]; then cat {file.name}; fi"}
        answer = session.call(f"run cat {file.name}", "POST", "/exec", body)
        worked = answer.ok and answer.json["exit_code"] == 0 and not answer.json["timed_out"]
        return answer, (answer.json["stdout"] or "").encode() if worked else None

    def read_by_say(self, session, file):
        # Without the mark: what a turn says is kept in the history.
        body = {"input": f"if [ -e {file.name} ]; then sed 's/^OUTSIDE-/OUT@SIDE-/' {file.name}; fi"}
        answer = session.call(f"say cat {file.name}", "POST", "/turns", body, accept="application/json")
        if not (answer.ok and turn_worked(answer.json)):
            return answer, None
        return answer, answer.json["output"].replace("OUT@SIDE-", "OUTSIDE-").encode()

    # Forks.

    def fork(self, session):
        """A fork, which has the files of its parent as they are now; or None."""
        with session.lock:
            held = [(file.name, file.floor, dict(file.writers), file.uncertain) for file in session.files.values()]
            before = session.reports
        answer = session.call("fork", "POST", "/fork")
        with session.lock:
            session.note(answer)
            told = session.reports != before
            latest = {file.name: (file.attempted, dict(file.writers)) for file in session.files.values()}
        if not answer.ok:
            return None
        files = []
        for name, floor, _, uncertain in held:
            file = File(name)
            file.attempted, file.writers = latest[name]
            file.floor, file.uncertain = 0 if told else floor, uncertain
            files.append(file)
        fork = Session(self, session.server, session.key, answer.json["id"], self.label(), files)
        fork.parent = session
        fork.history.append(f"{time.monotonic() - self.began:8.3f} s  forked from {session.id} ({session.label})")
        return fork

    def delete(self, session):
        session.deletes += 1
        answer = session.call("delete", "DELETE", "")
        if answer.unanswered:
            session.delete_unanswered = True
        if answer.ok or answer.code in ("session_unknown", "session_ended"):
            session.deleted = True
        return session.deleted

    def summary(self):
        with self.lock:
            return ", ".join(f"{what}: {number}" for what, number in sorted(self.counts.items()))

    def calls_summary(self):
        with self.lock:
            return json.dumps(dict(sorted(self.calls.items())))


def may_go_on(answer):
    """Whether what was asked for may still happen: the client did not learn how it ended."""
    cut_off = answer.ok and answer.events and answer.events[-1][0] != "turn_ended"
    return answer.status in (-1, 504) or bool(cut_off)


def turn_worked(ended):
    """Whether a turn of the shell completed, and its command with it."""
    result = ended.get("result")
    return ended.get("outcome") == "completed" and isinstance(result, dict) and result.get("exit_code") == 0
