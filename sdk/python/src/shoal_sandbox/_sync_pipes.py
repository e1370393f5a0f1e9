"""The harness of a sandbox as two pipes, for threads. Each pipe is for one thread at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from ._calls import HARNESS_S
from ._discover import Server
from ._errors import ShoalError
from ._lines import (
    CLOSE_S,
    HEARD_BYTES_MAX,
    Line,
    Outgoing,
    address,
    closed,
    headers,
    let_go,
    not_opened,
    not_ready,
    silent,
)

# Lines that were said and are not read yet.
_UNREAD_MAX = 1024


class SyncHarness:
    """A conversation with the harness of one sandbox."""

    def __init__(self, server: Server, sandbox: str) -> None:
        self._server = server
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._socket: ClientConnection | None = None
        self._end: ShoalError | None = None
        self.out = Outgoing()

    def _open(self) -> ClientConnection:
        with self._lock:
            if self._end is not None:
                raise self._end
            if self._socket is None:
                self._socket = self._connect()
            return self._socket

    def _connect(self) -> ClientConnection:
        try:
            connection = connect(
                address(self._server, self._sandbox),
                additional_headers=headers(self._server),
                open_timeout=HARNESS_S,
                close_timeout=CLOSE_S,
                # The server asks whether we are there.
                ping_interval=None,
                max_size=HEARD_BYTES_MAX,
                max_queue=_UNREAD_MAX,
                compression=None,
                proxy=None if self._server.is_local else True,
            )
            return self._stack.enter_context(connection)
        except TimeoutError as error:
            raise not_ready() from error
        except (OSError, WebSocketException) as error:
            raise not_opened(error) from error

    def _closed(self, error: ConnectionClosed) -> ShoalError:
        with self._lock:
            if self._end is None:
                self._end = closed(error)
            return self._end

    def next(self, timeout_s: float | None) -> str:
        """The next line."""
        socket = self._open()
        while True:
            try:
                message = socket.recv(timeout_s)
            except TimeoutError as error:
                raise silent(timeout_s) from error
            except ConnectionClosed as error:
                raise self._closed(error) from error
            if isinstance(message, str):
                return message

    def flush(self) -> None:
        """Sends what was written."""
        socket = self._open()
        while self.out.lines:
            try:
                socket.send(self.out.lines[0])
            except ConnectionClosed as error:
                raise self._closed(error) from error
            self.out.lines.popleft()

    def close(self) -> None:
        """Ends the conversation, and the program with it."""
        with self._lock:
            if self._end is None:
                self._end = let_go()
            self._socket = None
        self._stack.close()


class SyncStdinPipe:
    """What the harness is told."""

    def __init__(self, harness: SyncHarness) -> None:
        self._harness = harness

    def write(self, data: str | bytes) -> None:
        """Takes text, whose lines are sent by ``drain``."""
        self._harness.out.write(data)

    def drain(self) -> None:
        """Sends the lines that were written."""
        self._harness.flush()

    def write_line(self, line: Line) -> None:
        """Sends one line: text without its end, or something that becomes JSON."""
        self._harness.out.write_line(line)
        self._harness.flush()

    def close(self) -> None:
        """Ends the conversation with the harness, and its program."""
        self._harness.close()


class SyncStdoutPipe:
    """What the harness says."""

    def __init__(self, harness: SyncHarness) -> None:
        self._harness = harness

    def readline(self, timeout: float | None = None) -> str:
        """The next line, without its end.

        ``asyncio.TimeoutError`` if none comes in time, which loses nothing; ``EOFError`` when the harness
        or the sandbox is over, with the reason.
        """
        return self._harness.next(timeout)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return self.readline()
