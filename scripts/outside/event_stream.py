"""A stream of server-sent events, read by a thread of its own, for tests from outside."""

import http.client
import json
import socket
import threading
import time


class Stream:
    """A stream of events that is read by a thread of its own, until it ends or is closed."""

    def __init__(self, server, path, key, *, after=None, patience_s=120):
        self.events, self.signs, self.ended, self.error = [], [], threading.Event(), ""
        self.hold, self.lock = threading.Event(), threading.Lock()
        self.hold.set()
        headers = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream", "Connection": "close"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=patience_s)
        connection.request("GET", path, headers=headers)
        self.wire = connection.sock
        self.answer = connection.getresponse()
        self.status, self.opened = self.answer.status, time.monotonic()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        name, data, number = "message", [], None
        try:
            while True:
                self.hold.wait(60)
                line = self.answer.readline()
                if not line:
                    break
                line = line.decode().rstrip("\r\n")
                if line.startswith(":"):
                    self.signs.append(time.monotonic())
                elif line.startswith("event:"):
                    name = line[6:].strip()
                elif line.startswith("id:"):
                    number = int(line[3:])
                elif line.startswith("data:"):
                    data.append(line[5:].strip())
                elif not line and data:
                    with self.lock:
                        self.events.append((time.monotonic(), name, number, json.loads("\n".join(data))))
                    name, data = "message", []
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        self.ended.set()

    def close(self):
        try:
            self.wire.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.hold.set()
        self.thread.join(10)

    def all(self):
        with self.lock:
            return list(self.events)

    def changes(self, sandbox=None):
        """The changes of one sandbox, or {sandbox: changes}; each with when it came."""
        found = {}
        for at, name, number, data in self.all():
            if name == "sandbox_state" or data.get("type") == "sandbox_state":
                found.setdefault(data["sandbox_id"], []).append({**data, "came": at, "number": number})
        return found if sandbox is None else found.get(sandbox, [])

    def others(self):
        return [(name, number, data) for _, name, number, data in self.all() if name != "sandbox_state"]

    def last(self, sandbox):
        changes = self.changes(sandbox)
        return changes[-1]["to"] if changes else None

    def number(self):
        return max((number for _, _, number, _ in self.all() if number is not None), default=0)
