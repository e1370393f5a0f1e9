"""Lines to and from a harness before they are sent and after they came, without sending anything."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Union
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from ._discover import Server
from ._errors import (
    ConnectionFailed,
    HarnessEnded,
    InvalidArgument,
    ReadyTimeout,
    ShoalError,
    Timeout,
    of_close,
    of_problem,
)

# The longest line to a harness, and from one.
LINE_BYTES_MAX = 1 << 20
HEARD_BYTES_MAX = 4 << 20
# Received lines that are not read yet. With more unread bytes the harness has to wait, and after a minute the
# server closes the connection.
UNREAD_BYTES_MAX = 16 << 20
# How long a goodbye may take.
CLOSE_S = 2.0

Line = Union[str, bytes, dict[str, Any], list[Any]]


def address(server: Server, sandbox: str) -> str:
    """The address of the WebSocket to a harness."""
    scheme, _, rest = server.url.partition("://")
    return f"{'wss' if scheme == 'https' else 'ws'}://{rest}/v1/sandboxes/{quote(sandbox, safe='')}/harness"


def headers(server: Server) -> dict[str, str]:
    return {} if server.key is None else {"Authorization": f"Bearer {server.key}"}


def not_opened(error: Exception) -> ShoalError:
    """The error when the connection to a harness cannot be opened."""
    if isinstance(error, InvalidStatus):
        response = error.response
        try:
            problem = json.loads(response.body or b"")
        except ValueError:
            problem = None
        if isinstance(problem, dict):
            return of_problem(response.status_code, problem)
        cause = f"the answer with status {response.status_code} did not come from Shoal"
        return ShoalError("unexpected", cause, status=response.status_code)
    if isinstance(error, InvalidHandshake):
        return ShoalError("unexpected", f"the server did not accept the WebSocket: {error}")
    return ConnectionFailed("no_server", f"no connection to the harness: {error}", retryable=True)


def closed(error: ConnectionClosed) -> ShoalError:
    """The error when the connection to a harness is closed."""
    received = error.rcvd
    return of_close(received.code, received.reason) if received is not None else of_close(None, "")


def not_ready() -> ReadyTimeout:
    return ReadyTimeout("ready_timeout", "the harness was not ready in time", retryable=True)


def silent(timeout_s: float | None) -> Timeout:
    return Timeout("line_timeout", f"the harness wrote no line for {timeout_s} s", retryable=True)


def let_go() -> HarnessEnded:
    return HarnessEnded("closed", "the pipes of this sandbox were closed")


class Outgoing:
    """Collects written text into lines."""

    def __init__(self) -> None:
        self._partial = b""
        self.lines: deque[str] = deque()

    def write(self, data: str | bytes) -> None:
        """Takes text that may end anywhere."""
        whole = self._partial + (data.encode() if isinstance(data, str) else bytes(data))
        *lines, self._partial = whole.split(b"\n")
        for line in lines:
            self.lines.append(_checked(line))
        if len(self._partial) > LINE_BYTES_MAX:
            self._partial = b""
            raise _too_long()

    def write_line(self, line: Line) -> str:
        """Takes one line, and says how it is sent."""
        whole = self.whole(line)
        self.lines.append(whole)
        return whole

    def whole(self, line: Line) -> str:
        """How one line is sent: text without its end, or something that becomes JSON."""
        if isinstance(line, (dict, list)):
            text = json.dumps(line, separators=(",", ":")).encode()
        else:
            text = line.encode() if isinstance(line, str) else bytes(line)
        if b"\n" in text:
            raise InvalidArgument("invalid_argument", "a line must not contain a line break")
        if self._partial:
            raise InvalidArgument("invalid_argument", "the previous line is not complete yet")
        return _checked(text)

    def take_back(self, line: str) -> None:
        """Removes this line, if it was not sent yet."""
        for at, queued in enumerate(self.lines):
            if queued is line:
                del self.lines[at]
                return


def _checked(line: bytes) -> str:
    if len(line) > LINE_BYTES_MAX:
        raise _too_long()
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument("invalid_argument", "a line must be text") from error


def _too_long() -> InvalidArgument:
    return InvalidArgument("too_large", f"a line must have at most {LINE_BYTES_MAX} bytes")
