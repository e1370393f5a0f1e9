// The unmodified TypeScript client of Blaxel against a server of ours, through its public API alone.
// The server is in BL_API_URL, the key in BL_API_KEY. Every check can fail; the first one that does
// ends it.

import assert from "node:assert/strict";
import { randomBytes, randomUUID } from "node:crypto";
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/package.json`);
const { SandboxInstance } = require("@blaxel/core");

const PATIENCE_MS = 20_000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(what, isSo) {
  const end = Date.now() + PATIENCE_MS;
  while (!isSo()) {
    assert.ok(Date.now() < end, `never so: ${what}`);
    await pause(50);
  }
}

async function processes(sandbox) {
  const done = await sandbox.process.exec({
    command: "echo out; echo err >&2; exit 3",
    waitForCompletion: true,
  });
  assert.deepEqual([done.status, done.exitCode], ["failed", 3]);
  assert.deepEqual([done.stdout, done.stderr], ["out\n", "err\n"]);

  const out = [];
  const err = [];
  const watched = await sandbox.process.exec({
    command: "for n in 1 2 3; do echo line $n; echo oops $n >&2; sleep 0.05; done",
    waitForCompletion: true,
    onStdout: (text) => out.push(text),
    onStderr: (text) => err.push(text),
  });
  assert.equal(watched.status, "completed");
  assert.match(out.join("\n"), /line 1[^]*line 2[^]*line 3/);
  assert.match(err.join("\n"), /oops 1[^]*oops 2[^]*oops 3/);

  const started = await sandbox.process.exec({
    command: "echo begun; exec sleep 600",
    name: "server",
    workingDir: "/workspace",
  });
  assert.equal(started.status, "running");
  const lines = [];
  const stream = sandbox.process.streamLogs("server", { onLog: (line) => lines.push(line) });
  await until("the log is followed", () => lines.includes("begun"));
  stream.close();
  assert.equal((await sandbox.process.get("server")).pid, started.pid);
  await sandbox.process.stop("server");
  assert.ok(["stopped", "killed"].includes((await sandbox.process.get("server")).status));
  assert.equal(await sandbox.process.logs("server"), "begun\n");
}

async function stdin(sandbox) {
  const cat = await sandbox.process.exec({ command: "cat", name: "cat", stdin: true });
  await sandbox.process.writeStdin("cat", "one\n");
  await sandbox.process.writeStdin("cat", "two\n");
  await sandbox.process.closeStdin("cat");
  const done = await sandbox.process.wait(cat.pid, { maxWait: PATIENCE_MS, interval: 50 });
  assert.deepEqual([done.status, done.stdout], ["completed", "one\ntwo\n"]);
}

async function files(sandbox) {
  const { fs } = sandbox;
  await fs.mkdir("/workspace/d");
  await fs.write("/workspace/d/a.txt", "hello\n");
  assert.equal(await fs.read("/workspace/d/a.txt"), "hello\n");
  const large = randomBytes(12 * 1024 * 1024);
  await fs.writeBinary("/workspace/d/large.bin", large);
  const read = Buffer.from(await (await fs.readBinary("/workspace/d/large.bin")).arrayBuffer());
  assert.ok(read.equals(large), "a large file comes back as it was");
  const small = randomBytes(1000);
  await fs.writeBinary("/workspace/d/small.bin", small);
  const back = Buffer.from(await (await fs.readBinary("/workspace/d/small.bin")).arrayBuffer());
  assert.ok(back.equals(small), "a small one too");
  const listed = await fs.ls("/workspace/d");
  assert.deepEqual(listed.files.map((file) => file.name), ["a.txt", "large.bin", "small.bin"]);
  await fs.cp("/workspace/d", "/workspace/copy");
  assert.equal(await fs.read("/workspace/copy/a.txt"), "hello\n");
  await fs.writeTree([{ path: "x/y.txt", content: "deep" }], "/workspace/tree");
  assert.equal(await fs.read("/workspace/tree/x/y.txt"), "deep");
  const found = await fs.find("/workspace/d", { patterns: ["*.txt"] });
  assert.deepEqual(found.matches.map((match) => match.path), ["a.txt"]);
  const hits = await fs.grep("HELLO", "/workspace/d");
  assert.deepEqual(hits.matches.map((match) => [match.path, match.line]), [["a.txt", 1]]);
  await fs.rm("/workspace/copy", true);
  await assert.rejects(fs.ls("/workspace/copy"));
}

async function watching(sandbox) {
  const seen = [];
  const handle = sandbox.fs.watch("/workspace/d", (event) => void seen.push(event), {
    withContent: true,
  });
  // The client does not say when it began to watch: something is written until it is seen.
  for (let n = 0; n < 200 && !seen.some((event) => event.content === "new"); n += 1) {
    await sandbox.fs.write(`/workspace/d/w${n}.txt`, "new");
    await pause(100);
  }
  handle.close();
  assert.ok(seen.some((event) => event.op === "CREATE" && event.content === "new"), JSON.stringify(seen));
}

async function ports(sandbox) {
  await sandbox.fs.write("/workspace/d/index.html", "<h1>here</h1>");
  await sandbox.process.exec({
    command: "exec python3 -m http.server 3124 --directory /workspace/d",
    name: "web",
    waitForPorts: [3124],
    timeout: 20,
  });
  const answer = await sandbox.fetch(3124, "/index.html");
  assert.deepEqual([answer.status, await answer.text()], [200, "<h1>here</h1>"]);
  await sandbox.process.kill("web");
}

async function awake(sandbox) {
  const url = sandbox.metadata.url;
  const headers = { "X-Blaxel-Authorization": `Bearer ${process.env.BL_API_KEY}` };
  const ask = async (path, init = {}) => (await fetch(`${url}${path}`, { headers, ...init })).json();
  await sandbox.process.exec({ command: "sleep 600", name: "kept", keepAlive: true, timeout: 0 });
  const status = await ask("/status");
  assert.equal(status.state, "awake");
  assert.deepEqual(status.keepAliveProcesses.map((one) => [one.name, one.timeout]), [["kept", 0]]);
  const now = await ask("/stop", { method: "POST" });
  assert.deepEqual(now, { state: "auto", scheduledStopAt: null, keepAliveProcesses: [] });
  await sandbox.process.kill("kept");
}

const name = `ts-${randomUUID().slice(0, 8)}`;
const limit = setTimeout(() => assert.fail("it takes too long"), 150_000);
const made = await SandboxInstance.create({ name, envs: [{ name: "TEAM", value: "blue" }] });
assert.equal(made.metadata.name, name);
const again = await SandboxInstance.createIfNotExists({ name });
assert.equal(again.metadata.url, made.metadata.url);
const sandbox = await SandboxInstance.get(name);
const env = await sandbox.process.exec({ command: "echo $TEAM", waitForCompletion: true });
assert.equal(env.stdout, "blue\n");
await processes(sandbox);
await stdin(sandbox);
await files(sandbox);
await watching(sandbox);
await ports(sandbox);
await awake(sandbox);
await SandboxInstance.delete(name);
await assert.rejects(SandboxInstance.get(name));
clearTimeout(limit);
console.log("the TypeScript client of Blaxel works");
process.exit(0);
