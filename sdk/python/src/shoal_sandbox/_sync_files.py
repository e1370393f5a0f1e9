"""Files of a sandbox, for threads."""

from __future__ import annotations

from . import _calls as calls
from ._calls import Data
from ._http import SyncHttp
from ._types import FileEntry

# A class that has a method `list` cannot call its answer so.
_Entries = list[FileEntry]


class SyncFiles:
    """Files of a sandbox. Paths are those inside; relative ones are beneath ``/workspace``."""

    def __init__(self, http: SyncHttp, sandbox: str) -> None:
        self._http = http
        self._sandbox = sandbox

    def read(self, path: str) -> bytes:
        """A whole file."""
        return self._http.send(calls.read_file(self._sandbox, calls.inside(path))).content

    def read_text(self, path: str) -> str:
        """A whole file as UTF-8."""
        return self.read(path).decode()

    def write(self, path: str, data: Data, *, mode: int | None = None) -> None:
        """Writes a whole file, which has its name when it is all there."""
        self._http.send(calls.write_file(self._sandbox, calls.inside(path), data, mode))

    def list(self, path: str = "/workspace") -> _Entries:
        """What is in a directory, in the order of names."""
        found: list[FileEntry] = []
        after: str | None = None
        while True:
            response = self._http.send(calls.list_files(self._sandbox, calls.inside(path), after))
            entries, after = calls.entries_of(response)
            found += entries
            if after is None:
                return found

    def stat(self, path: str) -> FileEntry:
        """One file."""
        return calls.entry_of(self._http.send(calls.stat_file(self._sandbox, calls.inside(path))))

    def make_directory(self, path: str) -> None:
        """A directory, and those above it."""
        self._http.send(calls.make_directory(self._sandbox, calls.inside(path)))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """A file; a directory with everything in it if ``recursive``."""
        self._http.send(calls.remove_file(self._sandbox, calls.inside(path), recursive))
