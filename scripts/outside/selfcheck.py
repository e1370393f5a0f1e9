"""The books of these tests notice every kind of lie, and call no honest server a liar.

    selfcheck.py --shoal PATH      (the program is not started)

Servers made of a dictionary, one honest and the others not: without this, a test that cannot fail would look
like a promise that is kept.
"""

import json
import pathlib
import urllib.parse

from ledger import Books
from outside import Answer, SmallDisk, Test, parse_events, run, search_disk

PROBLEM = [("content-type", "application/problem+json")]
JSON = [("content-type", "application/json")]


class Fake:
    """Answers as a server does, from files in a dictionary. `flaw` says how it lies."""

    name, key = "fake", "key"

    def __init__(self, flaw=None, says=None):
        self.flaw, self.says, self.files = flaw, says, {}
        self.reports = 0

    def call(self, method, path, body=None, **_):
        parts = urllib.parse.urlsplit(path)
        if method == "POST" and parts.path == "/v1/sessions":
            return Answer(201, JSON, b'{"id": "one", "state_lost": false}')
        if parts.path.endswith("/fork"):
            return Answer(201, JSON, b'{"id": "two", "state_lost": false}')
        name = urllib.parse.parse_qs(parts.query)["path"][0]
        if method == "PUT":
            self.files.setdefault(name, []).append(body)
            return self.answer(200, JSON, b"{}")
        found = self.files.get(name, [])
        if self.flaw == "older" and found:
            found = found[:-1]
        if self.flaw == "gone" or not found:
            return self.answer(404, PROBLEM, b'{"code": "path_not_found"}')
        text = found[-1]
        if self.flaw == "torn":
            text = text[: len(text) // 2]
        if self.flaw == "of another":
            text = text.replace(b"s00001", b"s00009")
        return self.answer(200, [("content-type", "application/octet-stream")], text)

    def answer(self, status, headers, body):
        if self.reports:
            self.reports -= 1
            if self.says == "header":
                headers = [*headers, ("Shoal-State-Lost", "crash")]
            elif body.startswith(b"{"):
                body = json.dumps({**json.loads(body), "state_lost": True}).encode()
        return Answer(status, headers, body)


class Quiet:
    """Stands for the test while the books are tried: what they call a lie is collected."""

    def __init__(self):
        self.lies = []

    def lie(self, text):
        self.lies.append(text)


def play(flaw, *, says=None, reported=False):
    """Two writes and a read on a server with this flaw; how many lies were noticed."""
    quiet, fake = Quiet(), Fake(None, says)
    books = Books(quiet)
    session, _ = books.create(fake, "any")
    file = session.file("f")
    assert books.write(session, file, "put") and books.write(session, file, "put")
    fake.flaw, fake.reports = flaw, 1 if reported else 0
    books.read(session, file)
    return quiet, books, session, file, fake


def body(test):
    for flaw in (None, "older", "gone", "torn", "of another"):
        quiet, *_ = play(flaw)
        test.check(bool(quiet.lies) == bool(flaw), f"flaw {flaw}: {len(quiet.lies)} lies noticed")
    for flaw in ("older", "gone"):
        quiet, books, *_ = play(flaw, says="header", reported=True)
        test.check(not quiet.lies and books.counts["losses reported"] == 1, f"flaw {flaw}, reported: counted as reported")
    # After a report the floor is what was read, and what is written then counts again.
    quiet, books, session, file, fake = play("gone", says="json", reported=True)
    fake.flaw = None
    books.write(session, file, "put")
    fake.flaw = "gone"
    books.read(session, file)
    test.check(len(quiet.lies) == 1, "a loss after a report is a new one")
    # A report is about what was written before it.
    quiet, books, session, file, fake = play(None)
    fake.reports, fake.says = 1, "header"
    books.write(session, file, "put")
    fake.flaw = "older"
    books.read(session, file)
    test.check(len(quiet.lies) == 1, "an answer that acknowledges a write and reports a loss has kept the write")
    # A fork has what its parent had.
    quiet, books, session, file, fake = play(None)
    fork = books.fork(session)
    books.read(fork, fork.file("f"))
    fake.flaw = "gone"
    books.read(fork, fork.file("f"))
    test.check(len(quiet.lies) == 1, "a fork without its parent's files is noticed, one with them is not")
    stream = b"event: sandbox_active\ndata: {\"state_lost\": true}\n\n: beat\n\nevent: turn_ended\ndata: {}\n\n"
    test.check([name for name, _ in parse_events(stream)] == ["sandbox_active", "turn_ended"], "streams are read")
    told = Answer(200, [("content-type", "text/event-stream")], stream)
    test.check(told.reports_loss and not Answer(200, JSON, b'{"state_lost": false}').reports_loss, "reports are distinguished")
    on_disk(test)


def on_disk(test):
    """What is on a disk is found: in files, in archives, behind holes; and a full disk is full."""
    disk = SmallDisk(test, "selfcheck", 32)
    mark = b"OUTSIDE-0123-s00001"
    (disk.data / "plain").write_bytes(b"x" * 5000 + mark)
    with open(disk.data / "sparse", "wb") as sparse:
        sparse.seek(100 << 20)
        sparse.write(mark)
    run(["zstd", "-q", str(disk.data / "plain"), "-o", str(disk.data / "packed.tar.zst")])
    found = search_disk(disk.at, rb"OUTSIDE-0123-\w+")
    test.check({pathlib.Path(path).name for path in found} == {"plain", "sparse", "packed.tar.zst"}, "what is on a disk is found", f"found only {found}")
    disk.fill()
    try:
        (disk.data / "more").write_bytes(b"x" * 8192)
        full = False
    except OSError:
        full = True
    disk.free()
    (disk.data / "more").write_bytes(b"x" * 8192)
    test.check(full, "a full disk is full, and is freed again")


if __name__ == "__main__":
    Test(__doc__, deadline_s=60).run(body)
