"""Admission at one address: connections counted from the moment they are accepted, with a share for
members.

Before its TLS handshake and its greeting a connection has proved nothing; only its source address
is known. So connections from addresses of no configured member have a separate share, of
connections and of pending handshakes, and cannot keep members out. Names of members are resolved at
the start, and again when a stranger is refused: an address may have changed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Iterable
from typing import Final

from fluxmq.cluster import channels

RESOLVE_SECONDS: Final = 10.0
"""Minimum time between two resolutions of the members' names, however many are refused."""


class Visit:
    """An admitted connection. ``known``: from an address of a member."""

    __slots__ = ("_door", "_inside", "_shaking", "known")

    def __init__(self, door: Door, known: bool, shaking: bool) -> None:
        self.known = known
        self._door = door
        self._inside = True
        self._shaking = shaking
        door.count(known, 1, int(shaking))

    def shaken(self) -> None:
        """Note the end of the TLS handshake."""
        if self._shaking:
            self._shaking = False
            self._door.count(self.known, 0, -1)

    def leave(self) -> None:
        """Note the end of the connection."""
        self.shaken()
        if self._inside:
            self._inside = False
            self._door.count(self.known, -1, 0)


class Door:
    """Admits connections within limits. ``inside`` and ``shaking`` count connections and
    handshakes; ``strangers...``: those of no member.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        """``hosts``: addresses and names of the members."""
        self.inside = self.shaking = self.strangers = self.strangers_shaking = 0
        self._addresses: dict[str, frozenset[str]] = {}
        self._names: list[str] = []
        self._resolved = float("-inf")
        self._resolving: asyncio.Task[None] | None = None
        self.follow(hosts)

    def follow(self, hosts: Iterable[str]) -> None:
        """Know these members, and no others. Addresses of names are kept until they are resolved
        again."""
        before, self._addresses, self._names = self._addresses, {}, []
        for host in hosts:
            bare = host.removeprefix("[").removesuffix("]")
            try:
                self._addresses[bare] = frozenset((plain(bare),))
            except ValueError:
                self._names.append(bare)
                self._addresses[bare] = before.get(bare, frozenset())
                if bare not in before:
                    self._resolved = float("-inf")

    def knows(self, address: str) -> bool:
        """Return whether an address is one of a member."""
        try:
            own = plain(address)
        except ValueError:
            return False
        return any(own in found for found in self._addresses.values())

    def enter(self, address: str, handshake: bool) -> Visit | str:
        """Admit a connection, or return the reason for a refusal."""
        known = self.knows(address)
        why = ""
        if self.inside >= channels.SOCKETS_MAX:
            why = f"there are {channels.SOCKETS_MAX} connections already"
        elif handshake and self.shaking >= channels.HANDSHAKES_MAX:
            why = f"{channels.HANDSHAKES_MAX} TLS handshakes are under way"
        elif not known and self.strangers >= channels.STRANGERS_MAX:
            why = f"there are {channels.STRANGERS_MAX} connections from unknown addresses"
        elif (
            not known and handshake and self.strangers_shaking >= channels.STRANGERS_HANDSHAKES_MAX
        ):
            why = (
                f"{channels.STRANGERS_HANDSHAKES_MAX} TLS handshakes with unknown addresses"
                " are under way"
            )
        if not why:
            return Visit(self, known, handshake)
        if not known:
            self.look()
        return why

    def count(self, known: bool, connections: int, handshakes: int) -> None:
        """Count more, or fewer, connections inside and in their handshakes."""
        self.inside += connections
        self.shaking += handshakes
        if not known:
            self.strangers += connections
            self.strangers_shaking += handshakes

    def look(self) -> None:
        """Resolve the members' names, unless that was done just now."""
        now = time.monotonic()
        busy = self._resolving is not None and not self._resolving.done()
        if self._names and not busy and now - self._resolved >= RESOLVE_SECONDS:
            self._resolved = now
            self._resolving = asyncio.get_running_loop().create_task(self._resolve())

    async def close(self) -> None:
        """Stop resolving."""
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.wait([self._resolving])

    async def _resolve(self) -> None:
        for name in list(self._names):
            try:
                found = await asyncio.get_running_loop().getaddrinfo(name, None)
            except OSError:
                continue  # keep the addresses known before
            self._addresses[name] = frozenset(plain(str(each[4][0])) for each in found)


def plain(address: str) -> str:
    """Return an address in canonical form. Raises ValueError for any other text."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
