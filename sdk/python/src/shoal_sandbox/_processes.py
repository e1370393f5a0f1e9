"""Processes of a sandbox that run on after the call that started them, for coroutines."""

from __future__ import annotations

from collections.abc import Mapping

from . import _calls as calls
from ._calls import Command
from ._http import Http
from ._types import Log, Process

# A class that has a method `list` cannot call its answer so.
_Processes = list[Process]


class Processes:
    """Processes of a sandbox, by their ids, pids or names.

    While a process runs, each read of it counts as a use of the sandbox and keeps it awake. With ``observe``
    a read only looks: it neither thaws the sandbox nor keeps it awake.
    """

    def __init__(self, http: Http, sandbox: str) -> None:
        self._http = http
        self._sandbox = sandbox

    async def start(
        self,
        command: Command,
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        keep_alive: bool = False,
        timeout: int | None = None,
    ) -> Process:
        """Starts a process. With ``keep_alive`` it keeps the sandbox awake; ``timeout`` seconds kill it."""
        call = calls.start_process(
            self._sandbox, command, name=name, env=env, cwd=cwd, keep_alive=keep_alive, timeout=timeout
        )
        return calls.process_of(await self._http.send(call))

    async def get(self, process: str, *, observe: bool = False) -> Process:
        """Describes a process, also one that has ended."""
        return calls.process_of(await self._http.send(calls.read_process(self._sandbox, process, observe)))

    async def list(self, *, running: bool = False, observe: bool = False) -> _Processes:
        """Lists processes, the latest first; with ``running`` only those that run."""
        found: list[Process] = []
        before: int | None = None
        while True:
            call = calls.list_processes(self._sandbox, before, running, observe)
            page, before = calls.processes_of(await self._http.send(call))
            found += page
            if before is None:
                return found

    async def logs(self, process: str, *, offset: int | None = None, observe: bool = False) -> Log:
        """Reads up to a MiB of the output: from ``offset`` on, or else the end of it."""
        call = calls.read_log(self._sandbox, process, offset, observe)
        return calls.log_of(await self._http.send(call))

    async def stop(self, process: str) -> Process:
        """Asks a process and its descendants to end, kills those that do not, and waits for the end."""
        return calls.process_of(await self._http.send(calls.stop_process(self._sandbox, process)))
