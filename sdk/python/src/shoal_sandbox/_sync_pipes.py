"""The harness of a sandbox as two pipes, for threads. Several may write at once, and several read."""

from __future__ import annotations

from collections.abc import Iterator

from ._lines import Line
from ._loop import Loop
from ._pipes import Deadline, Harness, StdinPipe


class SyncStdinPipe:
    """The input of the harness."""

    def __init__(self, loop: Loop, harness: Harness) -> None:
        self._loop = loop
        self._pipe = StdinPipe(harness)

    def write(self, data: str | bytes) -> None:
        """Takes text, whose lines are sent by ``drain``."""

        async def written() -> None:
            self._pipe.write(data)

        self._loop.run(written())

    def drain(self) -> None:
        """Sends the lines that were written."""
        self._loop.run(self._pipe.drain())

    def write_line(self, line: Line) -> None:
        """Sends one line: text without its end, or something that becomes JSON."""
        self._loop.run(self._pipe.write_line(line))

    def close(self) -> None:
        """Closes the connection to the harness, which ends its program."""
        self._loop.run(self._pipe.close())


class SyncStdoutPipe:
    """The output of the harness."""

    def __init__(self, loop: Loop, harness: Harness) -> None:
        self._loop = loop
        self._harness = harness

    def readline(self, timeout: float | None = None) -> str:
        """The next line, without its end.

        ``asyncio.TimeoutError`` if none comes in time, which loses nothing; ``EOFError`` when the harness
        or the sandbox has ended, with the reason.
        """

        async def next_line() -> str:
            return await self._harness.next(Deadline(timeout))

        return self._loop.run(next_line())

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return self.readline()
