"""Requests before they are sent and answers after they came, without sending anything.

The asynchronous and the synchronous pool differ in how they wait; what they say, how often they say it and
what they make of the answer is here, once.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union
from urllib.parse import quote

import httpx

from ._errors import ConnectionFailed, InvalidArgument, ShoalError, Timeout, is_not_done, of_problem
from ._types import FileEntry, Lease, Log, Process, Result, Secret

# A program that does not say how long it may take has at most as long as any may.
_PROGRAM_S_MAX = 86_400.0
# How long a checkout waits if it does not say: longer than any server should.
_WAIT_S_DEFAULT = 120.0
_WAIT_S_MAX = 600.0
# How long the start of a harness may take: a sandbox that wakes, and a program that gets ready.
HARNESS_S = 150.0
# What fits into one argument of a program, with room to spare.
_ARGUMENT_BYTES_MAX = 100_000
# The first pause before something is tried again, and the longest.
_PAUSE_S = 0.05
_PAUSE_S_MAX = 5.0

Command = Union[str, Sequence[str]]
Data = Union[str, bytes, bytearray, memoryview]


@dataclass
class Call:
    """One request."""

    method: str
    path: str
    # Neither is shown: there are secrets in them.
    body: bytes = field(default=b"", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    query: dict[str, str] = field(default_factory=dict)
    # How long the answer may take on top of what every answer may.
    extra_s: float = 0.0
    # Whether doing it twice is the same as doing it once.
    repeatable: bool = False
    # Whether it may wait at the server: such requests have their own connections, and block no others.
    waits: bool = False
    # Whether an earlier attempt may have been carried out.
    unsure: bool = False

    def timeout(self, answer_s: float, connect_s: float) -> httpx.Timeout:
        """For an answer that comes as a whole, when it comes."""
        return httpx.Timeout(answer_s + self.extra_s, connect=connect_s)


def _json(method: str, path: str, value: Mapping[str, Any], **more: Any) -> Call:
    body = json.dumps({name: item for name, item in value.items() if item is not None}).encode()
    return Call(method, path, body, {"Content-Type": "application/json"}, **more)


class Attempts:
    """Whether a request that failed is sent again, and after how long a pause.

    Only what certainly did no harm is: nothing was sent, or the server refused before it did anything, or
    doing it twice is the same as doing it once. That one may have been done is noted at the request.
    """

    def __init__(self, call: Call, retries: int) -> None:
        self._call = call
        self._left = retries
        self._pause_s = _PAUSE_S

    def pause_after(self, error: ShoalError, sent: bool) -> float | None:
        """How long to wait before the next attempt; none if there is none."""
        self._call.unsure = may_have_happened(self._call, error)
        if isinstance(error, ConnectionFailed):
            harmless = not sent or self._call.repeatable
        else:
            harmless = is_not_done(error)
        if not harmless or self._left <= 0:
            return None
        self._left -= 1
        pause_s, self._pause_s = self._pause_s, self._pause_s * 2
        # Jitter: requests that were refused together must not retry together.
        jittered_s = pause_s * random.uniform(1.0, 1.5)
        return min(max(jittered_s, error.retry_after or 0.0), _PAUSE_S_MAX)


def failed(call: Call, error: httpx.HTTPError) -> tuple[ShoalError, bool]:
    """The error for a request without an answer, and whether the request may have arrived."""
    what = f"{call.method} {call.path}"
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        where = f"{error.request.url.host}:{error.request.url.port}"
        cause = f"no server answers at {where}: {error or type(error).__name__}"
        remedy = "start a server with `shoal serve`, or set SHOAL_URL"
        return ConnectionFailed("no_server", cause, remedy=remedy, retryable=True), False
    if isinstance(error, httpx.TimeoutException):
        return Timeout("no_answer", f"{what} was not answered in time", retryable=call.repeatable), True
    cause = f"{what} was cut off: {error or type(error).__name__}"
    return ConnectionFailed("cut", cause, retryable=call.repeatable), True


def may_have_happened(call: Call, error: BaseException) -> bool:
    """Whether a failed or cancelled request may have been carried out, by this attempt or an earlier one."""
    unsure = not isinstance(error, ShoalError) or error.code in ("cut", "no_answer", "unexpected")
    return call.unsure or unsure


def refused(response: httpx.Response) -> ShoalError:
    """The error in an answer."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "code" in problem:
        return of_problem(response.status_code, problem)
    cause = f"the answer with status {response.status_code} did not come from Shoal"
    return ShoalError("unexpected", cause, status=response.status_code)


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        cause = f"the answer cannot be decoded: {error}"
        raise ShoalError("unexpected", cause, status=response.status_code) from error


# Leases


@dataclass(frozen=True)
class Wanted:
    """A checkout, with the same id for every attempt."""

    template: str
    # Not shown: there are secrets in it.
    env: Mapping[str, str] = field(repr=False)
    labels: Mapping[str, str]
    ttl_s: int | None
    wait_s: float | None
    policy: str | None
    network: str | Mapping[str, Any] | None = None
    secrets: Sequence[Mapping[str, Any]] = ()
    secret_values: Mapping[str, str] = field(default_factory=dict, repr=False)
    # What the server knows this checkout by.
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def checkout(self) -> Call:
        """Asks for it."""
        wait_s = self.wait_s
        if wait_s is not None and not 0 <= wait_s <= _WAIT_S_MAX:
            raise InvalidArgument("invalid_argument", f"wait: must be from 0 to {_WAIT_S_MAX:g} seconds")
        value = {
            "template": self.template,
            "env": dict(self.env) or None,
            "labels": dict(self.labels) or None,
            "ttl_s": self.ttl_s,
            "wait_ms": None if wait_s is None else round(wait_s * 1000),
            "policy": self.policy,
            "network": self.network,
            "secrets": [dict(used) for used in self.secrets] or None,
            "secret_values": dict(self.secret_values) or None,
        }
        extra_s = _WAIT_S_DEFAULT if wait_s is None else wait_s
        call = _json("POST", "/v1/checkouts", value, extra_s=extra_s, repeatable=True, waits=True)
        call.headers["Idempotency-Key"] = self.mark
        return call

    def abandon(self) -> Call:
        """Abandons the checkout: the server takes back what it handed out for it."""
        return Call("DELETE", "/v1/checkouts", headers={"Idempotency-Key": self.mark}, repeatable=True)


def lease_of(response: httpx.Response) -> Lease:
    """The lease in an answer."""
    value = _body(response)
    try:
        return Lease.read(value, response.headers.get("date"))
    except (KeyError, TypeError, ValueError) as error:
        cause = f"the lease in the answer cannot be decoded: {error}"
        raise ShoalError("unexpected", cause, status=response.status_code) from error


def renewed(lease: Lease, response: httpx.Response) -> Lease:
    """The lease after a renewal, whose answer does not say how it was obtained."""
    return dataclasses.replace(lease_of(response), path=lease.path)


def give_back(lease: str) -> Call:
    return Call("DELETE", f"/v1/checkouts/{lease}", repeatable=True)


def renew(lease: str, ttl_s: int | None) -> Call:
    return _json("POST", f"/v1/checkouts/{lease}/renew", {"ttl_s": ttl_s}, repeatable=True)


def health() -> Call:
    return Call("GET", "/health", repeatable=True)


def template(name: str) -> Call:
    return Call("GET", f"/v1/templates/{quote(name, safe='')}", repeatable=True)


# Programs


def execute(
    sandbox: str,
    command: Command,
    *,
    timeout: float | None,
    env: Mapping[str, str] | None,
    cwd: str | None,
    stdin: Data | None,
) -> Call:
    """A shell command line, or a program and its arguments."""
    value: dict[str, Any] = {"env": dict(env) if env else None, "cwd": cwd}
    if isinstance(command, str):
        value["command"] = command
    else:
        value["argv"] = list(command)
    if isinstance(stdin, str):
        value["stdin"] = stdin
    elif stdin is not None:
        value["stdin_base64"] = base64.b64encode(stdin).decode()
    if timeout is not None:
        value["timeout_ms"] = max(1, round(timeout * 1000))
    extra_s = _PROGRAM_S_MAX if timeout is None else timeout
    return _json("POST", f"/v1/sandboxes/{sandbox}/exec", value, extra_s=extra_s)


def python(python: str, code: str, args: Sequence[str]) -> tuple[list[str], str | None]:
    """How to run a piece of Python: its arguments, and where it is to be written first if it is long."""
    if len(code.encode()) <= _ARGUMENT_BYTES_MAX:
        return [python, "-c", code, *args], None
    path = f"/tmp/shoal-{uuid.uuid4().hex}.py"
    return [python, path, *args], path


def result_of(response: httpx.Response) -> Result:
    """The result of a program."""
    return Result.read(_body(response))


# Processes


def _processes(sandbox: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{sandbox}/processes{rest}"


def _one(process: str, rest: str = "") -> str:
    return f"/{quote(process, safe='')}{rest}"


def start_process(
    sandbox: str,
    command: Command,
    *,
    name: str | None,
    env: Mapping[str, str] | None,
    cwd: str | None,
    keep_alive: bool,
    timeout: int | None,
) -> Call:
    value: dict[str, Any] = {"name": name, "env": dict(env) if env else None, "cwd": cwd}
    value["command" if isinstance(command, str) else "argv"] = (
        command if isinstance(command, str) else list(command)
    )
    value["keep_alive"] = keep_alive
    value["timeout_s"] = timeout
    return _json("POST", _processes(sandbox), value)


def _flags(**given: bool) -> dict[str, str]:
    return {name: "true" for name, is_on in given.items() if is_on}


def read_process(sandbox: str, process: str, observe: bool) -> Call:
    path = _processes(sandbox, _one(process))
    return Call("GET", path, query=_flags(observe=observe), repeatable=True)


def list_processes(sandbox: str, before: int | None, running: bool, observe: bool) -> Call:
    query = _flags(running=running, observe=observe)
    if before is not None:
        query["before"] = str(before)
    return Call("GET", _processes(sandbox), query=query, repeatable=True)


def read_log(sandbox: str, process: str, offset: int | None, observe: bool) -> Call:
    query = _flags(observe=observe)
    if offset is not None:
        query["offset"] = str(offset)
    return Call("GET", _processes(sandbox, _one(process, "/logs")), query=query, repeatable=True)


def stop_process(sandbox: str, process: str) -> Call:
    return Call("DELETE", _processes(sandbox, _one(process)))


def process_of(response: httpx.Response) -> Process:
    return Process.read(_body(response))


def processes_of(response: httpx.Response) -> tuple[list[Process], int | None]:
    """A page of processes, and where the next one goes on."""
    value = _body(response)
    listed: Iterable[Mapping[str, Any]] = value["processes"]
    return [Process.read(one) for one in listed], value.get("next")


def log_of(response: httpx.Response) -> Log:
    return Log.read(_body(response))


# Secrets


def _scope(node: bool) -> dict[str, str]:
    return {"scope": "node"} if node else {}


def _secret(name: str) -> str:
    return f"/v1/secrets/{quote(name, safe='')}"


def put_secret(name: str, value: str, node: bool) -> Call:
    return _json("PUT", _secret(name), {"value": value}, query=_scope(node), repeatable=True)


def list_secrets(node: bool) -> Call:
    return Call("GET", "/v1/secrets", query=_scope(node), repeatable=True)


def remove_secret(name: str, node: bool) -> Call:
    return Call("DELETE", _secret(name), query=_scope(node))


def secret_of(response: httpx.Response) -> Secret:
    return Secret.read(_body(response))


def secrets_of(response: httpx.Response) -> list[Secret]:
    listed: Iterable[Mapping[str, Any]] = _body(response)["secrets"]
    return [Secret.read(one) for one in listed]


# Files


def inside(path: str) -> str:
    """Where a path is: relative ones are beneath the workspace."""
    return path if path.startswith("/") else f"/workspace/{path}"


def _files(sandbox: str, rest: str = "") -> str:
    return f"/v1/sandboxes/{sandbox}/files{rest}"


def read_file(sandbox: str, path: str) -> Call:
    return Call("GET", _files(sandbox), query={"path": path}, repeatable=True)


def write_file(sandbox: str, path: str, data: Data, mode: int | None) -> Call:
    body = data.encode() if isinstance(data, str) else bytes(data)
    query = {"path": path}
    if mode is not None:
        query["mode"] = f"{mode:04o}"
    headers = {"Content-Type": "application/octet-stream"}
    return Call("PUT", _files(sandbox), body, headers, query, repeatable=True)


def remove_file(sandbox: str, path: str, recursive: bool) -> Call:
    query = {"path": path, "recursive": "true" if recursive else "false"}
    return Call("DELETE", _files(sandbox), query=query)


def make_directory(sandbox: str, path: str) -> Call:
    return _json("POST", _files(sandbox, "/directory"), {"path": path})


def stat_file(sandbox: str, path: str) -> Call:
    return Call("GET", _files(sandbox, "/stat"), query={"path": path}, repeatable=True)


def list_files(sandbox: str, path: str, after: str | None) -> Call:
    query = {"path": path} if after is None else {"path": path, "after": after}
    return Call("GET", _files(sandbox, "/list"), query=query, repeatable=True)


def entry_of(response: httpx.Response) -> FileEntry:
    return FileEntry.read(_body(response))


def entries_of(response: httpx.Response) -> tuple[list[FileEntry], str | None]:
    """A page of files, and where the next one goes on."""
    value = _body(response)
    listed: Iterable[Mapping[str, Any]] = value.get("entries", [])
    return [FileEntry.read(entry) for entry in listed], value.get("next")
