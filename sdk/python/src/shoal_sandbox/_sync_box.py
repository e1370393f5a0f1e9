"""A sandbox that is yours until it is returned, for threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from . import _calls as calls
from ._box import DEFAULT_PYTHON
from ._calls import Command, Data
from ._http import SyncHttp
from ._sync_files import SyncFiles
from ._sync_pipes import SyncHarness, SyncStdinPipe, SyncStdoutPipe
from ._types import Lease, Result


class SyncHeld:
    """A lease while it is had, which may be longer than anybody has its box."""

    def __init__(self, lease: Lease, harness: SyncHarness, ttl_s: int | None) -> None:
        self.lease = lease
        self.harness = harness
        self.ttl_s = ttl_s
        # Who is returning it, if anybody is.
        self.returning: object | None = None


class SyncBox:
    """A sandbox that is yours until it is returned.

    ``run`` runs Python, ``exec`` anything else, ``files`` are its files, ``stdin_pipe`` and ``stdout_pipe``
    lead to the template's harness.
    """

    def __init__(self, http: SyncHttp, held: SyncHeld, give_back: Callable[[SyncHeld], None]) -> None:
        self._http = http
        self._held = held
        self._give_back = give_back
        self.files = SyncFiles(http, held.lease.sandbox_id)
        self.stdin_pipe = SyncStdinPipe(held.harness)
        self.stdout_pipe = SyncStdoutPipe(held.harness)

    def __repr__(self) -> str:
        return f"<SyncBox {self.sandbox_id} of {self.template}>"

    @property
    def lease(self) -> str:
        """The lease's id."""
        return self._held.lease.id

    @property
    def sandbox_id(self) -> str:
        return self._held.lease.sandbox_id

    @property
    def container_id(self) -> str:
        """The container's id where the runtime makes containers, else the sandbox's."""
        return self._held.lease.container_id

    @property
    def template(self) -> str:
        return self._held.lease.template

    @property
    def use_count(self) -> int:
        """How often the sandbox was handed out, this time included."""
        return self._held.lease.use_count

    @property
    def path(self) -> str | None:
        """How it was come by: ``fast``, ``overflow`` or ``blocked``."""
        return self._held.lease.path

    @property
    def expires_at(self) -> datetime | None:
        """When it ends unless it is renewed, which is done for you."""
        return self._held.lease.expires_at

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
        argv, path = calls.python(python, code, args)
        if path is not None:
            self.files.write(path, code)
        return self.exec(argv, timeout=timeout, env=env, cwd=cwd, stdin=stdin)

    def exec(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: Data | None = None,
    ) -> Result:
        """Runs a program with its arguments, or a line of shell if the command is a text."""
        call = calls.execute(self.sandbox_id, command, timeout=timeout, env=env, cwd=cwd, stdin=stdin)
        return calls.result_of(self._http.send(call))

    def renew(self, ttl: int | None = None) -> None:
        """Lets the lease last so many seconds from now; as long as at first if not given."""
        call = calls.renew(self.lease, self._held.ttl_s if ttl is None else ttl)
        self._held.lease = calls.renewed(self._held.lease, self._http.send(call))

    def release(self) -> None:
        """Returns it. A second time nothing happens."""
        self._give_back(self._held)
