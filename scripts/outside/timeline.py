"""Streams of events show every change of a sandbox's state, to its owner alone, and stay alive.

    timeline.py --shoal PATH [--seconds N]

serve.md: `sandbox_state` says that a sandbox went `from` one state `to` another. The changes of a sandbox are a
chain from `cold` to `cold`; `skipped` says how many were left out, since a stream has at most ten of one sandbox in
a second; the last one of a burst always comes. Leases and sessions are followed through use, rest, pause, eviction,
deletion and `kill -9` of the server. Pages have no such event, and no key sees those of another. A stream on
which nothing happens has its signs of life, however busy others are; a reader that falls behind misses no other
event.
"""

import concurrent.futures
import datetime
import json
import threading
import time

from event_stream import Stream
from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = {places}
freeze_after_ms = 400
[[templates]]
name = "fresh"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
max_overflow = 20
[[templates]]
name = "pooled"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = {pooled}
max_overflow = 20
"""
# A second late at most, and what a busy machine takes.
LATE_S = 5
PER_S, REMEMBERED = 10, 4096
# The owner of a lease sees a sandbox from when it is theirs; a stream that begins later has any first change.
OWNED, LATER = ("cold", "warming", "warm"), ("cold", "warming", "warm", "waiting", "running")
# Signs of life come about every 15 seconds.
SIGN_MAX_S = 25


def must(answer, what):
    if not answer.ok:
        raise RuntimeError(f"{what}: {answer}")
    return answer.json


def told(changes):
    return " ".join(f"{each['from']}>{each['to']}" + (f"(+{each['skipped']})" if each["skipped"] else "") for each in changes)


def broken(changes, *, begins=("cold",), ends=None):
    """What is wrong with the chain of a sandbox; nothing if it is whole."""
    wrong = []
    if changes and changes[0]["from"] not in begins and not changes[0]["skipped"]:
        wrong.append(f"begins with {changes[0]['from']}")
    for earlier, later in zip(changes, changes[1:]):
        if not later["skipped"] and later["from"] != earlier["to"]:
            wrong.append(f"{earlier['from']}>{earlier['to']}, then {later['from']}>{later['to']}, and nothing was skipped")
        if later["generation"] < earlier["generation"]:
            wrong.append(f"generation {later['generation']} after {earlier['generation']}")
        if (later["number"] or 0) < (earlier["number"] or 0):
            wrong.append(f"number {later['number']} after {earlier['number']}")
    for each in changes:
        if each["from"] == each["to"]:
            wrong.append(f"{each['from']}>{each['to']} is no change")
        if (each["to"] == "cold") != bool(each.get("reason") and each.get("cause")):
            wrong.append(f"{each['from']}>{each['to']} has reason {each.get('reason')} and cause {each.get('cause')}")
        if each["number"] != each["id"]:
            wrong.append(f"the event's number is {each['number']}, its data say {each['id']}")
    if ends and (not changes or changes[-1]["to"] != ends):
        wrong.append(f"does not end {ends}")
    return wrong


def judge(test, what, changes, **how):
    wrong = broken(changes, **how)
    return test.check(changes and not wrong, f"{what}: {told(changes)[:400]}", f"{what}: {'; '.join(wrong[:4]) or 'no changes'} in {told(changes)[:600]}")


def shown(server, key, sandbox):
    """The state of a sandbox by its own address; one that is gone is cold."""
    answer = server.call("GET", f"/v1/sandboxes/{sandbox}", key=key)
    if answer.status in (404, 410):
        return "cold"
    return must(answer, "sandbox")["state"]


def settled(test, server, key, stream, sandbox, what):
    """Whether stream and sandbox come to agree."""
    agreed = wait_until(LATE_S, lambda: stream.last(sandbox) == shown(server, key, sandbox))
    now = shown(server, key, sandbox)
    return test.check(agreed, f"{what}: both say {now}", f"{what}: the stream says {stream.last(sandbox)}, the sandbox {now}; {told(stream.changes(sandbox))[-300:]}")


def rest(stream, sandbox):
    """Waits until nothing of a sandbox came for a while."""
    until, before = time.monotonic() + LATE_S, -1
    while time.monotonic() < until:
        now = len(stream.changes(sandbox))
        if now == before:
            return
        before = now
        time.sleep(1.2)


def pages(test, server, key, path, what):
    """Every page of the past; none has a change of state."""
    after, events = 0, []
    for _ in range(50):
        page = must(server.call("GET", f"{path}?after={after}&limit=1000", key=key, accept="application/json"), "page")["events"]
        if not page:
            break
        events += page
        after = page[-1]["id"]
    bad = [each for each in events if each["type"] == "sandbox_state"]
    test.check(not bad, f"{what}: {len(events)} events in pages, none is a change of state", f"{what}: a page has {bad[:1]}")
    return events


def new_key(server, name, role="use"):
    return must(server.call("POST", "/v1/keys", {"name": name, "role": role}), "key")["secret"]


# The lives of a lease and a session, on a server with few places.


class Owner:
    """A key with its sandboxes and its stream of everything."""

    def __init__(self, test, server, name):
        self.test, self.server, self.key = test, server, new_key(server, name)
        self.sandboxes, self.sessions = set(), set()
        self.follow()

    def follow(self, after=None):
        self.stream = Stream(self.server, "/v1/events", self.key, after=after)

    def call(self, method, path, body=None, **options):
        return self.server.call(method, path, body, key=self.key, **options)

    def lease(self, template="fresh"):
        sandbox = must(self.call("POST", "/v1/sandboxes", {"template": template}), "lease")["id"]
        self.sandboxes.add(sandbox)
        return sandbox

    def session(self):
        made = must(self.call("POST", "/v1/sessions", {"template": "fresh"}), "session")
        self.sessions.add(made["id"])
        self.sandboxes.add(made["sandbox_id"])
        return made["id"], made["sandbox_id"]

    def sandbox_of(self, session):
        answer = self.call("GET", f"/v1/sessions/{session}")
        sandbox = None if answer.status in (404, 410) else must(answer, "session")["sandbox_id"]
        if sandbox:
            self.sandboxes.add(sandbox)
        return sandbox


def exec_shown(test, owner, path, sandbox, what):
    """An exec shows as running, and as running no longer."""
    before = len(owner.stream.changes(sandbox))
    done = owner.call("POST", f"{path}/exec", {"command": "sleep 0.6"})
    wait_until(LATE_S, lambda: [each for each in owner.stream.changes(sandbox)[before:] if each["from"] == "running"])
    news = owner.stream.changes(sandbox)[before:]
    seen = [each["to"] for each in news]
    test.check(done.ok and "running" in seen and seen[-1] != "running", f"{what}: an exec is shown: {told(news)}", f"{what}: an exec ({done.status}) is not shown: {told(news)}")


def lease_life(test, owner):
    server, sandbox = owner.server, owner.lease()
    settled(test, server, owner.key, owner.stream, sandbox, "lease, new")
    own = Stream(server, f"/v1/sandboxes/{sandbox}/events", owner.key)
    exec_shown(test, owner, f"/v1/sandboxes/{sandbox}", sandbox, "lease")
    frozen = wait_until(10, lambda: must(owner.call("GET", f"/v1/sandboxes/{sandbox}/status"), "status")["frozen"])
    test.check(frozen, "lease: quiet, it was frozen")
    settled(test, server, owner.key, owner.stream, sandbox, "lease, frozen")
    exec_shown(test, owner, f"/v1/sandboxes/{sandbox}", sandbox, "lease, thawed")
    settled(test, server, owner.key, owner.stream, sandbox, "lease, used")
    must_end = owner.call("DELETE", f"/v1/sandboxes/{sandbox}")
    test.check(must_end.ok, "lease: deleted", f"lease: {must_end}")
    settled(test, server, owner.key, owner.stream, sandbox, "lease, deleted")
    changes = owner.stream.changes(sandbox)
    judge(test, "lease, whole life", changes, begins=OWNED, ends="cold")
    test.check(changes and changes[-1].get("reason") == "deleted", f"lease: it says why: {changes[-1].get('reason')}, {changes[-1].get('cause')}" if changes else "lease: nothing")
    wait_until(LATE_S, lambda: own.last(sandbox) == "cold")
    part = own.changes(sandbox)
    judge(test, "lease, by its own stream", part, begins=LATER, ends="cold")
    test.check(set(own.changes()) <= {sandbox}, "lease: its own stream has no other sandbox", f"lease: its own stream has {set(own.changes())}")
    own.close()


def session_life(test, owner):
    server = owner.server
    session, sandbox = owner.session()
    path = f"/v1/sessions/{session}"
    own = Stream(server, f"{path}/events", owner.key)
    lived = []

    def now(what):
        """The sandbox it has now, and whether all agree about it."""
        current = owner.sandbox_of(session) or (lived[-1] if lived else sandbox)
        if current not in lived:
            lived.append(current)
        settled(test, server, owner.key, owner.stream, current, f"session, {what}")
        return current

    now("new")
    exec_shown(test, owner, path, sandbox, "session")
    turn = owner.call("POST", f"{path}/turns", {"input": "sleep 0.5"}, accept="application/json")
    test.check(turn.ok, "session: a turn")
    now("after a turn")
    must(owner.call("POST", f"{path}/pause"), "pause")
    now("paused")
    must(owner.call("POST", f"{path}/resume"), "resume")
    now("resumed")
    exec_shown(test, owner, path, now("resumed"), "session, resumed")
    # Others push it out.
    rest(owner.stream, sandbox)
    pushed = [owner.session() for _ in range(3)]
    evicted = wait_until(LATE_S, lambda: owner.stream.last(lived[-1]) == "cold")
    changes = owner.stream.changes(lived[-1])
    why = [each.get("reason") for each in changes if each["to"] == "cold"]
    test.check(evicted and "evicted" in why, f"session: evicted, and the stream says so: {why}", f"session: pushed out by three others: {told(changes)}, {why}")
    now("evicted")
    for other, _ in pushed:
        must(owner.call("DELETE", f"/v1/sessions/{other}"), "delete")
    must(owner.call("POST", f"{path}/exec", {"command": "true"}), "exec")
    exec_shown(test, owner, path, now("back"), "session, back")
    must(owner.call("POST", f"{path}/stop"), "stop")
    now("stopped")
    must(owner.call("POST", f"{path}/resume"), "resume")
    must(owner.call("POST", f"{path}/exec", {"command": "true"}), "exec")
    last = now("resumed after a stop")
    must(owner.call("DELETE", path), "delete")
    now("deleted")
    for each in lived:
        wait_until(LATE_S, lambda each=each: owner.stream.last(each) == "cold")
        judge(test, f"session, whole life of sandbox {lived.index(each) + 1} of {len(lived)}", owner.stream.changes(each), ends="cold")
    for other, box in pushed:
        wait_until(LATE_S, lambda box=box: owner.stream.last(box) == "cold")
        judge(test, "session, one that pushed it out", owner.stream.changes(box), ends="cold")
    wrong = [each for changes in own.changes().values() for each in changes if each.get("session") != session]
    test.check(own.changes() and not wrong, f"session: its own stream has its sandboxes, {sum(map(len, own.changes().values()))} changes", f"session: its own stream has {wrong[:1] or 'nothing'}")
    for each in lived:
        wait_until(LATE_S, lambda each=each: own.last(each) == "cold")
        judge(test, "session, by its own stream", own.changes(each), begins=LATER, ends="cold")
    pages(test, server, owner.key, f"{path}/events", "pages of the session")
    own.close()
    return last


def away(test, owner):
    """A client that was away learns what changed meanwhile."""
    server = owner.server
    sandbox = owner.lease()
    settled(test, server, owner.key, owner.stream, sandbox, "away, before")
    before, seen = owner.stream.number(), owner.stream.changes(sandbox)
    gone = owner.stream
    gone.close()
    for _ in range(3):
        must(owner.call("POST", f"/v1/sandboxes/{sandbox}/exec", {"command": "sleep 0.2"}), "exec")
    must(owner.call("DELETE", f"/v1/sandboxes/{sandbox}"), "delete")
    owner.follow(after=before)
    wait_until(LATE_S, lambda: owner.stream.last(sandbox) == "cold")
    later = owner.stream.changes(sandbox)
    # What came just before the connection broke may come again.
    fits = [cut for cut in range(len(later) + 1) if not broken(seen + later[cut:], begins=OWNED, ends="cold") and told(seen).endswith(told(later[:cut]))]
    test.check(fits, f"away: what it missed: {told(later)[:300]}", f"away: it had {told(seen)}, and then {told(later)}")


def killed(test, owner, other):
    """`kill -9` of the server in between."""
    server = owner.server
    lease = owner.lease()
    session, sandbox = owner.session()
    must(owner.call("POST", f"/v1/sessions/{session}/exec", {"command": "true"}), "exec")
    for each in (lease, sandbox):
        settled(test, server, owner.key, owner.stream, each, "before kill -9")
        judge(test, "before kill -9", owner.stream.changes(each), begins=OWNED if each == lease else ("cold",))
    before, theirs = owner.stream, other.stream
    last = before.number()
    server.kill()
    test.check(before.ended.wait(10) and theirs.ended.wait(10), "kill -9: the streams end")
    server.start()
    owner.follow(after=last)
    other.follow(after=theirs.number())
    test.check(shown(server, owner.key, lease) == "cold", "kill -9: the lease's sandbox is gone")
    time.sleep(1)
    # What was there went cold with the server. The next one does not know its last state and says `warming`.
    for name, each in (("lease", lease), ("session", sandbox)):
        seen, later = before.changes(each), owner.stream.changes(each)
        good = not later or (later[0]["from"] == "warming" and later[0]["to"] == "cold") or later[0]["from"] == "cold"
        test.check(good, f"kill -9: the {name}'s sandbox, last {seen[-1]['to']}, then {told(later) or 'nothing'}", f"kill -9: the {name}'s sandbox was last {seen[-1]['to']}, and the next stream says {told(later)}, nothing skipped")
    must(owner.call("POST", f"/v1/sessions/{session}/exec", {"command": "true"}), "exec")
    now = owner.sandbox_of(session)
    settled(test, server, owner.key, owner.stream, now, "after kill -9")

    def afterwards():
        """Its changes since the start, without its end with the last server."""
        changes = owner.stream.changes(now)
        return changes[1:] if changes and changes[0]["to"] == "cold" else changes

    judge(test, "after kill -9 a session's sandbox begins cold", afterwards())
    exec_shown(test, owner, f"/v1/sessions/{session}", now, "after kill -9")
    must(owner.call("DELETE", f"/v1/sessions/{session}"), "delete")
    settled(test, server, owner.key, owner.stream, now, "after kill -9, deleted")
    judge(test, "after kill -9, to the end", afterwards(), ends="cold")
    ended = [data for name, _, data in owner.stream.others() if name == "sandbox_terminated"]
    test.saw(f"kill -9: the ends that the next stream told: {[(each['sandbox_id'] == lease and 'lease' or 'session', each['reason']) for each in ended]}")
    return before, theirs


def pooled(test, owner, admin):
    """One that was warm before anybody wanted it."""
    sandbox = owner.lease("pooled")
    exec_shown(test, owner, f"/v1/sandboxes/{sandbox}", sandbox, "pooled")
    must(owner.call("DELETE", f"/v1/sandboxes/{sandbox}"), "delete")
    settled(test, owner.server, owner.key, owner.stream, sandbox, "pooled, deleted")
    judge(test, "pooled, to its owner", owner.stream.changes(sandbox), begins=OWNED, ends="cold")
    wait_until(LATE_S, lambda: admin.last(sandbox) == "cold")
    judge(test, "pooled, to an admin", admin.changes(sandbox), ends="cold")


def lives(test):
    server = Server(test, "lives", CONFIG.format(places=3, pooled=0)).start()
    one, two = Owner(test, server, "one"), Owner(test, server, "two")
    streams = [two.stream]
    admin = Stream(server, "/v1/events", server.key)
    lease_life(test, one)
    session_life(test, one)
    away(test, one)
    for box in one.sandboxes:
        refused = [two.call("GET", f"/v1/sandboxes/{box}/events", accept=accept, patience_s=5).status for accept in ("text/event-stream", "application/json")]
        if refused != [404, 404]:
            test.lie(f"the events of a sandbox of another key: {refused}")
    for session in one.sessions:
        refused = [two.call("GET", f"/v1/sessions/{session}/events", accept=accept, patience_s=5).status for accept in ("text/event-stream", "application/json")]
        if refused != [404, 404]:
            test.lie(f"the events of a session of another key: {refused}")
    wrong = {box: broken(changes, ends="cold") for box, changes in admin.changes().items()}
    wrong = {box: each for box, each in wrong.items() if each}
    test.check(len(admin.changes()) >= len(one.sandboxes) and not wrong, f"an admin sees all {len(admin.changes())} sandboxes, from cold to cold", f"an admin sees {len(admin.changes())} of {len(one.sandboxes)} sandboxes, wrong are {wrong}")
    _, theirs = killed(test, one, two)
    streams += [theirs, two.stream]
    # Their own sandbox is the only one that they see.
    mine = two.lease()
    settled(test, server, two.key, two.stream, mine, "another key, its own")
    must(two.call("DELETE", f"/v1/sandboxes/{mine}"), "delete")
    settled(test, server, two.key, two.stream, mine, "another key, its own, deleted")
    texts = [json.dumps(data) for stream in streams for _, _, _, data in stream.all()]
    leaks = [text for text in texts if any(word in text for word in one.sandboxes | one.sessions)]
    test.check(texts and not leaks, f"another key saw {len(texts)} events, none of them about what is not its own", f"another key saw {leaks[:2]}")
    test.check(not [text for text in (json.dumps(data) for _, _, _, data in one.stream.all()) if mine in text], "nor the other way round")
    for whose, key in (("the owner", one.key), ("another key", two.key), ("an admin", server.key)):
        pages(test, server, key, "/v1/events", f"pages of {whose}")
    for stream in (*streams, one.stream, admin):
        stream.close()
    test.check(server.stop() == 0, "lives: the server stopped in order")


# A burst, and a key that is very busy while another is quiet.


def moves(server):
    """How many changes the server counted."""
    text = server.call("GET", "/metrics").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("shoal_sandbox_moves") and not line.startswith("#"))


def all_of(stream):
    """How many changes a stream told of, those included that it left out."""
    return sum(1 + each["skipped"] for changes in stream.changes().values() for each in changes)


def clock(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def rate(test, what, changes):
    """Ten a second at most, ends not counted; a second more at both ends for what was held back."""
    times = [clock(each["at"]) for each in changes if each["to"] != "cold"]
    lasted = times[-1] - times[0] if times else 0
    most = max((sum(1 for at in times if begin <= at < begin + 1) for begin in times), default=0)
    test.check(len(times) <= PER_S * (lasted + 2), f"{what}: {len(times)} changes in {lasted:.1f} s, at most {most} in any second", f"{what}: {len(times)} changes in {lasted:.1f} s")


def burst(test, owner, admin, base):
    """Far more than ten changes a second."""
    server, sandbox = owner.server, owner.lease()
    settled(test, server, owner.key, owner.stream, sandbox, "burst, before")
    after, began, execs = owner.stream.number(), time.monotonic(), 0
    own = Stream(server, f"/v1/sandboxes/{sandbox}/events", owner.key)
    while time.monotonic() - began < 4 and execs < REMEMBERED // 4:
        must(owner.call("POST", f"/v1/sandboxes/{sandbox}/exec", {"argv": ["true"]}), "exec")
        execs += 1
    ended = time.monotonic()
    settled(test, server, owner.key, owner.stream, sandbox, f"after {execs} execs")
    rest(owner.stream, sandbox)
    changes = owner.stream.changes(sandbox)
    judge(test, "burst", changes, begins=OWNED)
    rate(test, "burst", changes)
    total = sum(1 + each["skipped"] for each in changes)
    test.check(total > len(changes) > 10, f"burst: {len(changes)} changes shown, {total - len(changes)} skipped, of {execs} execs", f"burst: {execs} execs, {len(changes)} changes, {total - len(changes)} skipped")
    test.check(changes[-1]["came"] - ended < LATE_S, f"burst: the last one came {max(0, changes[-1]['came'] - ended):.2f} s after it")
    test.check(wait_until(LATE_S, lambda: own.last(sandbox) == changes[-1]["to"]), "burst: the stream of the sandbox ends the same", f"burst: the stream of the sandbox ends {own.last(sandbox)}")
    part = own.changes(sandbox)
    judge(test, "burst, by the sandbox's own stream", part, begins=LATER)
    # A stream that begins later has the same number of changes.
    late = Stream(server, "/v1/events", owner.key, after=after)
    wait_until(LATE_S, lambda: late.last(sandbox) == changes[-1]["to"])
    rest(late, sandbox)
    again = late.changes(sandbox)
    judge(test, "burst, told later", again, begins=LATER)
    rate(test, "burst, told later", again)
    begun = sum(1 + each["skipped"] for each in again)
    test.check(total - 4 <= begun <= total + 4, f"burst, told later: {begun} changes", f"burst, told later: {begun} changes instead of {total}")
    test.check(again and again[-1]["to"] == changes[-1]["to"], "burst, told later: it ends the same")
    for stream in (own, late):
        stream.close()
    must(owner.call("DELETE", f"/v1/sandboxes/{sandbox}"), "delete")
    settled(test, server, owner.key, owner.stream, sandbox, "burst, deleted")
    judge(test, "burst, to the end", owner.stream.changes(sandbox), begins=OWNED, ends="cold")
    wait_until(LATE_S, lambda: admin.last(sandbox) == "cold")
    judge(test, "burst, to an admin", admin.changes(sandbox), ends="cold")
    # The admin sees everything: what is shown and skipped is what the server counted.
    counted = wait_until(LATE_S, lambda: all_of(admin) == moves(server) - base)
    test.check(counted, f"shown and skipped are the {all_of(admin)} moves that the metrics count", f"the metrics count {moves(server) - base:.0f} moves, the stream of an admin {all_of(admin)}")


def busy(test):
    server = Server(test, "busy", CONFIG.format(places=20, pooled=0)).start()
    base, admin = moves(server), Stream(server, "/v1/events", server.key)
    loud, quiet = Owner(test, server, "loud"), Owner(test, server, "quiet")
    session, resting = quiet.session()
    alone = Stream(server, f"/v1/sessions/{session}/events", quiet.key)
    settled(test, server, quiet.key, quiet.stream, resting, "quiet, before")
    wait_until(LATE_S, lambda: must(quiet.call("GET", f"/v1/sandboxes/{resting}/status"), "status")["frozen"])
    began = time.monotonic()
    burst(test, loud, admin, base)
    # A reader that does not read for a while.
    slow = Stream(server, "/v1/events", loud.key)
    first = loud.stream.number()
    slow.hold.clear()
    boxes = [loud.lease() for _ in range(3)]
    over, counts, bad = threading.Event(), [0] * len(boxes), []

    def load(number):
        while not over.is_set():
            answer = loud.call("POST", f"/v1/sandboxes/{boxes[number]}/exec", {"argv": ["true"]})
            counts[number] += 1
            if not answer.ok:
                bad.append(str(answer)[:200])
                return

    threads = [threading.Thread(target=load, args=(number,), daemon=True) for number in range(len(boxes))]
    for thread in threads:
        thread.start()
    until = began + test.options.seconds
    time.sleep(max(0, until - 8 - time.monotonic()))
    # In the middle of it, the quiet one has a change, too.
    asked = time.monotonic()
    sandbox = quiet.lease()
    wait_until(LATE_S, lambda: quiet.stream.changes(sandbox))
    changes = quiet.stream.changes(sandbox)
    test.check(changes, f"a change of the quiet key came within {changes[0]['came'] - asked if changes else -1:.2f} s", "a change of the quiet key does not come while another is busy")
    must(quiet.call("DELETE", f"/v1/sandboxes/{sandbox}"), "delete")
    settled(test, server, quiet.key, quiet.stream, sandbox, "quiet, its own, while another is busy")
    judge(test, "quiet, its own, while another is busy", quiet.stream.changes(sandbox), begins=OWNED, ends="cold")
    slow.hold.set()
    time.sleep(max(0, until - time.monotonic()))
    over.set()
    for thread in threads:
        thread.join(30)
    ended = time.monotonic()
    test.check(not bad, f"busy: {sum(counts)} execs in {ended - began:.0f} s", f"busy: execs failed: {bad[:1]}")
    for name, stream in (("its stream", quiet.stream), ("the stream of its session", alone)):
        # Anything that comes is a sign of life.
        times = sorted([stream.opened, *stream.signs, *(at for at, *_ in stream.all()), ended])
        longest = max(later - earlier for earlier, later in zip(times, times[1:]))
        test.check(stream.signs and longest < SIGN_MAX_S and not stream.ended.is_set(), f"quiet: {name} had {len(stream.signs)} signs of life, never nothing for more than {longest:.1f} s", f"quiet: {name} had {len(stream.signs)} signs of life, and nothing for {longest:.1f} s; ended {stream.ended.is_set()} {stream.error}")
    others = set(quiet.stream.changes()) - quiet.sandboxes
    test.check(not others, "quiet: it saw nothing of the busy key", f"quiet: it saw {others}")
    for box in boxes:
        settled(test, server, loud.key, loud.stream, box, "busy, at its end")
        judge(test, "busy", loud.stream.changes(box), begins=OWNED)
        rate(test, "busy", loud.stream.changes(box))
        must(loud.call("DELETE", f"/v1/sandboxes/{box}"), "delete")
    for box in boxes:
        settled(test, server, loud.key, loud.stream, box, "busy, deleted")
        wait_until(LATE_S, lambda box=box: slow.last(box) == "cold")
        test.check(slow.last(box) == "cold", "a slow reader learns of the end", f"a slow reader saw {told(slow.changes(box))[-200:]}")
    written = {each["id"] for each in pages(test, server, loud.key, "/v1/events", "pages of the busy key") if each["id"] > first}
    wait_until(LATE_S, lambda: written <= {number for _, number, _ in slow.others()})
    missing = written - {number for _, number, _ in slow.others()}
    test.check(not missing and not slow.ended.is_set(), f"a slow reader missed none of {len(written)} other events", f"a slow reader missed {len(missing)} of {len(written)} other events, ended {slow.ended.is_set()}")
    for stream in (admin, loud.stream, quiet.stream, alone, slow):
        stream.close()
    test.check(server.stop() == 0, "busy: the server stopped in order")


def warm(test):
    server = Server(test, "warm", CONFIG.format(places=20, pooled=2)).start()
    admin = Stream(server, "/v1/events", server.key, after=0)
    owner = Owner(test, server, "owner")
    wait_until(10, lambda: must(server.call("GET", "/v1/sandboxes?state=warm"), "sandboxes")["sandboxes"])
    pooled(test, owner, admin)
    for stream in (admin, owner.stream):
        stream.close()
    test.check(server.stop() == 0, "warm: the server stopped in order")


def body(test):
    parts = (busy, lives, warm)
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as crowd:
        for done in [crowd.submit(part, test) for part in parts]:
            done.result()


def more(parser):
    parser.add_argument("--seconds", type=float, default=33, help="how long one key is busy and the other quiet")


if __name__ == "__main__":
    Test(__doc__, deadline_s=lambda options: 100 + options.seconds, more=more).run(body)
