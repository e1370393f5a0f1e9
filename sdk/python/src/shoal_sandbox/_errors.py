"""What can go wrong, by the server's stable codes and by what Python calls it.

Whoever wrote for another pool catches what they always caught: ``ValueError`` for a template that is not
served, ``RuntimeError`` for a sandbox that could not be started, ``asyncio.TimeoutError`` for waits that
ended, ``EOFError`` for a sandbox or a harness that is gone. Whoever writes for this one branches on ``code``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any


class ShoalError(Exception):
    """Something was not done.

    ``code`` never changes its meaning, ``cause`` says what happened, ``remedy`` what to do about it,
    ``retryable`` whether the same may work later. ``status`` is the HTTP status, if there was an answer.
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
        told = f"{self.code}: {self.cause}" if self.cause else self.code
        return f"{told} ({self.remedy})" if self.remedy else told

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
    """No server answers, or the connection broke: what was asked may have been done."""


class UnknownTemplate(ShoalError, ValueError):
    """No template of that name is served."""


class InvalidArgument(ShoalError, ValueError):
    """What was asked for cannot be right."""


class NotAllowed(ShoalError, PermissionError):
    """The key is not known, or may not do this."""


class LaunchError(ShoalError, RuntimeError):
    """The sandbox, or its harness, could not be started."""


class PoolExhausted(ShoalError):
    """Nothing is free, and it was not to be waited for, or cannot be."""


class CheckoutTimeout(PoolExhausted, asyncio.TimeoutError):
    """Nothing became free in time."""


class ReadyTimeout(ShoalError, asyncio.TimeoutError):
    """The sandbox, or its harness, was started and was not ready in time."""


class Timeout(ShoalError, asyncio.TimeoutError):
    """No answer, confirmation or line came in time."""


class SandboxCrashed(ShoalError, EOFError):
    """The sandbox died while it was used, or is gone."""


class OutOfMemory(SandboxCrashed):
    """The sandbox ran out of memory."""


class LeaseLost(SandboxCrashed):
    """The lease is over: it expired, was returned, or the server was started anew."""


class HarnessEnded(ShoalError, EOFError):
    """The harness ended, or said something that cannot be passed on."""


class HarnessBusy(ShoalError, RuntimeError):
    """Somebody speaks with the harness already."""


class NoHarness(ShoalError, RuntimeError):
    """The template has no harness to speak with."""


class PathNotFound(ShoalError, FileNotFoundError):
    """There is no such file, directory or program in the sandbox."""


class ProgramFailed(ShoalError, RuntimeError):
    """A program ended badly; only told by ``Result.check``."""


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

# Nothing was done, and the same request may be sent again.
_NOT_DONE = frozenset({"overloaded", "rate_limited", "shutting_down", "store_unavailable"})


def of_code(code: str, cause: str, **more: Any) -> ShoalError:
    """An error of the class that its code stands for."""
    return _CLASSES.get(code, ShoalError)(code, cause, **more)


def of_problem(status: int, problem: Mapping[str, Any]) -> ShoalError:
    """What a server says against a request."""
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
    """Whether a server refused before it did anything, and may not the next time."""
    return error.code in _NOT_DONE


# How the WebSocket to a harness ends; see docs/harness.md of the server.
_EXITED = 4000
_OUT_OF_MEMORY = 4001
_SANDBOX_GONE = 4002
_TOO_LONG = 4003
_NOT_TEXT = 4004


def of_close(number: int | None, reason: str) -> ShoalError:
    """What the end of the WebSocket to a harness means."""
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
        # Whoever tries again after a timeout would do so for ever: nothing more comes.
        return HarnessEnded(code, cause) if isinstance(error, asyncio.TimeoutError) else error
    return ConnectionFailed("cut", "the connection to the harness broke", retryable=True)
