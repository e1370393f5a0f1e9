"""Sandboxes of a real server, for coroutines."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import httpx
import pytest

from conftest import KEY, URL, eventually, leased, until_nothing_is_leased
from shoal_sandbox import (
    CheckoutTimeout,
    LaunchError,
    LeaseLost,
    NotAllowed,
    PathNotFound,
    Pool,
    PoolExhausted,
    ProgramFailed,
    ReadyTimeout,
    SandboxCrashed,
    ShoalError,
    UnknownTemplate,
)


async def test_the_example_of_the_guide(nothing_left: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_URL", URL)
    monkeypatch.setenv("SHOAL_API_KEY", KEY)
    async with Pool() as pool, pool.checkout("default") as box:
        result = await box.run("print(1)")
    assert (result.output, result.exit_code, result.ok) == ("1\n", 0, True)


async def test_a_box_says_what_it_is(pool: Pool) -> None:
    await pool.startup(["default"])
    async with pool.checkout("default", labels={"of": "tests"}) as box:
        assert box.container_id[:12]
        assert box.use_count >= 1
        assert box.template == "default"
        assert box.path in ("fast", "overflow", "blocked")
        assert box.expires_at is not None
        before = box.expires_at
        await box.renew(ttl=7200)
        assert box.expires_at > before
        assert box.sandbox_id in repr(box)
    await box.release()


async def test_programs(pool: Pool) -> None:
    async with pool.checkout(env={"GIVEN": "here"}) as box:
        script = "import os, sys; print(os.environ['GIVEN'], os.environ['MORE'], sys.argv[1:], input())"
        ran = await box.run(script, "a", "b c", env={"MORE": "too"}, stdin="typed\n")
        assert ran.stdout == "here too ['a', 'b c'] typed\n"
        assert (await box.exec(["echo", "-n", "one"])).stdout == "one"
        assert (await box.exec("echo $((1 + 1)) | cat; echo no >&2; exit 3", cwd="/")).output == "2\nno\n"
        raw = await box.exec(["cat"], stdin=bytes(range(256)))
        assert raw.stdout_bytes == bytes(range(256))
        long = "x = '" + "y" * 300_000 + "'\nprint(len(x))"
        assert (await box.run(long)).stdout == "300000\n"


async def test_a_program_that_ends_badly_is_a_result(pool: Pool) -> None:
    async with pool.checkout() as box:
        failed = await box.run("raise SystemExit('no luck')")
        assert (failed.exit_code, failed.ok, failed.timed_out) == (1, False, False)
        with pytest.raises(ProgramFailed, match="no luck"):
            failed.check()
        late = await box.run("import time; print('begun', flush=True); time.sleep(60)", timeout=0.5)
        assert late.timed_out
        assert late.signal == "SIGKILL"
        assert late.stdout == "begun\n"
        with pytest.raises(RuntimeError, match="killed at its timeout"):
            late.check()
        assert (await box.run("print(2)")).check().stdout == "2\n"


async def test_files(pool: Pool) -> None:
    async with pool.checkout() as box:
        files = box.files
        await files.write("a.txt", "grün")
        await files.write("/workspace/sub/b.bin", bytes(1000), mode=0o600)
        assert await files.read_text("a.txt") == "grün"
        assert await files.read("sub/b.bin") == bytes(1000)
        assert [entry.name for entry in await files.list()] == ["a.txt", "sub"]
        assert (await files.stat("sub/b.bin")).mode == 0o600
        assert (await files.stat("sub")).is_dir
        await files.make_directory("many")
        await box.exec("cd many && seq 1 2500 | xargs touch")
        assert len(await files.list("many")) == 2500
        with pytest.raises(ShoalError):
            await files.remove("many")
        await files.remove("many", recursive=True)
        await files.remove("a.txt")
        with pytest.raises(PathNotFound) as told:
            await files.read("a.txt")
        assert isinstance(told.value, FileNotFoundError)
        assert told.value.status == 404


async def test_files_of_one_lease_are_gone_in_the_next(pool: Pool) -> None:
    async with pool.checkout("scarce") as box:
        await box.files.write("secret", "mine")
        first = box.sandbox_id
    async with pool.checkout("scarce") as box:
        assert box.sandbox_id != first
        assert await box.files.list() == []


async def test_an_exception_in_the_body_returns_it(pool: Pool, admin: httpx.Client) -> None:
    for error in (KeyError("x"), KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with pool.checkout() as box:
                await box.run("print(1)")
                raise error
        until_nothing_is_leased(admin)


async def test_a_template_that_is_not_served(pool: Pool) -> None:
    for asking in (pool.startup(["nosuch"]), pool.checkout("nosuch").__aenter__()):
        with pytest.raises(ValueError, match="nosuch") as told:
            await asking
        error = told.value
        assert isinstance(error, UnknownTemplate)
        assert (error.code, error.status, error.retryable) == ("template_unknown", 404, False)
        assert error.remedy
        assert error.request_id


async def test_a_pool_that_is_exhausted(pool: Pool) -> None:
    async with pool.checkout("scarce"):
        for policy in ("fail_fast", "idle_only"):
            with pytest.raises(PoolExhausted) as told:
                await pool.checkout("scarce", policy=policy)
            assert told.value.retryable
        with pytest.raises(asyncio.TimeoutError) as late:
            await pool.checkout("scarce", wait=0.2)
        assert isinstance(late.value, CheckoutTimeout)
        waiting = asyncio.create_task(pool.checkout("scarce", wait=30)._take())
        await asyncio.sleep(0.1)
        assert not waiting.done()
    box = await waiting
    assert box.path == "blocked"
    await box.release()


async def test_a_sandbox_that_cannot_be_started(pool: Pool) -> None:
    with pytest.raises(RuntimeError) as told:
        await pool.checkout("broken")
    assert isinstance(told.value, LaunchError)
    assert told.value.code == "launch_failed"
    with pytest.raises(asyncio.TimeoutError) as late:
        await pool.checkout("silent")
    assert isinstance(late.value, ReadyTimeout)


async def test_a_sandbox_that_is_killed_in_the_middle(pool: Pool, admin: httpx.Client) -> None:
    async with pool.checkout() as box:
        running = asyncio.create_task(box.run("import time; print(1, flush=True); time.sleep(60)"))
        path = f"/v1/sandboxes/{box.sandbox_id}"
        await eventually("it runs", lambda: admin.get(path).json()["state"] == "running")
        assert admin.delete(path).is_success
        with pytest.raises(EOFError) as told:
            await asyncio.wait_for(running, 30)
        assert isinstance(told.value, SandboxCrashed)
        with pytest.raises(EOFError):
            await box.run("print(1)")


async def test_leases_are_renewed_while_they_are_held(pool: Pool, admin: httpx.Client) -> None:
    async with pool.checkout(ttl=1) as box:
        await asyncio.sleep(2.5)
        assert (await box.run("print(1)")).ok
    async with pool.checkout(ttl=1, renew=False) as box:
        await asyncio.sleep(1.5)
        with pytest.raises(EOFError):
            await box.run("print(1)")
        with pytest.raises(LeaseLost):
            await box.renew()
    # A box without references is not kept.
    box = await pool.checkout(ttl=1)
    del box
    gc.collect()
    await eventually("it is returned", lambda: leased(admin) == 0)


async def test_closing_returns_what_is_still_had(admin: httpx.Client) -> None:
    pool = Pool(URL, KEY)
    boxes = [await pool.checkout() for _ in range(3)]
    assert leased(admin) == 3
    await pool.shutdown()
    assert leased(admin) == 0
    await asyncio.gather(*(box.release() for box in boxes))
    with pytest.raises(RuntimeError):
        await pool.checkout()


async def test_fifty_at_once(pool: Pool) -> None:
    async def one(n: int) -> str:
        async with pool.checkout(wait=60) as box:
            return (await box.run(f"print({n})")).stdout

    answers = await asyncio.gather(*(one(n) for n in range(50)))
    assert answers == [f"{n}\n" for n in range(50)]


async def test_a_lease_is_returned_once(pool: Pool, admin: httpx.Client, monkeypatch: Any) -> None:
    sent: list[str] = []
    send = pool._http.send

    async def counted(call: Any) -> httpx.Response:
        if call.method == "DELETE":
            sent.append(call.path)
        return await send(call)

    monkeypatch.setattr(pool._http, "send", counted)
    async with pool.checkout() as box:
        await asyncio.gather(box.release(), box.release())
    assert sent == [f"/v1/checkouts/{box.lease}"]
    with pytest.raises(RuntimeError):
        checkout = pool.checkout()
        async with checkout:
            await checkout


async def test_keys(nothing_left: httpx.Client) -> None:
    async with Pool(URL, "shoal_wrong") as pool:
        with pytest.raises(NotAllowed) as told:
            await pool.checkout()
        assert isinstance(told.value, PermissionError)
    async with Pool("http://127.0.0.1:9", KEY, retries=1) as nowhere:
        with pytest.raises(ConnectionError):
            await nowhere.checkout()
