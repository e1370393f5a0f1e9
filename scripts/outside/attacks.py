"""Two keys, one of them hostile: whatever Eve does, Ada is served, and the server's memory stays within its bound.

    attacks.py --shoal PATH [--long]

Eve (hostile.py) attacks in one way after another, for a few seconds each: answers that she does not read, a thousand
sessions, floods of connections, slow uploads, floods of events and of terminals, programs that burn the processor and
the disk, that fill the disk and the buffers of sockets. Ada meanwhile checks out sandboxes, runs a program in each and
returns it, and appends to a file of her session: none of it is refused, and no line is lost. The memory of the server
and of its launcher stays within what serve.md allows for that attack. When an attack is over, nothing of it is left.

Settings are the defaults, except for the limit on `live_sandboxes` that security.md tells operators to set, and small
workspaces. With --long, rounds with and without an attack take turns, and the median of Ada's checkouts under an attack
may be twice that of the quiet rounds before and after it.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

from hostile import ATTACKS, HELD, SESSIONS, STREAMS, TERMINALS, TUNNELS
from outside import Server, SmallDisk, Test, wait_until

CONFIG = f"""
[server]
shutdown_grace_ms = 5000
[limits.use]
live_sandboxes = {HELD}
[[templates]]
name = "default"
[templates.limits]
memory_mb = 128
workspace_mb = 64
"""
DISK_MB = 6000
QUICK_S, LONG_S, QUIET_S, ROUNDS = 1.5, 5, 3, 3
PAUSE_S = 0.02
RATIO_MAX = 2.0

# What serve.md allows beside what the server needs without load, in MiB.
KEPT_MB, BODIES_MB, UNSAVED_MB = 128, 128, 256
PER_CONNECTION_MB, PER_SESSION_MB, PER_STREAM_MB, PER_FOLLOWED_MB = 1 / 16, 1 / 64, 1 / 2, 2
ALLOWED_MB = {
    "answers": BODIES_MB,
    "sessions": SESSIONS * PER_SESSION_MB,
    "connections": 1000 * PER_CONNECTION_MB,
    "uploads": BODIES_MB,
    "events": STREAMS * PER_STREAM_MB,
    "terminals": TERMINALS * PER_FOLLOWED_MB + UNSAVED_MB,
    "sockets": TUNNELS * PER_STREAM_MB,
}


def processes_of(server):
    """The server and its launcher."""
    pid = server.process.pid
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [str(pid), *sorted({child for task in tasks for child in (task / "children").read_text().split()})]


def peak_mb(server):
    """The largest memory that they had since the last `forget_peak`."""
    peak_kb = 0
    for pid in processes_of(server):
        try:
            lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        peak_kb += next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    return peak_kb / 1024


def forget_peak(server):
    for pid in processes_of(server):
        try:
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
        except (FileNotFoundError, ProcessLookupError):
            continue


def descriptors(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


class Ada:
    """The key that wants its due: what it was refused, and how long its checkouts took."""

    def __init__(self, test, server):
        self.test, self.server, self.lines, self.slowest = test, server, 0, {}
        self.key = server.call("POST", "/v1/keys", {"name": "ada", "role": "use"}).json["secret"]
        made = self.call("POST", "/v1/sessions", {"template": "default"})
        assert made.ok, str(made)
        self.session = made.json["id"]

    def call(self, method, path, body=None, step="other"):
        began = time.monotonic()
        answer = self.server.call(method, path, body, key=self.key, patience_s=60)
        self.slowest[step] = max(self.slowest.get(step, 0), round((time.monotonic() - began) * 1000))
        return answer

    def checks_out(self):
        """A checkout, a program and a return; seconds of the checkout, and what was refused."""
        began = time.monotonic()
        lease = self.call("POST", "/v1/checkouts", {"template": "default"}, "checkout")
        took = time.monotonic() - began
        if not lease.ok:
            return took, [f"checkout: {lease}"]
        ran = self.call("POST", f"/v1/sandboxes/{lease.json['sandbox']['id']}/exec", {"command": "echo due"}, "exec")
        back = self.call("DELETE", f"/v1/checkouts/{lease.json['id']}", step="return")
        refused = [] if ran.ok and ran.json["stdout"] == "due\n" else [f"exec: {ran}"]
        return took, refused + ([] if back.ok else [f"return: {back}"])

    def writes(self):
        """One more line, and all lines before it."""
        self.lines += 1
        command = {"command": f"echo {self.lines} >> log; cat log"}
        ran = self.call("POST", f"/v1/sessions/{self.session}/exec", command, "file")
        wanted = "".join(f"{line}\n" for line in range(1, self.lines + 1))
        return [] if ran.ok and ran.json["stdout"] == wanted and not ran.reports_loss else [f"file: {str(ran)[:300]}"]

    def works(self, seconds):
        """Works for so long; the times of her checkouts. Something that was refused is untrue."""
        until, times, refused, self.slowest = time.monotonic() + seconds, [], [], {}
        while time.monotonic() < until:
            took, problems = self.checks_out()
            times.append(took)
            if len(times) % 4 == 1:
                problems += self.writes()
            refused += problems
            time.sleep(PAUSE_S)
        return times, refused


class Attack:
    """Eve's program, with one attack. Its machine would be another one: it gets what processor time is left."""

    def __init__(self, test, server, name, key, seconds, sessions=0):
        command = ["nice", "-n", "19", sys.executable, "-B", str(pathlib.Path(__file__).with_name("hostile.py"))]
        command += [name, "--port", str(server.port), "--key", key, "--seconds", str(seconds), "--sessions", str(sessions)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        test.programs.append(self.process)
        self.first = self.process.stdout.readline().strip()

    def ends(self):
        """What it says at its end."""
        text, _ = self.process.communicate(timeout=120)
        return text.strip().splitlines()[-1] if text.strip() else ""


def released(test, server, name, eve, descriptors_before):
    """Everything that Eve held is free again."""

    def left():
        keys = server.call("GET", "/v1/keys").json["keys"]
        used = next(key for key in keys if key["id"] == eve["id"])["used"]
        held = {what: count for what, count in used.items() if count and what != "events"}
        if descriptors(server) > descriptors_before + 16:
            held["descriptors of the server"] = descriptors(server)
        pool = server.call("GET", "/v1/stats").json["pools"][0]
        if pool["leased"]:
            held["leased"] = pool["leased"]
        return held

    wait_until(60, lambda: not left())
    held = left()
    test.check(not held, f"{name}: nothing of it is left", f"{name}: left after 60 s: {held}")


def under_attack(test, server, ada, name, seconds, idle_mb):
    """Ada's times while Eve attacks."""
    limits = {"live_sandboxes": 200} if name == "sessions" else {}
    eve = server.call("POST", "/v1/keys", {"name": f"eve-{name}", "role": "use", "limits": limits}).json
    before = descriptors(server)
    forget_peak(server)
    attack = Attack(test, server, name, eve["secret"], seconds, sessions=SESSIONS * 9 // 10 if test.options.long else 0)
    if not test.check(attack.first == "begun", f"{name}: Eve attacks", f"{name}: Eve cannot attack: {attack.first}"):
        test.lie(attack.ends())
        return []
    times, refused = ada.works(seconds)
    said = attack.ends()
    peak = peak_mb(server)
    allowed = idle_mb + KEPT_MB + ALLOWED_MB.get(name, 0)
    kept = f"{name}: Ada was served {len(times)} times, at most so many ms: {ada.slowest}"
    test.check(times and not refused, kept, f"{name}: Ada was refused: {refused[:3]}")
    test.check(peak <= allowed, f"{name}: {peak:.0f} MiB, of {allowed:.0f}", f"{name}: {peak:.0f} MiB, above {allowed:.0f}")
    done = json.loads(said) if said.startswith("{") else {"done": 0, "not given back": [said]}
    test.check(done["done"] and not done["not given back"], f"{name}: {done['done']} times", f"{name}: Eve says {said}")
    released(test, server, name, eve, before)
    return times


def milliseconds(times):
    return statistics.median(times) * 1000 if times else float("nan")


def measure(test, server, ada, idle_mb):
    """Rounds with and without an attack take turns. A table of medians."""
    rows = []
    for name in chosen(test):
        quiet, attacked = [], []
        for _ in range(ROUNDS):
            quiet += quiet_round(test, ada)
            attacked += under_attack(test, server, ada, name, LONG_S, idle_mb)
        quiet += quiet_round(test, ada)
        ratio = milliseconds(attacked) / milliseconds(quiet)
        rows.append(f"| {name} | {milliseconds(quiet):.2f} | {milliseconds(attacked):.2f} | {ratio:.2f} | {len(quiet)} | {len(attacked)} |")
        kept = f"{name}: a checkout takes {ratio:.2f} times as long"
        test.check(ratio <= RATIO_MAX, kept, f"{kept}, above {RATIO_MAX}")
    print("| attack | quiet p50, ms | under attack p50, ms | ratio | quiet checkouts | checkouts under attack |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows), flush=True)


def quiet_round(test, ada):
    time.sleep(1)
    times, refused = ada.works(QUIET_S)
    test.check(not refused, f"quiet: {len(times)} checkouts, median {milliseconds(times):.2f} ms", f"quiet: Ada was refused: {refused[:3]}")
    return times


def chosen(test):
    return test.options.only or list(ATTACKS)


def body(test):
    test.programs = []
    server = Server(test, "attacks", CONFIG, data=SmallDisk(test, "disk", DISK_MB).data).start()
    ada = Ada(test, server)
    _, refused = ada.works(1)
    test.check(not refused, "Ada is served while nothing happens", f"Ada is refused: {refused[:3]}")
    idle_mb = peak_mb(server)
    try:
        if test.options.long:
            measure(test, server, ada, idle_mb)
        else:
            for name in chosen(test):
                under_attack(test, server, ada, name, QUICK_S, idle_mb)
    finally:
        for program in test.programs:
            program.kill()
    test.check(not ada.writes(), f"all {ada.lines} lines of Ada are there")
    test.check(server.stop() == 0, "the server stopped in order")


def options(parser):
    parser.add_argument("--long", action="store_true", help="measure, in rounds")
    parser.add_argument("only", nargs="*", help="only these attacks")


if __name__ == "__main__":
    Test(__doc__, deadline_s=lambda options: 1100 if options.long else 300, more=options).run(body)
