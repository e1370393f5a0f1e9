// A bridge as Ash's protocol describes it, for tests: it answers by itself, and goes wrong when a
// prompt asks for it. Written from the description of the protocol.

import { existsSync, unlinkSync } from 'node:fs';
import net from 'node:net';
import readline from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const { ASH_BRIDGE_SOCKET, ASH_AGENT_DIR, ASH_WORKSPACE_DIR } = process.env;
if (!ASH_BRIDGE_SOCKET || !ASH_AGENT_DIR || !ASH_WORKSPACE_DIR) {
  console.error('the environment is not complete');
  process.exit(1);
}

const known = new Set();
let stop = new AbortController();

async function query({ prompt, sessionId, includePartialMessages, model }, say) {
  const message = (data) => say({ ev: 'message', data });
  const text = typeof prompt === 'string' ? prompt : prompt.map((block) => block.text).join(' ');
  const isResumed = known.has(sessionId);
  known.add(sessionId);
  stop = new AbortController();
  const { signal } = stop;
  try {
    if (text === 'die') process.exit(9);
    if (text.startsWith('throw')) throw new Error(text);
    if (includePartialMessages) message({ type: 'stream_event', event: { type: 'message_start' } });
    await sleep(text === 'hang' ? 1e9 : 20, null, { signal });
    const said = isResumed ? '[Resumed session]' : `[Mock] ${process.cwd()} ${model ?? ''}`;
    message({ type: 'assistant', session_id: sessionId, message: { content: [{ type: 'text', text: said }] } });
    await sleep(20, null, { signal });
    if (!isResumed) message({ type: 'result', subtype: 'success', result: `Mock response to: ${text}` });
  } catch (error) {
    if (!signal.aborted) say({ ev: 'error', error: error.message });
    if (text === 'throw late') await sleep(1500);
  }
  say({ ev: 'done', sessionId });
}

if (existsSync(ASH_BRIDGE_SOCKET)) unlinkSync(ASH_BRIDGE_SOCKET);
const server = net.createServer((socket) => {
  const say = (line) => socket.write(JSON.stringify(line) + '\n');
  socket.on('error', () => {});
  readline.createInterface({ input: socket }).on('line', (line) => {
    const command = JSON.parse(line);
    switch (command.cmd) {
      case 'query': return void query(command, say);
      case 'interrupt': return stop.abort();
      case 'shutdown': process.exit(0);
      default: say({ ev: 'error', error: `unknown command ${command.cmd}` });
    }
  });
  say({ ev: 'ready' });
});
process.umask(0o077);
server.listen(ASH_BRIDGE_SOCKET, () => process.stdout.write('R'));
