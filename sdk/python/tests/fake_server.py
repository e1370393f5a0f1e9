"""Servers without sandboxes, which answer late, wrongly or not at all on demand."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from websockets.sync.server import Server, ServerConnection, serve

PATIENCE_S = 20.0
# What is done, and not said.
CUT = "cut"


class Gates:
    """What is kept back until it is let go."""

    def __init__(self) -> None:
        self._gates: dict[str, threading.Event] = {}

    def keep_back(self, kind: str) -> None:
        self._gates[kind] = threading.Event()

    def let_go(self, kind: str) -> None:
        self._gates.pop(kind).set()

    def open_all(self) -> None:
        for gate in self._gates.values():
            gate.set()

    def pass_through(self, kind: str) -> None:
        gate = self._gates.get(kind)
        if gate is not None:
            assert gate.wait(PATIENCE_S), f"the gate was not opened: {kind}"


class FakePools(Gates):
    """Hands out leases of nothing, and notes what it was asked.

    Kinds of requests are ``checkout``, ``abandon``, ``return``, ``renew`` and ``exec``. What is in ``faults``
    comes instead of the next answer of its kind: ``CUT``, or the code of a refusal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, Any]] = []
        self.leased: dict[str, str] = {}
        self.faults: dict[str, deque[str]] = defaultdict(deque)
        pools = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body are two packets, and the second is not to wait for the first.
            disable_nagle_algorithm = True

            def _answer(self) -> None:
                size = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(size)) if size else None
                status, value = pools._answer(
                    f"{self.command} {self.path}", body, self.headers.get("idempotency-key")
                )
                if value == CUT:
                    self.close_connection = True
                    return
                written = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(written)))
                self.end_headers()
                self.wfile.write(written)

            do_POST = do_DELETE = _answer  # noqa: N815 - the names are the standard library's

            def log_message(self, *_: object) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            # As many as connect at once.
            request_queue_size = 128

        self._server = Listener(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> FakePools:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def count(self, kind: str) -> int:
        """How often something was asked."""
        return len(self.bodies(kind))

    def bodies(self, kind: str) -> list[Any]:
        return [body for asked, body in self.asked if asked == kind]

    def _answer(self, request: str, body: Any, mark: str | None) -> tuple[int, Any]:
        kind = _kind(request)
        self.asked.append((kind, body))
        lease = mark or request.split("/")[3]
        if kind == "checkout":
            self.leased[lease] = lease
        elif kind in ("abandon", "return"):
            self.leased.pop(lease, None)
        self.pass_through(kind)
        if self.faults[kind]:
            fault = self.faults[kind].popleft()
            return (503, CUT if fault == CUT else {"code": fault, "detail": "told to"})
        if kind == "exec":
            return 200, {"exit_code": 0}
        if kind in ("abandon", "return"):
            return 200, {}
        ends = datetime.now(timezone.utc) + timedelta(seconds=(body or {}).get("ttl_s") or 600)
        sandbox = {"id": f"box-of-{lease}", "template": "default", "expires_at": ends.isoformat()}
        value = {"id": lease, "sandbox": sandbox}
        # Only a checkout is asked how it was come by.
        return 200, {**value, "path": "fast"} if kind == "checkout" else value


def _kind(request: str) -> str:
    method, _, path = request.partition(" ")
    if path == "/v1/checkouts":
        return "checkout" if method == "POST" else "abandon"
    return "return" if method == "DELETE" else path.rpartition("/")[2]


class FakeHarness(Gates):
    """Follows a script with each client, and records what it receives.

    Handshakes are kept back as ``open``. The next ones are refused with the codes in ``refusals``.
    """

    def __init__(self, speak: Callable[[ServerConnection], None] | None = None) -> None:
        super().__init__()
        self._speak = speak or self.hear
        self.opened = 0
        self.heard: list[str] = []
        self.refusals: deque[str] = deque()
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> FakeHarness:
        self._server = serve(
            self._speak,
            "127.0.0.1",
            0,
            process_request=self._process,
            compression=None,
            ping_interval=None,
            open_timeout=PATIENCE_S,
            close_timeout=2,
        )
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self.open_all()
        self._server.shutdown()
        self._thread.join()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def hear(self, socket: ServerConnection) -> None:
        """Says every line again."""
        for line in socket:
            assert isinstance(line, str)
            self.heard.append(line)
            socket.send(line)

    def _process(self, socket: ServerConnection, _: object) -> Any:
        self.opened += 1
        self.pass_through("open")
        if not self.refusals:
            return None
        return socket.respond(409, json.dumps({"code": self.refusals.popleft(), "detail": "told to"}))
