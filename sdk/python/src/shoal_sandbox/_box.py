"""A checked-out sandbox, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from . import _calls as calls
from ._calls import Command, Data
from ._files import Files
from ._http import Http
from ._pipes import Harness, StdinPipe, StdoutPipe
from ._processes import Processes
from ._types import Lease, Result

DEFAULT_PYTHON = "python3"


class Held:
    """A lease until it is returned, which may be later than the last reference to its box."""

    def __init__(self, lease: Lease, harness: Harness, ttl_s: int | None) -> None:
        self.lease = lease
        self.harness = harness
        self.ttl_s = ttl_s
        self.renewing: asyncio.Task[None] | None = None
        # In progress or done: a lease is returned once.
        self.returning: asyncio.Task[None] | None = None


class Box:
    """A sandbox that is yours until it is returned.

    ``run`` runs Python, ``exec`` anything else, ``files`` are its files, ``processes`` those that run on,
    ``stdin_pipe`` and ``stdout_pipe`` lead to the template's harness.
    """

    def __init__(self, http: Http, held: Held, give_back: Callable[[Held], Awaitable[None]]) -> None:
        self._http = http
        self._held = held
        self._give_back = give_back
        self.files = Files(http, held.lease.sandbox_id)
        self.processes = Processes(http, held.lease.sandbox_id)
        self.stdin_pipe = StdinPipe(held.harness)
        self.stdout_pipe = StdoutPipe(held.harness)

    def __repr__(self) -> str:
        return f"<Box {self.sandbox_id} of {self.template}>"

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
        """How it was obtained: ``fast``, ``overflow`` or ``blocked``."""
        return self._held.lease.path

    @property
    def expires_at(self) -> datetime | None:
        """When it expires unless it is renewed, which the pool does."""
        return self._held.lease.expires_at

    async def run(
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
            await self.files.write(path, code)
        return await self.exec(argv, timeout=timeout, env=env, cwd=cwd, stdin=stdin)

    async def exec(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: Data | None = None,
    ) -> Result:
        """Runs a program with its arguments, or a shell command line if the command is a text."""
        call = calls.execute(self.sandbox_id, command, timeout=timeout, env=env, cwd=cwd, stdin=stdin)
        return calls.result_of(await self._http.send(call))

    async def renew(self, ttl: int | None = None) -> None:
        """Renews the lease for this many seconds from now; the original duration if not given."""
        call = calls.renew(self.lease, self._held.ttl_s if ttl is None else ttl)
        self._held.lease = calls.renewed(self._held.lease, await self._http.send(call))

    async def release(self) -> None:
        """Returns the sandbox. A second call does nothing."""
        await self._give_back(self._held)
