"""Processes of a sandbox that run on after the call that started them, for threads."""

from __future__ import annotations

from collections.abc import Mapping

from ._calls import Command
from ._loop import Loop
from ._processes import Processes
from ._types import Log, Process

# A class that has a method `list` cannot call its answer so.
_Processes = list[Process]


class SyncProcesses:
    """Processes of a sandbox, by their ids, pids or names.

    While a process runs, each read of it counts as a use of the sandbox and keeps it awake. With ``observe``
    a read only looks: it neither thaws the sandbox nor keeps it awake.
    """

    def __init__(self, loop: Loop, processes: Processes) -> None:
        self._loop = loop
        self._processes = processes

    def start(
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
        work = self._processes.start(
            command, name=name, env=env, cwd=cwd, keep_alive=keep_alive, timeout=timeout
        )
        return self._loop.run(work)

    def get(self, process: str, *, observe: bool = False) -> Process:
        """Describes a process, also one that has ended."""
        return self._loop.run(self._processes.get(process, observe=observe))

    def list(self, *, running: bool = False, observe: bool = False) -> _Processes:
        """Lists processes, the latest first; with ``running`` only those that run."""
        return self._loop.run(self._processes.list(running=running, observe=observe))

    def logs(self, process: str, *, offset: int | None = None, observe: bool = False) -> Log:
        """Reads up to a MiB of the output: from ``offset`` on, or else the end of it."""
        return self._loop.run(self._processes.logs(process, offset=offset, observe=observe))

    def stop(self, process: str) -> Process:
        """Asks a process and its descendants to end, kills those that do not, and waits for the end."""
        return self._loop.run(self._processes.stop(process))
