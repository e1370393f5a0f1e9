"""Agents complete turns with a model whose key is nowhere in their sandbox, and nowhere in what the server stores.

    model_turns.py --shoal PATH

A model server of the test (HTTPS, server-sent events) answers only to the real key. The Python and the Node harness
of examples/ and a bridge of Ash ask it through the boundary. The server sends the rest of an answer only after the
client of Shoal has seen the first token of it, so a stream that is buffered anywhere does not complete. Then the key
is searched for, plain, as base64 and in a Basic header: inside, in files, environments, arguments, memory and a core
dump; on the host, in the memory of the sandbox's processes, in the data directory, logs, a backup, downloads and
answers of the API. Each search must find a decoy, which is put where the key must not be.
"""

import base64
import http.client
import http.server
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import threading
import time
import uuid

from outside import CannotTry, Server, Test, request, run, texts_of

# Of loopback; nothing else uses it.
ADDRESS = "127.79.0.1"
URL = "https://model.shoal.test/v1/chat/completions"
TOKENS = ["Once", " upon", " a", " time"]
# How long the server waits until the client has the first token.
PATIENCE_S = 30
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
BRIDGE = EXAMPLES.parent / "scripts" / "ash" / "agent" / "bridge.mjs"

CONFIG = """
[log]
level = "trace"
[egress]
hosts = ["model.shoal.test=ADDRESS"]
upstream_ca = "WORK/ca.pem"
[mounts]
roots = ["WORK/inside"]
[[templates]]
name = "default"
[templates.pool]
pool_size = 0
"""
TEMPLATE = """
[[templates]]
name = "NAME"
network = { allow = ["model.shoal.test:443", "ADDRESS"] }
secrets = [{ secret = "model", env = "MODEL_API_KEY", boundary = { hosts = ["model.shoal.test"] } }]
mounts = [{ host_path = "WORK/inside", path = "/opt/inside" }]
limits = { memory_mb = 1024, cpu_milli = 4000, pids = 256, workspace_mb = 1024 }
HARNESS
[templates.pool]
pool_size = 1
[templates.workspace]
kind = "disk"
limit = "soft"
"""
HARNESSES = {
    "python": '[templates.harness.jsonl]\ncommand = ["python3", "/opt/inside/harness.py"]',
    "node": '[templates.harness.jsonl]\ncommand = ["node", "/opt/inside/harness.mjs"]',
    "ash": '[templates.harness.ash_bridge]\ncommand = ["node", "/workspace/bridge.mjs"]\nprewarm = true',
}

# Finds keys and decoys in all their forms. It runs inside, too, and knows neither of them: only how they begin.
FORMS = '''
import base64, re

class Forms:
    """What sk-KIND-... looks like: plain, and as base64 at each of so many positions (there are three)."""

    def __init__(self, kind, positions):
        begin = b"sk-" + kind + b"-"
        self.begins, patterns = [begin], [begin + b"[0-9a-f]{32}"]
        for before in range(positions):
            text = base64.b64encode(bytes(before) + begin)
            self.begins.append(text[-(-8 * before // 6):8 * (before + len(begin)) // 6])
            patterns.append(re.escape(self.begins[-1]) + b"[A-Za-z0-9+/]{40}")
        self.pattern = re.compile(b"|".join(patterns))

    def hits(self, data):
        # A pattern is slow, and seldom needed.
        return len(self.pattern.findall(data)) if any(begin in data for begin in self.begins) else 0

KINDS = {"key": Forms(b"model", 3), "decoy": Forms(b"decoy", 0)}

def count(into, where, data, name):
    for kind, forms in KINDS.items():
        hits = forms.hits(data)
        if hits:
            into.setdefault(where, {}).setdefault(kind, []).append(f"{name}: {hits}")

def memory(pid):
    """The memory of a process, as far as it can be read."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, mode = line.split()[:2]
            begin, end = (int(at, 16) for at in span.split("-"))
            # Neither the kernel's own pages nor what is mapped from programs and libraries.
            if "r" not in mode or "[v" in line or ("w" not in mode and "/usr/" in line):
                continue
            try:
                mem.seek(begin)
                while begin < end and (data := mem.read(min(end - begin, 1 << 22))):
                    yield data
                    begin += len(data)
            except OSError:
                pass
'''
INSIDE = '''
import json, os, resource, signal, subprocess, sys, time
sys.path.insert(0, "/opt/inside")
from forms import count, memory

def search_processes(found):
    """Environments, arguments and memory of all processes; the number of the agent's."""
    agent = None
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        for part in ("environ", "cmdline"):
            try:
                data = open(f"/proc/{pid}/{part}", "rb").read()
            except OSError:
                continue
            count(found, part, data, pid)
            if part == "cmdline" and any(name in data for name in (b"harness.py", b"harness.mjs", b"bridge.mjs")):
                agent = int(pid)
        try:
            for data in memory(pid):
                count(found, "memory", data, pid)
        except OSError:
            pass
    return agent

def dump(agent):
    """Ends the agent so that the kernel makes a core, if it may. A program can make one itself."""
    if b"harness.py" in open(f"/proc/{agent}/cmdline", "rb").read():
        with open("/workspace/core.own", "wb") as core:
            core.writelines(memory(agent))
    hard = resource.prlimit(agent, resource.RLIMIT_CORE)[1]
    resource.prlimit(agent, resource.RLIMIT_CORE, (hard, hard))
    os.kill(agent, signal.SIGABRT)
    while os.path.exists(f"/proc/{agent}"):
        time.sleep(0.02)
    return hard

def search_files(found):
    left_out = ("proc", "sys", "dev", "usr", "lib", "lib64", "bin", "sbin")
    for top, directories, names in os.walk("/"):
        if top == "/":
            directories[:] = [name for name in directories if name not in left_out]
        for path in (os.path.join(top, name) for name in names):
            try:
                # What did not change since the key was made does not have it.
                if os.path.isfile(path) and os.stat(path).st_ctime > float(os.environ["BORN"]):
                    count(found, "core" if "/core" in path else "files", open(path, "rb").read(), path)
            except OSError:
                pass

found, decoy = {}, os.environ["DECOY"]
open("/workspace/decoy.txt", "w").write(decoy)
named = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", decoy], env={})
agent = search_processes(found)
named.kill()
hard = dump(agent)
search_files(found)
cores = [name for name in os.listdir("/workspace") if name.startswith("core")]
print(json.dumps({"found": found, "cores": cores, "hard": hard}))
'''


class Model(http.server.BaseHTTPRequestHandler):
    """A chat API: one token, and the rest when the client has it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = body["messages"][-1]["content"]
        gate, server = self.server.gates.get(asked), self.server
        server.asked.append((asked, self.path, self.headers.get("Authorization"), body))
        if self.headers.get("Authorization") != f"Bearer {server.key}" or gate is None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.event({"choices": [{"delta": {"role": "assistant", "content": TOKENS[0]}}]})
        server.streamed[asked] = gate.wait(PATIENCE_S)
        for token in TOKENS[1:]:
            self.event({"choices": [{"delta": {"content": token}}]})
        self.event({"choices": []})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        text = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()

    def log_message(self, *_):
        pass


def model_server(test):
    """The server, with a certificate of the test's own authority."""
    if not shutil.which("openssl"):
        raise CannotTry("no openssl to make certificates (Debian: openssl)")
    ca, key, cert, names = (test.work / name for name in ("ca.pem", "tls-key.pem", "cert.pem", "names"))
    names.write_text("subjectAltName=DNS:model.shoal.test")
    for step in (
        ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", test.work / "ca-key.pem", "-out", ca,
         "-subj", "/CN=Test", "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE"],
        ["req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", test.work / "csr.pem", "-subj", "/CN=model"],
        ["x509", "-req", "-in", test.work / "csr.pem", "-CA", ca, "-CAkey", test.work / "ca-key.pem", "-CAcreateserial",
         "-out", cert, "-days", "2", "-extfile", names],
    ):
        made = run(["openssl", *step])
        if made.returncode:
            raise CannotTry(f"openssl {step[0]}: {made.stderr}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    try:
        server = http.server.ThreadingHTTPServer((ADDRESS, 443), Model)
    except OSError as error:
        raise CannotTry(f"no server on {ADDRESS}:443: {error}") from error
    server.daemon_threads, server.gates, server.asked, server.streamed = True, {}, [], {}
    server.born = time.time() - 1
    server.key = f"sk-model-{uuid.uuid4().hex}"
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Agent:
    """A session whose harness asks the model."""

    def __init__(self, test, server, model, name):
        self.test, self.server, self.model, self.name = test, server, model, name
        self.decoy, self.turns = f"sk-decoy-{uuid.uuid4().hex}", 0
        env = {"MODEL_URL": URL, "MODEL_NAME": "tested", "DECOY": self.decoy}
        if name == "ash":
            files = {"CLAUDE.md": b"An agent.", "bridge.mjs": BRIDGE.read_bytes()}
            files = [{"path": path, "content": base64.b64encode(data).decode()} for path, data in files.items()]
            deployed = server.call("POST", "/compat/ash/api/agents", {"name": "helper", "files": files})
            body = {"agent": "helper", "extraEnv": env}
            made = server.call("POST", "/compat/ash/api/sessions", body, patience_s=60) if deployed.ok else deployed
            self.id = made.json["session"]["id"] if made.ok else None
        else:
            made = server.call("POST", "/v1/sessions", {"template": name, "env": env})
            self.id = made.json["id"] if made.ok else None
        test.check(self.id, f"{name}: a session with a boundary secret", f"{name}: {made}")

    def turn(self):
        """One turn; the tokens that the client saw, and its result."""
        self.turns += 1
        asked = f"{self.name}, turn {self.turns}"
        gate = self.model.gates[asked] = threading.Event()
        if self.name == "ash":
            path, body = f"/compat/ash/api/sessions/{self.id}/messages", {"content": asked, "includePartialMessages": True}
        else:
            path, body = f"/v1/sessions/{self.id}/turns", {"input": asked}
        headers = {"Authorization": f"Bearer {self.server.key}", "Accept": "text/event-stream", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=2 * PATIENCE_S)
        connection.request("POST", path, json.dumps(body), headers)
        answer, lines = connection.getresponse(), []
        for line in answer:
            lines.append(line.decode())
            if line.startswith(b"data:") and TOKENS[0] in lines[-1] and ("token" in lines[-1] or "text_delta" in lines[-1]):
                gate.set()
        connection.close()
        said, text = "".join(lines), "".join(TOKENS)
        seen = [entry for entry in self.model.asked if entry[0] == asked]
        test, name = self.test, f"{asked}:"
        test.check(answer.status == 200 and text in said, f"{name} it is completed", f"{name} {answer.status} {said[-600:]}")
        test.check(seen and seen[0][2] == f"Bearer {self.model.key}", f"{name} the model got the real key", f"{name} {[entry[2] for entry in seen]}")
        test.check(self.model.streamed.get(asked), f"{name} the client had the first token before the model sent the last")
        return seen[0][3]["messages"] if seen else []

    def exec(self, command, patience_s=60):
        body = {"command": command, "timeout_ms": patience_s * 1000, "env": {"DECOY": self.decoy, "BORN": str(self.model.born)}}
        return self.server.call("POST", f"/v1/sessions/{self.id}/exec", body, patience_s=patience_s + 10)

    def look_inside(self):
        """Everything that a program inside can see, and what the host sees of its processes."""
        test, name = self.test, self.name
        outside = self.memory_from_outside()
        test.check("decoy" in outside, f"{name}: the host finds the decoy in the memory of the sandbox")
        test.check("key" not in outside, f"{name}: and the key in none of its processes", f"{name}: {outside}")
        answer = self.exec("python3 /opt/inside/inside.py")
        if not test.check(answer.ok and answer.json["exit_code"] == 0, f"{name}: the search ran inside", f"{name}: {answer}"):
            return
        seen = json.loads(answer.json["stdout"])
        found, places = seen["found"], ["files", "environ", "cmdline", "memory"]
        made = [core for core in seen["cores"] if core != "core.own"]
        test.check(made or seen["hard"] in (0, 1), f"{name}: the kernel makes {made or 'no core'} inside (hard limit {seen['hard']})", f"{name}: {seen}")
        if seen["cores"]:
            places.append("core")
        missed = [place for place in places if "decoy" not in found.get(place, {})]
        test.check(not missed, f"{name}: inside, the decoy is found in {', '.join(places)}", f"{name}: the search misses the decoy in {missed}: {seen}")
        keys = {place: kinds["key"] for place, kinds in found.items() if "key" in kinds}
        test.check(not keys, f"{name}: the key is in none of them", f"{name}: inside is the key: {keys}")

    def memory_from_outside(self):
        """Searches the memory of every process in the sandbox, as root of the host."""
        inside, found = set(), {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.decoy.encode() in (entry / "environ").read_bytes():
                    inside.add(os.readlink(entry / "ns/pid"))
            except OSError:
                continue
        inside.discard(os.readlink("/proc/self/ns/pid"))
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") in inside:
                    for data in FINDER["memory"](entry.name):
                        FINDER["count"](found, "memory", data, entry.name)
            except OSError:
                continue
        return found.get("memory", {})

    def views(self):
        """What the API shows of it."""
        sandbox = (self.server.call("GET", f"/v1/sessions/{self.id}").json or {}).get("sandbox_id")
        paths = [f"/v1/sessions/{self.id}{rest}" for rest in ("", "/turns?include=events", "/events", "/logs", "/network", "/files?path=/workspace/decoy.txt")]
        paths += [f"/v1/sandboxes/{sandbox}{rest}" for rest in ("", "/why", "/status", "/processes", "/network", "/events")]
        if self.name == "ash":
            paths += [f"/compat/ash/api/sessions/{self.id}{rest}" for rest in ("", "/messages", "/events", "/logs", "/workspace")]
        return paths


# The same search as inside.
FINDER = {}
exec(FORMS, FINDER)


def search_views(test, server, agents):
    paths = [path for agent in agents for path in agent.views()]
    paths += ["/v1/secrets", "/v1/sessions", "/v1/sandboxes", "/v1/templates", "/v1/network/log?limit=1000", "/v1/events", "/v1/usage", "/metrics", "/health"]
    found, answered = {}, 0
    for path in paths:
        answer = request(server.port, "GET", path, key=server.key, accept="application/json", patience_s=30)
        answered += answer.ok
        FINDER["count"](found, "view", answer.body, path)
        # The workspace of a session of Ash is in its answer as base64.
        if answer.ok and path.endswith("/workspace"):
            bundle = test.work / "bundle"
            bundle.write_bytes(base64.b64decode(answer.json.get("bundle", "")) if answer.json else answer.body)
            FINDER["count"](found, "bundle", unpacked(bundle), path)
    test.check("decoy" in found.get("view", {}), f"{answered} views of the API are searched, and show the decoy", f"{found}")
    keys = {where: kinds["key"] for where, kinds in found.items() if "key" in kinds}
    test.check(answered > 12 and not keys, "none has the key", f"{answered}: {keys}")


def unpacked(file):
    """The files of an archive, one after the other."""
    return subprocess.run(["tar", "-xOf", str(file)], stdin=subprocess.DEVNULL, capture_output=True, timeout=60).stdout


def search(directory):
    """Which files have what: {path: {kind: ...}}."""
    found = {}
    for parent, _, names in os.walk(directory):
        for path in (pathlib.Path(parent, name) for name in names):
            try:
                if path.is_file() and not path.is_symlink():
                    for text in texts_of(path):
                        FINDER["count"](found, str(path.relative_to(directory)), text, "hits")
            except (FileNotFoundError, ValueError):
                continue
    return found


def search_files(test, directory, what, decoys=True):
    found = search(directory)
    if decoys:
        test.check(any("decoy" in kinds for kinds in found.values()), f"{what}: the decoy is found")
    keys = {path for path, kinds in found.items() if "key" in kinds}
    test.check(not keys, f"{what}: the key is nowhere", f"{what}: the key is in {keys}")


def body(test):
    os.chmod(test.work, 0o755)
    inside = test.work / "inside"
    inside.mkdir()
    shutil.copy(EXAMPLES / "harness-python" / "harness.py", inside)
    shutil.copy(EXAMPLES / "harness-node" / "harness.mjs", inside)
    (inside / "forms.py").write_text(FORMS)
    (inside / "inside.py").write_text(INSIDE)
    model = model_server(test)
    names, skipped = list(HARNESSES), ""
    if not os.path.exists("/usr/bin/node"):
        names, skipped = ["python"], "no /usr/bin/node for the Node harness and the bridge"
    templates = "".join(TEMPLATE.replace("NAME", name).replace("HARNESS", HARNESSES[name]) for name in names)
    config = (CONFIG + templates).replace("ADDRESS", ADDRESS).replace("WORK", str(test.work))
    server = Server(test, "models", config).start()
    put = server.call("PUT", "/v1/secrets/model", {"value": model.key})
    test.check(put.ok, "the key of the model is stored", f"{put}")
    agents = [agent for agent in (Agent(test, server, model, name) for name in names) if agent.id]
    for agent in agents:
        agent.turn()
        conversation = agent.turn()
        if agent.name != "ash":
            roles = [message["role"] for message in conversation]
            test.check(roles == ["user", "assistant", "user"], f"{agent.name}: the second turn has the first one", f"{agent.name}: {roles}")
        agent.look_inside()
        agent.turn()
    search_views(test, server, agents)
    downloads = test.work / "downloads"
    downloads.mkdir()
    for agent in agents:
        sandbox = server.call("GET", f"/v1/sessions/{agent.id}").json["sandbox_id"]
        done = server.cli("cp", f"{sandbox}:/workspace", downloads / agent.name, patience_s=60)
        test.check(done.returncode == 0, f"{agent.name}: the workspace is downloaded", f"{done}")
        server.call("POST", f"/v1/sessions/{agent.id}/pause", {})
    search_files(test, downloads, "downloads")
    backup = test.work / "backup"
    done = server.cli("backup", backup, patience_s=60)
    test.check(done.returncode == 0, "a backup is made", f"{done}")
    search_files(test, backup, "the backup")
    search_files(test, server.data, "the data directory")
    server.kill()
    search_files(test, server.data, "the data directory after kill -9")
    server.start()
    test.check(server.stop() == 0, "the server stopped in order")
    search_files(test, server.data, "the data directory after a stop")
    logs = test.work / "logs"
    logs.mkdir()
    for log in test.work.glob("*.log"):
        shutil.copy(log, logs)
    search_files(test, logs, "the logs of the server", decoys=False)
    planted = logs / "planted"
    planted.write_text(f"Authorization: Basic {base64.b64encode(f'x:{model.key}'.encode()).decode()}")
    seen = search(logs)
    test.check("key" in seen.get("planted", {}), "the same search finds the key in a Basic header that is planted", f"{seen}")
    if skipped and not test.lies:
        raise CannotTry(skipped)


if __name__ == "__main__":
    Test(__doc__, deadline_s=180).run(body)
