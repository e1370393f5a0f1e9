"""Cancellation at any moment, and connections that break: no lease is left, and none is had twice."""

from __future__ import annotations

import asyncio
import contextlib
import random

import httpx
import pytest

from conftest import KEY, URL, eventually, leased, until_nothing_is_leased
from faulty_proxy import FaultyProxy
from shoal_sandbox import ConnectionFailed, Pool


async def whole(pool: Pool, template: str = "talks") -> None:
    async with pool.checkout(template) as box:
        await box.run("print(1)")
        await box.files.write("a", b"b")
        await box.stdin_pipe.write_line({"say": 1})
        assert '"say"' in await box.stdout_pipe.readline(timeout=30)


async def test_cancelled_at_random_moments(pool: Pool, admin: httpx.Client) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await whole(pool)
    took_s = loop.time() - began
    chance = random.Random(7)
    for _ in range(60):
        task = asyncio.create_task(whole(pool))
        await asyncio.sleep(chance.uniform(0, took_s * 1.1))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await eventually("nothing is leased", lambda: leased(admin) == 0)


async def test_cancelled_at_every_step_of_a_checkout(pool: Pool, admin: httpx.Client) -> None:
    async def short() -> None:
        async with pool.checkout():
            await asyncio.sleep(0)

    for steps in range(120):
        task = asyncio.create_task(short())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await eventually("nothing is leased", lambda: leased(admin) == 0)


async def test_many_cancelled_at_once(pool: Pool, admin: httpx.Client) -> None:
    tasks = [asyncio.create_task(whole(pool, "talks")) for _ in range(30)]
    await asyncio.sleep(0.3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await eventually("nothing is leased", lambda: leased(admin) == 0)


async def test_lease_of_an_unread_answer_is_returned(admin: httpx.Client) -> None:
    async with FaultyProxy(URL) as proxy, Pool(proxy.url, KEY) as pool:
        proxy.hold()
        task = asyncio.create_task(pool.checkout()._take())
        await eventually("the server has answered", lambda: proxy.kept_back == 1)
        assert leased(admin) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.let_go()
        await eventually("it is given back", lambda: leased(admin) == 0)


async def test_cancelled_checkout_leaves_the_queue(pool: Pool, admin: httpx.Client) -> None:
    async with pool.checkout("scarce"):
        waiting = [asyncio.create_task(pool.checkout("scarce", wait=60)._take()) for _ in range(5)]
        await eventually("they wait", lambda: leased(admin) == 6)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await eventually("no checkout waits", lambda: leased(admin) == 1)
    async with pool.checkout("scarce", wait=10):
        pass


async def test_a_return_that_is_cancelled_is_sent_all_the_same(admin: httpx.Client) -> None:
    async with FaultyProxy(URL) as proxy, Pool(proxy.url, KEY) as pool:
        box = await pool.checkout()
        proxy.hold()
        task = asyncio.create_task(box.release())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.let_go()
        await eventually("it is returned", lambda: leased(admin) == 0)


async def test_a_checkout_that_was_cut_off_is_sent_again_and_had_once(admin: httpx.Client) -> None:
    async with FaultyProxy(URL) as proxy, Pool(proxy.url, KEY) as pool:
        proxy.cuts = 2
        async with pool.checkout() as box:
            assert leased(admin) == 1
            assert (await box.run("print(1)")).ok
        assert proxy.connections >= 3
        until_nothing_is_leased(admin)
        # More often than it is tried again: nothing is had, and nothing is left.
        proxy.cuts = 4
        with pytest.raises(ConnectionFailed) as told:
            await pool.checkout()
        assert told.value.retryable
        await eventually("nothing is leased", lambda: leased(admin) == 0)


async def test_a_program_is_never_run_twice(admin: httpx.Client) -> None:
    async with FaultyProxy(URL) as proxy, Pool(proxy.url, KEY) as pool, pool.checkout() as box:
        proxy.cuts = 1
        with pytest.raises(ConnectionFailed) as told:
            await box.exec("echo x >> /workspace/runs")
        assert not told.value.retryable
        assert await box.files.read_text("runs") == "x\n"
    until_nothing_is_leased(admin)


async def test_a_pool_that_is_closed_in_the_middle_leaves_nothing(admin: httpx.Client) -> None:
    for n in range(10):
        pool = Pool(URL, KEY)
        tasks = [asyncio.create_task(whole(pool)) for _ in range(5)]
        await asyncio.sleep(0.02 * n)
        for task in tasks:
            task.cancel()
        closing = asyncio.create_task(pool.aclose())
        await asyncio.sleep(0)
        if n % 2:
            closing.cancel()
        await asyncio.gather(closing, *tasks, return_exceptions=True)
        await pool.aclose()
        assert leased(admin) == 0
