"""Finds the server and a key for it, the way the command line does.

What is given comes first, then the environment (``SHOAL_URL``, ``SHOAL_API_KEY`` or ``SHOAL_KEY``,
``SHOAL_DATA_DIR``), then the data directory of this machine's server, whose key is never sent to another
machine.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ._errors import InvalidArgument

DEFAULT_URL = "http://127.0.0.1:7600"
_SYSTEM_DATA_DIR = Path("/var/lib/shoal")
_FILE_BYTES_MAX = 4096


@dataclass(frozen=True)
class Server:
    """Where a server is, and the secret of a key for it."""

    url: str
    key: str | None

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def find(
    url: str | None = None, key: str | None = None, data_dir: str | os.PathLike[str] | None = None
) -> Server:
    """The server and its key."""
    directory = Path(data_dir or _set("SHOAL_DATA_DIR") or _default_data_dir())
    named = url or _set("SHOAL_URL")
    written = _lines(directory / "address")
    server = Server(_checked(named or (written[0] if written else DEFAULT_URL)), None)
    key = key or _set("SHOAL_API_KEY") or _set("SHOAL_KEY")
    # What a data directory says is about this machine, whatever its address.
    if key is None and (named is None or server.is_local):
        secret = _lines(directory / (written[1] if len(written) > 1 else "admin.key"))
        key = secret[0] if secret else None
    return Server(server.url, key)


def _set(name: str) -> str | None:
    return os.environ.get(name) or None


def _default_data_dir() -> Path:
    if os.name != "posix" or os.geteuid() == 0:
        return _SYSTEM_DATA_DIR
    for name, beneath in (("XDG_DATA_HOME", "shoal"), ("HOME", ".local/share/shoal")):
        above = Path(os.environ.get(name) or "")
        if above.is_absolute():
            return above / beneath
    return _SYSTEM_DATA_DIR


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES_MAX).decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _checked(url: str) -> str:
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or bool(parts.query)
        wrong = wrong or parts.username is not None or (parts.port is not None and not 0 < parts.port < 65536)
    except ValueError:
        wrong = True
    if wrong:
        remedy = "use an address such as http://127.0.0.1:7600"
        cause = f"{_shown(whole)} is not the address of a server"
        raise InvalidArgument("invalid_argument", cause, remedy=remedy)
    return whole.rstrip("/")


def _shown(url: str) -> str:
    """What may be repeated of an address that is refused: scheme, host and port, but no secret."""
    unnamed = "the given text"
    try:
        parts = urlsplit(url)
    except ValueError:
        return unnamed
    where = parts.netloc.rpartition("@")[2]
    host, _, port = where.rpartition(":")
    # What stands where a port does and is none may be a password whose host was left out.
    if host and not (port.isdecimal() or where.endswith("]")):
        where = host
    # With an @ further on, what looks like a host is the beginning of a name and a password.
    if not where or "@" in parts.path + parts.query + parts.fragment:
        return unnamed
    return repr(f"{parts.scheme}://{where}")
