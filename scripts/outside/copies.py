"""A fork or a backup has every acknowledged write, and the sandbox it is made of goes on.

    copies.py --shoal PATH [--seed S]

workspaces.md: a fork has a copy of the files, all of them; a sandbox that works is held still meanwhile, for a
second at most. So sessions that run, that are frozen and that are written to are forked and backed up: what was
acknowledged before is in the copy, a program that counts goes on counting, calls that come meanwhile are answered,
ten forks at once work, and so does a fork during a turn or an exec. `kill -9` of the server during forks loses
nothing that was acknowledged and leaves nothing behind that stands still.
"""

import concurrent.futures
import os
import pathlib
import random
import threading
import time
import uuid

from ledger import Books, Session, turn_worked
from outside import DidNotStart, Server, Test, run, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 60
[[templates]]
name = "disk"
[templates.limits]
memory_mb = 128
workspace_mb = 256
pids = 64
[templates.pool]
pool_size = 0
max_overflow = 60
[templates.workspace]
kind = "disk"
limit = "soft"
[[templates]]
name = "memory"
[templates.limits]
memory_mb = 128
workspace_mb = 32
[templates.pool]
pool_size = 0
max_overflow = 60
[templates.workspace]
kind = "memory"
[[templates]]
name = "tired"
freeze_after_ms = 300
[templates.limits]
memory_mb = 128
workspace_mb = 32
[templates.pool]
pool_size = 0
max_overflow = 60
[templates.workspace]
kind = "disk"
limit = "soft"
[[templates]]
name = "tired-memory"
freeze_after_ms = 300
[templates.limits]
memory_mb = 128
workspace_mb = 32
[templates.pool]
pool_size = 0
max_overflow = 60
[templates.workspace]
kind = "memory"
"""
# A second at most is promised; a busy machine gets more.
STILL_MAX_S = 4
# A call that came meanwhile: the second of the fork, and what a busy machine takes.
ANSWER_MAX_S = 8
FORKS_AT_ONCE = 10
# Makes what takes a while to be copied.
MANY = "import os\nfor d in range(10):\n os.mkdir(f'd{d}')\n for f in range(100): open(f'd{d}/f{f}', 'w').write(f'{d} {f} ' * 50)\nopen('big', 'wb').write(os.urandom(1 << 20) * 100)"
FORKS_ONE_BY_ONE = 20
COUNTER = """
import sys, time
mark, number = sys.argv[1], 0
while True:
    number += 1
    with open("/workspace/count", "a") as out:
        out.write(f"{number} {time.time():.3f}\\n")
    time.sleep(0.05)
"""


def must(answer, what):
    if not answer.ok:
        raise RuntimeError(f"{what}: {answer}")
    return answer.json


def sandbox_of(session):
    return must(session.call("show", "GET", ""), "session")["sandbox_id"]


def make(books, server, template, *, files=3):
    session, answer = books.create(server, template)
    if session is None:
        raise RuntimeError(f"no session: {answer}")
    for number, how in zip(range(files), ("put", "exec", "turn", "stream") * files):
        if not books.write(session, session.file(f"f{number}"), how):
            raise RuntimeError(f"a write by {how}: {session.account()}")
    return session


class Counter:
    """A program in a sandbox that counts up every 50 ms and writes down when it did."""

    def __init__(self, session, *, keep_alive=True):
        self.session, self.mark = session, f"count-{uuid.uuid4().hex}"
        body = {"argv": ["python3", "-c", COUNTER, self.mark], "keep_alive": keep_alive}
        self.process = must(session.server.call("POST", f"/v1/sandboxes/{sandbox_of(session)}/processes", body), "counter")
        if not wait_until(10, lambda: len(self.lines()) >= 3):
            raise RuntimeError("the counter does not count")

    def lines(self, session=None):
        answer = (session or self.session).call("get count", "GET", "/files?path=/workspace/count")
        found = [line.split() for line in answer.body.decode().splitlines()] if answer.ok else []
        return [(int(number), float(at)) for number, at in (pair for pair in found if len(pair) == 2)]

    def judge(self, test, what, since):
        """Whether it goes on, from one number to the next, and never stood still for long."""
        before = self.lines()
        on = wait_until(10, lambda: len(self.lines()) > len(before) + 3)
        lines = self.lines()
        test.check(on, f"{what}: the program goes on, at {len(lines)}", f"{what}: the program stands still at {len(before)}")
        numbers = [number for number, _ in lines]
        test.check(numbers == list(range(1, len(numbers) + 1)), f"{what}: it is the same program, and every number is there", f"{what}: the count is broken: {numbers[:3]}...{numbers[-3:]}")
        gaps = [(later - earlier, earlier) for (_, earlier), (_, later) in zip(lines, lines[1:]) if later >= since]
        longest, at = max(gaps, default=(0, 0))
        test.check(longest < STILL_MAX_S, f"{what}: the longest pause was {longest:.2f} s", f"{what}: it stood still for {longest:.2f} s, {at - since:.2f} s after the beginning")


def whole(test, books, copy, what):
    """Reads every file of a copy; the books say what is missing."""
    bad = []
    for file in list(copy.files.values()):
        if not wait_until(15, lambda file=file: books.read(copy, file, "get"), 0.2):
            bad.append(f"{file.name} cannot be read\n    {copy.account()}")
    test.check(not bad, f"{what}: its {len(copy.files)} files can be read", f"{what}: {'; '.join(bad)}")


def fork(test, books, session, what):
    began = time.monotonic()
    copy = books.fork(session)
    if copy is None:
        test.lie(f"{what}: the fork was refused: {session.history[-1]}")
        return None
    test.saw(f"{what}: forked within {time.monotonic() - began:.2f} s")
    return copy


class Users:
    """Clients that use a session all the time, and remember what was refused and what took long."""

    def __init__(self, books, session, number=2):
        self.books, self.session, self.over = books, session, threading.Event()
        self.bad, self.slowest, self.uses, self.lock = [], 0, 0, threading.Lock()
        self.threads = [threading.Thread(target=self.use, args=(each,), daemon=True) for each in range(number)]
        for thread in self.threads:
            thread.start()

    def use(self, number):
        file, turn = self.session.file(f"moving{number}"), 0
        while not self.over.is_set():
            turn += 1
            began = time.monotonic()
            if turn % 2:
                good = self.books.write(self.session, file, ("put", "exec")[turn % 4 == 1])
            else:
                good = self.books.read(self.session, file, ("get", "run")[turn % 4 == 2])
            took = time.monotonic() - began
            with self.lock:
                self.uses += 1
                self.slowest = max(self.slowest, took)
                if not good:
                    self.bad.append(list(self.session.history)[-3:])
            time.sleep(0.01)

    def judge(self, test, what):
        self.over.set()
        for thread in self.threads:
            thread.join(30)
        test.check(not self.bad and self.uses > 1, f"{what}: {self.uses} uses meanwhile were answered", f"{what}: {len(self.bad)} of {self.uses} uses were refused, such as {self.bad[:1]}")
        test.check(self.slowest < ANSWER_MAX_S, f"{what}: the slowest took {self.slowest:.2f} s", f"{what}: one took {self.slowest:.2f} s")


def running(test, server, template):
    """A session that runs and is written to: one fork after the other, then ten at once."""
    books, what = Books(test), f"{template}, running"
    session = make(books, server, template)
    counter, since = Counter(session), time.time()
    users = Users(books, session)
    copies, until = [], time.monotonic() + 2.5
    while time.monotonic() < until and len(copies) < FORKS_ONE_BY_ONE:
        copies.append(books.fork(session))
        time.sleep(0.05)
    one_by_one = len(copies)
    test.check(all(copies), f"{what}: {one_by_one} forks one after the other worked", f"{what}: forks were refused: {[line for line in session.history if 'fork' in line and ': 20' not in line][:2]}")
    with concurrent.futures.ThreadPoolExecutor(FORKS_AT_ONCE) as crowd:
        copies += crowd.map(lambda _: books.fork(session), range(FORKS_AT_ONCE))
    at_once = copies[one_by_one:]
    test.check(all(at_once), f"{what}: {FORKS_AT_ONCE} forks at once worked", f"{what}: of {FORKS_AT_ONCE} forks at once {at_once.count(None)} were refused: {[line for line in session.history if 'fork' in line and ': 20' not in line][:2]}")
    users.judge(test, what)
    counter.judge(test, what, since)
    ids = {copy.id for copy in copies if copy}
    test.check(len(ids) == len([copy for copy in copies if copy]), f"{what}: {len(ids)} copies, each with an id of its own")
    for number, copy in enumerate(copies):
        if copy is None:
            continue
        if number in (0, one_by_one, len(copies) - 1):
            whole(test, books, copy, f"{what}, copy {number}")
            count = [value for value, _ in counter.lines(copy)]
            good = count and count == list(range(1, len(count) + 1))
            test.check(good, f"{what}, copy {number}: its count ends at {len(count)}", f"{what}, copy {number}: its count is broken: {count[-3:]}")
            later = counter.lines(copy)
            test.check(len(later) == len(count), f"{what}, copy {number}: nothing counts in it")
            test.check(books.write(copy, copy.file("own"), "exec") and books.write(copy, copy.file("own"), "turn"), f"{what}, copy {number}: it can be used", f"{what}, copy {number}: it cannot be used: {copy.account()}")
        else:
            for file in list(copy.files.values()):
                wait_until(15, lambda copy=copy, file=file: books.read(copy, file), 0.2)
        books.delete(copy)
    own = session.call("get own", "GET", "/files?path=/workspace/own")
    test.check(own.status == 404, f"{what}: what a copy writes is not in its source", f"{what}: what a copy wrote: {own}")
    for file in list(session.files.values()):
        books.read(session, file)
    test.check(not books.counts["SILENT LOSSES"] and not books.counts["losses reported"], f"{what}: nothing was lost: {books.summary()}", f"{what}: losses: {books.summary()}")
    books.delete(session)


def frozen(test, server, template):
    """A session whose sandbox is frozen, with a program that stands still in it."""
    books, what = Books(test), f"{template}, frozen"
    session = make(books, server, template)
    counter = Counter(session, keep_alive=False)
    sandbox = sandbox_of(session)

    def rests():
        return must(server.call("GET", f"/v1/sandboxes/{sandbox}/status"), "status")["frozen"]

    if not test.check(wait_until(15, rests), f"{what}: it is frozen"):
        return
    copy = fork(test, books, session, what)
    with concurrent.futures.ThreadPoolExecutor(3) as crowd:
        more = list(crowd.map(lambda _: books.fork(session), range(3)))
    test.check(all(more), f"{what}: three forks at once worked", f"{what}: forks at once were refused: {list(session.history)[-3:]}")
    if copy:
        whole(test, books, copy, what)
        test.check(bool(counter.lines(copy)), f"{what}: the count is in the copy")
    same = sandbox_of(session)
    test.check(same == sandbox, f"{what}: the source has the same sandbox", f"{what}: the source had sandbox {sandbox} and has {same}")
    rested = time.time()
    # The time in which it was frozen is no pause that a fork made.
    books.read(session, session.file("f0"), "run")
    before = len(counter.lines())
    on = wait_until(10, lambda: len(counter.lines()) > before + 3)
    test.check(on, f"{what}: the program goes on with the next use", f"{what}: the program stands still after the fork, also with uses, at {before}")
    gaps = [later - earlier for (_, earlier), (_, later) in zip(counter.lines(), counter.lines()[1:]) if earlier > rested]
    test.check(max(gaps, default=0) < STILL_MAX_S, f"{what}: and does not stop again")
    test.check(bool(wait_until(15, rests)), f"{what}: left alone it is frozen again")
    for each in [copy, *more]:
        if each:
            for file in list(each.files.values()):
                wait_until(15, lambda each=each, file=file: books.read(each, file), 0.2)
            books.delete(each)
    test.check(not books.counts["SILENT LOSSES"] and not books.counts["losses reported"], f"{what}: nothing was lost: {books.summary()}", f"{what}: losses: {books.summary()}")
    books.delete(session)


def busy(test, server, template):
    """Forks during a turn, and during an exec."""
    books = Books(test)
    for kind in ("turn", "exec"):
        what = f"{template}, during {'an' if kind == 'exec' else 'a'} {kind}"
        session = make(books, server, template)
        command = "echo begun > begun; i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i >> steps; sleep 0.1; done; echo done"
        body = {"input": command} if kind == "turn" else {"command": command}
        path = "/turns" if kind == "turn" else "/exec"
        with concurrent.futures.ThreadPoolExecutor(1) as crowd:
            going = crowd.submit(session.call, kind, "POST", path, body, accept="application/json")
            wait_until(10, lambda session=session: session.call("get begun", "GET", "/files?path=/workspace/begun").ok)
            copies = [fork(test, books, session, what) for _ in range(2)]
            test.check(not going.done(), f"{what}: it was not over yet")
            answer = going.result(40)
        worked = answer.ok and (turn_worked(answer.json) if kind == "turn" else answer.json["exit_code"] == 0 and answer.json["stdout"] == "done\n")
        test.check(worked, f"{what}: it ended as it should", f"{what}: it ended otherwise: {answer}")
        steps = session.call("get steps", "GET", "/files?path=/workspace/steps").body.decode().split()
        test.check(steps == [str(number) for number in range(1, 41)], f"{what}: it took every step once", f"{what}: its steps: {steps}")
        for copy in copies:
            if copy is None:
                continue
            begun = copy.call("get begun", "GET", "/files?path=/workspace/begun")
            test.check(begun.body == b"begun\n", f"{what}: the copy has what was written before", f"{what}: the copy lacks what was written before: {begun}")
            whole(test, books, copy, what)
            said = copy.call("turn", "POST", "/turns", {"input": "echo hi"}, accept="application/json")
            test.check(said.ok and turn_worked(said.json), f"{what}: the copy takes a turn at once", f"{what}: the copy takes no turn: {said}")
            turns = must(copy.call("turns", "GET", "/turns"), "turns")["turns"]
            open_turns = [turn["id"] for turn in turns if turn["outcome"] is None]
            test.check(not open_turns, f"{what}: the copy has {len(turns)} turns, all over", f"{what}: turns of the copy are not over: {open_turns}")
            books.delete(copy)
        books.delete(session)


def large(test, server):
    """More files than can be copied in a second: copied while the sandbox goes on."""
    books, what = Books(test), "many files"
    session = make(books, server, "disk")
    script = MANY
    made = must(session.call("exec", "POST", "/exec", {"argv": ["python3", "-c", script], "timeout_ms": 30000}), "files")
    if made["exit_code"]:
        raise RuntimeError(f"no files: {made}")
    counter, since = Counter(session), time.time()
    users = Users(books, session)
    copy = fork(test, books, session, what)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(3) as crowd:
        more = list(crowd.map(lambda _: books.fork(session), range(3)))
    test.check(all(more), f"{what}: three forks at once took {time.monotonic() - began:.2f} s", f"{what}: of three forks at once some were refused: {[line for line in session.history if 'fork' in line and ': 20' not in line][:2]}")
    users.judge(test, what)
    counter.judge(test, what, since)
    for each in more:
        if each:
            for file in list(each.files.values()):
                wait_until(15, lambda each=each, file=file: books.read(each, file), 0.2)
            books.delete(each)
    if copy:
        whole(test, books, copy, what)
        look = "find d* -type f | wc -l; stat -c %s big; find d* -type f -size -100c | wc -l; sha256sum < big"
        sizes = [must(each.call("exec", "POST", "/exec", {"command": look}), "look")["stdout"] for each in (session, copy)]
        test.check(sizes[0] == sizes[1] and sizes[0].startswith("1000\n"), f"{what}: the copy has all of them", f"{what}: the source has {sizes[0]!r}, the copy {sizes[1]!r}")
        books.delete(copy)
    test.check(not books.counts["SILENT LOSSES"] and not books.counts["losses reported"], f"{what}: nothing was lost: {books.summary()}", f"{what}: losses: {books.summary()}")
    books.delete(session)


def backed_up(test):
    """A backup while sessions run, rest and are written to."""
    server, books, what = Server(test, "source", CONFIG).start(), Books(test), "backup"
    moving, resting, packed = make(books, server, "disk"), make(books, server, "tired"), make(books, server, "tired-memory")
    counter, since = Counter(moving), time.time()
    for session in (resting, packed):
        sandbox = sandbox_of(session)
        rests = wait_until(15, lambda sandbox=sandbox: must(server.call("GET", f"/v1/sandboxes/{sandbox}/status"), "status")["frozen"])
        test.check(rests, f"{what}: a session is frozen")
    users = Users(books, moving)
    time.sleep(0.3)
    floors = {(session.id, file.name): file.floor for session in (moving, resting, packed) for file in session.files.values()}
    counted = len(counter.lines())
    target = test.work / "copy.tar.zst"
    done = server.cli("backup", target, "--data-dir", server.data, patience_s=60)
    users.judge(test, what)
    if not test.check(done.returncode == 0, f"{what}: made while it runs", f"{what}: exit code {done.returncode}: {done.stderr[-300:]}"):
        return
    counter.judge(test, what, since)
    for session in (resting, packed):
        for file in session.files.values():
            books.read(session, file)
    test.check(server.stop() == 0, f"{what}: the server stopped in order")
    data = test.work / "restored"
    done = run([test.shoal, "restore", target, "--data-dir", data], env=server.env, patience_s=60)
    if not test.check(done.returncode == 0, f"{what}: restored", f"{what}: restore: {done.stderr[-300:]}"):
        return
    try:
        other = Server(test, "restored", CONFIG, data=data).start()
    except DidNotStart as error:
        test.lie(f"{what}: no server starts on it: {error}")
        return
    less = []
    for session in (moving, resting, packed):
        copy = Session(books, other, other.key, session.id, session.label, session.files.values())
        for name in [name for identity, name in floors if identity == session.id]:
            file, found = session.files[name], {}

            def read(copy=copy, file=file, found=found):
                _, found["text"] = books.read_by_get(copy, file)
                return found["text"] is not None

            wait_until(15, read, 0.2)
            version = books.version_of(copy, file, found["text"]) if found["text"] is not None else None
            if version is None or version < floors[(session.id, name)]:
                less.append(f"{name} of {session.label}: {floors[(session.id, name)]} was acknowledged, {version} is there")
        if session is moving:
            lines = [number for number, _ in counter.lines(copy)]
            good = len(lines) >= counted and lines == list(range(1, len(lines) + 1))
            test.check(good, f"{what}: the count was {counted} before it, and is {len(lines)}", f"{what}: the count was {counted} before it, and is {len(lines)}, {lines[-3:]}")
    test.check(not less, f"{what}: {len(floors)} files as of then or later", f"{what}: {less}")
    test.check(other.stop() == 0, f"{what}: the restored server stopped in order")


def marked(mark):
    """Processes of this machine with a word in their command line."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def killed(test):
    """`kill -9` of the server while it forks, three times."""
    server, books, chance = Server(test, "killed", CONFIG).start(), Books(test), random.Random(test.options.seed)
    sessions = [make(books, server, template) for template in ("disk", "disk", "tired")]
    script = "import os\nfor d in range(5):\n os.mkdir(f'd{d}')\n for f in range(20): open(f'd{d}/f{f}', 'w').write('x' * 200)"
    for session in sessions:
        must(session.call("exec", "POST", "/exec", {"argv": ["python3", "-c", script]}), "files")
    copies, refusals = [], []
    for turn in range(3):
        what = f"kill -9, {turn + 1}"
        counters = [Counter(session) for session in sessions[:2]]
        over, lock = threading.Event(), threading.Lock()

        def forks(session, over=over, lock=lock):
            while not over.is_set():
                copy = books.fork(session)
                with lock:
                    if copy:
                        copies.append(copy)
                    elif not over.is_set():
                        refusals.append(session.history[-1])

        def writes(session, over=over):
            file = session.file("moving")
            while not over.is_set():
                books.write(session, file, "put")

        threads = [threading.Thread(target=forks, args=(session,), daemon=True) for session in sessions for _ in range(2)]
        threads += [threading.Thread(target=writes, args=(session,), daemon=True) for session in sessions]
        for thread in threads:
            thread.start()
        time.sleep(chance.uniform(0.3, 0.9))
        over.set()
        server.kill()
        for thread in threads:
            thread.join(40)
        server.start()
        left = wait_until(10, lambda counters=counters: not [pid for each in counters for pid in marked(each.mark)])
        test.check(left, f"{what}: no program of before is left, frozen or not", f"{what}: programs are left: {[marked(each.mark) for each in counters]}")
        for session in sessions:
            began = time.monotonic()
            used = session.call("exec", "POST", "/exec", {"command": "rm -f count; echo works"})
            test.check(used.ok and used.json["stdout"] == "works\n" and not used.reports_loss, f"{what}: a source works after {time.monotonic() - began:.2f} s", f"{what}: a source does not work: {used}")
            for file in list(session.files.values()):
                wait_until(15, lambda session=session, file=file: books.read(session, file), 0.2)
    known = {each["id"] for each in must(server.call("GET", "/v1/sessions?limit=1000"), "sessions")["sessions"]}
    missing = [copy.id for copy in copies if copy.id not in known]
    test.check(not missing, f"kill -9: all of {len(copies)} acknowledged forks are there", f"kill -9: forks that were acknowledged are gone: {missing}")
    chance.shuffle(copies)
    for copy in copies[:12]:
        for file in list(copy.files.values()):
            wait_until(15, lambda copy=copy, file=file: books.read(copy, file), 0.2)
        look = copy.call("exec", "POST", "/exec", {"command": "find d* -type f -size 200c | wc -l"})
        test.check(look.ok and look.json["stdout"] == "100\n", "kill -9: a fork has all its files", f"kill -9: a fork lacks files: {look}\n    {copy.account()}")
    # Forks that were never acknowledged are whole, or not there.
    ours = {each.id for each in [*sessions, *copies]}
    extra = sorted(known - ours)
    for identity in extra[:6]:
        look = server.call("POST", f"/v1/sessions/{identity}/exec", {"command": "find d* -type f -size 200c | wc -l"})
        test.check(look.ok and look.json["stdout"] == "100\n", "kill -9: a fork that was never acknowledged is whole", f"kill -9: a fork that was never acknowledged is not whole: {identity}: {look}")
    test.check(not refusals, "kill -9: until then no fork was refused", f"kill -9: forks were refused before it: {refusals[:2]}")
    test.check(not books.counts["SILENT LOSSES"] and not books.counts["losses reported"], f"kill -9: nothing was lost: {books.summary()}", f"kill -9: losses: {books.summary()}")
    test.check(server.stop() == 0, "kill -9: the last server stopped in order")
    wreck = [str(path.relative_to(server.data)) for path in (server.data / "lost+found").glob("*")]
    test.check(not wreck, "kill -9: nothing is in lost+found", f"kill -9: in lost+found: {wreck}")


def resumed(test):
    """A fork that the next start goes on with: a caller that comes meanwhile waits for it, and then gets it."""
    server, books, what = Server(test, "resumed", CONFIG).start(), Books(test), "a fork that outlived the server"
    source = make(books, server, "disk")
    must(source.call("exec", "POST", "/exec", {"argv": ["python3", "-c", MANY], "timeout_ms": 30000}), "files")
    with concurrent.futures.ThreadPoolExecutor(1) as crowd:
        going = crowd.submit(source.call, "fork", "POST", "/fork")
        time.sleep(0.1)
        server.kill()
        answered = going.result(40).ok
    server.start()
    listed = must(server.call("GET", "/v1/sessions"), "sessions")["sessions"]
    copy = next((each["id"] for each in listed if each["id"] != source.id), None)
    if copy is None:
        test.check(not answered, f"{what}: there is none, and it was never acknowledged", f"{what}: it was acknowledged, and is gone")
    else:
        began = time.monotonic()
        used = server.call("POST", f"/v1/sessions/{copy}/exec", {"command": "find d* -type f | wc -l; stat -c %s big"}, patience_s=25)
        took = time.monotonic() - began
        good = used.ok and used.json["stdout"] == f"1000\n{100 << 20}\n"
        test.check(good, f"{what}: used after {took:.2f} s, and whole", f"{what}: a use that came while it was copied got after {took:.1f} s: {used}; a second one {server.call('POST', f'/v1/sessions/{copy}/exec', {'command': 'true'}).status}")
    test.check(server.stop() == 0, f"{what}: the server stopped in order")


def body(test):
    server = Server(test, "copies", CONFIG).start()
    groups = (
        [lambda: running(test, server, "disk"), lambda: frozen(test, server, "tired"), lambda: busy(test, server, "disk")],
        [lambda: running(test, server, "memory"), lambda: frozen(test, server, "tired-memory"), lambda: busy(test, server, "memory")],
        [lambda: backed_up(test), lambda: killed(test), lambda: large(test, server), lambda: resumed(test)],
    )

    def in_turn(group):
        for part in group:
            part()

    with concurrent.futures.ThreadPoolExecutor(len(groups)) as crowd:
        for done in [crowd.submit(in_turn, group) for group in groups]:
            done.result()
    stopped = [each["id"] for each in must(server.call("GET", "/v1/sandboxes?limit=1000"), "sandboxes")["sandboxes"]]
    test.check(not stopped, "no sandbox is left of sessions that were deleted", f"sandboxes are left: {stopped}")
    test.check(server.stop() == 0, "the server stopped in order")


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
