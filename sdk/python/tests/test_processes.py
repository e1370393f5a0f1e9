"""Processes that run on: started, read, only looked at, and stopped."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from conftest import PATIENCE_S, eventually
from shoal_sandbox import Pool, ShoalError, SyncPool
from shoal_sandbox import _calls as calls

TIRED = {"name": "tired", "freeze_after_ms": 500, "pool": {"pool_size": 0, "max_overflow": 2}}


async def test_a_process_is_started_read_and_stopped(pool: Pool) -> None:
    async with pool.checkout("default") as box:
        line = "echo out; echo err >&2; echo $TEAM; exec sleep 600"
        made = await box.processes.start(line, name="job", env={"TEAM": "blue"}, keep_alive=True, timeout=60)
        assert (made.name, made.running, made.keep_alive) == ("job", True, True)
        log = await box.processes.logs("job")
        deadline = time.monotonic() + PATIENCE_S
        while "blue" not in log.stdout:
            assert time.monotonic() < deadline, log
            log = await box.processes.logs("job")
        assert (log.stdout, log.stderr, log.over) == ("out\nblue\n", "err\n", False)
        rest = await box.processes.logs("job", offset=log.next_offset)
        assert rest.output == ""
        assert [one.id for one in await box.processes.list(running=True)] == [made.id]
        stopped = await box.processes.stop(made.id)
        assert (stopped.status, stopped.reason) == ("stopped", "stopped")
        assert await box.processes.list(running=True) == []
        assert (await box.processes.get(str(made.pid))).ended_at is not None
        with pytest.raises(ShoalError) as refused:
            await box.processes.get("nothing")
        assert refused.value.code == "process_unknown"


async def test_a_read_that_only_observes_keeps_no_sandbox_awake(pool: Pool, admin: httpx.Client) -> None:
    assert admin.put("/v1/templates/tired", json=TIRED).is_success
    async with pool.checkout("tired") as box:
        await box.processes.start(["sleep", "600"], name="job")

        def frozen() -> Any:
            return admin.get(f"/v1/sandboxes/{box.sandbox_id}/status").json()["frozen"]

        await eventually("an idle sandbox is frozen", frozen)
        await box.processes.get("job", observe=True)
        await box.processes.list(observe=True)
        await box.processes.logs("job", observe=True)
        assert frozen(), "it was only looked at"
        await box.processes.get("job")
        assert not frozen(), "a read without observe is a use"


def test_processes_are_the_same_for_threads(sync_pool: SyncPool) -> None:
    with sync_pool.checkout("default") as box:
        made = box.processes.start(["sh", "-c", "echo hi; exec sleep 600"], name="job")
        assert box.processes.get("job").id == made.id
        assert [one.name for one in box.processes.list()] == ["job"]
        deadline = time.monotonic() + PATIENCE_S
        while box.processes.logs("job", observe=True).output != "hi\n":
            assert time.monotonic() < deadline
        assert not box.processes.stop("job").running


def test_a_name_of_a_process_cannot_leave_its_place() -> None:
    call = calls.read_process("S", "a/../b?c", True)
    assert call.path == "/v1/sandboxes/S/processes/a%2F..%2Fb%3Fc"
    assert call.query == {"observe": "true"}
    assert calls.read_process("S", "a", False).query == {}
