"""A proxy to the server that fails on demand."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


class FaultyProxy:
    """Passes bytes on, both ways.

    ``hold``: what the server says is kept back until it is let go. ``cuts``: so many connections are cut
    when the server has answered, before the client hears of it.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._there = (parts.hostname, parts.port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.cuts = 0
        self.connections = 0
        # How often the server has said something that was kept back.
        self.kept_back = 0

    async def __aenter__(self) -> FaultyProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    def hold(self) -> None:
        self._flows.clear()

    def let_go(self) -> None:
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there_reader, there_writer = await asyncio.open_connection(*self._there)
        out = asyncio.create_task(self._pass(reader, there_writer))
        back = asyncio.create_task(self._pass_back(there_reader, writer))
        try:
            # When one side closes, the other is closed too.
            await asyncio.wait({out, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (out, back):
                one.cancel()
            await asyncio.gather(out, back, return_exceptions=True)
            for one in (writer, there_writer):
                one.close()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self._flows.is_set():
                self.kept_back += 1
                await self._flows.wait()
            if self.cuts > 0:
                self.cuts -= 1
                return
            writer.write(data)
            await writer.drain()
