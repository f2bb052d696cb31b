"""Origin checks for web pages that reach the broker through a browser.

A browser sends a page's origin with every WebSocket request, and any page that its user opens can
make one, from the user's own machine. Other programs send none. Only the origin tells pages apart;
a program that is not a browser can claim any, and gains nothing by it.

Sources: RFC 6454, RFC 6455 section 10.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class PageOrigin(Enum):
    """Kind of page that an Origin header indicates."""

    NONE = "none"
    """A program: there is no page."""
    NAMED = "named"
    """A page whose origin the settings name in full."""
    LOCAL = "local"
    """A page of the request's own origin, by a name that only this machine has."""
    SAME = "same"
    """A page of the request's own origin, by a DNS name, which may point anywhere at any time."""
    FOREIGN = "foreign"
    """A page from elsewhere."""


def origin_allowed(origin: str, allowed: Sequence[str]) -> bool:
    """Return whether the settings allow a page served by ``origin``.

    An entry is an origin in full (``https://app.example.com``), compared without regard to case,
    ``*.domain``, which stands for every host below that domain with any scheme and port, or ``*``
    for all.
    """
    origin = origin.lower()
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return False
    for entry in allowed:
        entry = entry.lower()
        if entry in ("*", origin):
            return True
        if entry.startswith("*.") and host.endswith(entry[1:]) and len(host) >= len(entry):
            return True
    return False


def page_of(
    origins: Sequence[str], hosts: Sequence[str], allowed: Sequence[str]
) -> PageOrigin | None:
    """Judge a request by its Origin and Host headers; return None when its page may not connect.

    Without ``allowed`` only pages of the request's own origin may.
    """
    if not origins:
        return PageOrigin.NONE
    if len(origins) > 1:
        return None
    origin = origins[0]
    if origin.lower() in [entry.lower() for entry in allowed]:
        return PageOrigin.NAMED
    same = _same(origin, hosts)
    if same is None:
        return PageOrigin.FOREIGN if origin_allowed(origin, allowed) else None
    if allowed and not origin_allowed(origin, allowed):
        return None
    return same


def _same(origin: str, hosts: Sequence[str]) -> PageOrigin | None:
    """Return the kind of a page of the request's own origin; None for one of another."""
    if len(hosts) != 1:
        return None
    try:
        page, target = urlsplit(origin), urlsplit(f"//{hosts[0]}")
        default = _PORTS.get(page.scheme)
        here = (target.hostname, target.port or default)
        there = (page.hostname, page.port or default)
    except ValueError:
        return None
    if default is None or not page.hostname or here != there:
        return None
    return PageOrigin.LOCAL if _names_loopback(page.hostname) else PageOrigin.SAME


def _names_loopback(host: str) -> bool:
    """Return whether a URL's host always is the local machine: browsers resolve localhost by
    themselves."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
