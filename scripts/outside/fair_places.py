"""Two keys share the places of a full server: the key that asks most does not win.

    fair_places.py --shoal PATH

concepts.md and sessions.md: the next sandbox goes to the key that has the fewest, callers of one key are served in
order, and creating, resuming or using a session waits for a place. Eve sends turns to many sessions at once and asks
for checkouts as fast as she can, on a server with four places. Ada has two conversations and sends a turn now and then:
each is answered, none is refused, and every file that Eve wrote is still there at the end. Limits of a key are kept
under the same load, and a full server refuses by name when the wait is over.
"""

import concurrent.futures
import threading
import time

from outside import Server, Test

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 4
[[templates]]
name = "default"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
max_overflow = 8
"""
ATTACK_S, SESSIONS, TURNS = 25, 10, 8


def key_of(server, name, **more):
    made = server.call("POST", "/v1/keys", {"name": name, "role": "use", **more})
    assert made.status == 201, str(made)
    return made.json


def session_of(server, key, **more):
    return server.call("POST", "/v1/sessions", {"template": "default", **more}, key=key, patience_s=100)


def turn(server, key, session, text, **more):
    body = {"input": text, **more}
    return server.call(
        "POST", f"/v1/sessions/{session}/turns", body, key=key, accept="application/json", patience_s=100
    )


def attack(server, key, sessions, until, counts):
    """One of Eve's clients: it sends turns to her sessions without a pause."""
    n = 0
    while time.monotonic() < until:
        n += 1
        session = sessions[n % len(sessions)]
        said = turn(server, key, session, f"echo {n} >> log; sleep 0.3")
        counts.append(said.status)


def flood(test, server):
    eve, ada = key_of(server, "eve")["secret"], key_of(server, "ada")["secret"]
    eves = []
    for _ in range(SESSIONS):
        made = session_of(server, eve)
        test.check(made.status == 201, "Eve gets sessions while others are idle", str(made))
        eves.append(made.json["id"])
    adas = [session_of(server, ada).json["id"] for _ in range(2)]
    until = time.monotonic() + ATTACK_S
    counts = []
    clients = [
        threading.Thread(target=attack, args=(server, eve, eves[at:] + eves[:at], until, counts))
        for at in range(SESSIONS)
    ]
    for client in clients:
        client.start()
    slowest = 0.0
    for n in range(TURNS):
        began = time.monotonic()
        said = turn(server, ada, adas[n % 2], f"echo {n} >> log; cat log")
        slowest = max(slowest, time.monotonic() - began)
        test.check(said.status == 200, "Ada's turn is answered while Eve floods", str(said))
        lease = server.call("POST", "/v1/checkouts", {"template": "default"}, key=ada, patience_s=60)
        test.check(lease.status == 201, "Ada's checkout is served while Eve floods", str(lease))
        back = server.call("DELETE", f"/v1/checkouts/{lease.json['id']}", key=ada)
        test.check(back.ok, "and returned", str(back))
    for client in clients:
        client.join()
    others = sorted(set(counts) - {200, 409, 503})
    test.check(counts and not others, f"Eve's turns are answered, or refused truly: {others}")
    print(f"  Eve had {counts.count(200)} turns, Ada's slowest took {slowest:.1f} s")
    for at, session in enumerate(eves):
        said = turn(server, eve, session, "wc -l < log")
        test.check(said.status == 200 and not said.reports_loss, f"Eve's session {at} has its files", str(said))


def limited(test, server):
    """A key with a limit: its own idle session gives way, then it is refused by the name of the limit."""
    made = key_of(server, "small", limits={"live_sandboxes": 1, "sessions": 3})
    key = made["secret"]
    first, second = (session_of(server, key).json["id"] for _ in range(2))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        busy = pool.submit(turn, server, key, second, "sleep 4; echo done")
        time.sleep(1.5)
        said = turn(server, key, first, "echo no")
        test.check(said.status == 429 and said.code == "quota_exceeded", "above live_sandboxes", str(said))
        test.check("live_sandboxes" in said.detail, "the refusal names the limit", str(said))
        test.check(said.header("retry-after"), "and says when to come again", str(said))
        test.check(busy.result().status == 200, "the turn in progress goes on")
    said = turn(server, key, first, "echo yes")
    test.check(said.status == 200, "the idle one gives way", str(said))
    session_of(server, key)
    said = session_of(server, key)
    test.check(said.status == 429 and "sessions" in said.detail, "above sessions", str(said))


def full(test, server):
    """A full server lets a session wait as long as its caller wants, and then says what is short."""
    key = key_of(server, "last")["secret"]
    leases = [
        server.call("POST", "/v1/checkouts", {"template": "default", "wait_ms": 20000}).json["id"]
        for _ in range(4)
    ]
    began = time.monotonic()
    said = session_of(server, key, wait_ms=2000)
    took = time.monotonic() - began
    test.check(said.status == 503 and said.code == "capacity_exhausted", "no place for a session", str(said))
    test.check("max_live" in said.detail, "the refusal names the setting", str(said))
    test.check(1.5 < took < 20, f"it waited as long as it was asked to: {took:.1f} s")
    at_once = session_of(server, key, wait_ms=0)
    test.check(at_once.status == 503, "and not at all if that is wanted", str(at_once))
    timer = threading.Timer(2, lambda: server.call("DELETE", f"/v1/checkouts/{leases[0]}"))
    timer.start()
    said = session_of(server, key)
    timer.join()
    test.check(said.status == 201, "by default it waits until a place is free", str(said))


def body(test):
    server = Server(test, "places", CONFIG).start()
    flood(test, server)
    limited(test, server)
    full(test, server)
    test.check(server.stop() == 0, "the server stopped in order")


if __name__ == "__main__":
    Test(__doc__, deadline_s=300).run(body)
