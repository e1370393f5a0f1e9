"""Secrets of a key, or of the node, for threads."""

from __future__ import annotations

from ._loop import Loop
from ._secrets import Secrets
from ._types import Secret

# A class that has a method `list` cannot call its answer so.
_Secrets = list[Secret]


class SyncSecrets:
    """Secrets that are stored at the server. A value can be stored and never be read back.

    They belong to the key of the pool. With ``node`` they are those of the node, which all keys may use and
    only an admin key may see and change.
    """

    def __init__(self, loop: Loop, secrets: Secrets) -> None:
        self._loop = loop
        self._secrets = secrets

    def put(self, name: str, value: str, *, node: bool = False) -> Secret:
        """Stores a secret, in place of the one of this name."""
        return self._loop.run(self._secrets.put(name, value, node=node))

    def list(self, *, node: bool = False) -> _Secrets:
        """Lists secrets by name, without their values."""
        return self._loop.run(self._secrets.list(node=node))

    def remove(self, name: str, *, node: bool = False) -> None:
        """Removes a secret. Sandboxes that have its value keep it."""
        self._loop.run(self._secrets.remove(name, node=node))
