"""Sessions by way of the other systems' wire formats, as far as the outside tests need them.

Written from the descriptions of those systems and from the guides (ash.md, blaxel.md). Nothing here may use
`/v1`: what a dialect says must be true by itself.
"""

import base64
import urllib.parse
import uuid

# A bridge in Ash's protocol, which runs `$ COMMAND` in the workspace.
BRIDGE = r"""
import json, os, socket, subprocess, sys
path = os.environ["ASH_BRIDGE_SOCKET"]
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
sys.stdout.write("R")
sys.stdout.flush()
while True:
    wire = listener.accept()[0].makefile("rw")
    def say(what):
        wire.write(json.dumps(what) + "\n")
        wire.flush()
    say({"ev": "ready"})
    for line in wire:
        asked = json.loads(line)
        if asked.get("cmd") == "shutdown":
            sys.exit(0)
        if asked.get("cmd") != "query":
            continue
        prompt = asked["prompt"]
        text = "You said: " + prompt
        if prompt.startswith("$ "):
            text = subprocess.run(prompt[2:], shell=True, cwd="/workspace", capture_output=True, text=True).stdout
        session = asked.get("sessionId")
        say({"ev": "message", "data": {"type": "result", "subtype": "success", "is_error": False,
            "num_turns": 1, "result": text, "session_id": session}})
        say({"ev": "done", "sessionId": session})
"""

ASH_TEMPLATE = """
[[templates]]
name = "ash"
[templates.harness.ash_bridge]
command = ["/usr/bin/python3", "/workspace/bridge.py"]
prewarm = false
[templates.limits]
memory_mb = 256
workspace_mb = 64
[templates.pool]
pool_size = 0
[templates.workspace]
kind = "{kind}"
limit = "soft"
"""


def packed(text):
    return base64.b64encode(text.encode()).decode()


class Ash:
    """One session of a client of Ash."""

    name = "Ash"

    def __init__(self, server, agent):
        self.server = server
        answer = self.call("POST", "/sessions", {"agent": agent})
        if not answer.ok:
            raise RuntimeError(f"no session of Ash: {answer}")
        self.id = answer.json["session"]["id"]

    @staticmethod
    def deploy(server):
        """An agent with the bridge among its files; its name."""
        files = {"CLAUDE.md": "Be brief.\n", "bridge.py": BRIDGE}
        listed = [{"path": path, "content": packed(text)} for path, text in files.items()]
        name = f"outside-{uuid.uuid4().hex[:8]}"
        answer = server.call("POST", "/compat/ash/api/agents", {"name": name, "files": listed})
        if not answer.ok:
            raise RuntimeError(f"no agent of Ash: {answer}")
        return name

    def call(self, method, path, body=None, **options):
        return self.server.call(method, f"/compat/ash/api{path}", body, **options)

    def of(self, path):
        return f"/sessions/{self.id}{path}"

    def write(self, path, text):
        return self.call("POST", self.of("/files"), {"files": [{"path": path, "content": packed(text)}]})

    def read(self, path):
        return self.call("GET", self.of(f"/files/{path}"))

    def execute(self, command):
        return self.call("POST", self.of("/exec"), {"command": command})

    def say(self, text):
        return self.call("POST", self.of("/messages"), {"content": text}, accept="text/event-stream")

    def listing(self):
        return self.call("GET", self.of("/files"))

    def fork(self):
        return self.call("POST", self.of("/fork"))

    def delete(self):
        return self.call("DELETE", self.of(""))


class Blaxel:
    """One sandbox of a client of Blaxel."""

    name = "Blaxel"

    def __init__(self, server, template):
        self.server, self.sandbox = server, f"outside-{uuid.uuid4().hex[:8]}"
        body = {"metadata": {"name": self.sandbox}, "spec": {"runtime": {"image": template}}}
        answer = self.call("POST", "/sandboxes", body)
        if not answer.ok:
            raise RuntimeError(f"no sandbox of Blaxel: {answer}")

    def call(self, method, path, body=None, **options):
        return self.server.call(method, f"/compat/blaxel{path}", body, **options)

    def at(self, path):
        return f"/filesystem/{urllib.parse.quote(path)}"

    def write(self, path, text):
        return self.call("PUT", f"/{self.sandbox}{self.at(path)}", {"content": text})

    def read(self, path):
        return self.call("GET", f"/{self.sandbox}{self.at(path)}", accept="application/json")

    def execute(self, command):
        return self.call("POST", f"/{self.sandbox}/process", {"command": command, "waitForCompletion": True})

    def listing(self):
        return self.call("GET", f"/{self.sandbox}/filesystem/")

    def delete(self):
        return self.call("DELETE", f"/sandboxes/{self.sandbox}")
