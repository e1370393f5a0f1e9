"""What is asked for is done or refused, and what is answered is so.

    answers.py --shoal PATH

blaxel.md: a sandbox that cannot be had as it is asked for is refused, lists are filtered, pages of other origins read
nothing. processes.md: parts of uploads are in no list and no archive, an observed log keeps nothing awake, a connection
whose client has gone neither, a terminal's SHELL is the shell that runs. Names of files cannot deceive on the command
line, and `{}` is accepted where a POST needs no body.
"""

import base64
import io
import json
import os
import socket
import struct
import subprocess
import tarfile
import time
import urllib.parse

from outside import Server, Test, wait_until

CONFIG = """
[server]
shutdown_grace_ms = 5000
cors_origins = ["https://app.example"]
[[templates]]
name = "default"
freeze_after_ms = 1000
[templates.limits]
memory_mb = 128
workspace_mb = 16
[templates.pool]
pool_size = 1
max_overflow = 8
"""
BLAXEL = "/compat/blaxel"
# A listener that never says anything and never closes a connection.
SILENT = """
import socket, time
listener = socket.create_server(("127.0.0.1", 3000))
held = []
while True:
    held.append(listener.accept())
"""


def asked(server, name, spec):
    return server.call("POST", f"{BLAXEL}/sandboxes", {"metadata": {"name": name, "externalId": f"id-{name}"}, "spec": spec})


def sandboxes_of_blaxel(test, server):
    sent = {"region": "us", "runtime": {"image": "blaxel/base-image:latest", "memory": 4096, "generation": "mk3"}}
    made = asked(server, "box", sent)
    memory = made.json and made.json["spec"]["runtime"]["memory"]
    test.check(made.ok and memory == 128, "what a client asks for by itself is given, with the real memory", str(made))
    for what, spec in [
        ("an unknown image", {"runtime": {"image": "blaxel/nextjs:latest"}}),
        ("more memory than there is", {"runtime": {"memory": 64000}}),
        ("a volume", {"volumes": [{"name": "data", "mountPath": "/data"}]}),
        ("another network", {"network": {"allowedDomains": ["a.example"]}}),
    ]:
        refused = asked(server, "other", spec)
        is_so = refused.status == 400 and refused.json["code"] == 400 and refused.json["message"]
        test.check(is_so, f"{what} is refused: {refused.detail[:60]}", f"{what}: {refused}")
    changed = made.json
    changed["spec"]["runtime"]["envs"] = [{"name": "A", "value": "1"}]
    refused = server.call("PUT", f"{BLAXEL}/sandboxes/box", changed)
    test.check(refused.status == 400, "another environment for a sandbox that exists is refused", str(refused))
    for query, count in [("externalId=id-box", 1), ("externalId=other", 0), ("q=BO", 1), ("q=nothing", 0)]:
        listed = server.call("GET", f"{BLAXEL}/sandboxes?{query}")
        test.check(listed.ok and len(listed.json["data"]) == count, f"a list with {query} has {count}", f"{query}: {listed}")
    refused = server.call("GET", f"{BLAXEL}/volumes")
    test.check(refused.status == 422 and refused.json["code"] == 422, "other collections are refused", str(refused))
    for origin, allowed in [("https://app.example", "https://app.example"), ("https://evil.example", None)]:
        answer = server.call("GET", f"{BLAXEL}/sandboxes", headers={"Origin": origin})
        seen = answer.header("access-control-allow-origin")
        test.check(seen == allowed, f"a page of {origin} may read: {bool(allowed)}", f"{origin} may read as {seen}")
    found = server.call("GET", f"{BLAXEL}/box/filesystem-find//workspace?type=directory")
    test.check(found.ok and found.json["matches"][0]["path"] == ".", "directories are found from the first one on", str(found))
    refused = server.call("GET", f"{BLAXEL}/box/filesystem-find//workspace?type=link")
    test.check(refused.status == 400, "an unknown kind of file is refused", str(refused))


def uploads(test, server):
    form = {"Content-Type": "multipart/form-data; boundary=xYx"}
    body = b'--xYx\r\nContent-Disposition: form-data; name="file"; filename="p"\r\n\r\nSECRET PART\r\n--xYx--\r\n'
    part = lambda id: server.call("PUT", f"{BLAXEL}/box/filesystem-multipart/{id}/part?partNumber=1", body, headers=form)
    test.check(part("nosuch").status == 404, "a part for an unknown upload is not found", str(part("nosuch")))
    begun = server.call("POST", f"{BLAXEL}/box/filesystem-multipart/initiate//workspace/big", {})
    test.check(part(begun.json["uploadId"]).ok, "a part of an upload arrives")
    session = server.call("GET", "/v1/sessions").json["sessions"][0]
    of = f"/v1/sandboxes/{session['sandbox_id']}/files"
    for what in ("list?path=/workspace", "tree?path=/workspace", "find?path=/workspace", "search?path=/workspace&text=SECRET"):
        seen = server.call("GET", f"{of}/{what}")
        shown = seen.body.decode()
        test.check(seen.ok and "shoal-uploads" not in shown and "part-1" not in shown, f"files/{what} does not show it", shown[:200])
    archive = server.call("GET", f"/v1/sandboxes/{session['sandbox_id']}/archive?path=/workspace")
    names = tarfile.open(fileobj=io.BytesIO(archive.body)).getnames() if archive.ok else [str(archive)]
    test.check(archive.ok and not any("shoal-uploads" in name for name in names), "an archive does not have it", str(names))


def checked_out(server):
    lease = server.call("POST", "/v1/checkouts", {"template": "default", "ttl_s": 300, "wait_ms": 20000})
    return lease.json["sandbox"]["id"]


def frozen(server, sandbox):
    return server.call("GET", f"/v1/sandboxes/{sandbox}/status").json["frozen"]


def observed(test, server):
    sandbox = checked_out(server)
    server.call("POST", f"/v1/sandboxes/{sandbox}/processes", {"command": "sleep 600", "name": "job"})
    test.check(wait_until(15, lambda: frozen(server, sandbox)), "an idle sandbox is frozen")
    logs = f"/v1/sandboxes/{sandbox}/processes/job/logs?observe=true"
    for query, accept in [("", "text/event-stream"), ("&follow=true", "text/plain")]:
        server.call("GET", logs + query, accept=accept, patience_s=2)
        test.check(frozen(server, sandbox), f"a log that is followed as {accept} and only observed thaws nothing")


def forwarded(test, server):
    sandbox = checked_out(server)
    server.call("PUT", f"/v1/sandboxes/{sandbox}/files?path=/workspace/silent.py", SILENT.encode())
    body = {"command": "exec python3 silent.py", "name": "silent", "wait_for_ports": [3000]}
    server.call("POST", f"/v1/sandboxes/{sandbox}/processes", body)
    env = {**server.env, "SHOAL_DATA_DIR": str(server.data)}
    command = [str(test.shoal), "forward", sandbox, "3000:0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as forward:
        host, port = forward.stdout.readline().split(" ")[0].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"hello")
            time.sleep(3)
            test.check(not frozen(server, sandbox), "a client of a forwarded port keeps the sandbox awake")
        slept = wait_until(60, lambda: frozen(server, sandbox), 1)
        test.check(slept, "once it has left, the sandbox sleeps", "a client that left keeps the sandbox awake")
        forward.terminate()
        forward.wait(20)


def names(test, server):
    sandbox = checked_out(server)
    for name in ("photo\u202egpj.exe", "a\u2066b\u200bc", "two\nlines"):
        path = urllib.parse.quote(f"/workspace/{name}")
        server.call("PUT", f"/v1/sandboxes/{sandbox}/files?path={path}", b"needle\n")
    for command in (("find", sandbox), ("grep", sandbox, "needle")):
        said = server.cli(*command).stdout
        raw = [char for char in said if char != "\n" and (not char.isprintable())]
        test.check("\\u{202e}" in said and not raw and len(said.splitlines()) == 3, f"`shoal {command[0]}` prints names as they are", repr(said))


def bodies(test, server):
    sandbox = checked_out(server)
    session = server.call("POST", "/v1/sessions", {"template": "default"}).json["id"]
    for path in (f"sandboxes/{sandbox}/freeze", f"sandboxes/{sandbox}/thaw", f"sandboxes/{sandbox}/stop", f"sessions/{session}/pause", f"sessions/{session}/resume", f"sessions/{session}/stop"):
        answer = server.call("POST", f"/v1/{path}", {})
        test.check(answer.ok, f"POST {path.split('/')[-1]} accepts an empty object", f"{path}: {answer}")
    refused = server.call("POST", f"/v1/sandboxes/{sandbox}/freeze", {"force": True})
    test.check(refused.status == 400, "and refuses what it would ignore", str(refused))


def terminal(test, server):
    """The first lines of a terminal, by hand: a WebSocket, one text in, bytes out."""
    sandbox = checked_out(server)
    with socket.create_connection(("127.0.0.1", server.port), 20) as wire:
        head = [f"GET /v1/sandboxes/{sandbox}/terminal HTTP/1.1", "Host: localhost", f"Authorization: Bearer {server.key}", "Connection: Upgrade"]
        head += ["Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
        wire.sendall("\r\n".join([*head, "", ""]).encode())
        line = b"echo shell=$SHELL=$(readlink /proc/$$/exe)=\n"
        wire.sendall(b"\x82" + bytes([0x80 | len(line)]) + struct.pack(">I", 0) + line)
        wire.settimeout(20)
        said, until = b"", time.monotonic() + 20
        while said.count(b"shell=/") < 1 and time.monotonic() < until:
            said += wire.recv(1 << 16)
        time.sleep(0.2)
    text = said.decode("utf-8", "replace")
    shell, runs = text[text.index("shell=/") :].split("=")[1:3] if "shell=/" in text else ("", "none")
    test.check(os.path.basename(shell) == os.path.basename(runs), f"SHELL of a terminal is {shell}, which runs", text[-200:])


def edits(test, server):
    sandbox = checked_out(server)
    server.call("PUT", f"/v1/sandboxes/{sandbox}/files?path=/workspace/a.txt", b"one two two\n")
    for old, words in [("three", "not found in /workspace/a.txt"), ("two", "matches 2 locations in /workspace/a.txt"), ("", "must not be empty")]:
        arguments = {"path": "/workspace/a.txt", "oldString": old, "newString": "x"}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "fsEditFile", "arguments": arguments}}
        said = json.dumps(server.call("POST", f"/v1/sandboxes/{sandbox}/mcp", call, accept="application/json, text/event-stream").json)
        test.check(words in said, f"a refused edit says: {words}", said[:300])


def body(test):
    server = Server(test, "answers", CONFIG).start()
    for part in (sandboxes_of_blaxel, uploads, observed, names, bodies, terminal, edits, forwarded):
        part(test, server)
    test.check(server.stop() == 0, "the server stopped in order", f"it did not stop in order: {server.log()[-600:]}")


if __name__ == "__main__":
    Test(__doc__, deadline_s=200).run(body)
