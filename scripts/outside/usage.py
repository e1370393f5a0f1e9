"""What a key used is counted, for ever: no restart and no crash takes back a number that was shown.

    usage.py --shoal PATH [--seed S]

serve.md: `GET /v1/usage` and `shoal usage` show what each key used since it exists. So a key has a sandbox and a session
for a known time and keeps a processor busy in it, the server is stopped, killed with -9 and started again, and the
numbers must be near what was used, never below what was shown before, and never grow while nothing lives.
"""

import json
import time

from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 4
[[templates]]
name = "small"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
"""
GROWING = ("sandbox_seconds", "memory_mb_seconds", "cpu_seconds", "stored_byte_seconds")
MEMORY_MB = 128
# A slow machine takes its time for a launch, and a crash may take the last ten seconds of the count.
SLACK_S, ROUND_S = 8, 12


class Meter:
    """The usage of one key, which must never go back."""

    def __init__(self, test, key, secret):
        self.test, self.key, self.secret, self.last = test, key, secret, {}

    def read(self, server, what):
        answer = server.call("GET", "/v1/usage", key=self.secret)
        if answer.status != 200 or len(answer.json["usage"]) != 1:
            self.test.lie(f"{what}: usage cannot be read: {answer}")
            return self.last
        now = answer.json["usage"][0]
        self.test.check(now["key"] == self.key, f"{what}: the key sees its own usage", f"{what}: it sees {now}")
        back = [name for name in GROWING if (now[name] or 0) < (self.last.get(name) or 0)]
        text = f"{what}: {now['sandbox_seconds']} s of sandboxes, {now['cpu_seconds']} s of processors"
        self.test.check(not back, text, f"{what}: {back} went back from {self.last} to {now}")
        self.last = now
        return now


def key_of(server, name):
    made = server.call("POST", "/v1/keys", {"name": name, "role": "use"}).json
    return made["id"], made["secret"]


def about(test, what, value, least, most):
    test.check(least <= value <= most, f"{what}: {value:.1f}", f"{what}: {value}, not from {least} to {most}")


def lease_for(test, server, secret, seconds):
    """A lease with a busy program; how long it was there at least, and at most."""
    began = time.monotonic()
    made = server.call("POST", "/v1/checkouts", {"template": "small"}, key=secret)
    test.check(made.status == 201, "a sandbox was checked out", f"no checkout: {made}")
    has = time.monotonic()
    sandbox = made.json["sandbox"]["id"]
    line = f"end=$(($(date +%s) + {seconds})); while [ $(date +%s) -lt $end ]; do :; done"
    ran = server.call("POST", f"/v1/sandboxes/{sandbox}/exec", {"command": line, "timeout_ms": 60000}, key=secret,
                      patience_s=90)
    test.check(ran.status == 200 and ran.json["exit_code"] == 0, "a program was busy", f"it did not run: {ran}")
    return made.json["id"], began, has


def counted(test, server, meter):
    lease, began, has = lease_for(test, server, meter.secret, 4)
    meter.read(server, "while it lives")
    least = time.monotonic() - has
    returned = server.call("DELETE", f"/v1/checkouts/{lease}", key=meter.secret)
    test.check(returned.ok, "the sandbox was returned", f"not returned: {returned}")
    most = time.monotonic() - began
    time.sleep(2)
    now = meter.read(server, "after the return")
    about(test, "seconds of the sandbox", now["sandbox_seconds"], least - 1, most + SLACK_S)
    about(test, "its memory", now["memory_mb_seconds"], now["sandbox_seconds"] * MEMORY_MB * 0.99,
          now["sandbox_seconds"] * MEMORY_MB * 1.01)
    if now["cpu_seconds"] is None:
        test.saw("this machine cannot read processor times")
    else:
        # Forks of `date` take some of it, and other programs of the machine take the processor away.
        about(test, "its processor time", now["cpu_seconds"], 0.05, most * 4)
    time.sleep(3)
    again = meter.read(server, "while nothing lives")
    same = again["sandbox_seconds"] == now["sandbox_seconds"]
    test.check(same, "nothing is counted while nothing lives", f"{now} became {again}")


def stored(test, server, meter):
    """A session with a file: its bytes count as long as they are there."""
    session = server.call("POST", "/v1/sessions", {"template": "small"}, key=meter.secret)
    test.check(session.status == 201, "a session was made", f"no session: {session}")
    session = session.json["id"]
    put = server.call("PUT", f"/v1/sessions/{session}/files?path=/workspace/data", b"x" * (2 << 20), key=meter.secret)
    test.check(put.ok, "a file of 2 MiB was written", f"not written: {put}")
    server.call("POST", f"/v1/sessions/{session}/pause", key=meter.secret)
    known = lambda: meter.read(server, "with a file")["stored_bytes"] > 0
    test.check(wait_until(40, known, 1.5), "its bytes are counted")
    before = meter.last["stored_byte_seconds"]
    grows = lambda: meter.read(server, "with a file")["stored_byte_seconds"] > before
    test.check(wait_until(15, grows, 1.5), "and the time that they are stored")
    server.call("DELETE", f"/v1/sessions/{session}", key=meter.secret)


def restarted(test, server, meter, how):
    lease_for(test, server, meter.secret, 1)
    time.sleep(3)
    shown = meter.read(server, f"before {how.__name__}")
    began = time.monotonic()
    how()
    server.start()
    after = meter.read(server, f"after {how.__name__}")
    most = shown["sandbox_seconds"] + (time.monotonic() - began) + SLACK_S
    about(test, f"seconds after {how.__name__}", after["sandbox_seconds"], shown["sandbox_seconds"], most)


def killed_between(test, server, meter):
    """No request reads: what is lost is at most what was not stored yet."""
    before = meter.read(server, "before the quiet time")["sandbox_seconds"]
    lease_for(test, server, meter.secret, 1)
    began = time.monotonic()
    time.sleep(24)
    lived = time.monotonic() - began
    server.kill()
    server.start()
    grown = meter.read(server, "after the quiet time")["sandbox_seconds"] - before
    about(test, f"of {lived:.0f} s before a kill", grown, lived - ROUND_S, lived + SLACK_S)


def seen(test, server, meter, other):
    admin = server.call("GET", "/v1/usage").json["usage"]
    test.check({meter.key, other.key} <= {one["key"] for one in admin}, "an administrator sees all keys")
    foreign = server.call("GET", f"/v1/usage?key={meter.key}", key=other.secret)
    test.check(foreign.status == 404, "a key does not see another", f"it sees {foreign}")
    idle = other.read(server, "of the idle key")
    test.check(idle["sandbox_seconds"] == 0, "the idle key used nothing", f"it used {idle}")
    said = server.cli("usage", "--key", meter.key, "--json")
    shown = json.loads(said.stdout)["usage"][0]["sandbox_seconds"]
    test.check(shown >= meter.last["sandbox_seconds"], "the command line shows the same", f"it shows {said.stdout}")
    table = server.cli("usage").stdout
    test.check(meter.key in table and "SANDBOX S" in table, "and a table", f"it shows {table}")
    server.call("DELETE", f"/v1/keys/{meter.key}")
    kept = server.call("GET", f"/v1/usage?key={meter.key}").json["usage"][0]
    test.check(kept["sandbox_seconds"] >= meter.last["sandbox_seconds"], "a revoked key keeps its usage", f"{kept}")


def body(test):
    server = Server(test, "usage", CONFIG).start()
    meter, other = (Meter(test, *key_of(server, name)) for name in ("busy", "idle"))
    counted(test, server, meter)
    stored(test, server, meter)
    restarted(test, server, meter, server.stop)
    restarted(test, server, meter, server.kill)
    killed_between(test, server, meter)
    seen(test, server, meter, other)


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
