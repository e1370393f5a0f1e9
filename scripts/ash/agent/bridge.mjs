// The bridge of an agent for tests, written from the description of Ash's protocol. It has no model:
// `$ COMMAND` is run by the shell in the workspace and its output is the answer, `die` kills the
// bridge, `hang` waits until it is interrupted, everything else is said back.

import { execFileSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import net from 'node:net';
import readline from 'node:readline';

const { ASH_BRIDGE_SOCKET, ASH_WORKSPACE_DIR } = process.env;
let stop = () => {};
let turns = 0;

function answerTo(prompt) {
  if (!prompt.startsWith('$ ')) return `You said: ${prompt}`;
  const options = { cwd: ASH_WORKSPACE_DIR, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] };
  return execFileSync('/bin/sh', ['-c', prompt.slice(2)], options);
}

async function query(command, say) {
  const { prompt, sessionId, includePartialMessages, model } = command;
  const message = (data) => say({ ev: 'message', data: { ...data, session_id: sessionId } });
  const text = typeof prompt === 'string' ? prompt : prompt.map((block) => block.text ?? '').join(' ');
  turns += 1;
  try {
    if (text === 'die') process.exit(9);
    if (text === 'throw') throw new Error('thrown as asked');
    if (text === 'hang') await new Promise((resolve) => { stop = resolve; });
    const answer = text === 'config' ? JSON.stringify({ ...command, model }) : answerTo(text);
    if (includePartialMessages) {
      const delta = { type: 'text_delta', text: answer };
      message({ type: 'stream_event', event: { type: 'content_block_delta', index: 0, delta } });
    }
    const content = [
      { type: 'tool_use', id: 't1', name: 'Shell', input: { prompt: text } },
      { type: 'text', text: answer },
    ];
    message({ type: 'assistant', message: { role: 'assistant', content } });
    message({ type: 'result', subtype: 'success', is_error: false, num_turns: turns, result: answer });
  } catch (error) {
    say({ ev: 'error', error: error.message });
  }
  say({ ev: 'done', sessionId });
}

rmSync(ASH_BRIDGE_SOCKET, { force: true });
const server = net.createServer((socket) => {
  const say = (line) => socket.write(JSON.stringify(line) + '\n');
  socket.on('error', () => {});
  readline.createInterface({ input: socket }).on('line', (line) => {
    const command = JSON.parse(line);
    if (command.cmd === 'query') query(command, say);
    if (command.cmd === 'interrupt') stop();
    if (command.cmd === 'shutdown') process.exit(0);
  });
  say({ ev: 'ready' });
});
server.listen(ASH_BRIDGE_SOCKET, () => {
  console.error('the bridge listens');
  process.stdout.write('R');
});
