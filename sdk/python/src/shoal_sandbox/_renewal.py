"""When a lease is renewed: long before it ends, so that a lost message or two do no harm."""

from __future__ import annotations

import logging

from ._errors import LeaseLost, SandboxCrashed, ShoalError

log = logging.getLogger("shoal_sandbox")

_SHARE = 3.0
_LEAST_S = 0.2
# A lease without an end is looked after now and then all the same.
_MOST_S = 3600.0


def pause_s(lasts_s: float | None) -> float:
    """How long to wait before a lease that lasts so long is renewed."""
    if lasts_s is None:
        return _MOST_S
    return min(max(lasts_s / _SHARE, _LEAST_S), _MOST_S)


def is_over(error: ShoalError) -> bool:
    """Whether there is nothing left to renew or to return."""
    return isinstance(error, (LeaseLost, SandboxCrashed))


def not_renewed(lease: str, error: ShoalError) -> None:
    log.warning("renewing lease %s failed: %s", lease, error)


def not_returned(lease: str, error: ShoalError) -> None:
    log.warning("returning lease %s failed; it stays until it expires: %s", lease, error)


def not_abandoned(error: ShoalError) -> None:
    log.warning("abandoning a checkout failed; its lease, if any, stays until it expires: %s", error)
