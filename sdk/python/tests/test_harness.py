"""Lines to and from a harness, for coroutines."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from conftest import eventually
from shoal_sandbox import (
    HarnessBusy,
    HarnessEnded,
    InvalidArgument,
    LaunchError,
    NoHarness,
    Pool,
    SandboxCrashed,
    Timeout,
)
from shoal_sandbox._pipes import Deadline, Harness


async def heard(box: object) -> object:
    return json.loads(await box.stdout_pipe.readline(timeout=30))  # type: ignore[attr-defined]


@pytest.mark.parametrize("template", ["talks", "ready"])
async def test_harness_lines_go_both_ways_and_other_output_is_no_line(pool: Pool, template: str) -> None:
    async with pool.checkout(template) as box:
        # As with a stream writer: bytes, and then a drain.
        box.stdin_pipe.write(b'{"say": ')
        box.stdin_pipe.write('"gr\u00fcn"}\n{"say": 2}\n')
        await box.stdin_pipe.drain()
        assert await heard(box) == {"heard": {"say": "gr\u00fcn"}}
        assert await heard(box) == {"heard": {"say": 2}}
        await box.stdin_pipe.write_line({"say": "forged"})
        assert await heard(box) == {"heard": {"say": "forged"}}
        with pytest.raises(asyncio.TimeoutError):
            await box.stdout_pipe.readline(timeout=0.2)


@pytest.mark.parametrize("template", ["talks", "ready"])
async def test_harness_has_the_environment_of_the_checkout(pool: Pool, template: str) -> None:
    async with pool.checkout(template, env={"TOKEN": "mine"}) as box:
        await box.stdin_pipe.write_line({"env": "TOKEN"})
        assert await heard(box) == {"env": "mine"}


async def test_waits_that_are_given_up_lose_no_line(pool: Pool) -> None:
    count = 3000
    async with pool.checkout("talks") as box:
        await box.stdin_pipe.write_line({"count": count})
        read: list[int] = []

        async def reading() -> None:
            while len(read) < count:
                read.append(json.loads(await box.stdout_pipe.readline())["n"])

        while len(read) < count:
            task = asyncio.create_task(reading())
            for _ in range(len(read) % 7 + 1):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            try:
                read.append(json.loads(await box.stdout_pipe.readline(timeout=0.001))["n"])
            except Timeout:
                await asyncio.sleep(0.01)
        assert read == list(range(count))


async def test_written_lines_are_sent_even_if_the_wait_is_cancelled(pool: Pool) -> None:
    async with pool.checkout("talks") as box:
        for n in range(20):
            task = asyncio.create_task(box.stdin_pipe.write_line({"say": n}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert [await heard(box) for _ in range(20)] == [{"heard": {"say": n}} for n in range(20)]


async def test_a_line_without_end_is_not_sent(pool: Pool) -> None:
    async with pool.checkout("talks") as box:
        with pytest.raises(InvalidArgument):
            await box.stdin_pipe.write_line("two\nlines")
        with pytest.raises(ValueError, match="at most"):
            await box.stdin_pipe.write_line("x" * ((1 << 20) + 1))
        longest = {"say": "x" * ((1 << 20) - 10)}
        await box.stdin_pipe.write_line(longest)
        assert await heard(box) == {"heard": longest}


async def test_harness_end_has_its_reason(pool: Pool) -> None:
    async with pool.checkout("talks") as box:
        await box.stdin_pipe.write_line({"say": 1})
        await box.stdin_pipe.write_line({"exit": 3})
        assert await heard(box) == {"heard": {"say": 1}}
        for _ in range(2):
            with pytest.raises(EOFError) as told:
                await box.stdout_pipe.readline(timeout=30)
            assert isinstance(told.value, HarnessEnded)
            assert told.value.code == "harness_died"
            assert told.value.cause == "the harness exited with code 3: last words"
        with pytest.raises(EOFError):
            await box.stdin_pipe.write_line({"say": 2})
        assert (await box.run("print('the box is still there')")).ok
    async with pool.checkout("talks") as box:
        await box.stdin_pipe.write_line({"long": 5 << 20})
        with pytest.raises(EOFError) as told:
            await box.stdout_pipe.readline(timeout=30)
        assert told.value.code == "harness_too_large"


async def test_a_sandbox_that_is_gone_is_an_end(pool: Pool, admin: httpx.Client) -> None:
    async with pool.checkout("talks") as box:
        await box.stdin_pipe.write_line({"say": 1})
        await heard(box)
        reading = asyncio.create_task(box.stdout_pipe.readline())
        await asyncio.sleep(0.05)
        assert admin.delete(f"/v1/sandboxes/{box.sandbox_id}").is_success
        with pytest.raises(EOFError) as told:
            await asyncio.wait_for(reading, 30)
        assert isinstance(told.value, SandboxCrashed)
    async with pool.checkout("talks") as box:
        await box.stdin_pipe.write_line({"say": 1})
        await heard(box)
    with pytest.raises(EOFError):
        await box.stdout_pipe.readline(timeout=30)


async def test_harness_has_one_client_at_a_time(pool: Pool, admin: httpx.Client) -> None:
    async with pool.checkout("talks") as box:
        await box.stdin_pipe.write_line({"say": 1})
        second = Harness(pool._http.server, box.sandbox_id)
        with pytest.raises(HarnessBusy) as told:
            await second.open(Deadline(30))
        assert (told.value.status, told.value.retryable) == (409, True)
        reading = asyncio.create_task(box.stdout_pipe.readline())
        await reading
        reading = asyncio.create_task(box.stdout_pipe.readline())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another coroutine"):
            await box.stdout_pipe.readline()
        reading.cancel()
        # Who lets go takes the program along, and the next one gets another.
        await box.stdin_pipe.close()
        third = Harness(pool._http.server, box.sandbox_id)

        async def opened() -> bool:
            try:
                await third.open(Deadline(30))
                return True
            except HarnessBusy:
                return False

        for _ in range(100):
            if await opened():
                break
            await asyncio.sleep(0.05)
        third.out.write_line({"say": 3})
        await third.flush()
        assert json.loads(await third.next(Deadline(30))) == {"heard": {"say": 3}}
        await third.close()
        await second.close()


async def test_templates_without_a_harness(pool: Pool) -> None:
    async with pool.checkout("default") as box:
        with pytest.raises(NoHarness) as told:
            await box.stdout_pipe.readline(timeout=30)
        assert told.value.code == "no_harness"
        assert told.value.remedy
        with pytest.raises(RuntimeError):
            await box.stdin_pipe.write_line("{}")


async def test_a_harness_that_cannot_be_started(pool: Pool, admin: httpx.Client) -> None:
    template = {
        "name": "late",
        "harness": {"jsonl": {"command": ["/nothing/here"]}},
        "pool": {"pool_size": 0, "max_overflow": 2},
    }
    assert admin.put("/v1/templates/late", json=template).is_success
    async with pool.checkout("late") as box:
        for _ in range(2):
            with pytest.raises(RuntimeError) as told:
                await box.stdin_pipe.write_line("{}")
            assert isinstance(told.value, LaunchError)
            assert told.value.code == "harness_failed"


async def test_unread_lines_make_the_harness_wait_and_none_is_lost(pool: Pool) -> None:
    async with pool.checkout("talks") as box:
        for _ in range(12):
            await box.stdin_pipe.write_line({"long": 3 << 20})
        harness = box._held.harness
        await eventually("enough is unread", lambda: harness._unread_bytes > 15 << 20)
        await asyncio.sleep(0.3)
        assert harness._unread_bytes < 24 << 20
        for _ in range(12):
            assert len(await box.stdout_pipe.readline(timeout=60)) == (3 << 20) + 2
