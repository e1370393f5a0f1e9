"""Secrets of a key, or of the node, for coroutines."""

from __future__ import annotations

from . import _calls as calls
from ._http import Http
from ._types import Secret

# A class that has a method `list` cannot call its answer so.
_Secrets = list[Secret]


class Secrets:
    """Secrets that are stored at the server. A value can be stored and never be read back.

    They belong to the key of the pool. With ``node`` they are those of the node, which all keys may use and
    only an admin key may see and change.
    """

    def __init__(self, http: Http) -> None:
        self._http = http

    async def put(self, name: str, value: str, *, node: bool = False) -> Secret:
        """Stores a secret, in place of the one of this name."""
        return calls.secret_of(await self._http.send(calls.put_secret(name, value, node)))

    async def list(self, *, node: bool = False) -> _Secrets:
        """Lists secrets by name, without their values."""
        return calls.secrets_of(await self._http.send(calls.list_secrets(node)))

    async def remove(self, name: str, *, node: bool = False) -> None:
        """Removes a secret. Sandboxes that have its value keep it."""
        await self._http.send(calls.remove_secret(name, node))
