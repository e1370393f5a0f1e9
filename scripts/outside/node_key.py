"""The key of the node is replaced, and nothing is lost, at whatever moment that is interrupted.

    node_key.py --shoal PATH

Secrets of two keys and of the node, sessions with environments and files, messages, processes and agents are stored.
`shoal rotate-node-key` replaces the key, and is killed with SIGKILL again and again: when its next key appears, while
it encrypts, when the key is replaced, and at moments left to chance. After each kill a server starts and has
everything. In the end no byte of the old key, and nothing that was encrypted with it, is in the data directory: the
new key does not open an older copy of the database, nor the old key the new database. While a server runs, the
command refuses and changes nothing.
"""

import base64
import os
import shutil
import subprocess
import time
import uuid

from outside import DidNotStart, Server, Test, run, search_disk

CONFIG = """
[node]
max_live = 8
[[templates]]
name = "default"
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "disk"
limit = "soft"
"""
SECRETS = 60
# Large ones, so that encrypting them takes a while.
VALUE_BYTES = 15_000
AGENTS = 12
CHANCES = 6


def must(answer, what):
    if not answer.ok:
        raise RuntimeError(f"{what}: {answer}")
    return answer.json


class Stored:
    """What was stored, and whether it is there."""

    def __init__(self, test, server):
        self.test, self.server = test, server
        self.mark = uuid.uuid4().hex
        self.other = must(server.call("POST", "/v1/keys", {"name": "other", "role": "use"}), "key")["secret"]
        for number in range(SECRETS):
            must(server.call("PUT", f"/v1/secrets/s{number}", {"value": self.value(number)}), "secret")
        must(server.call("PUT", "/v1/secrets/mine", {"value": self.value("other")}, key=self.other), "secret of a key")
        must(server.call("PUT", "/v1/secrets/all?scope=node", {"value": self.value("node")}), "secret of the node")
        made = must(server.call("POST", "/v1/sessions", {"template": "default", "env": {"TOKEN": self.value("env")}}), "session")
        self.session = f"/v1/sessions/{made['id']}"
        must(server.call("POST", f"{self.session}/exec", {"command": f"echo {self.mark} > file"}), "file")
        must(server.call("POST", f"{self.session}/turns", {"input": f"echo turn {self.mark}"}, accept="application/json"), "turn")
        process = {"argv": ["true", self.mark], "wait": True}
        must(server.call("POST", f"/v1/sandboxes/{made['sandbox_id']}/processes", process), "process")
        self.sandbox = made["sandbox_id"]
        for number in range(AGENTS):
            agent = {"name": f"agent{number}", "files": [{"path": "CLAUDE.md", "content": base64.b64encode(b"agent").decode()}]}
            must(server.call("POST", "/compat/ash/api/agents", agent), "agent")

    def value(self, name):
        return f"{self.mark}-{name}-".ljust(VALUE_BYTES, "x")

    def used(self, secrets, key=None):
        """The values of secrets as a program gets them."""
        uses = [{"secret": name, "file": name} for name in secrets]
        made = self.server.call("POST", "/v1/sandboxes", {"template": "default", "secrets": uses}, key=key or self.server.key)
        if not made.ok:
            return f"{made}"
        path = f"/v1/sandboxes/{made.json['id']}"
        seen = self.server.call("POST", f"{path}/exec", {"command": "cat /run/secrets/*"}, key=key or self.server.key)
        self.server.call("DELETE", path, key=key or self.server.key)
        return seen.json["stdout"] if seen.ok else f"{seen}"

    def check(self, when):
        server, wrong = self.server, []
        names = {one["name"] for one in must(server.call("GET", "/v1/secrets"), "secrets")["secrets"]}
        if names != {f"s{number}" for number in range(SECRETS)}:
            wrong.append(f"secrets {names}")
        some = sorted(self.test.random.sample(range(SECRETS), 4), key=lambda number: f"s{number}")
        if self.used([f"s{number}" for number in some]) != "".join(map(self.value, some)):
            wrong.append(f"values of secrets: {self.used([f's{number}' for number in some])[:300]}")
        if self.used(["mine"], self.other) != self.value("other") or self.used(["all"], self.other) != self.value("node"):
            wrong.append("secrets of another key or the node")
        got = server.call("POST", f"{self.session}/exec", {"command": 'printf %s "$TOKEN"; cat file'})
        if not got.ok or got.json["stdout"] != f"{self.value('env')}{self.mark}\n":
            wrong.append(f"the session: {got}")
        turns = server.call("GET", f"{self.session}/turns")
        if f"echo turn {self.mark}".encode() not in turns.body:
            wrong.append(f"the message: {turns}")
        processes = server.call("GET", f"/v1/sandboxes/{self.sandbox}/processes")
        if self.mark.encode() not in processes.body and processes.status != 410:
            wrong.append(f"the process: {processes}")
        agents = server.call("GET", "/compat/ash/api/agents")
        if not agents.ok or len(agents.json["agents"]) != AGENTS:
            wrong.append(f"agents: {agents}")
        self.test.check(not wrong, f"{when}: everything is there", f"{when}: {wrong}")


class Rotation:
    """One run of the command."""

    def __init__(self, server):
        command = [str(server.test.shoal), "rotate-node-key", "--data-dir", str(server.data)]
        self.process = subprocess.Popen(command, env=server.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def kill_when(self, condition):
        """Kills it as soon as the condition holds; whether it did before the command ended."""
        until = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < until:
            if condition():
                break
        early = self.process.poll() is None
        self.process.kill()
        self.process.wait(30)
        return early

    def done(self):
        said = self.process.communicate(timeout=120)[0].decode()
        return self.process.returncode, said


class After:
    """A condition that holds some time after it was first asked."""

    def __init__(self, wait_s):
        self.wait_s, self.until = wait_s, None

    def __call__(self):
        self.until = self.until or time.monotonic() + self.wait_s
        return time.monotonic() > self.until


def pieces(key_file):
    """The parts of a key, as text and as bytes."""
    words = [word for word in key_file.read_text().split() if len(word) >= 16 and all(digit in "0123456789abcdef" for digit in word)]
    return [word.encode() for word in words] + [bytes.fromhex(word) for word in words]


def holders(data, parts):
    """Which files have a part of a key, or something that names it."""
    found = []
    for parent, _, names in os.walk(data):
        for name in names:
            path = os.path.join(parent, name)
            try:
                with open(path, "rb") as file:
                    text = file.read()
            except OSError:
                continue
            if any(part in text for part in parts):
                found.append(os.path.relpath(path, data))
    return sorted(found)


def killed(test, server, stored):
    """Kills the command at its steps, and at moments left to chance."""
    data, next_key = server.data, server.data / "node.key.next"
    log = data / "shoal.db-wal"
    largest = (data / "shoal.db").stat().st_size // 2
    inode = (data / "node.key").stat().st_ino
    at = time.monotonic()
    code, said = Rotation(server).done()
    took_s = time.monotonic() - at
    test.check(code == 0, f"without a kill it takes {took_s:.2f} s", f"{code}: {said}")
    moments = {
        "when there is a next key": next_key.exists,
        "while it encrypts": lambda: next_key.exists() and log.exists() and log.stat().st_size > largest,
        "when the key is replaced": lambda: (data / "node.key").stat().st_ino != inode,
    }
    for _ in range(CHANCES):
        wait_s = test.random.uniform(0.0, took_s)
        moments[f"after {wait_s:.2f} s"] = After(wait_s)
    for when, condition in moments.items():
        inode = (data / "node.key").stat().st_ino
        early = Rotation(server).kill_when(condition)
        files = sorted(name for name in os.listdir(data) if "node.key" in name)
        next_one = next_key.read_bytes() if next_key.exists() else None
        server.start()
        if next_one:
            files.append("the next one is used" if (data / "node.key").read_bytes() == next_one else "the next one is not used")
        stored.check(f"killed {when}{'' if early else ' (it was over)'}, with {', '.join(files)}")
        test.check(not next_key.exists(), "the start leaves one key")
        test.check(server.stop() == 0, "the server stopped in order")


def refused(test, server, what, name, change):
    """A server without the right key refuses, says so, and changes nothing."""
    change()
    key = server.data / "node.key"
    before = key.read_bytes() if key.exists() else None
    try:
        server.start(20)
    except DidNotStart as error:
        test.check(name in error.log and "node.key" in error.log, f"{what}: refused with {name}", f"{what}: {error.log[-300:]}")
    else:
        test.lie(f"{what}: the server started")
        server.stop()
    said = server.cli("rotate-node-key")
    test.check(said.returncode not in (0, 101) and "node.key" in said.stderr, f"{what}: the command refuses, too: {said.stderr.strip()[:160]}", f"{what}: {said}")
    now = key.read_bytes() if key.exists() else None
    test.check(now == before and not (server.data / "node.key.next").exists(), f"{what}: no key was made")


def body(test):
    server = Server(test, "node", CONFIG).start()
    stored = Stored(test, server)
    stored.check("before")
    key = server.data / "node.key"
    before = key.read_bytes()
    said = server.cli("rotate-node-key")
    test.check(said.returncode == 2 and "is a server that uses it" in said.stderr and key.read_bytes() == before, "while a server runs, the command refuses and changes nothing", f"{said}")
    test.check(server.stop() == 0, "the server stopped in order")
    killed(test, server, stored)

    old, parts = key.read_bytes(), pieces(key)
    copy = test.work / "older.db"
    shutil.copy(server.data / "shoal.db", copy)
    test.check({"node.key", "shoal.db"} <= set(holders(server.data, parts)), "the parts of the key are found in its file and in the database", f"{holders(server.data, parts)}")
    code, said = Rotation(server).done()
    test.check(code == 0 and "replaced" in said, f"the key is replaced: {said.strip()}", f"{code}: {said}")
    test.check(key.read_bytes() != old and key.stat().st_mode & 0o777 == 0o600, "it is another one, with mode 0600")
    test.check(not holders(server.data, parts), "nothing in the data directory has a part of the old key", f"{holders(server.data, parts)}")
    # The moment that is the hardest to meet: everything is encrypted, and the key is not in place yet.
    new = key.read_bytes()
    shutil.copy(key, server.data / "node.key.next")
    key.write_bytes(old)
    server.start()
    stored.check("with the new key")
    test.check(key.read_bytes() == new and not (server.data / "node.key.next").exists(), "a next key that opens everything is put in place")
    clear = search_disk(server.data, (stored.mark + "-").encode())
    test.check(not clear, "no value is in clear text", f"{clear}")
    test.check(server.stop() == 0, "the server stopped in order")

    good, database = key.read_bytes(), (server.data / "shoal.db").read_bytes()
    refused(test, server, "the old key", "node_key_wrong", lambda: key.write_bytes(old))
    refused(test, server, "no key", "node_key_missing", key.unlink)
    key.write_bytes(good)
    key.chmod(0o600)
    test.check((server.data / "shoal.db").read_bytes() == database, "the database is as it was")
    older = test.work / "older"
    older.mkdir(mode=0o700)
    shutil.copy(copy, older / "shoal.db")
    shutil.copy(key, older / "node.key")
    refused(test, Server(test, "older", CONFIG, data=older), "the new key with an older copy of the database", "node_key_wrong", lambda: None)
    server.start()
    stored.check("with the right key again")
    server.stop()
    empty = run([test.shoal, "rotate-node-key", "--data-dir", test.work / "nothing"], env=server.env)
    test.check(empty.returncode == 2 and not (test.work / "nothing").exists(), "without a database it refuses, and makes nothing", f"{empty}")


if __name__ == "__main__":
    Test(__doc__, deadline_s=240).run(body)
