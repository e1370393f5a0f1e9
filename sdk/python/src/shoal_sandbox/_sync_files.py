"""Files of a sandbox, for threads."""

from __future__ import annotations

from ._calls import Data
from ._files import Files
from ._loop import Loop
from ._types import FileEntry

# A class that has a method `list` cannot call its answer so.
_Entries = list[FileEntry]


class SyncFiles:
    """Files of a sandbox. Paths are those inside; relative ones are beneath ``/workspace``."""

    def __init__(self, loop: Loop, files: Files) -> None:
        self._loop = loop
        self._files = files

    def read(self, path: str) -> bytes:
        """Reads a whole file."""
        return self._loop.run(self._files.read(path))

    def read_text(self, path: str) -> str:
        """Reads a whole file as UTF-8."""
        return self._loop.run(self._files.read_text(path))

    def write(self, path: str, data: Data, *, mode: int | None = None) -> None:
        """Writes a whole file, which appears under its name when it has arrived completely."""
        self._loop.run(self._files.write(path, data, mode=mode))

    def list(self, path: str = "/workspace") -> _Entries:
        """Lists a directory, in the order of names."""
        return self._loop.run(self._files.list(path))

    def stat(self, path: str) -> FileEntry:
        """Describes a file."""
        return self._loop.run(self._files.stat(path))

    def make_directory(self, path: str) -> None:
        """Creates a directory, with its parents."""
        self._loop.run(self._files.make_directory(path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file; with ``recursive`` a directory with all its contents."""
        self._loop.run(self._files.remove(path, recursive=recursive))
