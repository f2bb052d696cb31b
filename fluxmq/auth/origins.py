"""Web pages that speak to the broker through a browser: which may, and what their origin says of them.

A browser sends a page's origin with every WebSocket request, and any page that its user opens can make one, from the user's
own machine. Programs that are no browsers send none. The origin is all there is to tell pages apart; whoever is not a
browser can claim any, and gains nothing that it would not have without.

Sources: RFC 6454, RFC 6455 section 10.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class Page(Enum):
    """What an Origin header says of who is speaking."""

    NONE = "none"
    """A program: there is no page."""
    NAMED = "named"
    """A page whose origin the settings name in full."""
    LOCAL = "local"
    """A page of the origin that the request went to, by a name that only this machine has."""
    SAME = "same"
    """A page of the origin that the request went to, by a name of the DNS, which may point anywhere at any time."""
    FOREIGN = "foreign"
    """A page from elsewhere."""


def origin_allowed(origin: str, allowed: Sequence[str]) -> bool:
    """Whether the settings let in a page served by ``origin``.

    An entry is an origin in full (``https://app.example.com``), compared without regard to case, ``*.domain``, which
    stands for every host below that domain with any scheme and port, or ``*`` for all.
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


def page_of(origins: Sequence[str], hosts: Sequence[str], allowed: Sequence[str]) -> Page | None:
    """Judge a request by its Origin and Host headers; None when its page may not connect.

    Without ``allowed`` only pages of the origin that the request went to may.
    """
    if not origins:
        return Page.NONE
    if len(origins) > 1:
        return None
    origin = origins[0]
    if origin.lower() in [entry.lower() for entry in allowed]:
        return Page.NAMED
    same = _same(origin, hosts)
    if same is None:
        return Page.FOREIGN if origin_allowed(origin, allowed) else None
    if allowed and not origin_allowed(origin, allowed):
        return None
    return same


def _same(origin: str, hosts: Sequence[str]) -> Page | None:
    """What a page of the request's own origin is; None for one of another."""
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
    return Page.LOCAL if _names_loopback(page.hostname) else Page.SAME


def _names_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine wherever it is said: browsers resolve localhost by themselves."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
