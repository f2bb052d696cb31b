"""Admission before a byte is read: connection rates per client address, and bans of addresses.

Decides only; time is an argument. The table of addresses is bounded, so that an attacker with many
addresses costs a fixed amount of memory: the address that has been quiet longest is evicted first,
which at worst gives it a full bucket again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from fluxmq.auth.addresses import is_loopback_key
from fluxmq.auth.bans import BanTable
from fluxmq.settings.schema import ConnectionRate


class CloseReason(enum.Enum):
    """Reason for closing a connection. The values are labels of fluxmq_acceptor_refused_total."""

    BANNED = "banned"  # an administrator has banned the address
    RATE = "rate"  # too many connections from this address
    MAX_CONNECTIONS = "max_connections"  # the listener is full
    PENDING_FULL = "pending_full"  # closed to make room for a newer one
    ADDRESS_PENDING = "address_pending"  # the same, within one address
    TIMEOUT = "timeout"  # no complete first message within connect_timeout
    CLOSED_EARLY = "closed_early"  # the client went away
    UNKNOWN_PROTOCOL = "unknown_protocol"
    WRONG_PROTOCOL = "wrong_protocol"  # known, but not on this listener
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    AMQP_VERSION = "amqp_version"
    SHARD_BUSY = "shard_busy"  # the shard is down or does not keep up, and its backlog is full
    DESCRIPTORS = "descriptors"  # the shard, this process or the machine is out of descriptors
    STOPPING = "stopping"


def counted_key(key: str) -> str | None:
    """Return the address key under which awaited connections are counted; None for this
    machine's."""
    return None if is_loopback_key(key) else key


@dataclass(slots=True)
class _AddressBucket:
    tokens: float
    filled_at: float


class AddressRates:
    """Token buckets per address key, and the banned addresses. Invariant: never more than
    ``settings.max_addresses`` buckets."""

    def __init__(self, settings: ConnectionRate) -> None:
        self._settings = settings
        self.bans = BanTable()
        # In order of last use: the first has been quiet longest.
        self._buckets: dict[str, _AddressBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def configure(self, settings: ConnectionRate) -> None:
        """Apply changed limits to the known addresses."""
        self._settings = settings
        self._shrink(settings.max_addresses)

    def counts(self, loopback: bool) -> bool:
        """Return whether connections from this machine, or from others, have to be asked about:
        ``bans``, then ``allow``."""
        if self.bans.of_addresses:
            return True
        settings = self._settings
        return settings.enabled and not (loopback and settings.exempt_loopback)

    def allow(self, key: str, now: float) -> bool:
        """Count one connection from ``key`` at ``now`` (seconds, monotonic); return whether it is
        within the rate."""
        settings = self._settings
        if not settings.enabled or (settings.exempt_loopback and is_loopback_key(key)):
            return True
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            self._shrink(settings.max_addresses - 1)
            bucket = _AddressBucket(float(settings.burst), now)
        else:
            refilled = bucket.tokens + (now - bucket.filled_at) * settings.rate
            bucket.tokens = min(float(settings.burst), refilled)
            bucket.filled_at = now
        self._buckets[key] = bucket
        if bucket.tokens < 1.0:
            return False
        bucket.tokens -= 1.0
        return True

    def _shrink(self, room: int) -> None:
        while len(self._buckets) > room:
            del self._buckets[next(iter(self._buckets))]
