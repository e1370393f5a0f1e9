"""Secrets: stored, listed without their values, removed."""

from __future__ import annotations

import pytest

from shoal_sandbox import Pool, Secret, ShoalError, SyncPool
from shoal_sandbox import _calls as calls


async def test_a_secret_is_stored_listed_and_removed(pool: Pool) -> None:
    made = await pool.secrets.put("sdk-token", "hunter2")
    assert (made.name, made.scope, made.bytes) == ("sdk-token", "key", 7)
    again = await pool.secrets.put("sdk-token", "hunter2-ü")
    assert (again.bytes, again.created_at) == (10, made.created_at)
    assert await pool.secrets.list() == [again]
    await pool.secrets.put("sdk-token", "of the node", node=True)
    assert [one.scope for one in await pool.secrets.list(node=True)] == ["node"]
    await pool.secrets.remove("sdk-token", node=True)
    await pool.secrets.remove("sdk-token")
    assert await pool.secrets.list() == []
    with pytest.raises(ShoalError) as refused:
        await pool.secrets.remove("sdk-token")
    assert refused.value.code == "not_found"


def test_secrets_are_the_same_for_threads(sync_pool: SyncPool) -> None:
    made: Secret = sync_pool.secrets.put("sdk-threads", "hunter2")
    assert made in sync_pool.secrets.list()
    sync_pool.secrets.remove("sdk-threads")
    assert made.name not in [one.name for one in sync_pool.secrets.list()]


def test_a_value_is_never_shown_and_a_name_cannot_leave_its_place() -> None:
    call = calls.put_secret("a/../b?c", "hunter2", True)
    assert call.path == "/v1/secrets/a%2F..%2Fb%3Fc"
    assert (call.query, call.repeatable) == ({"scope": "node"}, True)
    assert b"hunter2" in call.body
    assert "hunter2" not in repr(call)
    assert calls.list_secrets(False).query == {}
