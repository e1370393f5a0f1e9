"""Environment variables and command lines are not in the data directory in clear text.

    at_rest.py --shoal PATH

Sessions, sandboxes and processes get secrets in their environment and on their command lines; the whole data
directory is searched for them, while the server runs, after `kill -9` and after an orderly stop. Sessions have
their environment again after a restart. Without its key file, or with another one, the server refuses to start,
and makes no new one.
"""

import os
import pathlib
import stat
import time
import uuid

from outside import DidNotStart, Server, Test, search_disk

CONFIG = """
[server]
shutdown_grace_ms = 5000
[node]
max_live = 12
[[templates]]
name = "disk"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 1
[templates.workspace]
kind = "disk"
limit = "soft"
"""
STORED_WITHIN_S = 2
# Files that say who may call; they are keys of callers, and hold no key of the node.
KEYS_OF_CALLERS = ("admin.key", "initial-api-key")


def secret(kind):
    return f"SECRET-{uuid.uuid4().hex}-{kind}"


def must(answer, what):
    if not answer.ok:
        raise RuntimeError(f"{what}: {answer}")
    return answer.json


def place(server):
    """Puts secrets wherever a caller can; {what: secret} and the session."""
    placed = {}

    def new(what):
        placed[what] = secret(what.replace(" ", "_"))
        return placed[what]

    session = must(
        server.call("POST", "/v1/sessions", {"template": "disk", "env": {"TOKEN": new("env of a session")}}), "session"
    )
    sandbox = session["sandbox_id"]
    body = {"template": "disk", "env": {"TOKEN": new("env of a checkout")}}
    must(server.call("POST", "/v1/checkouts", body), "checkout")
    process = {
        "command": f": {new('command of a process')}; sleep 600",
        "env": {"TOKEN": new("env of a process")},
        "name": "long",
    }
    must(server.call("POST", f"/v1/sandboxes/{sandbox}/processes", process), "process")
    over = {"argv": ["true", new("argv of a process that is over")], "wait": True}
    must(server.call("POST", f"/v1/sandboxes/{sandbox}/processes", over), "process")
    execution = {"command": f": {new('command of an exec')}", "env": {"TOKEN": new("env of an exec")}}
    must(server.call("POST", f"/v1/sessions/{session['id']}/exec", execution), "exec")
    turn = {"input": {"command": f": {new('command of a turn')}", "env": {"TOKEN": new("env of a turn")}}}
    must(server.call("POST", f"/v1/sessions/{session['id']}/turns", turn, accept="application/json"), "turn")
    return placed, session["id"]


def search(test, server, placed, when):
    found = search_disk(server.data, rb"SECRET-[0-9a-f]{32}-\w+")
    where = {}
    for path, matches in found.items():
        for match in matches:
            where.setdefault(match, []).append(path)
    for what, text in placed.items():
        if text in where:
            test.lie(f"{when}: the {what} is in clear text in {where[text]}")
    hidden = [what for what, text in placed.items() if text not in where]
    test.saw(f"{when}: {len(hidden)} of {len(placed)} secrets are nowhere in clear text")


def key_files(data):
    found = []
    for path in sorted(pathlib.Path(data).iterdir()):
        if path.is_file() and path.suffix == ".key" and path.name not in KEYS_OF_CALLERS:
            found.append(path)
    return found


def check_key_file(test, server):
    keys = key_files(server.data)
    if not test.check(len(keys) == 1, f"the key of the node is {[key.name for key in keys]}", f"the data directory has no one file with the key of the node: {[key.name for key in keys]}"):
        return
    key = keys[0]
    mode = stat.S_IMODE(key.stat().st_mode)
    test.check(mode == 0o600, f"{key.name} has mode 0600", f"{key.name} has mode {mode:04o}")
    good = key.read_bytes()
    other = Server(test, "another-node", CONFIG).start()
    foreign = (other.data / key.name).read_bytes()
    other.stop()
    test.check(foreign != good, "each node has a key of its own")
    ways = {
        "missing": key.unlink,
        "of another node": lambda: key.write_bytes(foreign),
        "garbled": lambda: key.write_bytes(os.urandom(len(good))),
        "empty": lambda: key.write_bytes(b""),
    }
    for what, change in ways.items():
        change()
        left = key.read_bytes() if key.exists() else None
        try:
            server.start(20)
        except DidNotStart as refusal:
            said = " ".join(refusal.log.split())[-300:]
            test.check(key.name in said, f"key {what}: refused: {said}", f"key {what}: refused, and nothing names {key.name}: {said}")
        else:
            test.lie(f"key {what}: the server started")
            server.stop()
        now = key.read_bytes() if key.exists() else None
        test.check(now == left, f"key {what}: no other one was made", f"key {what}: the file was made or changed")
        key.write_bytes(good)
        key.chmod(0o600)


def body(test):
    server = Server(test, "secrets", CONFIG).start()
    placed, session = place(server)
    # What is stored behind the answers is stored by then.
    time.sleep(STORED_WITHIN_S)
    search(test, server, placed, "while it runs")
    server.kill()
    search(test, server, placed, "after kill -9")
    server.start()
    got = must(server.call("POST", f"/v1/sessions/{session}/exec", {"command": 'printf %s "$TOKEN"'}), "exec")
    test.check(got["stdout"] == placed["env of a session"], "after kill -9 the session has its environment", f"after kill -9: {got}")
    test.check(server.stop() == 0, "the server stopped in order")
    search(test, server, placed, "after an orderly stop")
    check_key_file(test, server)
    server.start()
    got = must(server.call("POST", f"/v1/sessions/{session}/exec", {"command": 'printf %s "$TOKEN"'}), "exec")
    test.check(got["stdout"] == placed["env of a session"], "with its key again the session has its environment", f"with its key again: {got}")
    server.stop()
    logs = "".join(path.read_text(errors="replace") for path in test.work.glob("*.log"))
    test.check(not any(text in logs for text in placed.values()), "no secret is in the logs")


if __name__ == "__main__":
    Test(__doc__, deadline_s=120).run(body)
