"""Files of a sandbox, for coroutines."""

from __future__ import annotations

from . import _calls as calls
from ._calls import Data
from ._http import Http
from ._types import FileEntry

# A class that has a method `list` cannot call its answer so.
_Entries = list[FileEntry]


class Files:
    """Files of a sandbox. Paths are those inside; relative ones are beneath ``/workspace``."""

    def __init__(self, http: Http, sandbox: str) -> None:
        self._http = http
        self._sandbox = sandbox

    async def read(self, path: str) -> bytes:
        """Reads a whole file."""
        return (await self._http.send(calls.read_file(self._sandbox, calls.inside(path)))).content

    async def read_text(self, path: str) -> str:
        """Reads a whole file as UTF-8."""
        return (await self.read(path)).decode()

    async def write(self, path: str, data: Data, *, mode: int | None = None) -> None:
        """Writes a whole file, which appears under its name when it has arrived completely."""
        await self._http.send(calls.write_file(self._sandbox, calls.inside(path), data, mode))

    async def list(self, path: str = "/workspace") -> _Entries:
        """Lists a directory, in the order of names."""
        found: list[FileEntry] = []
        after: str | None = None
        while True:
            response = await self._http.send(calls.list_files(self._sandbox, calls.inside(path), after))
            entries, after = calls.entries_of(response)
            found += entries
            if after is None:
                return found

    async def stat(self, path: str) -> FileEntry:
        """Describes a file."""
        return calls.entry_of(await self._http.send(calls.stat_file(self._sandbox, calls.inside(path))))

    async def make_directory(self, path: str) -> None:
        """Creates a directory, with its parents."""
        await self._http.send(calls.make_directory(self._sandbox, calls.inside(path)))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file; with ``recursive`` a directory with all its contents."""
        await self._http.send(calls.remove_file(self._sandbox, calls.inside(path), recursive))
