"""Leases with a scripted server: they are always returned, and keep their ids."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from conftest import eventually
from fake_server import CUT, PATIENCE_S, FakePools
from shoal_sandbox import Pool, PoolExhausted, SyncPool
from shoal_sandbox import _http as http


@pytest.fixture
def pools() -> Iterator[FakePools]:
    with FakePools() as pools:
        yield pools


def soon(what: str, is_so: Callable[[], Any]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"never so: {what}"
        time.sleep(0.01)


def test_closing_waits_for_returns_of_other_threads(pools: FakePools) -> None:
    with ThreadPoolExecutor(2) as threads:
        pool = SyncPool(pools.url, "key")
        box = pool.checkout().take()
        pools.keep_back("return")
        returning = threads.submit(box.release)
        soon("it is being returned", lambda: pools.count("return") == 1)
        closing = threads.submit(pool.close)
        time.sleep(0.2)
        assert not closing.done()
        assert not pool._pool._http._client.is_closed
        pools.let_go("return")
        returning.result(PATIENCE_S)
        closing.result(PATIENCE_S)
    assert pool._pool._http._client.is_closed
    assert (pools.leased, pools.count("return")) == ({}, 1)


def interrupt_when(what: str, is_so: Callable[[], Any], after: Callable[[], Any]) -> threading.Thread:
    """Interrupts the main thread once something is so, and does something else a little later."""

    def interrupting() -> None:
        soon(what, is_so)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.1)
        after()

    thread = threading.Thread(target=interrupting, daemon=True)
    thread.start()
    return thread


def test_a_return_that_is_interrupted_is_made_up_for(pools: FakePools) -> None:
    with SyncPool(pools.url, "key") as pool:
        box = pool.checkout().take()
        pools.keep_back("return")
        thread = interrupt_when(
            "it is being returned", lambda: pools.count("return") == 1, lambda: pools.let_go("return")
        )
        with pytest.raises(KeyboardInterrupt):
            box.release()
    thread.join(PATIENCE_S)
    assert (pools.leased, pools.count("return")) == ({}, 1)


def test_a_checkout_that_is_interrupted_leaves_nothing(pools: FakePools) -> None:
    with SyncPool(pools.url, "key") as pool:
        pools.keep_back("checkout")
        thread = interrupt_when(
            "it waits", lambda: pools.count("checkout") == 1, lambda: pools.let_go("checkout")
        )
        with pytest.raises(KeyboardInterrupt):
            pool.checkout(renew=False).take()
        thread.join(PATIENCE_S)
        soon("it is given up", lambda: pools.leased == {} and pools.count("abandon") == 1)


def test_lease_of_a_cancelled_checkout_is_returned(pools: FakePools) -> None:
    with SyncPool(pools.url, "key") as pool:
        checkout = pool.checkout(renew=False)
        wait = pool._loop.wait

        def interrupted(begun: Any) -> Any:
            pool._loop.wait = wait  # type: ignore[method-assign]
            wait(begun)
            raise KeyboardInterrupt

        pool._loop.wait = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            checkout.take()
        assert (pools.leased, pools.count("return")) == ({}, 1)


def test_closing_the_pool_cancels_waiting_checkouts(pools: FakePools) -> None:
    with ThreadPoolExecutor(1) as threads:
        pool = SyncPool(pools.url, "key")
        pools.keep_back("checkout")
        late = threads.submit(pool.checkout().take)
        soon("it waits", lambda: pools.count("checkout") == 1)
        pool.close()
        pools.let_go("checkout")
        with pytest.raises(RuntimeError, match="the pool was closed"):
            late.result(PATIENCE_S)
    soon("it is given up", lambda: pools.leased == {})
    assert (pools.count("checkout"), pools.count("abandon")) == (1, 1)
    assert pool._pool._http._client.is_closed
    assert pool._pool._http._waiting.is_closed


async def test_a_lease_that_comes_while_the_pool_is_closed_goes_back(
    pools: FakePools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(pools.url, "key")
    send = pool._http.send
    closing: list[asyncio.Task[None]] = []

    async def answered(call: Any) -> httpx.Response:
        response = await send(call)
        if call.method == "POST":
            closing.append(asyncio.create_task(pool.aclose()))
        return response

    monkeypatch.setattr(pool._http, "send", answered)
    with pytest.raises(RuntimeError, match="the pool was closed"):
        await pool.checkout()
    await closing[0]
    assert (pools.leased, pools.count("return")) == ({}, 1)


# More would be needed than a test should open.
FEW = httpx.Limits(max_connections=2)


async def test_waiting_checkouts_block_no_other_request(
    pools: FakePools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_LIMITS", FEW)
    async with Pool(pools.url, "key", timeout=2, retries=0) as pool:
        box = await pool.checkout()
        pools.keep_back("checkout")
        waiting = [asyncio.create_task(pool.checkout(wait=60)._take()) for _ in range(4)]
        await eventually("as many wait as can", lambda: pools.count("checkout") == 3)
        await box.renew()
        await asyncio.wait_for(box.exec(["true"]), PATIENCE_S)
        await box.release()
        assert pools.count("return") == 1
        # A cancelled checkout frees its place, at the server too.
        for task in waiting[:3]:
            task.cancel()
        await asyncio.gather(*waiting[:3], return_exceptions=True)
        pools.let_go("checkout")
        await (await waiting[3]).release()
        boxes = [await pool.checkout() for _ in range(3)]
        assert pools.count("renew") == 1
        del boxes
    assert pools.leased == {}


def test_waiting_checkouts_of_threads_block_no_other_request(
    pools: FakePools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_LIMITS", FEW)
    with ThreadPoolExecutor(3) as threads, SyncPool(pools.url, "key", timeout=2, retries=0) as pool:
        box = pool.checkout().take()
        pools.keep_back("checkout")
        waiting = [threads.submit(pool.checkout(wait=60).take) for _ in range(3)]
        try:
            soon("as many wait as can", lambda: pools.count("checkout") == 3)
            box.renew()
            assert threads_answer(lambda: box.exec(["true"]))
            box.release()
            assert pools.count("return") == 1
        finally:
            pools.let_go("checkout")
            for task in waiting:
                task.result(PATIENCE_S).release()
    assert pools.leased == {}


def threads_answer(asking: Callable[[], object]) -> bool:
    """Whether something is done in time."""
    thread = threading.Thread(target=asking, daemon=True)
    thread.start()
    thread.join(PATIENCE_S / 4)
    return not thread.is_alive()


@pytest.mark.parametrize("refusal", ["queue_full", "shutting_down"])
async def test_a_checkout_that_was_cut_off_is_given_up_whatever_comes_after(
    pools: FakePools, refusal: str
) -> None:
    async with Pool(pools.url, "key", retries=1) as pool:
        pools.faults["checkout"].extend([CUT, refusal])
        with pytest.raises(Exception, match=refusal):
            await pool.checkout()
        await eventually("it is given up", lambda: pools.leased == {})
        assert (pools.count("checkout"), pools.count("abandon")) == (2, 1)
        # What was refused, and nothing before it, left nothing.
        pools.faults["checkout"].append("queue_full")
        with pytest.raises(PoolExhausted):
            await pool.checkout()
    assert pools.count("abandon") == 1


@pytest.mark.parametrize("refusal", ["queue_full", "shutting_down"])
def test_a_checkout_of_a_thread_that_was_cut_off_is_given_up(pools: FakePools, refusal: str) -> None:
    with SyncPool(pools.url, "key", retries=1) as pool:
        pools.faults["checkout"].extend([CUT, refusal])
        with pytest.raises(Exception, match=refusal):
            pool.checkout().take()
        assert (pools.leased, pools.count("checkout"), pools.count("abandon")) == ({}, 2, 1)
        pools.faults["checkout"].append("queue_full")
        with pytest.raises(PoolExhausted):
            pool.checkout().take()
    assert pools.count("abandon") == 1


async def test_a_renewal_is_for_as_long_as_at_first(pools: FakePools) -> None:
    async with Pool(pools.url, "key") as pool:
        async with pool.checkout(ttl=60, renew=False) as box:
            await box.renew()
            await box.renew(ttl=7200)
        async with pool.checkout(renew=False) as box:
            await box.renew()
    assert pools.bodies("renew") == [{"ttl_s": 60}, {"ttl_s": 7200}, {}]


def test_a_renewal_by_a_thread_is_for_as_long_as_at_first(pools: FakePools) -> None:
    with SyncPool(pools.url, "key") as pool:
        with pool.checkout(ttl=60, renew=False) as box:
            box.renew()
            box.renew(ttl=7200)
        with pool.checkout(renew=False) as box:
            box.renew()
    assert pools.bodies("renew") == [{"ttl_s": 60}, {"ttl_s": 7200}, {}]


async def test_a_box_that_was_renewed_says_how_it_was_come_by(pools: FakePools) -> None:
    async with Pool(pools.url, "key") as pool:
        async with pool.checkout(renew=False) as box:
            await box.renew()
            assert box.path == "fast"
        async with pool.checkout(ttl=1) as box:
            first = box.expires_at
            await eventually("it was renewed", lambda: box.expires_at != first)
            assert box.path == "fast"
    assert pools.bodies("renew")[1] == {"ttl_s": 1}


def test_a_box_of_a_thread_that_was_renewed_says_how_it_was_come_by(pools: FakePools) -> None:
    with SyncPool(pools.url, "key") as pool:
        with pool.checkout(renew=False) as box:
            box.renew()
            assert box.path == "fast"
        with pool.checkout(ttl=1) as box:
            first = box.expires_at
            soon("it was renewed", lambda: box.expires_at != first)
            assert box.path == "fast"
    assert pools.bodies("renew")[1] == {"ttl_s": 1}


def test_threads_that_return_it_at_once_return_it_once(pools: FakePools) -> None:
    with SyncPool(pools.url, "key") as pool, ThreadPoolExecutor(8) as threads:
        for n in range(10):
            box = pool.checkout().take()
            for task in [threads.submit(box.release) for _ in range(8)]:
                task.result(PATIENCE_S)
            soon("it is returned", lambda: pools.leased == {})
            assert pools.count("return") == n + 1


def test_pools_that_are_closed_at_any_moment_leave_nothing(pools: FakePools) -> None:
    for n in range(20):
        pool = SyncPool(pools.url, "key")

        def whole(pool: SyncPool = pool) -> None:
            with pool.checkout():
                pass

        with ThreadPoolExecutor(8) as threads:
            running = [threads.submit(whole) for _ in range(8)]
            time.sleep(0.002 * n)
            pool.close()
            for task in running:
                # A late caller gets an error, and nothing else fails.
                error = task.exception(PATIENCE_S)
                assert error is None or "the pool" in str(error)
        assert pools.leased == {}
