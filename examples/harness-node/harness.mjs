// A harness in Node, as small as one can be that does everything: see docs/harness.md.
//
// It answers each turn with the words of its input, one by one, counts its turns in a file that
// outlives the sandbox, and stops on request. With MODEL_URL a model answers instead, as it did in
// the turns before: see examples/README.md. No packages are needed.

import { readFile, rename, writeFile } from 'node:fs/promises';
import net from 'node:net';
import readline from 'node:readline';
import { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';

const COUNT = '/workspace/turns.txt';
const CONVERSATION = '/workspace/conversation.json';

// The channel is a socket of its own. Standard output and error are free: they go to the logs.
const channel = new net.Socket({ fd: Number(process.env.SHOAL_HARNESS_FD) });
const say = (line) => channel.write(JSON.stringify(line) + '\n');
let session = null;
let stop = new AbortController();

async function count() {
  const before = await readFile(COUNT, 'utf8').catch(() => '0');
  const turns = Number(before) + 1;
  await writeFile(COUNT, String(turns));
  return turns;
}

// The answer of a model, piece by piece as it comes: a chat completion as server-sent events.
async function* modelTokens(messages) {
  const { MODEL_URL, MODEL_API_KEY, MODEL_NAME = '' } = process.env;
  const response = await fetch(MODEL_URL, {
    method: 'POST',
    // In a sandbox with a boundary secret the key is a placeholder, which is replaced on its way.
    headers: { authorization: `Bearer ${MODEL_API_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: MODEL_NAME, stream: true, messages }),
    signal: stop.signal,
  });
  if (!response.ok) throw new Error(`the model answered ${response.status}: ${(await response.text()).slice(0, 500)}`);
  for await (const line of readline.createInterface({ input: Readable.fromWeb(response.body) })) {
    if (!line.startsWith('data:')) continue;
    const data = line.slice('data:'.length).trim();
    if (data === '[DONE]') return;
    for (const choice of JSON.parse(data).choices) yield choice.delta.content ?? '';
  }
  throw new Error('the answer of the model broke off');
}

async function answerWithModel(id, text) {
  const messages = JSON.parse(await readFile(CONVERSATION, 'utf8').catch(() => '[]'));
  messages.push({ role: 'user', content: text });
  let said = '';
  for await (const token of modelTokens(messages)) {
    if (!token) continue;
    said += token;
    say({ type: 'event', id, data: { token } });
  }
  messages.push({ role: 'assistant', content: said });
  await writeFile(`${CONVERSATION}.new`, JSON.stringify(messages));
  await rename(`${CONVERSATION}.new`, CONVERSATION);
  say({ type: 'result', id, data: { text: said, turns: await count(), session } });
}

async function answer({ id, input, config }) {
  const text = typeof input === 'string' ? input : (input.text ?? '');
  if (process.env.MODEL_URL) return answerWithModel(id, text);
  const turns = await count();
  for (const word of text.split(/\s+/).filter(Boolean)) {
    // Anything may be the data of an event, as long as it is an object.
    say({ type: 'event', id, data: { word } });
    await sleep(config?.delay_ms ?? 20, null, { signal: stop.signal });
  }
  // Exactly one result, or one error, ends the turn.
  say({ type: 'result', id, data: { text, turns, session } });
}

async function turn(message) {
  stop = new AbortController();
  try {
    await answer(message);
  } catch (error) {
    const wasStopped = stop.signal.aborted;
    if (!wasStopped) console.error(`turn ${message.id}:`, error);
    const errorFields = wasStopped ? { code: 'cancelled', message: 'stopped on request' } : { message: String(error) };
    say({ type: 'error', id: message.id, ...errorFields });
  }
}

readline.createInterface({ input: channel }).on('line', (line) => {
  const message = JSON.parse(line);
  switch (message.type) {
    case 'bind':
      // Comes before the first turn, and again when the session changes sandboxes.
      session = message.session_id;
      Object.assign(process.env, message.env);
      process.chdir('/workspace');
      say({ type: 'bound' });
      break;
    case 'turn':
      turn(message);
      break;
    case 'cancel':
      stop.abort();
      break;
  }
}).on('close', () => process.exit(0));

// Say so only when the next line can be answered: a session may wait for it.
say({ type: 'ready', protocol: 1 });
