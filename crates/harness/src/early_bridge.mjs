// Runs in Node before the bridge: waits for the settings of the session, and then lets Node go on to
// the bridge, which finds them as if it had been started with them.

// What bridges use of Node itself is loaded while there is time.
import 'node:child_process';
import 'node:crypto';
import 'node:events';
import 'node:fs';
import 'node:fs/promises';
import { Socket } from 'node:net';
import 'node:os';
import 'node:path';
import 'node:readline';
import 'node:stream';
import 'node:url';
import 'node:util';

const number = process.env.SHOAL_HARNESS_FD;
if (number !== undefined) {
  // Programs that the bridge starts do not wait.
  delete process.env.SHOAL_HARNESS_FD;
  process.execArgv.length = 0;
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
