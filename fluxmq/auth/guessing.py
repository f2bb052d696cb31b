"""How fast passwords may be guessed: logins that fail make the next ones wait, longer each time.

Counted twice, by the pair of user and address, and by address alone, whoever is named: the first stops guessing at one
account, the second guessing at many. Both count from where a login comes, so that nobody can lock a user out who comes from
elsewhere; and whoever has logged in from an address lately does not wait for what others do there. Users that do not exist
are counted like those that do, so that nothing can be told from it. An attempt that comes too early is not tried, and
not counted either.

Bookkeeping only: time is an argument. Every table is bounded, and what was quiet for longest is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeVar

Key = TypeVar("Key", bytes, str)
Value = TypeVar("Value")

ENTRIES_MAX: Final = 16_384
"""Entries of each of the three tables: some 4 MB together. To flush them an attacker needs as many failed logins in
a short time, which takes hundreds of addresses."""
KEY_BYTES: Final = 16
"""Of a pair, a digest is kept: names are up to 64 KiB long, and anybody makes them up."""
DOUBLINGS_MAX: Final = 32
"""Beyond it the delay is the greatest anyway."""


@dataclass(frozen=True, slots=True)
class GuessingLimits:
    """When delays begin, and how they grow. Times in seconds; a `first_delay` of 0 means no delays at all."""

    per_user: int
    per_address: int
    first_delay: float
    max_delay: float
    forget_after: float


@dataclass(slots=True)
class _Failures:
    count: int
    last: float
    until: float


class Guessing:
    """Failed logins of one shard, and who has to wait for how long."""

    def __init__(self, limits: GuessingLimits) -> None:
        self.limits = limits
        self._pairs: OrderedDict[bytes, _Failures] = OrderedDict()
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()
        self._known: OrderedDict[bytes, float] = OrderedDict()
        """Pairs that logged in, and when."""

    def wait_of_user(self, user: str, address: str, now: float) -> float:
        """Seconds until this user may try from this address (a key of `addresses`); 0: now."""
        return _wait(self._pairs.get(_pair(user, address)), now)

    def wait(self, user: str, address: str, now: float) -> float:
        """The same, and what everybody at the address has to wait who did not log in from there lately."""
        pair = _pair(user, address)
        waiting = _wait(self._pairs.get(pair), now)
        known = self._known.get(pair)
        if known is None or now > known + self.limits.forget_after:
            waiting = max(waiting, _wait(self._addresses.get(address), now))
        return waiting

    def failed(self, user: str, address: str, now: float) -> None:
        """A login was tried and failed."""
        limits = self.limits
        self._count(self._pairs, _pair(user, address), limits.per_user, now)
        self._count(self._addresses, address, limits.per_address, now)

    def succeeded(self, user: str, address: str, now: float) -> None:
        """A login held: the user's failures there are forgotten, those of the address are not."""
        pair = _pair(user, address)
        self._pairs.pop(pair, None)
        self._known[pair] = now
        _bound(self._known, pair)

    def _count(self, table: OrderedDict[Key, _Failures], key: Key, free: int, now: float) -> None:
        entry = table.get(key)
        if entry is None or now > max(entry.last, entry.until) + self.limits.forget_after:
            entry = table[key] = _Failures(0, now, 0.0)
        entry.count += 1
        entry.last = now
        beyond = entry.count - free
        if beyond > 0:
            delay = self.limits.first_delay * 2.0 ** min(beyond - 1, DOUBLINGS_MAX)
            entry.until = now + min(delay, self.limits.max_delay)
        _bound(table, key)


def _wait(entry: _Failures | None, now: float) -> float:
    return max(0.0, entry.until - now) if entry is not None else 0.0


def _pair(user: str, address: str) -> bytes:
    return blake2b(
        f"{address}\0{user}".encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES
    ).digest()


def _bound(table: OrderedDict[Key, Value], key: Key) -> None:
    """The entry was used last; the one that was not for longest goes where there are too many."""
    table.move_to_end(key)
    if len(table) > ENTRIES_MAX:
        table.popitem(last=False)
