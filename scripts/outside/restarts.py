"""A process that fails is started again as often as was promised, and not once more.

    restarts.py --shoal PATH

processes.md: `restart_on_failure` and `max_restarts` say how often. List, record, wait, followed log and bytes of
the log agree about restarts, exit code and reason. A stop or kill that comes between two programs is final, and a
timeout ends the process, whichever of its programs runs; each start of a program begins it anew. A process whose sandbox is deleted or dies never starts
again and says why; after `kill -9` of the server it ended with the server. `keep_alive` keeps its sandbox from
being frozen also between two programs.
"""

import concurrent.futures
import json
import os
import pathlib
import signal
import time
import uuid

from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 40
workspace_scan_interval_ms = 500
[[templates]]
name = "plain"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
max_overflow = 30
[[templates]]
name = "tired"
freeze_after_ms = 300
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
max_overflow = 30
"""
# Restarts have pauses between them, and the documents do not say how long: a few of them may take this long.
PATIENCE_S = 20
# How long nothing may happen to a process that is over.
STILL_S = 4
SAME = ("id", "pid", "status", "reason", "exit_code", "signal", "restarts", "max_restarts", "restart_on_failure", "ended_at", "started_at")


def must(answer, what):
    if not answer.ok:
        raise RuntimeError(f"{what}: {answer}")
    return answer.json


class Place:
    """A sandbox, under a lease or of a session, and its processes."""

    def __init__(self, server, template, *, session=False):
        self.server, self.session = server, None
        if session:
            made = must(server.call("POST", "/v1/sessions", {"template": template}), "session")
            self.session, self.id = made["id"], made["sandbox_id"]
        else:
            self.id = must(server.call("POST", "/v1/sandboxes", {"template": template}), "sandbox")["id"]

    def call(self, method, path, body=None, **options):
        return self.server.call(method, f"/v1/sandboxes/{self.id}{path}", body, **options)

    def start(self, command, **more):
        return Program(self, must(self.call("POST", "/processes", {"command": command, **more}), f"process {command}"))

    def exec(self, command):
        path = f"/v1/sessions/{self.session}/exec" if self.session else f"/v1/sandboxes/{self.id}/exec"
        return self.server.call("POST", path, {"command": command})

    def delete(self):
        if self.session:
            return self.server.call("DELETE", f"/v1/sessions/{self.session}")
        return self.call("DELETE", "")


class Program:
    """One process, as the server tells of it. Nothing here uses the sandbox or wakes it, but `followed`."""

    def __init__(self, place, record):
        self.place, self.id, self.first = place, record["id"], record

    def call(self, method, path="", body=None, **options):
        return self.place.call(method, f"/processes/{self.id}{path}", body, **options)

    def record(self):
        return must(self.call("GET"), "record")

    def over(self, patience_s=PATIENCE_S):
        """Its record once it is over, or as it is when the patience is."""
        until = time.monotonic() + patience_s
        while True:
            record = self.record()
            if record["status"] != "running" or time.monotonic() > until:
                return record
            time.sleep(0.1)

    def starts(self):
        """How often it was started, by its own words."""
        answer = self.call("GET", "/logs", accept="application/octet-stream")
        return answer.body.count(b"start\n") if answer.ok else -1

    def listed(self):
        listed = must(self.place.call("GET", "/processes?limit=1000"), "list")["processes"]
        return next((each for each in listed if each["id"] == self.id), None)

    def followed(self):
        """The record in the last event of its log, once it is over."""
        answer = self.call("GET", "/logs?offset=0", accept="text/event-stream", patience_s=10)
        ends = [data for name, data in answer.events if name == "exit"]
        return ends[-1].get("process", ends[-1]) if ends else None


def said(record):
    return json.dumps({name: record.get(name) for name in ("status", "reason", "exit_code", "signal", "restarts", "detail")})


def agree(test, program, what):
    """Whether all who tell of a process that is over tell the same."""
    record = program.record()
    others = {"the list": program.listed(), "the followed log": program.followed()}
    others["wait"] = must(program.call("GET", "/wait?timeout_ms=1000"), "wait")
    wrong = []
    for who, other in others.items():
        if other is None:
            wrong.append(f"{who} does not have it")
            continue
        wrong += [f"{who} has {name} {other.get(name)}, the record {record.get(name)}" for name in SAME if other.get(name) != record.get(name)]
    starts = program.starts()
    if starts != record["restarts"] + 1:
        wrong.append(f"its log has {starts} starts, its record {record['restarts']} restarts")
    part = must(program.call("GET", "/logs"), "log")
    if not part["over"] or part["next_offset"] != record["log"]["end_offset"]:
        wrong.append(f"its log says over={part['over']}, next {part['next_offset']} of {record['log']['end_offset']}")
    test.check(not wrong, f"{what}: record, list, wait and log agree: {said(record)}", f"{what}: {'; '.join(wrong)}; {said(record)}")
    return record


def counts(test, server):
    """As often as promised, and not more."""
    place = Place(server, "plain")
    flag = "echo start; if [ -e {0} ]; then exit 0; fi; touch {0}; exit 5"
    policy = {"restart_on_failure": True}
    cases = {
        "no policy": ("echo start; exit 3", {}, 1, ("failed", "exited", 3)),
        "max_restarts without a policy": ("echo start; exit 3", {"max_restarts": 3}, 1, ("failed", "exited", 3)),
        "at most 0 restarts": ("echo start; exit 3", {**policy, "max_restarts": 0}, 1, ("failed", "exited", 3)),
        "at most 1 restart": ("echo start; exit 3", {**policy, "max_restarts": 1}, 2, ("failed", "exited", 3)),
        "at most 3 restarts": ("echo start; echo bad >&2; exit 7", {**policy, "max_restarts": 3}, 4, ("failed", "exited", 7)),
        "it works the second time": (flag.format("second"), {**policy, "max_restarts": 3}, 2, ("completed", "exited", 0)),
        "it works the first time": ("echo start; exit 0", {**policy, "max_restarts": 3}, 1, ("completed", "exited", 0)),
        "it kills itself": ("echo start; kill -9 $$", {**policy, "max_restarts": 1}, 2, (None, "exited", 137)),
        "with a terminal": ("echo start; exit 4", {**policy, "max_restarts": 1, "terminal": {"rows": 24, "columns": 80}}, None, ("failed", "exited", 4)),
    }
    programs = {}
    for what, (command, options, _, _) in cases.items():
        try:
            programs[what] = place.start(command, **options)
        except RuntimeError as error:
            # One that makes no sense may be refused.
            test.saw(f"{what}: refused: {error}")
    endless = place.start("echo start; exit 1", restart_on_failure=True)
    ends = {}
    for what, program in programs.items():
        _, _, starts, (status, reason, code) = cases[what]
        record = ends[what] = program.over()
        good = record["reason"] == reason and record["exit_code"] == code and status in (None, record["status"])
        good = good and (starts is None or (record["restarts"] == starts - 1 and program.starts() == starts))
        test.check(good, f"{what}: {program.starts()} starts", f"{what}: {program.starts()} starts instead of {starts}: {said(record)}")
        test.check(record["pid"] == program.first["pid"], f"{what}: known by its first pid", f"{what}: its pid was {program.first['pid']} and is {record['pid']}")
    enough = wait_until(PATIENCE_S, lambda: endless.record()["restarts"] >= 4)
    test.check(enough, f"without a number it is started again and again: {endless.record()['restarts']} restarts", f"without a number: {said(endless.record())}")
    by_pid = must(place.call("GET", f"/processes/{endless.first['pid']}"), "by pid")
    test.check(by_pid["id"] == endless.id, "it is found by its first pid after restarts", f"its first pid finds {by_pid['id']}")
    time.sleep(STILL_S)
    for what, program in programs.items():
        if cases[what][2] is None:
            continue
        record = agree(test, program, what)
        test.check(record["restarts"] == ends[what]["restarts"], f"{what}: and it stays over", f"{what}: it was over and was started again: {said(record)}")
    place.delete()
    record = endless.over()
    test.check(record["reason"] == "sandbox_ended", f"the endless one ended with its sandbox: {said(record)}", f"the endless one, after the sandbox was deleted: {said(record)}")


def gone_program(test, server):
    """A program that is not there any more when it is to be started again."""
    place = Place(server, "plain")
    text = b"#!/bin/sh\necho start\nrm -f /workspace/once\nexit 9\n"
    must(place.call("PUT", "/files?path=/workspace/once&mode=0755", text), "file")
    record = must(place.call("POST", "/processes", {"argv": ["/workspace/once"], "restart_on_failure": True, "max_restarts": 5}), "process")
    program = Program(place, record)
    record = program.over()
    test.check(record["reason"] == "restart_failed", f"a program that is gone: {said(record)}", f"a program that is gone is not `restart_failed`: {said(record)}")
    test.check(program.starts() == 1, "it ran once", f"it ran {program.starts()} times")
    test.check(record["status"] != "running" and not must(place.call("GET", "/processes?running=true"), "list")["processes"], "nothing runs any more")
    place.delete()


def stopped(test, server):
    """A stop between two programs, or anywhere, is final."""
    place = Place(server, "plain")
    ways = {"DELETE": ("DELETE", "", ("stopped", "stopped")), "kill": ("POST", "/kill", ("killed", "killed"))}
    cases = [(way, after) for way in ways for after in (0, 0.05, 0.2, 0.5, 0.8, 0.9, 0.95, 1.0, 1.05)]

    def one(case):
        way, after = case
        method, path, expected = ways[way]
        name = f"{way}-{after}"
        program = place.start("echo start; exit 1", name=name, restart_on_failure=True)
        wait_until(PATIENCE_S, lambda: program.starts() >= 2, 0.02)
        time.sleep(after)
        answer = program.call(method, path)
        ended, starts = program.record(), program.starts()
        return case, program, answer, ended, starts, expected

    with concurrent.futures.ThreadPoolExecutor(len(cases)) as crowd:
        done = list(crowd.map(one, cases))
    again = place.call("POST", "/processes", {"command": "sleep 0.1", "name": "DELETE-0"})
    test.check(again.ok, "a name is free once its process was stopped", f"the name of a stopped process: {again}")
    time.sleep(STILL_S)
    for (way, after), program, answer, ended, starts, expected in done:
        what = f"{way} {after} s after a second start"
        now, later = program.record(), program.starts()
        final = answer.ok and (ended["status"], ended["reason"]) == expected
        final = final and later == starts and (now["status"], now["reason"], now["restarts"]) == (*expected, ended["restarts"])
        test.check(final, f"{what}: final, after {starts} starts", f"{what}: answered {answer.status}, then {said(ended)} with {starts} starts, {STILL_S} s later {said(now)} with {later}")
    agree(test, done[0][1], "stopped")
    agree(test, done[-1][1], "killed")
    # One that runs, and one whose first end is an answer to the stop.
    for what, command in {"a program that sleeps": "echo start; sleep 1000", "one that fails when it is asked to end": "trap 'exit 3' TERM; echo start; sleep 1000 & wait"}.items():
        program = place.start(command, restart_on_failure=True)
        wait_until(5, lambda program=program: program.starts() == 1)
        answer = program.call("DELETE")
        time.sleep(1)
        record = program.record()
        good = answer.ok and record["status"] == "stopped" and record["restarts"] == 0 and program.starts() == 1
        test.check(good, f"a stop of {what} is final", f"a stop of {what}: {answer.status}, {said(record)}, {program.starts()} starts")
    place.delete()


def timeouts(test, server):
    """The time of a process begins with each start of its program; when it is over, the process is."""
    place, mark = Place(server, "plain"), f"61.{uuid.uuid4().int % 10**9}"
    cases = {
        "its first program stays": f"echo start; exec sleep {mark}",
        "its second program stays": f"echo start; if [ -e stays ]; then exec sleep {mark}; fi; touch stays; exit 1",
        "its second program does not listen": f"trap '' TERM INT HUP; echo start; if [ -e deaf ]; then sleep {mark}; sleep {mark}; fi; touch deaf; exit 1",
    }
    began = time.monotonic()
    programs = {what: place.start(command, restart_on_failure=True, timeout_s=4) for what, command in cases.items()}
    quick = place.start("echo start; sleep 1; exit 1", restart_on_failure=True, timeout_s=4)
    ended = {}
    while len(ended) < len(programs) and time.monotonic() - began < 14:
        for what, program in programs.items():
            if what not in ended and program.record()["status"] != "running":
                ended[what] = time.monotonic() - began
        time.sleep(0.1)
    for what, program in programs.items():
        record, took = program.record(), ended.get(what)
        good = took is not None and 3 <= took <= 12 and record["reason"] == "timeout" and record["restarts"] == ("second" in what)
        test.check(good, f"4 s for a program, {what}: over after {took or -1:.1f} s, {record['restarts']} restarts", f"4 s for a program, {what}: over after {took} s: {said(record)}")
    record = quick.record()
    test.check(record["status"] == "running" and record["restarts"] >= 1, f"programs that take a second each are never over time: {record['restarts']} restarts", f"programs that take a second each: {said(record)}")
    must(quick.call("DELETE", ""), "stop")
    starts = {what: program.starts() for what, program in programs.items() if what in ended}
    time.sleep(STILL_S)
    for what in starts:
        program = programs[what]
        test.check(program.starts() == starts[what], f"{what}: not started after its time", f"{what}: started again after its time: {said(program.record())}")
        agree(test, program, f"timeout, {what}")
    # Brackets, so that those who look do not find themselves.
    left = place.exec(f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '[6]{mark[1:]}'")
    test.check(left.ok and left.json["stdout"] == "0\n", "nothing of them runs", f"programs are left after the timeout: {left}")
    place.delete()


def host_processes(mark):
    """The processes of this machine that have a word in their command line: {pid: its pid in its own namespace}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found[int(entry.name)] = inner_pid(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def inner_pid(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def init_of(pid):
    """The first process of the namespace of this one."""
    while pid > 1 and inner_pid(pid) != 1:
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid if pid > 1 else None


def deaths(test, server):
    """Sandboxes that are deleted, stopped or die."""

    def kill_init(place, mark):
        inside = host_processes(mark)
        init = next((found for found in map(init_of, inside) if found), None)
        if not init:
            raise RuntimeError(f"no init of {inside}")
        os.kill(init, signal.SIGKILL)

    ways = {
        "its lease is returned": (False, lambda place, mark: place.delete()),
        "its session is deleted": (True, lambda place, mark: place.delete()),
        "its session is stopped": (True, lambda place, mark: place.server.call("POST", f"/v1/sessions/{place.session}/stop")),
        "its sandbox is deleted": (True, lambda place, mark: place.call("DELETE", "")),
        "its init is killed": (True, kill_init),
        "its workspace is too large": (True, lambda place, mark: place.exec("head -c 40000000 /dev/urandom > large; sleep 5; rm -f large")),
    }

    def one(item):
        what, (session, end) = item
        place, mark = Place(server, "plain", session=session), f"mark-{uuid.uuid4().hex}"
        quick = place.start("echo start; echo start >> runs; exit 1", restart_on_failure=True)
        slow = place.start(f": {mark}; echo start; echo start >> slow; sleep 1000; exit 1", restart_on_failure=True, keep_alive=True)
        wait_until(PATIENCE_S, lambda: quick.starts() >= 2 and slow.starts() >= 1)
        end(place, mark)
        ended = [program.over(10) for program in (quick, slow)]
        starts = [program.starts() for program in (quick, slow)]
        time.sleep(STILL_S)
        for name, program, record, number in zip(("one between programs", "one that runs"), (quick, slow), ended, starts):
            now = program.record()
            good = record["reason"] == "sandbox_ended" and record["status"] != "running" and record.get("ended_at")
            test.check(good, f"{what}: {name}: {said(record)}", f"{what}: {name} does not say `sandbox_ended`: {said(record)}")
            test.check(program.starts() == number and now == record, f"{what}: {name} stays over", f"{what}: {name} changed: {said(record)}, {number} starts, then {said(now)}, {program.starts()} starts")
        agree(test, slow, what)
        test.check(not host_processes(mark), f"{what}: nothing of it runs", f"{what}: it still runs: {host_processes(mark)}")
        # Who deletes the sandbox of a session deletes its files.
        if session and "deleted" not in what:
            if "stopped" in what:
                place.server.call("POST", f"/v1/sessions/{place.session}/resume")
            read = [place.exec("wc -l < runs; wc -l < slow") for _ in range(2) if not time.sleep(1)]
            numbers = [answer.json["stdout"].split() if answer.ok else str(answer) for answer in read]
            good = numbers[0] == numbers[1] and numbers[0] == [str(number) for number in starts]
            test.check(good, f"{what}: not started in the next sandbox either", f"{what}: starts by the file {numbers}, by the log {starts}")

    with concurrent.futures.ThreadPoolExecutor(len(ways)) as crowd:
        list(crowd.map(one, ways.items()))


def memory(test, server):
    """A program that takes too much memory is a program that fails, and says so."""
    place = Place(server, "plain")
    eat = "echo start; exec python3 -c 'x = bytearray(400 << 20)'"
    program = place.start(eat, restart_on_failure=True, max_restarts=1)
    record = program.over()
    test.check(record["reason"] == "oom", f"too much memory: {said(record)}, {program.starts()} starts", f"too much memory, and the record says: {said(record)}")
    time.sleep(STILL_S)
    now = program.record()
    test.check(now == record and now["restarts"] <= 1, "and it stays over", f"too much memory: it was {said(record)} and is {said(now)}")
    agree(test, program, "too much memory")
    place.delete()


def awake(test, server):
    """Not frozen between two programs, if one of them keeps it awake; frozen if none does."""
    kept, free, bounded = (Place(server, "tired", session=True) for _ in range(3))
    command = "echo start; exit 1"
    keeps = kept.start(command, restart_on_failure=True, keep_alive=True)
    frees = free.start(command, restart_on_failure=True)
    bounds = bounded.start(command, restart_on_failure=True, max_restarts=2, keep_alive=True)
    test.check(keeps.first["timeout_s"] == 600, "with keep_alive its time is 600 s", f"with keep_alive its time is {keeps.first['timeout_s']} s")

    def status(place):
        return must(place.call("GET", "/status"), "status")

    wrong, asked, until = [], 0, time.monotonic() + 8
    while time.monotonic() < until:
        now = status(kept)
        asked += 1
        if now["frozen"] or now["state"] != "awake" or [each["id"] for each in now["keep_alive_processes"]] != [keeps.id]:
            wrong.append(now)
        time.sleep(0.05)
    record = keeps.record()
    test.check(record["status"] == "running" and record["restarts"] >= 2, f"it was started again {record['restarts']} times meanwhile", f"it is {said(record)}")
    test.check(not wrong, f"asked {asked} times, its sandbox was awake each time", f"of {asked} times, its sandbox was not awake {len(wrong)} times, such as {json.dumps(wrong[:1])[:400]}")
    events = must(kept.call("GET", "/events?after=0&limit=1000", accept="application/json"), "events")["events"]
    rests = [each for each in events if each["type"] == "sandbox_frozen" or (each["type"] == "sandbox_wakefulness" and each["wakefulness"] == "auto")]
    test.check(not rests, "no event says that it rested", f"events say that it rested: {rests[:2]}")
    frozen = wait_until(10, lambda: status(free)["frozen"])
    test.check(frozen and frees.record()["status"] == "running", "without keep_alive the sandbox is frozen, and nothing is killed", f"without keep_alive: {status(free)}, {said(frees.record())}")
    record = bounds.over()
    frozen = wait_until(10, lambda: status(bounded)["frozen"])
    test.check(record["status"] == "failed" and record["restarts"] == 2 and frozen, "when it has failed for good, its sandbox is frozen", f"after it failed for good: {said(record)}, {status(bounded)}")
    agree(test, bounds, "failed for good, in a frozen sandbox")
    must(kept.call("POST", "/stop", {}), "stop")
    frozen = wait_until(10, lambda: status(kept)["frozen"])
    test.check(frozen and keeps.record()["status"] == "running", "after `stop` it is frozen too, and nothing is killed", f"after `stop`: {status(kept)}, {said(keeps.record())}")
    before = keeps.record()["restarts"]
    woken = kept.exec("true")
    test.check(woken.ok, "the next use thaws it", f"a use of the frozen sandbox: {woken}")
    for place in (kept, free, bounded):
        place.delete()
    test.saw(f"restarts when it was frozen: {before}")


def server_dies(test):
    """`kill -9` of the server: processes ended with it."""
    server, mark = Server(test, "killed", CONFIG).start(), f"mark-{uuid.uuid4().hex}"
    programs = {}
    places = {"lease": Place(server, "plain"), "session": Place(server, "plain", session=True)}
    for whose, place in places.items():
        programs[f"{whose}: between programs"] = place.start("echo start; echo start >> runs; exit 1", restart_on_failure=True)
        programs[f"{whose}: running"] = place.start(f": {mark}; echo start; sleep 1000; exit 1", restart_on_failure=True, keep_alive=True)
        programs[f"{whose}: over"] = place.start("echo start; exit 6", restart_on_failure=True, max_restarts=1)
    for what, program in programs.items():
        wait_until(PATIENCE_S, lambda program=program, what=what: program.starts() >= (1 if "running" in what else 2))
    before = {what: program.over(10) for what, program in programs.items() if "over" in what}
    starts = {what: program.starts() for what, program in programs.items()}
    # What is stored behind the answers is stored by then.
    time.sleep(1.5)
    server.kill()
    server.start()
    left = wait_until(5, lambda: not host_processes(mark))
    test.check(left, "nothing of them runs after the next start", f"programs outlived the server: {host_processes(mark)}")
    records = {}
    for what, program in programs.items():
        answer = program.call("GET")
        if not answer.ok:
            test.lie(f"kill -9, {what}: its record cannot be read: {answer}")
            continue
        records[what] = record = answer.json
        if "over" in what:
            test.check(record == before[what], f"kill -9, {what}: as it was", f"kill -9, {what}: it was {said(before[what])} and is {said(record)}")
        else:
            good = record["reason"] == "server_ended" and record["status"] != "running"
            test.check(good, f"kill -9, {what}: {said(record)}", f"kill -9, {what}: does not say `server_ended`: {said(record)}")
            listed = program.listed()
            test.check(listed == record, f"kill -9, {what}: the list says so too", f"kill -9, {what}: the list says {listed}, the record {record}")
            test.check(program.starts() >= starts[what], f"kill -9, {what}: its log has {program.starts()} starts", f"kill -9, {what}: its log had {starts[what]} starts, and has {program.starts()}")
    session = places["session"]
    read = [session.exec("wc -l < runs") for _ in range(2) if not time.sleep(1.5)]
    numbers = [answer.json["stdout"].strip() if answer.ok else str(answer) for answer in read]
    test.check(numbers[0] == numbers[1], f"it is not started in the session's next sandbox: {numbers[0]} starts by its file", f"it was started after the server died: {numbers}")
    if "session: between programs" in records:
        now = programs["session: between programs"].record()
        test.check(now == records["session: between programs"], "and its record stays as it is")
        seen = int(numbers[0]) if numbers[0].isdigit() else -1
        test.check(now["restarts"] <= seen - 1, f"its record has {now['restarts']} restarts, its file {seen} starts", f"its record has more restarts ({now['restarts']}) than there were ({seen} starts)")
    test.check(server.stop() == 0, "the server stopped in order")


def body(test):
    server = Server(test, "restarts", CONFIG).start()
    parts = [lambda part=part: part(test, server) for part in (counts, gone_program, stopped, timeouts, deaths, memory, awake)]
    parts.append(lambda: server_dies(test))
    with concurrent.futures.ThreadPoolExecutor(len(parts)) as crowd:
        for done in [crowd.submit(part) for part in parts]:
            done.result()
    test.check(server.stop() == 0, "the server stopped in order")


if __name__ == "__main__":
    Test(__doc__, deadline_s=120).run(body)
