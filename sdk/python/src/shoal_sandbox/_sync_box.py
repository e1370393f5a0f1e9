"""A checked-out sandbox, for threads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ._box import DEFAULT_PYTHON, Box
from ._calls import Command, Data
from ._loop import CLOSED, Loop
from ._sync_files import SyncFiles
from ._sync_pipes import SyncStdinPipe, SyncStdoutPipe
from ._sync_processes import SyncProcesses
from ._types import Result


class SyncBox:
    """A sandbox that is yours until it is returned.

    ``run`` runs Python, ``exec`` anything else, ``files`` are its files, ``processes`` those that run on,
    ``stdin_pipe`` and ``stdout_pipe`` lead to the template's harness.
    """

    def __init__(self, loop: Loop, box: Box) -> None:
        self._loop = loop
        self._box = box
        self.files = SyncFiles(loop, box.files)
        self.processes = SyncProcesses(loop, box.processes)
        self.stdin_pipe = SyncStdinPipe(loop, box._held.harness)
        self.stdout_pipe = SyncStdoutPipe(loop, box._held.harness)

    def __repr__(self) -> str:
        return f"<SyncBox {self.sandbox_id} of {self.template}>"

    @property
    def lease(self) -> str:
        """The lease's id."""
        return self._box.lease

    @property
    def sandbox_id(self) -> str:
        return self._box.sandbox_id

    @property
    def container_id(self) -> str:
        """The container's id where the runtime makes containers, else the sandbox's."""
        return self._box.container_id

    @property
    def template(self) -> str:
        return self._box.template

    @property
    def use_count(self) -> int:
        """How often the sandbox was handed out, this time included."""
        return self._box.use_count

    @property
    def path(self) -> str | None:
        """How it was obtained: ``fast``, ``overflow`` or ``blocked``."""
        return self._box.path

    @property
    def expires_at(self) -> datetime | None:
        """When it expires unless it is renewed, which the pool does."""
        return self._box.expires_at

    def run(
        self,
        code: str,
        *args: str,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: Data | None = None,
        python: str = DEFAULT_PYTHON,
    ) -> Result:
        """Runs a piece of Python. At the timeout it is killed, and the result says so."""
        work = self._box.run(code, *args, timeout=timeout, env=env, cwd=cwd, stdin=stdin, python=python)
        return self._loop.run(work)

    def exec(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: Data | None = None,
    ) -> Result:
        """Runs a program with its arguments, or a shell command line if the command is a text."""
        return self._loop.run(self._box.exec(command, timeout=timeout, env=env, cwd=cwd, stdin=stdin))

    def renew(self, ttl: int | None = None) -> None:
        """Renews the lease for this many seconds from now; the original duration if not given."""
        self._loop.run(self._box.renew(ttl))

    def release(self) -> None:
        """Returns the sandbox. A second call does nothing, nor does one after the pool was closed."""
        try:
            self._loop.run(self._box.release())
        except RuntimeError as error:
            if str(error) != CLOSED:
                raise
