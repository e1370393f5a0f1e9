"""A pool of warm sandboxes, for coroutines.

A sandbox is returned in every case: after an exception, and after a cancellation at any await, also while the
answer to the checkout was on its way. Tasks of the pool send the requests for that, and closing the pool
waits for them.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Coroutine, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _calls as calls
from . import _discover as discover
from . import _renewal as renewal
from ._box import Box, Held
from ._calls import Wanted
from ._errors import ShoalError
from ._http import Http
from ._pipes import Harness
from ._secrets import Secrets
from ._types import Lease

# How long closing waits for requests that must still be sent.
_CLOSE_S = 30.0


class Pool:
    """Sandboxes of one server.

    The server and the key are found as the command line finds them: by the arguments, by ``SHOAL_URL`` and
    ``SHOAL_API_KEY`` (or ``SHOAL_KEY``), or by the data directory of a server on this machine.

    ``timeout`` is how many seconds an answer may take, in addition to any wait in the request; ``retries`` is
    how often a request is sent again where that is safe.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        retries: int = 3,
    ) -> None:
        self._http = Http(discover.find(url, key, data_dir), timeout, retries)
        self.secrets = Secrets(self._http)
        self._held: set[Held] = set()
        # Checkouts in progress, and what they wait for.
        self._checkouts = 0
        self._asking: set[asyncio.Task[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._http.server.url

    async def startup(self, templates: Iterable[str] = ()) -> None:
        """Checks that the server answers and has these templates; ``ValueError`` if it does not have one."""
        names = list(templates)
        for name in names:
            await self._http.send(calls.template(name))
        if not names:
            await self._http.send(calls.health())

    def checkout(
        self,
        template: str = "default",
        *,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: int | None = None,
        wait: float | None = None,
        policy: str | None = None,
        network: str | Mapping[str, Any] | None = None,
        secrets: Sequence[Mapping[str, Any]] = (),
        secret_values: Mapping[str, str] | None = None,
        renew: bool = True,
    ) -> Checkout:
        """A sandbox of a template, for ``async with``.

        ``wait`` is how many seconds to wait for one, ``policy`` how it may be obtained: ``wait``,
        ``fail_fast`` or ``idle_only``. The lease lasts ``ttl`` seconds and is renewed until it is returned,
        unless ``renew`` is false.

        ``network`` narrows what the sandbox may reach: ``"none"`` or ``{"allow": ["api.example.com"]}``.
        ``secrets`` are uses of stored secrets, such as ``{"secret": "model", "env": "API_KEY"}``;
        ``secret_values`` has values that are not stored.
        """
        narrowed = (network, tuple(secrets), secret_values or {})
        wanted = Wanted(template, env or {}, labels or {}, ttl, wait, policy, *narrowed)
        return Checkout(self, wanted, renew)

    async def aclose(self) -> None:
        """Returns all sandboxes that are still checked out, and closes the connections."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        # The close continues even if this wait is cancelled.
        await asyncio.wait({self._closing})
        self._closing.result()

    shutdown = aclose

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _CLOSE_S
        while loop.time() < until:
            for asking in self._asking:
                asking.cancel()
            for held in list(self._held):
                self._returning(held)
            pending = self._asking | self._tasks
            if pending:
                await asyncio.wait(pending, timeout=until - loop.time())
            elif self._checkouts > 0:
                # A checkout is about to see its cancellation, and must then abandon its request.
                await asyncio.sleep(0)
            else:
                break
        for task in self._tasks:
            task.cancel()
        await self._http.aclose()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that continues even if no caller waits for it, until the pool is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _check_out(self, wanted: Wanted, renew: bool) -> Box:
        self._checkouts += 1
        try:
            lease = await self._ask(wanted)
            held = Held(lease, Harness(self._http.server, lease.sandbox_id), wanted.ttl_s)
            box = Box(self._http, held, self._give_back)
            self._held.add(held)
            if self._closing is not None:
                self._returning(held)
                raise RuntimeError("the pool was closed")
            if renew:
                held.renewing = asyncio.create_task(self._keep(held, weakref.ref(box)))
            return box
        finally:
            self._checkouts -= 1

    async def _ask(self, wanted: Wanted) -> Lease:
        """A lease. If the caller stops waiting, the request is abandoned at the server."""
        if self._closing is not None:
            raise RuntimeError("the pool is closed")
        call = wanted.checkout()
        asking = asyncio.create_task(self._http.send(call))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            await asyncio.wait({asking})
            if asking.cancelled():
                raise RuntimeError("the pool was closed")
            return calls.lease_of(asking.result())
        except BaseException as error:
            asking.cancel()
            if calls.may_have_happened(call, error):
                self._begin(self._abandon(wanted, asking))
            raise

    async def _abandon(self, wanted: Wanted, asking: asyncio.Task[Any]) -> None:
        # Its connection is closed first: the server then drops a checkout that waits on it.
        await asyncio.wait({asking})
        if not asking.cancelled():
            asking.exception()
        try:
            await self._http.send(wanted.abandon())
        except ShoalError as error:
            renewal.not_abandoned(error)

    async def _settled(self) -> None:
        """Waits for the requests in progress."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _keep(self, held: Held, box: weakref.ref[Box]) -> None:
        """Renews a lease while its box exists."""
        while held.returning is None:
            await asyncio.sleep(renewal.pause_s(held.lease.lasts_s))
            if box() is None:
                self._returning(held)
                return
            try:
                response = await self._http.send(calls.renew(held.lease.id, held.ttl_s))
                held.lease = calls.renewed(held.lease, response)
            except ShoalError as error:
                if renewal.is_over(error):
                    return
                renewal.not_renewed(held.lease.id, error)

    def _returning(self, held: Held) -> asyncio.Task[None]:
        """The one return of a lease."""
        if held.returning is None:
            held.returning = self._begin(self._return(held))
            self._held.discard(held)
        return held.returning

    async def _give_back(self, held: Held) -> None:
        await asyncio.wait({self._returning(held)})

    async def _return(self, held: Held) -> None:
        if held.renewing is not None:
            held.renewing.cancel()
        try:
            await self._http.send(calls.give_back(held.lease.id))
        except ShoalError as error:
            if not renewal.is_over(error):
                renewal.not_returned(held.lease.id, error)
        await held.harness.close()


class Checkout:
    """A checkout in progress, and afterwards the guard of its sandbox."""

    def __init__(self, pool: Pool, wanted: Wanted, renew: bool) -> None:
        self._pool = pool
        self._wanted = wanted
        self._renew = renew
        self._begun = False
        self._box: Box | None = None

    async def __aenter__(self) -> Box:
        self._box = await self._take()
        return self._box

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._box is not None:
            await self._box.release()

    def __await__(self) -> Generator[Any, None, Box]:
        """The box without a guard: the caller must call ``release``."""
        return self._take().__await__()

    async def _take(self) -> Box:
        if self._begun:
            raise RuntimeError("a checkout can be used only once: call pool.checkout() again")
        self._begun = True
        return await self._pool._check_out(self._wanted, self._renew)
