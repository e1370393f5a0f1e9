"""The unmodified Python client of Blaxel against a server of ours, through its public API alone.

    client.py URL        with the key in BL_API_KEY

Every check can fail; the first one that does ends it.
"""

import asyncio
import os
import sys
import uuid

import httpx
from blaxel.core import SandboxInstance
from blaxel.core.client.client import client
from blaxel.core.client.models import SandboxLifecycle
from blaxel.core.sandbox.types import SandboxUpdateMetadata

PATIENCE_S = 20


async def until(what, is_so):
    for _ in range(PATIENCE_S * 20):
        if is_so():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"never so: {what}")


async def processes(sandbox):
    done = await sandbox.process.exec(
        {"command": "echo out; echo err >&2; exit 3", "wait_for_completion": True}
    )
    assert (done.status, done.exit_code) == ("failed", 3), done
    assert (done.stdout, done.stderr) == ("out\n", "err\n"), done

    out, err, both = [], [], []
    watched = await sandbox.process.exec(
        {
            "command": "for n in 1 2 3; do echo line $n; echo oops $n >&2; sleep 0.05; done",
            "wait_for_completion": True,
            "on_stdout": out.append,
            "on_stderr": err.append,
            "on_log": both.append,
        }
    )
    assert watched.status == "completed", watched
    assert "".join(out).split("\n")[:3] == ["line 1", "line 2", "line 3"], out
    assert "".join(err).count("oops") == 3 and len(both) >= 2, (err, both)

    name = f"server-{uuid.uuid4().hex[:6]}"
    started = await sandbox.process.exec(
        {"command": "echo begun; exec sleep 600", "name": name, "working_dir": "/workspace"}
    )
    assert started.status == "running" and started.pid.isdigit(), started
    lines = []
    stream = sandbox.process.stream_logs(name, {"on_log": lines.append})
    await until("the log is followed", lambda: lines == ["begun"])
    stream.close()
    assert (await sandbox.process.get(name)).pid == started.pid
    assert name in [process.name for process in await sandbox.process.list()]
    await sandbox.process.stop(name)
    assert (await sandbox.process.get(name)).status in ("stopped", "killed")
    assert await sandbox.process.logs(name) == "begun\n"

    late = await sandbox.process.exec({"command": "sleep 0.2; exit 7"})
    late = await sandbox.process.wait(late.pid, max_wait=PATIENCE_S * 1000, interval=50)
    assert (late.status, late.exit_code) == ("failed", 7), late


async def stdin(sandbox):
    started = await sandbox.process.exec({"command": "cat", "name": "cat", "stdin": True})
    await sandbox.process.write_stdin("cat", "one\n")
    await sandbox.process.write_stdin("cat", b"two\n")
    await sandbox.process.close_stdin("cat")
    done = await sandbox.process.wait(started.pid, max_wait=PATIENCE_S * 1000, interval=50)
    assert (done.status, done.stdout) == ("completed", "one\ntwo\n"), done


async def files(sandbox, scratch):
    fs = sandbox.fs
    await fs.mkdir("/workspace/d")
    await fs.write("/workspace/d/a.txt", "hello\n")
    await fs.write("d/b.txt", "relative")
    assert await fs.read("/workspace/d/a.txt") == "hello\n"
    assert await fs.read("/workspace/d/b.txt") == "relative"
    binary = bytes(range(256)) * 100
    await fs.write_binary("/workspace/d/c.bin", binary)
    assert await fs.read_binary("/workspace/d/c.bin") == binary
    large = os.urandom(12 * 1024 * 1024)
    await fs.write_binary("/workspace/d/large.bin", large)
    assert await fs.read_binary("/workspace/d/large.bin") == large
    listed = await fs.ls("/workspace/d")
    assert [file.name for file in listed.files] == ["a.txt", "b.txt", "c.bin", "large.bin"], listed
    await fs.cp("/workspace/d", "/workspace/copy")
    assert await fs.read("/workspace/copy/a.txt") == "hello\n"
    tree = await fs.write_tree([{"path": "x/y.txt", "content": "deep"}], "/workspace/tree")
    assert [inner.name for inner in tree.subdirectories] == ["x"], tree
    await fs.download("/workspace/d/a.txt", f"{scratch}/a.txt")
    with open(f"{scratch}/a.txt", encoding="utf-8") as downloaded:
        assert downloaded.read() == "hello\n"
    found = await fs.find("/workspace", patterns=["*.txt"], max_results=100)
    assert sorted(match.path for match in found.matches)[:2] == ["copy/a.txt", "copy/b.txt"], found
    hits = await fs.grep("HELLO", "/workspace/d")
    assert [(hit.path, hit.line) for hit in hits.matches] == [("a.txt", 1)], hits
    nothing = await fs.grep("no such text", "/workspace/d")
    assert list(nothing.matches) == [], nothing
    await fs.rm("/workspace/copy", recursive=True)
    try:
        await fs.ls("/workspace/copy")
    except Exception as error:
        assert "not found" in str(error), error
    else:
        raise AssertionError("what was removed is still there")


async def watching(sandbox):
    seen = []

    async def note(event):
        seen.append((event.op, event.name, event.content))

    handle = sandbox.fs.watch("/workspace/d", note, {"with_content": True, "ignore": ["ignored"]})
    # The client does not say when it began to watch: something is written until it is seen.
    for n in range(PATIENCE_S * 10):
        await sandbox.fs.write(f"/workspace/d/w{n}.txt", "new")
        await sandbox.fs.write("/workspace/d/ignored.txt", "new")
        await asyncio.sleep(0.1)
        if any(content == "new" for _, _, content in seen):
            break
    handle.close()
    assert any(op == "CREATE" and content == "new" for op, _, content in seen), seen
    assert not any(name.startswith("ignored") for _, name, _ in seen), seen


async def ports(sandbox):
    await sandbox.fs.write("/workspace/d/index.html", "<h1>here</h1>")
    await sandbox.process.exec(
        {
            "command": "exec python3 -m http.server 3123 --directory /workspace/d",
            "name": "web",
            "wait_for_ports": [3123],
            "timeout": PATIENCE_S,
        }
    )
    answer = await sandbox.fetch(3123, "/index.html")
    assert (answer.status_code, answer.text) == (200, "<h1>here</h1>"), answer
    await sandbox.process.kill("web")


async def awake(sandbox, url, key):
    """The client has no calls for these: they are made as the documentation shows them."""
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:
        await sandbox.process.exec({"command": "sleep 600", "name": "kept", "keep_alive": True})
        status = (await http.get("/status")).json()
        kept = [(one["name"], one["timeout"]) for one in status["keepAliveProcesses"]]
        assert status["state"] == "awake" and kept == [("kept", 600)], status
        later = (await http.post("/stop", json={"timeout": 300})).json()
        assert later["state"] == "awake" and later["scheduledStopAt"].endswith("Z"), later
        now = (await http.post("/stop")).json()
        expected = {"state": "auto", "scheduledStopAt": None, "keepAliveProcesses": []}
        assert now == expected, now
        assert (await sandbox.process.get("kept")).status == "running"
        await sandbox.process.kill("kept")


async def refusals(name):
    """What cannot be had is refused, in words that the client shows."""
    for wanted, words in [
        ({"image": "blaxel/nextjs:latest"}, "not found"),
        ({"memory": 1 << 20}, "MB"),
        ({"volumes": [{"name": "data", "mount_path": "/data"}]}, "does not exist"),
    ]:
        try:
            await SandboxInstance.create({"name": f"{name}-refused", **wanted})
        except Exception as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{wanted} was accepted")
    changed = await SandboxInstance.update_metadata(name, SandboxUpdateMetadata(labels={"team": "blue"}))
    assert changed.metadata.labels.to_dict() == {"team": "blue"}, changed.metadata
    listed = await SandboxInstance.list()
    assert name in [one.metadata.name for one in listed.data], listed


async def expiry(name):
    """A ttl and a policy count down, and go away again when they are cleared."""
    hour = await SandboxInstance.update_ttl(name, "1h")
    assert 3000 < hour.expires_in <= 3600, hour.expires_in
    policy = {"type": "ttl-idle", "value": "10m", "action": "delete"}
    both = await SandboxInstance.update_lifecycle(name, SandboxLifecycle.from_dict({"expirationPolicies": [policy]}))
    assert 500 < both.expires_in <= 600, both.expires_in
    await SandboxInstance.update_ttl(name, None)
    none = await SandboxInstance.update_lifecycle(name, None)
    assert not none.expires_in, none.expires_in


async def main(url, scratch):
    client.with_base_url(url)
    name = f"py-{uuid.uuid4().hex[:8]}"
    sandbox = await SandboxInstance.create({"name": name, "envs": [{"name": "TEAM", "value": "blue"}]})
    assert (sandbox.metadata.name, str(sandbox.status)) == (name, "DEPLOYED"), sandbox.sandbox
    again = await SandboxInstance.create_if_not_exists({"name": name})
    assert again.metadata.url == sandbox.metadata.url
    memory = sandbox.spec.runtime.memory
    assert 0 < memory < 4096, f"the memory that it really has, not what the client asks for: {memory}"
    await refusals(name)
    await expiry(name)
    sandbox = await SandboxInstance.get(name)
    env = await sandbox.process.exec({"command": "echo $TEAM", "wait_for_completion": True})
    assert env.stdout == "blue\n", env
    await processes(sandbox)
    await stdin(sandbox)
    await files(sandbox, scratch)
    await watching(sandbox)
    await ports(sandbox)
    await awake(sandbox, sandbox.metadata.url, os.environ["BL_API_KEY"])
    health = await sandbox.system.health()
    assert health.status == "ok", health
    await SandboxInstance.delete(name)
    try:
        await SandboxInstance.get(name)
    except Exception as error:
        assert "not found" in str(error), error
    else:
        raise AssertionError("what was ended is still there")
    print("the Python client of Blaxel works")


asyncio.run(asyncio.wait_for(main(sys.argv[1], sys.argv[2]), 150))
