"""Limits on password guessing: failed logins delay the next ones, longer each time.

Counted twice, by the pair of user and address, and by address alone, whatever the user: the first
stops guessing at one account, the second guessing at many. Both count by origin, so that nobody can
lock out a user elsewhere; and a user that recently logged in from an address does not wait for
others' failures there. Unknown users are counted like known ones, so that delays reveal nothing. An
attempt that comes too early is neither tried nor counted.

Bookkeeping only: time is an argument. Every table is bounded, and the entry quiet for longest is
evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeVar

from fluxmq.settings.schema import FailedLogins

Key = TypeVar("Key", bytes, str)
Value = TypeVar("Value")

ENTRIES_MAX: Final = 16_384
"""Entries of each of the three tables: some 4 MB together. To flush them an attacker needs as many
failed logins in a short time, which takes hundreds of addresses."""
KEY_BYTES: Final = 16
"""Bytes of a pair's digest, kept instead of the names: those are up to 64 KiB long, and anybody can
invent them."""
DOUBLINGS_MAX: Final = 32
"""Maximum doublings: beyond it the delay is the greatest anyway."""


@dataclass(frozen=True, slots=True)
class ThrottleLimits:
    """Thresholds and growth of delays. Times in seconds; a `first_delay` of 0 disables delays."""

    per_user: int
    per_address: int
    first_delay: float
    max_delay: float
    forget_after: float


def guessing_limits(failed: FailedLogins) -> ThrottleLimits:
    """Return the limits of failed logins in the settings."""
    return ThrottleLimits(
        failed.per_user,
        failed.per_address,
        failed.first_delay,
        failed.max_delay,
        failed.forget_after,
    )


@dataclass(slots=True)
class _Failures:
    count: int
    last: float
    until: float


class LoginThrottle:
    """Failed logins of one shard, and the resulting delays."""

    def __init__(self, limits: ThrottleLimits) -> None:
        self.limits = limits
        self._pairs: OrderedDict[bytes, _Failures] = OrderedDict()
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()
        self._known: OrderedDict[bytes, float] = OrderedDict()
        """Time of the last login of each pair."""

    def wait_of_user(self, user: str, address: str, now: float) -> float:
        """Return the seconds until this user may try from this address (a key of `addresses`); 0:
        now."""
        return _wait(self._pairs.get(_pair(user, address)), now)

    def wait(self, user: str, address: str, now: float) -> float:
        """Return the same, including the address's delay unless the user recently logged in from
        there."""
        pair = _pair(user, address)
        waiting = _wait(self._pairs.get(pair), now)
        known = self._known.get(pair)
        if known is None or now > known + self.limits.forget_after:
            waiting = max(waiting, _wait(self._addresses.get(address), now))
        return waiting

    def failed(self, user: str, address: str, now: float) -> None:
        """Count a login that failed."""
        limits = self.limits
        self._count(self._pairs, _pair(user, address), limits.per_user, now)
        self._count(self._addresses, address, limits.per_address, now)

    def succeeded(self, user: str, address: str, now: float) -> None:
        """Note a successful login: forget the user's failures there, but not the address's."""
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
    """Mark the entry as recently used, and evict the least recently used one when there are too
    many."""
    table.move_to_end(key)
    if len(table) > ENTRIES_MAX:
        table.popitem(last=False)
