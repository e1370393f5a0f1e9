// Runs in Node before the bridge: waits for the settings of the session, and then lets Node go on to
// the bridge, which finds them as if it had been started with them.

// What bridges use of Node itself is loaded while there is time.
import 'node:child_process';
import 'node:crypto';
import 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import 'node:fs/promises';
import { Socket, connect, createServer } from 'node:net';
import 'node:os';
import 'node:path';
import { createInterface } from 'node:readline';
import 'node:stream';
import { pathToFileURL } from 'node:url';
import { format } from 'node:util';

// Node compiles its own functions when they are used for the first time, which takes longer than to
// run them. So everything between the settings and a bridge that is ready is done once before: a
// module is loaded from a file, and two sockets speak in lines. Leaves nothing behind.
async function rehearse() {
  const directory = mkdtempSync('/tmp/early-bridge-');
  try {
    const [module, path] = [`${directory}/module.mjs`, `${directory}/socket`];
    writeFileSync(module, 'export default 1;');
    await import(pathToFileURL(module));
    await new Promise((resolve) => {
      const server = createServer((socket) => {
        const end = () => {
          socket.destroy();
          server.close(resolve);
        };
        createInterface({ input: socket.on('error', end) }).on('line', end);
        socket.write(JSON.stringify({ ev: 'ready' }) + '\n');
      });
      server.on('error', resolve);
      server.listen(path, () => {
        const other = connect(path, () => other.write('{}\n'));
        other.on('error', resolve).resume();
      });
    });
    format('%s', process.stdout.writable && process.stderr.writable);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

const number = process.env.SHOAL_HARNESS_FD;
if (number !== undefined) {
  // Programs that the bridge starts do not wait.
  delete process.env.SHOAL_HARNESS_FD;
  process.execArgv.length = 0;
  // What cannot be rehearsed takes longer later, and nothing else.
  await rehearse().catch(() => {});
  const channel = new Socket({ fd: Number(number) });
  channel.setEncoding('utf8');
  const settings = await new Promise((resolve) => {
    let text = '';
    channel.on('data', (piece) => {
      text += piece;
      if (text.endsWith('\n')) resolve(text);
    });
    channel.on('error', () => process.exit(1));
    channel.on('close', () => process.exit(0));
    channel.write('{"type":"waiting"}\n');
  });
  channel.removeAllListeners('close');
  channel.destroy();
  const { env, cwd } = JSON.parse(settings);
  Object.assign(process.env, env);
  process.chdir(cwd);
}
