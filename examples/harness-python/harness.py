#!/usr/bin/env python3
"""A harness in Python, as small as one can be that does everything: see docs/harness.md.

It answers each turn with the words of its input, one by one, counts its turns in a file that
outlives the sandbox, and stops on request. With MODEL_URL a model answers instead, as it did in the
turns before: see examples/README.md. Only the standard library is needed.
"""

import json
import os
import queue
import socket
import sys
import threading
import urllib.error
import urllib.request

COUNT = "/workspace/turns.txt"
CONVERSATION = "/workspace/conversation.json"
# How long the model may be silent.
MODEL_SILENCE_S = 120

# The channel is a socket of its own. Standard output and error are free: they go to the logs.
channel = socket.socket(fileno=int(os.environ["SHOAL_HARNESS_FD"]))
lines = channel.makefile("r", encoding="utf-8", newline="\n")
writer = channel.makefile("w", encoding="utf-8", newline="\n")
inbox = queue.Queue()
cancelled = threading.Event()


def say(**line):
    writer.write(json.dumps(line) + "\n")
    writer.flush()


def listen():
    """Reads in a thread of its own, so that a cancel is heard while a turn is at work."""
    for line in lines:
        message = json.loads(line)
        if message["type"] == "cancel":
            cancelled.set()
        else:
            inbox.put(message)
    inbox.put(None)


def count():
    try:
        with open(COUNT, encoding="utf-8") as file:
            turns = int(file.read()) + 1
    except FileNotFoundError:
        turns = 1
    with open(COUNT, "w", encoding="utf-8") as file:
        file.write(str(turns))
    return turns


def model_tokens(messages):
    """The answer of a model, piece by piece as it comes: a chat completion as server-sent events."""
    body = {"model": os.environ.get("MODEL_NAME", ""), "stream": True, "messages": messages}
    # In a sandbox with a boundary secret this is a placeholder, which is replaced on its way.
    headers = {"Authorization": f"Bearer {os.environ['MODEL_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["MODEL_URL"], json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=MODEL_SILENCE_S) as stream:
            for line in stream:
                data = line.decode().removeprefix("data:").strip() if line.startswith(b"data:") else ""
                if data == "[DONE]":
                    return
                for choice in json.loads(data)["choices"] if data else []:
                    yield choice["delta"].get("content") or ""
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"the model answered {error.code}: {error.read(500).decode(errors='replace')}") from None
    raise RuntimeError("the answer of the model broke off")


def answer_with_model(turn, text, session):
    try:
        with open(CONVERSATION, encoding="utf-8") as file:
            messages = json.load(file)
    except FileNotFoundError:
        messages = []
    messages.append({"role": "user", "content": text})
    said = ""
    for token in model_tokens(messages):
        if cancelled.is_set():
            return say(type="error", id=turn["id"], code="cancelled", message="stopped on request")
        if token:
            said += token
            say(type="event", id=turn["id"], data={"token": token})
    messages.append({"role": "assistant", "content": said})
    with open(CONVERSATION + ".new", "w", encoding="utf-8") as file:
        json.dump(messages, file)
    os.replace(CONVERSATION + ".new", CONVERSATION)
    say(type="result", id=turn["id"], data={"text": said, "turns": count(), "session": session})


def answer(turn, session):
    text = turn["input"] if isinstance(turn["input"], str) else turn["input"].get("text", "")
    if os.environ.get("MODEL_URL"):
        return answer_with_model(turn, text, session)
    delay_s = ((turn.get("config") or {}).get("delay_ms", 20)) / 1000
    turns = count()
    words = text.split()
    for word in words:
        # Anything may be the data of an event, as long as it is an object.
        say(type="event", id=turn["id"], data={"word": word})
        if cancelled.wait(delay_s):
            return say(type="error", id=turn["id"], code="cancelled", message="stopped on request")
    # Exactly one result, or one error, ends the turn.
    say(type="result", id=turn["id"], data={"text": text, "turns": turns, "session": session})


def main():
    threading.Thread(target=listen, daemon=True).start()
    session = None
    # Say so only when the next line can be answered: a session may wait for it.
    say(type="ready", protocol=1)
    while (message := inbox.get()) is not None:
        if message["type"] == "bind":
            # Comes before the first turn, and again when the session changes sandboxes.
            session = message["session_id"]
            os.environ.update(message["env"])
            os.chdir("/workspace")
            say(type="bound")
        elif message["type"] == "turn":
            cancelled.clear()
            try:
                answer(message, session)
            except Exception as error:
                print(f"turn {message['id']}: {error!r}", file=sys.stderr)
                say(type="error", id=message["id"], message=str(error))


if __name__ == "__main__":
    main()
