"""Names of sandboxes (Blaxel) and of agents (Ash): one thing per name, and nothing without its name.

    names.py --shoal PATH [--rounds N]

Clients make and delete sandboxes under few names, all at once, while the server is killed. After each start every
session has its name and every name at most one session; what was acknowledged is there, with its file; what was
deleted is gone; every name can be used again. A name that many ask for at once is given once. Agents that were
deployed are there in the version that was acknowledged.
"""

import collections
import concurrent.futures
import random
import threading
import time

from dialects import packed
from outside import Server, Test

CONFIG = """
[node]
max_live = 24
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
NAMES = [f"name-{number}" for number in range(6)]
BLAXEL = "/compat/blaxel"
AGENTS = "/compat/ash/api/agents"


def description(name):
    return {"metadata": {"name": name}, "spec": {"runtime": {"image": "disk"}}}


class Ledger:
    """What was acknowledged, by name: one client at a time uses a name, so the last answer is the truth."""

    def __init__(self):
        self.content = {}
        self.unsure = set()
        self.answers = collections.Counter()


def use_name(server, ledger, name, killed, dice, rest_s):
    """Makes, writes and deletes one name over and over, until the server is gone."""
    number = 0
    while not killed.wait(dice.uniform(0, rest_s)):
        number += 1
        ledger.unsure.add(name)
        made = server.call("POST", f"{BLAXEL}/sandboxes?createIfNotExist=true", description(name))
        ledger.answers[f"create {made.status}"] += 1
        if made.unanswered:
            return
        if not made.ok:
            continue
        text = f"{name} {number} {dice.random()}"
        written = server.call("PUT", f"{BLAXEL}/{name}/filesystem/mark.txt", {"content": text})
        if written.unanswered:
            return
        if written.ok:
            ledger.content[name] = text
            ledger.unsure.discard(name)
        # Some names are at rest when the server is killed.
        if killed.wait(dice.uniform(0, rest_s)):
            return
        if dice.random() < 0.7:
            ledger.unsure.add(name)
            removed = server.call("DELETE", f"{BLAXEL}/sandboxes/{name}")
            ledger.answers[f"delete {removed.status}"] += 1
            if removed.unanswered:
                return
            if removed.ok:
                ledger.content.pop(name, None)
                ledger.unsure.discard(name)


def listed(server, path, field):
    answer = server.call("GET", path)
    if not answer.ok:
        raise RuntimeError(f"{path}: {answer}")
    return answer.json[field]


def look(test, server, ledger, when):
    """What is there, against what was acknowledged."""
    there = {sandbox["metadata"]["name"]: sandbox["status"] for sandbox in listed(server, f"{BLAXEL}/sandboxes", "data")}
    deployed = {name for name, status in there.items() if status == "DEPLOYED"}
    sessions = [session for session in listed(server, "/v1/sessions", "sessions") if session["status"] != "ended"]
    names = collections.Counter(session.get("metadata", {}).get("blaxel.sandbox") for session in sessions)
    twice = {name: count for name, count in names.items() if count > 1}
    nameless = set(names) - deployed
    test.check(not twice, f"{when}: no name has two sessions", f"{when}: names with several sessions: {twice}")
    test.check(not nameless, f"{when}: each of {len(sessions)} sessions has its name", f"{when}: sessions whose name is not there: {nameless}")
    empty = deployed - set(names)
    test.check(not empty, f"{when}: no name is without a session", f"{when}: deployed names without a session: {empty}")
    for name in NAMES:
        if name in ledger.unsure:
            continue
        if name in ledger.content:
            read = server.call("GET", f"{BLAXEL}/{name}/filesystem/mark.txt", accept="application/json")
            said = read.json.get("content") if isinstance(read.json, dict) else None
            test.check(said == ledger.content[name], f"{when}: {name} has its file", f"{when}: {name} was acknowledged with {ledger.content[name]!r} and gives {read}")
        else:
            found = server.call("GET", f"{BLAXEL}/sandboxes/{name}")
            test.check(found.status == 404, f"{when}: {name} is deleted", f"{when}: {name} was deleted and gives {found}")


def storm(test, server, ledger, rounds):
    for turn in range(rounds):
        killed, threads = threading.Event(), []
        for index, name in enumerate(NAMES):
            dice, rest_s = random.Random(test.random.random()), 0.6 * (index % 2)
            threads.append(threading.Thread(target=use_name, args=(server, ledger, name, killed, dice, rest_s)))
            threads[-1].start()
        time.sleep(test.random.uniform(0.2, 1.5))
        killed.set()
        server.kill()
        for thread in threads:
            thread.join()
        server.start()
        look(test, server, ledger, f"after kill {turn + 1}")
    test.saw(f"answers: {dict(ledger.answers)}")
    for name in NAMES:
        again = server.call("POST", f"{BLAXEL}/sandboxes?createIfNotExist=true", description(name))
        test.check(again.ok, f"{name} can be used", f"{name} cannot be used again: {again}")
    for name in NAMES:
        server.call("DELETE", f"{BLAXEL}/sandboxes/{name}")


def crowd(test, server):
    """Many ask for one name at once."""
    with concurrent.futures.ThreadPoolExecutor(20) as many:
        answers = list(many.map(lambda _: server.call("POST", f"{BLAXEL}/sandboxes", description("wanted")), range(20)))
    statuses = collections.Counter(answer.status for answer in answers)
    test.check(statuses == {200: 1, 409: 19}, f"one of 20 gets the name: {dict(statuses)}", f"20 asked for one name at once: {dict(statuses)}")
    with concurrent.futures.ThreadPoolExecutor(20) as many:
        path = f"{BLAXEL}/sandboxes?createIfNotExist=true"
        answers = list(many.map(lambda _: server.call("POST", path, description("shared")), range(20)))
    test.check(all(answer.ok for answer in answers), "20 share a name that may exist", f"not all got it: {[str(answer) for answer in answers if not answer.ok][:1]}")
    ids = [session["id"] for session in listed(server, "/v1/sessions", "sessions") if session.get("metadata", {}).get("blaxel.sandbox") == "shared" and session["status"] != "ended"]
    test.check(len(ids) == 1, "and it has one session", f"a shared name has sessions {ids}")


def agents(test, server, rounds):
    """Deploys of one agent, in parallel, while the server is killed: the version that was acknowledged is there."""
    best = 0
    for turn in range(rounds):
        until = time.monotonic() + 20
        seen, lock = [], threading.Lock()

        def deploy(client, turn=turn, until=until, seen=seen, lock=lock):
            number = 0
            while time.monotonic() < until:
                number += 1
                text = f"{turn} {client} {number}"
                body = {"name": "agent", "files": [{"path": "CLAUDE.md", "content": packed(text)}]}
                answer = server.call("POST", AGENTS, body)
                if answer.unanswered:
                    return
                if answer.ok:
                    with lock:
                        seen.append(answer.json["agent"]["version"])

        threads = [threading.Thread(target=deploy, args=(client,)) for client in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(test.random.uniform(0.2, 1.0))
        server.kill()
        for thread in threads:
            thread.join()
        server.start()
        test.check(len(seen) == len(set(seen)), f"kill {turn + 1}: {len(seen)} deploys got versions of their own", f"versions were given twice: {sorted(seen)}")
        best = max([best, *seen])
        found = server.call("GET", f"{AGENTS}/agent")
        if best:
            version = found.json["agent"]["version"] if found.ok else None
            test.check(version is not None and version >= best, f"kill {turn + 1}: version {version} is there, {best} was acknowledged", f"version {best} was acknowledged, and there is {found}")


def body(test):
    server = Server(test, "names", CONFIG).start()
    storm(test, server, Ledger(), test.options.rounds)
    crowd(test, server)
    agents(test, server, max(2, test.options.rounds // 2))
    test.check(server.stop() == 0, "the server stopped in order")


def more(parser):
    parser.add_argument("--rounds", type=int, default=4, help="how often the server is killed")


if __name__ == "__main__":
    Test(__doc__, deadline_s=lambda options: 90 + 40 * options.rounds, more=more).run(body)
