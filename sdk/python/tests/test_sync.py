"""The same for threads."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from conftest import KEY, PATIENCE_S, URL, leased, until_nothing_is_leased
from shoal_sandbox import (
    CheckoutTimeout,
    HarnessEnded,
    LaunchError,
    NoHarness,
    PoolExhausted,
    SandboxCrashed,
    SyncPool,
    UnknownTemplate,
)


def test_programs_and_files(sync_pool: SyncPool) -> None:
    sync_pool.startup(["default"])
    with sync_pool.checkout("default", env={"GIVEN": "here"}) as box:
        assert box.run("import os; print(os.environ['GIVEN'])").check().output == "here\n"
        assert box.exec(["echo", "-n", "one"]).stdout == "one"
        assert box.exec("exit 3").exit_code == 3
        assert box.run("import time; time.sleep(60)", timeout=0.3).timed_out
        box.files.write("a/b.txt", "text")
        assert box.files.read_text("a/b.txt") == "text"
        assert [entry.name for entry in box.files.list()] == ["a"]
        box.files.make_directory("c")
        assert box.files.stat("c").is_dir
        box.files.remove("a", recursive=True)
        assert box.container_id[:12]
        assert box.use_count >= 1
        box.renew()
    box.release()


def test_whatever_ends_the_body_returns_it(sync_pool: SyncPool, admin: httpx.Client) -> None:
    for error in (KeyError("x"), KeyboardInterrupt(), SystemExit(1)):
        with pytest.raises(type(error)), sync_pool.checkout() as box:
            box.run("print(1)")
            raise error
        assert leased(admin) == 0


def test_sync_errors(sync_pool: SyncPool) -> None:
    with pytest.raises(UnknownTemplate) as unknown:
        sync_pool.checkout("nosuch").take()
    assert isinstance(unknown.value, ValueError)
    with sync_pool.checkout("scarce"):
        with pytest.raises(PoolExhausted):
            sync_pool.checkout("scarce", policy="fail_fast").take()
        with pytest.raises(CheckoutTimeout) as late:
            sync_pool.checkout("scarce", wait=0.2).take()
        assert isinstance(late.value, asyncio.TimeoutError)
    with pytest.raises(LaunchError) as broken:
        sync_pool.checkout("broken").take()
    assert isinstance(broken.value, RuntimeError)


def test_a_sandbox_that_is_killed_in_the_middle(sync_pool: SyncPool, admin: httpx.Client) -> None:
    with sync_pool.checkout() as box, ThreadPoolExecutor(1) as threads:
        running = threads.submit(box.run, "import time; time.sleep(60)")
        path = f"/v1/sandboxes/{box.sandbox_id}"
        deadline = time.monotonic() + PATIENCE_S
        while admin.get(path).json()["state"] != "running":
            assert time.monotonic() < deadline
        assert admin.delete(path).is_success
        with pytest.raises(EOFError) as told:
            running.result(PATIENCE_S)
        assert isinstance(told.value, SandboxCrashed)


def test_an_interrupt_while_waiting_in_line_leaves_nothing(sync_pool: SyncPool, admin: httpx.Client) -> None:
    wait = sync_pool._loop.wait

    def interrupted(begun: Any) -> Any:
        # The answer came, and no caller took it.
        sync_pool._loop.wait = wait  # type: ignore[method-assign]
        wait(begun)
        raise KeyboardInterrupt

    sync_pool._loop.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        sync_pool.checkout().take()
    assert leased(admin) == 0


def test_leases_are_renewed_while_they_are_held(sync_pool: SyncPool, admin: httpx.Client) -> None:
    with sync_pool.checkout(ttl=1) as box:
        time.sleep(2.5)
        assert box.run("print(1)").ok
    with sync_pool.checkout(ttl=1, renew=False) as box:
        time.sleep(1.5)
        with pytest.raises(EOFError):
            box.run("print(1)")
    box = sync_pool.checkout(ttl=1).take()
    del box
    gc.collect()
    until_nothing_is_leased(admin)


def test_closing_returns_what_is_still_had_and_ends_the_thread(admin: httpx.Client) -> None:
    pool = SyncPool(URL, KEY)
    boxes = [pool.checkout().take() for _ in range(3)]
    pool.shutdown()
    assert leased(admin) == 0
    for box in boxes:
        box.release()
    assert not [thread for thread in threading.enumerate() if thread.name == "shoal-sandbox"]
    with pytest.raises(RuntimeError):
        pool.checkout().take()


def test_fifty_at_once(sync_pool: SyncPool) -> None:
    def one(n: int) -> str:
        with sync_pool.checkout(wait=60) as box:
            return box.run(f"print({n})").stdout

    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(one, range(50))) == [f"{n}\n" for n in range(50)]


def test_lines_of_a_harness(sync_pool: SyncPool) -> None:
    with sync_pool.checkout("talks", env={"TOKEN": "mine"}) as box:
        box.stdin_pipe.write('{"say": 1}\n{"env": "TOK')
        box.stdin_pipe.write('EN"}\n')
        box.stdin_pipe.drain()
        assert json.loads(box.stdout_pipe.readline(timeout=30)) == {"heard": {"say": 1}}
        assert json.loads(box.stdout_pipe.readline(timeout=30)) == {"env": "mine"}
        with pytest.raises(asyncio.TimeoutError):
            box.stdout_pipe.readline(timeout=0.2)
        box.stdin_pipe.write_line({"count": 500})
        read = [json.loads(box.stdout_pipe.readline(timeout=30))["n"] for _ in range(500)]
        assert read == list(range(500))
        box.stdin_pipe.write_line({"exit": 4})
        with pytest.raises(EOFError) as told:
            box.stdout_pipe.readline(timeout=30)
        assert isinstance(told.value, HarnessEnded)
        assert "code 4" in told.value.cause
    with sync_pool.checkout("default") as box, pytest.raises(NoHarness):
        box.stdin_pipe.write_line({})


def test_a_harness_goes_with_its_sandbox(sync_pool: SyncPool, admin: httpx.Client) -> None:
    with sync_pool.checkout("talks") as box:
        box.stdin_pipe.write_line({"say": 1})
        box.stdout_pipe.readline(timeout=30)
        assert admin.delete(f"/v1/sandboxes/{box.sandbox_id}").is_success
        with pytest.raises(EOFError) as told:
            box.stdout_pipe.readline(timeout=30)
        assert isinstance(told.value, SandboxCrashed)


def test_a_pool_that_is_closed_in_the_middle_leaves_nothing(admin: httpx.Client) -> None:
    for n in range(5):
        pool = SyncPool(URL, KEY)

        def one(pool: SyncPool = pool) -> None:
            with pool.checkout(wait=1) as box:
                box.run("print(1)")

        with ThreadPoolExecutor(8) as threads:
            running = [threads.submit(one) for _ in range(8)]
            time.sleep(0.02 * n)
            pool.close()
            # A late caller gets an error in every case.
            for task in running:
                task.exception(PATIENCE_S)
        until_nothing_is_leased(admin)
