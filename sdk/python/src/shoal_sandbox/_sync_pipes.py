"""The harness of a sandbox as two pipes, for threads.

The connection is made when one of them is first used, and listened to by a thread of its own. Whoever gives
up a wait loses no line: what was said is read by the next one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from ._calls import HARNESS_S
from ._discover import Server
from ._errors import ConnectionFailed, ShoalError
from ._lines import (
    CLOSE_S,
    HEARD_BYTES_MAX,
    UNREAD_BYTES_MAX,
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


class _Opening:
    """One attempt to reach the harness, which all callers share, and what came of it."""

    def __init__(self) -> None:
        self.socket: ClientConnection | None = None
        self.error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.socket is not None or self.error is not None


class SyncHarness:
    """A conversation with the harness of one sandbox."""

    def __init__(self, server: Server, sandbox: str) -> None:
        self._server = server
        self._sandbox = sandbox
        # Told when there is a connection, something to read, room for more, or an end.
        self._changed = threading.Condition()
        self._saying = threading.Lock()
        self._opening: _Opening | None = None
        self._end: ShoalError | None = None
        self._unread: deque[str] = deque()
        self._unread_bytes = 0
        self.out = Outgoing()

    def open(self, until: Deadline) -> ClientConnection:
        """The connection, which all callers share: it is made whether or not this one waits for it."""
        with self._changed:
            if self._end is not None:
                raise self._end
            if self._opening is None:
                self._opening = self._begun()
            opening = self._opening
            until.wait_for(self._changed, lambda: opening.is_over or self._end is not None)
            if opening.error is not None:
                # The next one tries again.
                if self._opening is opening:
                    self._opening = None
                raise opening.error
            if opening.socket is None:
                raise self._end or let_go()
            return opening.socket

    def _begun(self) -> _Opening:
        opening = _Opening()
        # It keeps no program from ending.
        thread = threading.Thread(target=self._speak, args=(opening,), name="shoal-harness", daemon=True)
        thread.start()
        return opening

    def _speak(self, opening: _Opening) -> None:
        """Makes the connection, and listens until it is over."""
        with contextlib.ExitStack() as stack:
            try:
                socket = self._connect(stack)
            except Exception as error:
                with self._changed:
                    opening.error = error
                    self._changed.notify_all()
                return
            with self._changed:
                opening.socket = socket
                self._changed.notify_all()
            self._listen(socket)

    def _connect(self, stack: contextlib.ExitStack) -> ClientConnection:
        try:
            connection = connect(
                address(self._server, self._sandbox),
                additional_headers=headers(self._server),
                open_timeout=HARNESS_S,
                close_timeout=CLOSE_S,
                # The server asks whether we are there.
                ping_interval=None,
                max_size=HEARD_BYTES_MAX,
                compression=None,
                proxy=None if self._server.is_local else True,
            )
            return stack.enter_context(connection)
        except TimeoutError as error:
            raise not_ready() from error
        except (OSError, WebSocketException) as error:
            raise not_opened(error) from error

    def _listen(self, socket: ClientConnection) -> None:
        # Whether or not anybody reads: who does not listen does not answer the server either.
        try:
            while self._has_room():
                message = socket.recv()
                if isinstance(message, str):
                    with self._changed:
                        self._unread.append(message)
                        self._unread_bytes += len(message)
                        self._changed.notify_all()
        except ConnectionClosed as error:
            self._ended(closed(error))
        except WebSocketException as error:
            self._ended(ConnectionFailed("cut", f"the connection to the harness broke: {error}"))

    def _has_room(self) -> bool:
        """Waits until there is room for another line; false if nobody wants one any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._unread_bytes <= UNREAD_BYTES_MAX or self._end is not None)
            return self._end is None

    def _ended(self, why: ShoalError) -> None:
        with self._changed:
            if self._end is None:
                self._end = why
            self._changed.notify_all()

    def next(self, until: Deadline) -> str:
        """The next line. Giving up the wait loses nothing: a line is taken when it is given."""
        with self._changed:
            while not self._unread:
                self.open(until)
                until.wait_for(self._changed, lambda: bool(self._unread) or self._end is not None)
            line = self._unread.popleft()
            self._unread_bytes -= len(line)
            self._changed.notify_all()
            return line

    def flush(self) -> None:
        """Sends what was written."""
        with self._saying:
            while self.out.lines:
                socket = self.open(Deadline(None))
                line = self.out.lines.popleft()
                try:
                    socket.send(line)
                except ConnectionClosed as error:
                    # No end for whoever reads: there may be lines that came before it.
                    raise self._end or closed(error) from error

    def close(self) -> None:
        """Ends the conversation, and the program with it."""
        self._ended(let_go())
        opening = self._opening
        if opening is not None and opening.socket is not None:
            opening.socket.close()


class Deadline:
    """Until when something is waited for."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._at = None if timeout_s is None else time.monotonic() + timeout_s

    def wait_for(self, changed: threading.Condition, is_so: Callable[[], bool]) -> None:
        """Done when something is so."""
        left_s = None if self._at is None else max(0.0, self._at - time.monotonic())
        if not changed.wait_for(is_so, left_s):
            raise silent(self._timeout_s)


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
        out = self._harness.out
        whole = out.whole(line)
        # First, so that whoever is told that it cannot be made may write the line again, and it is sent once.
        self._harness.open(Deadline(None))
        out.lines.append(whole)
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
        return self._harness.next(Deadline(timeout))

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return self.readline()
