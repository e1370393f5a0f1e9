"""A pool of warm sandboxes, for threads. One thread of the pool renews all its leases."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType

from . import _calls as calls
from . import _discover as discover
from . import _renewal as renewal
from ._calls import Wanted
from ._errors import ShoalError
from ._http import SyncHttp
from ._sync_box import SyncBox, SyncHeld
from ._sync_pipes import SyncHarness

# How long closing waits for checkouts and returns of other threads.
_CLOSE_S = 30.0


class SyncPool:
    """Sandboxes of one server, like ``Pool`` without ``await``. Threads may share it."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        retries: int = 3,
    ) -> None:
        self._http = SyncHttp(discover.find(url, key, data_dir), timeout, retries)
        self._changed = threading.Condition()
        # What is had, whose it is, and when it is to be renewed.
        self._held: dict[SyncHeld, tuple[weakref.ref[SyncBox], float | None]] = {}
        self._renewing: threading.Thread | None = None
        self._checkouts = 0
        self._closed = False
        # Closing is through: whoever is the last to use the connections closes them.
        self._left = False

    def __enter__(self) -> SyncPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._http.server.url

    def startup(self, templates: Iterable[str] = ()) -> None:
        """Makes sure that the server is there and serves these templates; ``ValueError`` if it does not."""
        names = list(templates)
        for name in names:
            self._http.send(calls.template(name))
        if not names:
            self._http.send(calls.health())

    def checkout(
        self,
        template: str = "default",
        *,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: int | None = None,
        wait: float | None = None,
        policy: str | None = None,
        renew: bool = True,
    ) -> SyncCheckout:
        """A sandbox of a template, for ``with``. See ``Pool.checkout``."""
        wanted = Wanted(template, env or {}, labels or {}, ttl, wait, policy)
        return SyncCheckout(self, wanted, renew)

    def close(self) -> None:
        """Returns what is still checked out, and closes the connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            # Other threads may be in the middle of a return, or of a checkout, and find that they are late.
            self._changed.wait_for(self._is_quiet, _CLOSE_S)
            held = list(self._held)
        for one in held:
            self._give_back(one)
        if self._renewing is not None:
            self._renewing.join()
        with self._changed:
            self._left = True
        self._leave()

    shutdown = close

    def _is_quiet(self) -> bool:
        """Whether no thread is in the middle of a checkout or of a return."""
        return self._checkouts == 0 and all(held.returning is None for held in self._held)

    def _leave(self) -> None:
        """Closes the connections after the last one who needs them."""
        with self._changed:
            self._changed.notify_all()
            is_last = self._left and self._is_quiet()
        if is_last:
            self._http.close()

    def _check_out(self, wanted: Wanted, renew: bool) -> SyncBox:
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is closed")
            self._checkouts += 1
        try:
            return self._ask(wanted, renew)
        finally:
            with self._changed:
                self._checkouts -= 1
            self._leave()

    def _ask(self, wanted: Wanted, renew: bool) -> SyncBox:
        call = wanted.checkout()
        try:
            lease = calls.lease_of(self._http.send(call))
            held = SyncHeld(lease, SyncHarness(self._http.server, lease.sandbox_id), wanted.ttl_s)
            box = SyncBox(self._http, held, self._give_back)
            self._hold(held, box, renew)
        except BaseException as error:
            if calls.may_have_happened(call, error):
                self._abandon(wanted)
            raise
        if self._closed:
            self._give_back(held)
            raise RuntimeError("the pool was closed")
        return box

    def _hold(self, held: SyncHeld, box: SyncBox, renew: bool) -> None:
        with self._changed:
            due = time.monotonic() + renewal.pause_s(held.lease.lasts_s) if renew else None
            self._held[held] = (weakref.ref(box), due)
            if renew and self._renewing is None:
                self._renewing = threading.Thread(target=self._keep, name="shoal-renewal", daemon=True)
                self._renewing.start()
            self._changed.notify_all()

    def _abandon(self, wanted: Wanted) -> None:
        try:
            self._http.send(wanted.abandon())
        except ShoalError as error:
            renewal.not_abandoned(error)

    def _give_back(self, held: SyncHeld) -> None:
        """Returns a lease, once; if that is interrupted it is still had, and may be returned again."""
        me = object()
        try:
            with self._changed:
                if held not in self._held or held.returning is not None:
                    return
                held.returning = me
            self._return(held)
            with self._changed:
                del self._held[held]
        finally:
            with self._changed:
                if held.returning is me:
                    held.returning = None
            self._leave()

    def _return(self, held: SyncHeld) -> None:
        try:
            self._http.send(calls.give_back(held.lease.id))
        except ShoalError as error:
            if not renewal.is_over(error):
                renewal.not_returned(held.lease.id, error)
        finally:
            held.harness.close()

    def _keep(self) -> None:
        """Renews leases for as long as somebody has them."""
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                due = {
                    held: at
                    for held, (_, at) in self._held.items()
                    if at is not None and held.returning is None
                }
                ready = [held for held, at in due.items() if at <= now]
                if not ready:
                    self._changed.wait(min(due.values()) - now if due else None)
                    continue
            for held in ready:
                self._renew(held)

    def _renew(self, held: SyncHeld) -> None:
        with self._changed:
            box, _ = self._held.get(held, (lambda: None, None))
        if box() is None:
            self._give_back(held)
            return
        again = True
        try:
            response = self._http.send(calls.renew(held.lease.id, held.ttl_s))
            held.lease = calls.renewed(held.lease, response)
        except ShoalError as error:
            again = not renewal.is_over(error)
            if again:
                renewal.not_renewed(held.lease.id, error)
        with self._changed:
            if held in self._held:
                due = time.monotonic() + renewal.pause_s(held.lease.lasts_s) if again else None
                self._held[held] = (self._held[held][0], due)


class SyncCheckout:
    """A sandbox that is asked for; its guard once it is had."""

    def __init__(self, pool: SyncPool, wanted: Wanted, renew: bool) -> None:
        self._pool = pool
        self._wanted = wanted
        self._renew = renew
        self._begun = False
        self._box: SyncBox | None = None

    def __enter__(self) -> SyncBox:
        self._box = self.take()
        return self._box

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._box is not None:
            self._box.release()

    def take(self) -> SyncBox:
        """The box without a guard: whoever has it calls ``release``."""
        if self._begun:
            raise RuntimeError("a checkout is used once: call pool.checkout() again")
        self._begun = True
        return self._pool._check_out(self._wanted, self._renew)
