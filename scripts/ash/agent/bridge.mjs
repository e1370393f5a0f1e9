// The bridge of an agent for tests, written from the description of Ash's protocol. `$ COMMAND` is
// run by the shell in the workspace and its output is the answer, `die` kills the bridge, `hang`
// waits until it is interrupted. With MODEL_URL a model answers everything else, piece by piece;
// without it, it is said back.

import { execFileSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import net from 'node:net';
import readline from 'node:readline';
import { Readable } from 'node:stream';

const { ASH_BRIDGE_SOCKET, ASH_WORKSPACE_DIR } = process.env;
let stop = () => {};
let turns = 0;

function answerTo(prompt) {
  if (!prompt.startsWith('$ ')) return `You said: ${prompt}`;
  const options = { cwd: ASH_WORKSPACE_DIR, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] };
  return execFileSync('/bin/sh', ['-c', prompt.slice(2)], options);
}

// A chat completion as server-sent events. The key may be a placeholder.
async function* modelTokens(content) {
  const { MODEL_URL, MODEL_API_KEY } = process.env;
  const headers = { authorization: `Bearer ${MODEL_API_KEY}`, 'content-type': 'application/json' };
  const body = JSON.stringify({ stream: true, messages: [{ role: 'user', content }] });
  const response = await fetch(MODEL_URL, { method: 'POST', headers, body });
  if (!response.ok) throw new Error(`the model answered ${response.status}`);
  for await (const line of readline.createInterface({ input: Readable.fromWeb(response.body) })) {
    if (!line.startsWith('data:')) continue;
    const data = line.slice('data:'.length).trim();
    if (data === '[DONE]') return;
    for (const choice of JSON.parse(data).choices) yield choice.delta.content ?? '';
  }
  throw new Error('the answer of the model broke off');
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
    const partial = (part) => {
      if (!includePartialMessages) return;
      const delta = { type: 'text_delta', text: part };
      message({ type: 'stream_event', event: { type: 'content_block_delta', index: 0, delta } });
    };
    let answer = '';
    if (process.env.MODEL_URL && !text.startsWith('$ ') && text !== 'config') {
      for await (const token of modelTokens(text)) {
        answer += token;
        partial(token);
      }
    } else {
      answer = text === 'config' ? JSON.stringify({ ...command, model }) : answerTo(text);
      partial(answer);
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
