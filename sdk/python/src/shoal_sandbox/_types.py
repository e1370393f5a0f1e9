"""Values in answers: leases, results of programs, processes, files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from ._errors import ProgramFailed

# How much of the standard error of a failed program is shown.
_SHOWN_CHARS = 2000


def _time(text: str) -> datetime:
    # Before 3.11 the standard library does not know what Z means.
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


def _seconds_until(at: datetime, date: str | None) -> float:
    # By the server's own clock, if its answer has a Date header.
    now = parsedate_to_datetime(date) if date else datetime.now(timezone.utc)
    return (at - now).total_seconds()


@dataclass(frozen=True)
class Lease:
    """Exclusive use of a sandbox, until it is returned or expires."""

    id: str
    sandbox_id: str
    container_id: str
    template: str
    use_count: int
    expires_at: datetime | None
    # How long it lasts, counted from the answer.
    lasts_s: float | None
    # How it was obtained: "fast", "overflow" or "blocked".
    path: str | None

    @classmethod
    def read(cls, value: Mapping[str, Any], date: str | None) -> Lease:
        sandbox = value["sandbox"]
        expires = sandbox.get("expires_at")
        expires_at = _time(expires) if expires else None
        return cls(
            id=value["id"],
            sandbox_id=sandbox["id"],
            # Not every runtime has containers; the id of the sandbox then takes its place.
            container_id=sandbox.get("container_id") or sandbox["id"],
            template=sandbox["template"],
            use_count=int(sandbox.get("use_count", sandbox.get("uses", 0))),
            expires_at=expires_at,
            lasts_s=_seconds_until(expires_at, date) if expires_at else None,
            path=value.get("path"),
        )


@dataclass(frozen=True)
class Result:
    """The result of a program. Outputs are text; ``stdout_bytes`` and ``stderr_bytes`` are exact."""

    exit_code: int
    # The signal that ended it, such as "SIGKILL".
    signal: str | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    # The output was truncated.
    truncated: bool
    # It was killed at its timeout.
    timed_out: bool
    # It ended because the sandbox ran out of memory.
    oom: bool
    duration_ms: float

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Result:
        return cls(
            exit_code=int(value["exit_code"]),
            signal=value.get("signal"),
            stdout_bytes=_output(value, "stdout"),
            stderr_bytes=_output(value, "stderr"),
            truncated=bool(value.get("truncated", False)),
            timed_out=bool(value.get("timed_out", False)),
            oom=bool(value.get("oom", False)),
            duration_ms=float(value.get("duration_ms", 0.0)),
        )

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    @property
    def output(self) -> str:
        """Its standard output, followed by its standard error."""
        return self.stdout + self.stderr

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.exit_code == 0

    def check(self) -> Result:
        """Itself, if the exit code is 0; otherwise raises ``ProgramFailed``."""
        if self.ok:
            return self
        if self.timed_out:
            how = "the program was killed at its timeout"
        elif self.oom:
            how = "the program ran out of memory"
        else:
            end = f"was ended by {self.signal}" if self.signal else f"exited with {self.exit_code}"
            how = f"the program {end}"
        stderr = self.stderr.strip()[-_SHOWN_CHARS:]
        raise ProgramFailed("program_failed", f"{how}: {stderr}" if stderr else how)


def _output(value: Mapping[str, Any], name: str) -> bytes:
    coded = value.get(f"{name}_base64")
    return base64.b64decode(coded) if coded else (value.get(name) or "").encode()


@dataclass(frozen=True)
class Process:
    """A process that was started in a sandbox, and runs or has ended."""

    id: str
    pid: int
    name: str
    command: str
    # "running", "completed", "failed", "killed" or "stopped".
    status: str
    # Why it ended, such as "exited", "timeout" or "oom".
    reason: str | None
    exit_code: int | None
    # The signal that ended it, such as "SIGKILL".
    signal: str | None
    keep_alive: bool
    restarts: int
    started_at: datetime
    ended_at: datetime | None

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Process:
        ended = value.get("ended_at")
        return cls(
            id=value["id"],
            pid=int(value["pid"]),
            name=value["name"],
            command=value["command"],
            status=value["status"],
            reason=value.get("reason"),
            exit_code=value.get("exit_code"),
            signal=value.get("signal"),
            keep_alive=bool(value["keep_alive"]),
            restarts=int(value["restarts"]),
            started_at=_time(value["started_at"]),
            ended_at=_time(ended) if ended else None,
        )

    @property
    def running(self) -> bool:
        return self.status == "running"


@dataclass(frozen=True)
class Secret:
    """A stored secret, without its value."""

    name: str
    # "key", or "node" if all keys may use it.
    scope: str
    # The bytes of its value.
    bytes: int
    created_at: datetime
    updated_at: datetime

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Secret:
        return cls(
            name=value["name"],
            scope=value["scope"],
            bytes=int(value["bytes"]),
            created_at=_time(value["created_at"]),
            updated_at=_time(value["updated_at"]),
        )


@dataclass(frozen=True)
class Log:
    """A part of the output of a process. Outputs are text; the ``..._bytes`` are exact."""

    stdout_bytes: bytes
    stderr_bytes: bytes
    # Both, in the order in which they came.
    output_bytes: bytes
    # Where the next part begins.
    next_offset: int
    # Where the stored output begins: older output was deleted.
    first_offset: int
    # There is more to read already.
    more: bool
    # The process has ended.
    over: bool

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Log:
        pieces = [(piece["stream"], _output(piece, "data")) for piece in value["pieces"]]
        return cls(
            stdout_bytes=b"".join(data for stream, data in pieces if stream == "stdout"),
            stderr_bytes=b"".join(data for stream, data in pieces if stream == "stderr"),
            output_bytes=b"".join(data for _, data in pieces),
            next_offset=int(value["next_offset"]),
            first_offset=int(value["first_offset"]),
            more=bool(value["more"]),
            over=bool(value["over"]),
        )

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    @property
    def output(self) -> str:
        return self.output_bytes.decode(errors="replace")


@dataclass(frozen=True)
class FileEntry:
    """One file of a sandbox."""

    name: str
    # "file", "directory", "link" or "other".
    kind: str
    size: int
    mode: int
    modified_at: datetime
    # The target of a link.
    target: str | None

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> FileEntry:
        return cls(
            name=value["name"],
            kind=value["kind"],
            size=int(value["size"]),
            mode=int(value["mode"], 8),
            modified_at=_time(value["modified_at"]),
            target=value.get("target"),
        )

    @property
    def is_dir(self) -> bool:
        return self.kind == "directory"
