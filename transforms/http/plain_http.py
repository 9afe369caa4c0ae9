"""Keys are sent over https, or within this machine: others can read what http carries."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from urllib.parse import urlsplit

from slicebeam.metrics.errors import InputError

FLAG = "--allow-http"

_allowed = False


def allow(allowed: bool) -> None:
    """Let keys of this process go over http, where the user insists, or no longer."""
    global _allowed  # noqa: PLW0603
    _allowed = allowed


def is_allowed() -> bool:
    """Return whether the user insists on http."""
    return _allowed


def is_loopback(host: str | None) -> bool:
    """Return whether the host of a URL is this machine, without a name server.

    >>> is_loopback("127.8.0.1"), is_loopback("::1"), is_loopback("127.0.0.1.example.org")
    (True, True, False)
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host or "").is_loopback
    return (host or "").lower() == "localhost"


def refuse_plain_http(where: str, url: str, key: str, *, allowed: bool | None = None) -> None:
    """Refuse to send a key over ``http://`` to another machine, unless the user insists.

    ``where`` is the option or file of the URL; ``allowed`` None stands for the setting of this process.
    """
    parts, insists = urlsplit(url), _allowed if allowed is None else allowed
    if insists or parts.scheme.lower() != "http" or is_loopback(parts.hostname):
        return
    raise InputError(
        f"{where}: {key} would be sent to {parts.hostname} over http, where others can read it; write "
        f"https://, or give {FLAG} if you insist"
    )
