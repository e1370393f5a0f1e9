"""A pool of warm sandboxes, for threads: the one for coroutines, on an event loop in a thread of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ._box import Box
from ._loop import Loop
from ._pool import Checkout, Pool
from ._sync_box import SyncBox
from ._sync_secrets import SyncSecrets


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
        self._pool = Pool(url, key, data_dir=data_dir, timeout=timeout, retries=retries)
        self._loop = Loop()
        self.secrets = SyncSecrets(self._loop, self._pool.secrets)

    def __enter__(self) -> SyncPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._pool.url

    def startup(self, templates: Iterable[str] = ()) -> None:
        """Checks that the server answers and has these templates; ``ValueError`` if it does not have one."""
        self._loop.run(self._pool.startup(templates))

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
    ) -> SyncCheckout:
        """A sandbox of a template, for ``with``. See ``Pool.checkout``."""
        checkout = self._pool.checkout(
            template,
            env=env,
            labels=labels,
            ttl=ttl,
            wait=wait,
            policy=policy,
            network=network,
            secrets=secrets,
            secret_values=secret_values,
            renew=renew,
        )
        return SyncCheckout(self._loop, self._pool, checkout)

    def close(self) -> None:
        """Returns all sandboxes, cancels checkouts that wait, and closes the connections."""
        self._loop.close(self._pool.aclose)

    shutdown = close


class SyncCheckout:
    """A checkout in progress, and afterwards the guard of its sandbox."""

    def __init__(self, loop: Loop, pool: Pool, checkout: Checkout) -> None:
        self._loop = loop
        self._pool = pool
        self._checkout = checkout
        self._had: Box | None = None
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
        """The box without a guard: the caller must call ``release``."""
        taking = self._loop.begin(self._take())
        try:
            return SyncBox(self._loop, self._loop.wait(taking))
        except BaseException:
            self._give_up()
            raise

    async def _take(self) -> Box:
        self._had = await self._checkout._take()
        return self._had

    def _give_up(self) -> None:
        """Waits until the server has dropped the checkout; closing the pool does that, too."""
        try:
            giving_up = self._loop.begin(self._given_up())
        except RuntimeError:
            return
        self._loop.wait(giving_up)

    async def _given_up(self) -> None:
        # The sandbox came, and no caller took it.
        if self._had is not None:
            await self._had.release()
        await self._pool._settled()
