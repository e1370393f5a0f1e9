"""Errors: by the server's stable codes, and by the built-in exceptions of Python.

Code that was written for another pool can catch ``ValueError`` for an unknown template, ``RuntimeError`` for
a sandbox that could not be started, ``asyncio.TimeoutError`` for a timeout, and ``EOFError`` for a sandbox or
a harness that has ended. New code branches on ``code``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any


class ShoalError(Exception):
    """A request failed.

    ``code`` never changes its meaning, ``cause`` says what happened, ``remedy`` how to fix it,
    ``retryable`` whether the same request may work later, ``status`` the HTTP status, if any.
    """

    def __init__(
        self,
        code: str,
        cause: str,
        *,
        remedy: str = "",
        retryable: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
        field: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(cause)
        self.code = code
        self.cause = cause
        self.remedy = remedy
        self.retryable = retryable
        self.status = status
        self.retry_after = retry_after
        self.field = field
        self.request_id = request_id

    def __str__(self) -> str:
        text = f"{self.code}: {self.cause}" if self.cause else self.code
        return f"{text} ({self.remedy})" if self.remedy else text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.cause!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self)._again, (self.code, self.cause, dict(self.__dict__)))

    @classmethod
    def _again(cls, code: str, cause: str, state: dict[str, Any]) -> ShoalError:
        error = cls(code, cause)
        error.__dict__.update(state)
        return error


class ConnectionFailed(ShoalError, ConnectionError):
    """No server answers, or the connection broke: the server may have carried out the request."""


class UnknownTemplate(ShoalError, ValueError):
    """The server has no template with this name."""


class InvalidArgument(ShoalError, ValueError):
    """An argument has a value that is not allowed."""


class NotAllowed(ShoalError, PermissionError):
    """The key is unknown, or its role does not allow this."""


class LaunchError(ShoalError, RuntimeError):
    """The sandbox or its harness could not be started."""


class PoolExhausted(ShoalError):
    """No sandbox is free, and the checkout does not wait or cannot wait."""


class CheckoutTimeout(PoolExhausted, asyncio.TimeoutError):
    """No sandbox became free in time."""


class ReadyTimeout(ShoalError, asyncio.TimeoutError):
    """The sandbox or its harness was started but was not ready in time."""


class Timeout(ShoalError, asyncio.TimeoutError):
    """No answer, confirmation or line came in time."""


class SandboxCrashed(ShoalError, EOFError):
    """The sandbox crashed or has ended."""


class OutOfMemory(SandboxCrashed):
    """The sandbox ran out of memory."""


class LeaseLost(SandboxCrashed):
    """The lease has ended: it expired, was returned, or the server was restarted."""


class HarnessEnded(ShoalError, EOFError):
    """The harness ended, or wrote something that is not a line of text."""


class HarnessBusy(ShoalError, RuntimeError):
    """Another connection or a turn already uses the harness."""


class NoHarness(ShoalError, RuntimeError):
    """The template has no harness program."""


class PathNotFound(ShoalError, FileNotFoundError):
    """The file, directory or program does not exist in the sandbox."""


class ProgramFailed(ShoalError, RuntimeError):
    """A program failed; only raised by ``Result.check``."""


_CLASSES: dict[str, type[ShoalError]] = {
    "template_unknown": UnknownTemplate,
    "template_invalid": InvalidArgument,
    "invalid_argument": InvalidArgument,
    "bad_request": InvalidArgument,
    "too_large": InvalidArgument,
    "unauthorized": NotAllowed,
    "forbidden": NotAllowed,
    "path_denied": NotAllowed,
    "launch_failed": LaunchError,
    "harness_failed": LaunchError,
    "capacity_exhausted": PoolExhausted,
    "queue_full": PoolExhausted,
    "pool_empty": PoolExhausted,
    "pool_closed": PoolExhausted,
    "boundary_full": PoolExhausted,
    "disk_full": PoolExhausted,
    "checkout_timeout": CheckoutTimeout,
    "ready_timeout": ReadyTimeout,
    "deadline_exceeded": Timeout,
    "request_timeout": Timeout,
    "sandbox_crashed": SandboxCrashed,
    "sandbox_gone": SandboxCrashed,
    "sandbox_unknown": SandboxCrashed,
    "disk_limit": SandboxCrashed,
    "not_leased": LeaseLost,
    "oom": OutOfMemory,
    "lease_lost": LeaseLost,
    "lease_unknown": LeaseLost,
    "harness_busy": HarnessBusy,
    "turn_in_progress": HarnessBusy,
    "no_harness": NoHarness,
    "path_not_found": PathNotFound,
}

# The server carried out nothing, and the same request may be sent again.
_NOT_DONE = frozenset({"overloaded", "quota_exceeded", "shutting_down", "store_unavailable"})


def of_code(code: str, cause: str, **more: Any) -> ShoalError:
    """An error of the class for this code."""
    return _CLASSES.get(code, ShoalError)(code, cause, **more)


def of_problem(status: int, problem: Mapping[str, Any]) -> ShoalError:
    """The error in an answer of the server."""
    after = problem.get("retry_after_ms")
    return of_code(
        str(problem.get("code", "internal")),
        str(problem.get("detail", "")),
        remedy=str(problem.get("remedy", "")),
        retryable=bool(problem.get("retryable", False)),
        status=status,
        retry_after=after / 1000 if isinstance(after, (int, float)) else None,
        field=problem.get("field"),
        request_id=problem.get("request_id"),
    )


def is_not_done(error: ShoalError) -> bool:
    """Whether the server refused before it did anything, and may accept the next attempt."""
    return error.code in _NOT_DONE


# How the WebSocket to a harness ends; see docs/harness.md of the server.
_EXITED = 4000
_OUT_OF_MEMORY = 4001
_SANDBOX_GONE = 4002
_TOO_LONG = 4003
_NOT_TEXT = 4004


def of_close(number: int | None, reason: str) -> ShoalError:
    """The error for a closed WebSocket to a harness."""
    code, _, cause = reason.partition(": ")
    if number in (_EXITED, _TOO_LONG, _NOT_TEXT):
        return HarnessEnded(code, cause)
    if number == _OUT_OF_MEMORY:
        return OutOfMemory(code, cause)
    if number == _SANDBOX_GONE:
        error = of_code(code, cause)
        return error if isinstance(error, SandboxCrashed) else SandboxCrashed(code, cause)
    if code:
        error = of_code(code, cause)
        # Not a timeout error: a caller that retries timeouts would retry for ever.
        return HarnessEnded(code, cause) if isinstance(error, asyncio.TimeoutError) else error
    return ConnectionFailed("cut", "the connection to the harness broke", retryable=True)
