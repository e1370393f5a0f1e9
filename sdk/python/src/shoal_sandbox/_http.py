"""Sends requests and reads answers, with safe retries: for coroutines."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from ._calls import Attempts, Call, failed, refused
from ._discover import Server

# Per kind: waiting checkouts have their own connections, apart from all other requests.
_LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=64, keepalive_expiry=30)
_CONNECT_S = 5.0


def _headers(server: Server) -> dict[str, str]:
    headers = {"User-Agent": "shoal-sandbox-python"}
    if server.key is not None:
        headers["Authorization"] = f"Bearer {server.key}"
    return headers


def _options(server: Server) -> dict[str, Any]:
    """How a server is reached."""
    # One on this machine is reached without any proxy.
    trust_env = not server.is_local
    return {
        "base_url": server.url,
        "headers": _headers(server),
        "limits": _LIMITS,
        "trust_env": trust_env,
        # Made once: that takes longer than everything else.
        "verify": httpx.create_ssl_context(trust_env=trust_env),
    }


class Http:
    """The connections of a pool."""

    def __init__(self, server: Server, timeout_s: float, retries: int) -> None:
        self.server = server
        self._timeout_s = timeout_s
        self._retries = retries
        options = _options(server)
        self._client = httpx.AsyncClient(**options)
        self._waiting = httpx.AsyncClient(**options)

    async def send(self, call: Call) -> httpx.Response:
        """Sends a request; a refusal is raised."""
        attempts = Attempts(call, self._retries)
        client = self._waiting if call.waits else self._client
        while True:
            try:
                response = await client.request(
                    call.method,
                    call.path,
                    content=call.body or None,
                    params=call.query or None,
                    headers=call.headers,
                    timeout=call.timeout(self._timeout_s, _CONNECT_S),
                )
                if response.is_success:
                    return response
                error, sent = refused(response), True
            except httpx.HTTPError as broken:
                error, sent = failed(call, broken)
            pause_s = attempts.pause_after(error, sent)
            if pause_s is None:
                raise error
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        await self._waiting.aclose()
        await self._client.aclose()
