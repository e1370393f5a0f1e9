"""Sends requests and reads answers, again where no harm can come of it: for coroutines and for threads."""

from __future__ import annotations

import asyncio
import time

import httpx

from ._calls import Attempts, Call, failed, refused
from ._discover import Server

# Callers that wait for a sandbox have a connection each.
_LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=64, keepalive_expiry=30)
_CONNECT_S = 5.0


def _headers(server: Server) -> dict[str, str]:
    headers = {"User-Agent": "shoal-sandbox-python"}
    if server.key is not None:
        headers["Authorization"] = f"Bearer {server.key}"
    return headers


class Http:
    """The connections of an asynchronous pool."""

    def __init__(self, server: Server, timeout_s: float, retries: int) -> None:
        self.server = server
        self._timeout_s = timeout_s
        self._retries = retries
        # A server on this machine is reached without any proxy.
        self._client = httpx.AsyncClient(
            base_url=server.url, headers=_headers(server), limits=_LIMITS, trust_env=not server.is_local
        )

    async def send(self, call: Call) -> httpx.Response:
        """Sends a request; a refusal is raised."""
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = await self._client.request(
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
        await self._client.aclose()


class SyncHttp:
    """The connections of a synchronous pool, which any thread may use."""

    def __init__(self, server: Server, timeout_s: float, retries: int) -> None:
        self.server = server
        self._timeout_s = timeout_s
        self._retries = retries
        self._client = httpx.Client(
            base_url=server.url, headers=_headers(server), limits=_LIMITS, trust_env=not server.is_local
        )

    def send(self, call: Call) -> httpx.Response:
        """Sends a request; a refusal is raised."""
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = self._client.request(
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
            time.sleep(pause_s)

    def close(self) -> None:
        self._client.close()
