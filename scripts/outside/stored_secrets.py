"""Secrets are stored, never shown, and only their key's.

    stored_secrets.py --shoal PATH

Two keys and the node store secrets over HTTP and with the command line. No answer has a value, no file of the
data directory or of a backup has one, and no log, not even at the level `trace`: while the server runs, after
`kill -9` in the middle of writes, and after an orderly stop. What was acknowledged is there after each restart.
A key sees only its own secrets, those of the node need an administrator, and a revoked key leaves none behind.
"""

import os
import subprocess
import threading
import uuid

from outside import Server, Test, search_disk

CONFIG = """
[log]
level = "trace"
[node]
max_live = 4
[[templates]]
name = "default"
[templates.pool]
pool_size = 0
"""
VALUE = rb"SECRET-[0-9a-f]{32}-\w+"
KILLS = 3


def must(answer, what):
    if not answer.ok:
        raise RuntimeError(f"{what}: {answer}")
    return answer.json


class Placed:
    """What was stored, and every text that must be nowhere."""

    def __init__(self, server):
        self.server, self.values, self.lock = server, set(), threading.Lock()

    def value(self, kind):
        text = f"SECRET-{uuid.uuid4().hex}-{kind}"
        with self.lock:
            self.values.add(text)
        return text

    def put(self, name, kind, **options):
        return self.server.call("PUT", f"/v1/secrets/{name}", {"value": self.value(kind)}, **options)


def names(server, scope="key", **options):
    listed = must(server.call("GET", f"/v1/secrets?scope={scope}", **options), "list")
    return [one["name"] for one in listed["secrets"]]


def search(test, server, placed, when):
    for path, matches in search_disk(test.work, VALUE).items():
        if matches & placed.values:
            test.lie(f"{when}: {path} has the value of a secret")
    memory = search_disk(server.data, VALUE)
    test.check(not memory, f"{when}: none of {len(placed.values)} values is in a file or a log", f"{when}: {memory}")


def new_key(server, name, role):
    made = must(server.call("POST", "/v1/keys", {"name": name, "role": role}), "key")
    return made["id"], made["secret"]


def check_answers(test, server, placed):
    created, replaced = placed.put("TOKEN", "first"), placed.put("TOKEN", "second")
    test.check((created.status, replaced.status) == (201, 200), "the first put creates, the second replaces", f"{created}, {replaced}")
    listed = server.call("GET", "/v1/secrets")
    for answer in (created, replaced, listed):
        test.check(b"SECRET-" not in answer.body, "an answer has no value", f"a value in {answer}")
    got = server.call("GET", "/v1/secrets/TOKEN")
    test.check(got.status == 405, "there is no route that reads a value", f"{got}")
    wrong = server.call("PUT", "/v1/secrets/TOKEN", [placed.value("wrong")])
    test.check(wrong.status == 400 and b"SECRET-" not in wrong.body, "a refusal has no value", f"{wrong}")
    large = server.call("PUT", "/v1/secrets/LARGE", {"value": "x" * 65_537})
    test.check(large.status == 422, "a value of more than 64 KiB is refused", f"{large}")


def check_roles(test, server, placed):
    alice, bob, reader = (new_key(server, name, role) for name, role in (("alice", "use"), ("bob", "use"), ("eve", "read")))
    must(placed.put("mine", "alice", key=alice[1]), "put")
    must(placed.put("his", "bob", key=bob[1]), "put")
    must(placed.put("shared?scope=node", "node"), "put")
    test.check(names(server, key=alice[1]) == ["mine"] and names(server, key=bob[1]) == ["his"], "each key sees its own secrets alone")
    test.check("mine" not in names(server), "not even an administrator sees those of a key")
    gone = server.call("DELETE", "/v1/secrets/mine", key=bob[1])
    test.check(gone.status == 404, "a key cannot remove the secret of another", f"{gone}")
    for who, (_, key) in (("use", alice), ("read", reader)):
        refused = [placed.put("shared?scope=node", who, key=key).status, server.call("GET", "/v1/secrets?scope=node", key=key).status]
        test.check(refused == [403, 403], f"a `{who}` key may not touch the secrets of the node", f"{who}: {refused}")
    refused = placed.put("mine", "reader", key=reader[1])
    test.check(refused.status == 403, "a `read` key stores nothing", f"{refused}")
    return alice, bob


def check_command_line(test, server, placed):
    file = test.work / "typed"
    value = placed.value("typed")
    env = {**server.env, "SHOAL_DATA_DIR": str(server.data), "SHOAL_CONFIG": str(server.config), "NO_COLOR": "1"}
    command = [str(test.shoal), "secret", "put", "typed"]
    done = subprocess.run(command, env=env, input=f"{value}\n", capture_output=True, text=True, timeout=30)
    listed = {one["name"]: one["bytes"] for one in must(server.call("GET", "/v1/secrets"), "list")["secrets"]}
    test.check(listed.get("typed") == len(value), "standard input loses exactly its final newline", f"{done}, {listed}")
    file.write_text(f"{value}\n")
    done = server.cli("secret", "put", "whole", "--from-file", file)
    file.unlink()
    listed = {one["name"]: one["bytes"] for one in must(server.call("GET", "/v1/secrets"), "list")["secrets"]}
    test.check(listed.get("whole") == len(value) + 1, "a file is stored as it is", f"{done}, {listed}")
    said = [server.cli("secret", *words) for words in (("ls",), ("ls", "--json"), ("ls", "--node"), ("rm", "whole"))]
    test.check(all(one.returncode == 0 for one in said), "the command line lists and removes secrets", f"{said}")
    test.check(not any("SECRET-" in one.stdout + one.stderr for one in said), "it shows no value")
    test.check("typed" in said[0].stdout and "shared" in said[2].stdout, "it shows the names", f"{said[0].stdout} {said[2].stdout}")


def check_kills(test, server, placed):
    """Writes that were acknowledged survive `kill -9` in the middle of others."""
    known, unsure = set(names(server)), set()
    for kill in range(KILLS):
        over = threading.Event()

        def write(kill=kill, over=over):
            count = 0
            while not over.is_set():
                name = f"k{kill}-{count % 20}"
                answer = placed.put(name, "killed", patience_s=5)
                (known if answer.ok else unsure).add(name)
                count += 1

        writer = threading.Thread(target=write)
        writer.start()
        over.wait(0.5)
        server.kill()
        over.set()
        writer.join(30)
        search(test, server, placed, f"after kill {kill + 1}")
        server.start()
        found = set(names(server))
        test.check(known <= found <= known | unsure, f"after kill {kill + 1} all {len(known)} acknowledged secrets are there", f"missing {known - found}, too many {found - known - unsure}")


def check_revoked(test, server, key):
    must(server.call("DELETE", f"/v1/keys/{key[0]}"), "revoke")
    test.check(server.call("GET", "/v1/secrets", key=key[1]).status == 401, "a revoked key sees nothing")
    metrics = server.call("GET", "/metrics").body.decode()
    lines = [line for line in metrics.splitlines() if line.startswith("shoal_secrets{")]
    return {line.split('"')[1]: int(line.split()[-1]) for line in lines}


def check_backup(test, server, placed, count):
    target = test.work / "backup.tar"
    done = server.cli("backup", target, "--data-dir", server.data, patience_s=60)
    test.check(done.returncode == 0, "a backup is made", f"{done}")
    search(test, server, placed, "with a backup")
    data = test.work / "restored"
    done = server.cli("restore", target, "--data-dir", data, patience_s=60)
    test.check(done.returncode == 0, "it is restored", f"{done}")
    for key in ("node.key", "admin.key"):
        (data / key).write_bytes((server.data / key).read_bytes())
        os.chmod(data / key, 0o600)
    again = Server(test, "restored-server", CONFIG, data=data).start()
    test.check(len(names(again)) == count, f"it has all {count} secrets", f"{names(again)}")
    again.stop()


def body(test):
    server = Server(test, "secrets", CONFIG).start()
    placed = Placed(server)
    check_answers(test, server, placed)
    alice, bob = check_roles(test, server, placed)
    check_command_line(test, server, placed)
    search(test, server, placed, "while it runs")
    check_kills(test, server, placed)
    test.check(names(server, key=bob[1]) == ["his"], "after the restarts a key has its secrets")
    before = check_revoked(test, server, alice)
    test.check(before.get("node") == 1 and before.get("key") == len(names(server)) + 1, "a revoked key leaves no secret behind", f"{before}")
    check_backup(test, server, placed, len(names(server)))
    test.check(server.stop() == 0, "the server stopped in order")
    search(test, server, placed, "after an orderly stop")
    server.start()
    test.check("TOKEN" in names(server), "the secrets are there after an orderly restart")
    server.stop()


if __name__ == "__main__":
    Test(__doc__, deadline_s=180).run(body)
