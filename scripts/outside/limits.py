"""A limit on the number of sandboxes never destroys files.

    limits.py --shoal PATH

With fewer entries than sessions, every session keeps its files, also when all of them are in use one after
another, and also when another key makes many sessions at once. `max_sandboxes` and `ASH_MAX_SANDBOXES` are
the same limit. Nothing is killed here, so a loss is untrue even if it is reported.
"""

import concurrent.futures

from ledger import Books
from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 4
{limit}
[[templates]]
name = "memory"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "memory"
[[templates]]
name = "disk"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "disk"
limit = "soft"
"""
LIMIT, SESSIONS, BURST = 5, 13, 30


def create(test, books, server, template, key=None):
    """A session; a limit may refuse for a moment, and not for ever."""
    refusals = []

    def once():
        session, answer = books.create(server, template, key=key)
        if session is None:
            refusals.append(str(answer)[:200])
        return session

    session = wait_until(15, once, 0.1)
    if session is None:
        test.lie(f"no session can be made for 15 s: {refusals[-1]}")
    return session


def read_all(test, books, sessions, what):
    """Reads one file of each; counts what is lost, told or not."""
    books.counts.clear()
    unread = 0
    for session in sessions:
        if not wait_until(15, lambda session=session: books.read(session, session.file("own")), 0.1):
            unread += 1
            test.lie(f"files of a session cannot be read for 15 s\n    {session.account()}")
    silent = books.counts["SILENT LOSSES"]
    lost = books.counts["losses reported"] + silent
    kept = len(sessions) - lost - unread
    text = f"{what}: {kept} of {len(sessions)} sessions kept their files"
    test.check(kept == len(sessions), text, f"{text}, {silent} lost them without a report")


def many_in_use(test, server, template):
    books = Books(test)
    sessions = [create(test, books, server, template) for _ in range(SESSIONS)]
    sessions = [session for session in sessions if session]
    for again in range(2):
        for session in sessions:
            if not wait_until(15, lambda session=session: books.write(session, session.file("own"), "put"), 0.1):
                test.lie(f"a session in use cannot be written for 15 s\n    {session.account()}")
        read_all(test, books, sessions, f"{template}, {SESSIONS} in use with a limit of {LIMIT}, round {again + 1}")
    total = server.call("GET", "/v1/stats").json["pool"]["total"]
    test.check(total <= LIMIT, f"{total} entries, at most {LIMIT}")
    return books, sessions


def burst(test, server, template):
    """Another key fills every place; the sleeping sessions of the first keep their files."""
    books = Books(test)
    keys = []
    for name in ("quiet", "hostile"):
        answer = server.call("POST", "/v1/keys", {"name": f"{name}-{template}", "role": "use"})
        keys.append(answer.json["secret"])
    quiet = [create(test, books, server, template, key=keys[0]) for _ in range(LIMIT - 1)]
    quiet = [session for session in quiet if session]
    for session in quiet:
        wait_until(15, lambda session=session: books.write(session, session.file("own"), "exec"), 0.1)
        wait_until(15, lambda session=session: session.call("pause", "POST", "/pause").ok, 0.1)

    def attack(_):
        session, _ = books.create(server, template, key=keys[1])
        if session:
            books.write(session, session.file("noise"), "put")
        return session

    with concurrent.futures.ThreadPoolExecutor(10) as crowd:
        attackers = [session for session in crowd.map(attack, range(BURST)) if session]
    test.saw(f"{template}: another key made {len(attackers)} of {BURST} sessions at once")
    read_all(test, books, quiet, f"{template}, asleep during the burst of another key")
    for session in attackers + quiet:
        wait_until(10, lambda session=session: books.delete(session), 0.1)


def one_server(test, name, config, env):
    server = Server(test, name, config, env=env).start()
    capacity = server.health().json["pool"]["max_capacity"]
    test.check(capacity == LIMIT, f"{name}: the limit in force is {capacity}")
    for template in ("memory", "disk"):
        books, sessions = many_in_use(test, server, template)
        for session in sessions:
            wait_until(10, lambda session=session: books.delete(session), 0.1)
        burst(test, server, template)
    test.check(server.stop() == 0, f"{name}: the server stopped in order")


def body(test):
    one_server(test, "max-sandboxes", CONFIG.format(limit=f"max_sandboxes = {LIMIT}"), {})
    one_server(test, "ash-max-sandboxes", CONFIG.format(limit=""), {"ASH_MAX_SANDBOXES": str(LIMIT)})


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
