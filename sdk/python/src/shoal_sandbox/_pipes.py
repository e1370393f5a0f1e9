"""The harness of a sandbox as two pipes, for coroutines.

The connection is opened when one of them is first used. A wait that ends by a timeout or a cancellation loses
no line: the next read gets it, and written lines are still sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

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


class Harness:
    """A connection to the harness of one sandbox."""

    def __init__(self, server: Server, sandbox: str) -> None:
        self._server = server
        self._sandbox = sandbox
        self._opening: asyncio.Task[ClientConnection] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._saying: asyncio.Task[None] | None = None
        self._end: ShoalError | None = None
        self._unread: deque[str] = deque()
        self._unread_bytes = 0
        # Set when there is something to read, and when there is room for more.
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self.out = Outgoing()

    async def open(self, until: Deadline) -> ClientConnection:
        """The connection, which all callers share: opening it continues if this caller stops waiting."""
        if self._end is not None:
            raise self._end
        if self._opening is None:
            self._opening = _begun(self._open())
        opening = self._opening
        await until.wait_for(opening)
        if opening.cancelled():
            raise self._end or let_go()
        error = opening.exception()
        if error is not None:
            # The next one tries again.
            if self._opening is opening:
                self._opening = None
            raise error
        return opening.result()

    async def _open(self) -> ClientConnection:
        try:
            socket = await connect(
                address(self._server, self._sandbox),
                additional_headers=headers(self._server),
                open_timeout=HARNESS_S,
                close_timeout=CLOSE_S,
                # The server sends the pings.
                ping_interval=None,
                max_size=HEARD_BYTES_MAX,
                compression=None,
                proxy=None if self._server.is_local else True,
            )
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise not_ready() from error
        except (OSError, WebSocketException) as error:
            raise not_opened(error) from error
        self._listening = _begun(self._listen(socket))
        return socket

    async def _listen(self, socket: ClientConnection) -> None:
        try:
            while True:
                message = await socket.recv()
                if isinstance(message, str):
                    self._unread.append(message)
                    self._unread_bytes += len(message)
                    self._news.set()
                while self._unread_bytes > UNREAD_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
        except ConnectionClosed as error:
            self._ended(closed(error))
        except WebSocketException as error:
            self._ended(ConnectionFailed("cut", f"the connection to the harness broke: {error}"))

    def _ended(self, why: ShoalError) -> None:
        if self._end is None:
            self._end = why
        self._news.set()

    async def next(self, until: Deadline) -> str:
        """The next line. A cancelled wait loses nothing: a line is removed only when it is returned."""
        while not self._unread:
            if self._end is not None:
                raise self._end
            self._news.clear()
            await self.open(until)
            waiting = asyncio.ensure_future(self._news.wait())
            try:
                await until.wait_for(waiting)
            finally:
                waiting.cancel()
        line = self._unread.popleft()
        self._unread_bytes -= len(line)
        self._room.set()
        return line

    async def flush(self) -> None:
        """Sends the written lines, even if the caller stops waiting."""
        while self.out.lines:
            if self._saying is None or self._saying.done():
                self._saying = _begun(self._say())
            # Another writer may have started the next task before this one resumes.
            saying = self._saying
            await asyncio.wait({saying})
            if not saying.cancelled():
                saying.result()
            elif self._end is not None:
                raise self._end

    async def _say(self) -> None:
        socket = await self.open(Deadline(None))
        while self.out.lines:
            line = self.out.lines.popleft()
            try:
                await socket.send(line)
            except ConnectionClosed as error:
                # The reader does not end yet: there may be lines that came before.
                raise self._end or closed(error) from error

    async def close(self) -> None:
        """Closes the connection, which ends the program."""
        self._ended(let_go())
        opening = self._opening
        tasks: list[asyncio.Future[Any]] = [
            task for task in (self._saying, self._listening, opening) if task is not None and not task.done()
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if opening is not None and not opening.cancelled() and opening.exception() is None:
            await opening.result().close()


class Deadline:
    """The end of a wait."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

    async def wait_for(self, task: asyncio.Future[Any]) -> None:
        """Waits for the task, which continues after a timeout or a cancellation of this wait."""
        # Not `asyncio.wait_for`, which cancels, and before 3.12 may throw away what was just had.
        left_s = None if self._at is None else max(0.0, self._at - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait({task}, timeout=left_s)
        if not done:
            raise silent(self._timeout_s)


_T = TypeVar("_T")


def _begun(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """A task that continues by itself, and whose failure may never be read."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


class StdinPipe:
    """The input of the harness."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def write(self, data: str | bytes) -> None:
        """Takes text, whose lines are sent by ``drain``."""
        self._harness.out.write(data)

    async def drain(self) -> None:
        """Sends the written lines. They are sent even if this wait is cancelled."""
        await self._harness.flush()

    async def write_line(self, line: Line) -> None:
        """Sends one line: text without its end, or something that becomes JSON."""
        out = self._harness.out
        written = out.write_line(line)
        try:
            await self._harness.flush()
        except ShoalError:
            # The caller may write the line again after this error; it is then sent once.
            out.take_back(written)
            raise

    async def close(self) -> None:
        """Closes the connection to the harness, which ends its program."""
        await self._harness.close()


class StdoutPipe:
    """The output of the harness."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._reads = False

    async def readline(self, timeout: float | None = None) -> str:
        """The next line, without its end.

        ``asyncio.TimeoutError`` if none comes in time, which loses nothing; ``EOFError`` when the harness
        or the sandbox has ended, with the reason.
        """
        if self._reads:
            raise RuntimeError("another coroutine already waits for a line")
        self._reads = True
        try:
            return await self._harness.next(Deadline(timeout))
        finally:
            self._reads = False

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        return await self.readline()
