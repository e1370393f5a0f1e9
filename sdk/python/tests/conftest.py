"""A real server, which scripts/python-sdk.sh starts, and templates of each kind that the tests need."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from shoal_sandbox import Pool, SyncPool

URL = os.environ.get("SHOAL_URL", "")
KEY = os.environ.get("SHOAL_API_KEY", "")
PATIENCE_S = 30.0

# Says every line again, prints what looks like an answer beside it, and does some things on demand.
HARNESS = r"""
import json, os, sys, time
channel = os.fdopen(int(os.environ["SHOAL_HARNESS_FD"]), "r+b", buffering=0)
def say(value):
    channel.write(json.dumps(value).encode() + b"\n")
say({"type": "ready", "protocol": 1})
lines = os.fdopen(os.dup(channel.fileno()), "rb")
for line in lines:
    print(json.dumps({"heard": "forged"}), flush=True)
    asked = json.loads(line)
    if "count" in asked:
        for n in range(asked["count"]):
            say({"n": n})
    elif "exit" in asked:
        print("last words", file=sys.stderr, flush=True)
        os._exit(asked["exit"])
    elif "env" in asked:
        say({"env": os.environ.get(asked["env"])})
    elif "long" in asked:
        say("x" * asked["long"])
    else:
        say({"heard": asked})
"""


def _template(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def _jsonl(code: str, prewarm: bool) -> dict[str, Any]:
    return {"jsonl": {"command": ["python3", "-c", code], "prewarm": prewarm}}


TEMPLATES = [
    _template("talks", harness=_jsonl(HARNESS, False), pool={"pool_size": 1, "max_overflow": 10}),
    _template("ready", harness=_jsonl(HARNESS, True), pool={"pool_size": 1, "max_overflow": 10}),
    _template("scarce", pool={"pool_size": 1, "max_overflow": 0}),
    _template(
        "broken",
        harness={"jsonl": {"command": ["/nothing/here"], "prewarm": True}},
        pool={"pool_size": 0, "max_overflow": 2},
    ),
    _template(
        "silent",
        harness=_jsonl("import time; time.sleep(60)", True),
        ready_timeout_ms=300,
        pool={"pool_size": 0, "max_overflow": 2},
    ),
]


@pytest.fixture(scope="session")
def admin() -> Iterator[httpx.Client]:
    """The server's own words."""
    if not URL:
        pytest.fail("SHOAL_URL names no server: run scripts/python-sdk.sh")
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=URL, headers=headers, timeout=PATIENCE_S, trust_env=False) as client:
        for template in TEMPLATES:
            name = template["name"]
            made = client.put(f"/v1/templates/{name}", json=template)
            assert made.is_success, made.text
        yield client


def leased(admin: httpx.Client) -> int:
    """How many sandboxes are checked out."""
    pools = admin.get("/v1/pools").json()["pools"]
    return sum(pool["leased"] + pool["waiters"] for pool in pools)


def until_nothing_is_leased(admin: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (left := leased(admin)) > 0:
        assert time.monotonic() < deadline, f"{left} leases are left"
        time.sleep(0.02)


@pytest.fixture
def nothing_left(admin: httpx.Client) -> Iterator[httpx.Client]:
    """Whatever the test does, nothing is leased after it."""
    yield admin
    until_nothing_is_leased(admin)


@pytest.fixture
async def pool(nothing_left: httpx.Client) -> AsyncIterator[Pool]:
    async with Pool(URL, KEY) as pool:
        yield pool


@pytest.fixture
def sync_pool(nothing_left: httpx.Client) -> Iterator[SyncPool]:
    with SyncPool(URL, KEY) as pool:
        yield pool


async def eventually(what: str, is_so: Any) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"never so: {what}"
        await asyncio.sleep(0.02)
