"""A session of Ash that gets a warm sandbox costs at most twice as much as a checkout of our own API.

    ash_warm.py --shoal PATH [--seed S] [--rounds N]

guides/ash.md: with `preWarmCount` a bridge waits in every warm sandbox, and a session that gets one does not wait for
the bridge. Both are measured in turn, on one connection, while the pool is full and its bridges have had time to start,
so that a busy machine slows down both. The first message of such a session is answered by the bridge, with the
session's own environment; the median of it is printed too. Before that, an agent without a bridge must be refused.
"""

import base64
import http.client
import json
import os
import pathlib
import time
from statistics import median, quantiles

from outside import CannotTry, Server, Test, free_port, parse_events, wait_until

BRIDGE = pathlib.Path(__file__).resolve().parent.parent / "ash" / "agent" / "bridge.mjs"
WARM, RATIO_MAX = 3, 2.0
# Node has started by then, also on a busy machine; one that has not makes a session slower, never wrong.
NODE_STARTS_S = 1.2


class Client:
    """One connection that is kept."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self.headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}

    def call(self, method, path, body=None):
        """The time in ms until the whole answer has come, its status, and its bytes."""
        began = time.perf_counter()
        self.connection.request(method, path, None if body is None else json.dumps(body), self.headers)
        answer = self.connection.getresponse()
        data = answer.read()
        return (time.perf_counter() - began) * 1000, answer.status, data

    def made(self, method, path, body=None):
        took, status, data = self.call(method, path, body)
        assert 200 <= status < 300, f"{method} {path}: {status} {data[:300]}"
        return took, json.loads(data) if data else None


def deploy(client, name, files):
    listed = [{"path": path, "content": base64.b64encode(data).decode()} for path, data in files.items()]
    client.made("POST", "/compat/ash/api/agents", {"name": name, "files": listed})


def full(client):
    pool = client.made("GET", "/v1/pools/ash")[1]
    return pool["idle"] >= pool["pool_size"] >= WARM


def session(test, client, number):
    """Creates one, asks it something, ends it: the times of the first two."""
    took, made = client.made("POST", "/compat/ash/api/sessions", {"agent": "helper", "extraEnv": {"NUMBER": str(number)}})
    path = f"/compat/ash/api/sessions/{made['session']['id']}"
    answered, _, data = client.call("POST", f"{path}/messages", {"content": "$ echo number $NUMBER"})
    said = json.dumps([data for name, data in parse_events(data) if name == "message"])
    if f"number {number}\\" not in said:
        test.lie(f"session {number} was answered with {said[:300]}")
    client.made("DELETE", path)
    return took, answered


def checkout(client):
    took, made = client.made("POST", "/v1/checkouts", {"template": "ash"})
    client.made("DELETE", f"/v1/checkouts/{made['id']}")
    return took


def times(name, taken):
    tenths = quantiles(taken, n=10)
    return f"{name}: median {median(taken):.2f} ms, from {tenths[0]:.2f} to {tenths[8]:.2f} ms without the outer tenths"


def main(test):
    if not os.path.exists("/usr/bin/node"):
        raise CannotTry("no /usr/bin/node for the bridge")
    env = {"ASH_BRIDGE_ENTRY": "/workspace/bridge.mjs", "ASH_PORT": str(free_port())}
    server = Server(test, "ash", env=env, arguments=["--ash"]).start()
    client = Client(server)
    deploy(client, "empty", {"CLAUDE.md": b"no bridge"})
    _, status, data = client.call("POST", "/compat/ash/api/sessions", {"agent": "empty"})
    test.check(status == 500 and b"Cannot find module" in data, "an agent without a bridge gets no session", f"{status} {data[:300]}")
    deploy(client, "helper", {"CLAUDE.md": b"a bridge", "bridge.mjs": BRIDGE.read_bytes()})
    client.made("PATCH", "/compat/ash/api/agents/helper/config", {"preWarmCount": WARM})
    sessions, answers, checkouts = [], [], []
    for number in range(test.options.rounds + 1):
        for measure in ("session", "checkout"):
            assert wait_until(30, lambda: full(client), 0.02), "the pool is not full"
            time.sleep(NODE_STARTS_S)
            if measure == "checkout":
                checkouts.append(checkout(client))
                continue
            took, answered = session(test, client, number)
            # The first one waits for its bridge.
            if number:
                sessions.append(took)
                answers.append(answered)
    for line in times("sessions", sessions), times("first messages", answers), times("checkouts", checkouts):
        test.saw(line)
    ratio = median(sessions) / median(checkouts)
    test.check(ratio <= RATIO_MAX, f"a session costs {ratio:.2f} checkouts", f"a session costs {ratio:.2f} checkouts, more than {RATIO_MAX}")


if __name__ == "__main__":
    more = lambda parser: parser.add_argument("--rounds", type=int, default=50)  # noqa: E731
    Test(__doc__, deadline_s=300, more=more).run(main)
