#!/usr/bin/env python3
"""A harness in Python, as small as one can be that does everything: see docs/harness.md.

It answers each turn with the words of its input, one by one, counts its turns in a file that
outlives the sandbox, and stops on request. Only the standard library is needed.
"""

import json
import os
import queue
import socket
import sys
import threading

COUNT = "/workspace/turns.txt"

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


def answer(turn, session):
    text = turn["input"] if isinstance(turn["input"], str) else turn["input"].get("text", "")
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
