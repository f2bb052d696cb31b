"""Retained messages of one shard: the last message of each topic, found by topic or by filter.

Every shard and node may set the same topic; a stamp decides, the greater wins, and a deletion
leaves a tombstone for a while so that an older message arriving late does not revive the topic. Messages are opaque; the store counts their sizes.

Topics are kept in an ordered set in which the separator is written as a zero byte, which no topic
may hold [MQTT-1.5.4-2]. That order is the topic tree's: everything below a level is one range, and
a search with `+` jumps from one range to the next, like a walk over a trie, but without its
objects. A search remembers only its position, so it may pause indefinitely while the store changes:
it returns every topic that is there throughout exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from math import ceil, floor
from typing import Final, Generic, TypeVar

from fluxmq.routing.ordered_keys import OrderedKeys
from fluxmq.routing.topics import MULTI, SEPARATOR, SINGLE

M = TypeVar("M")

Stamp = tuple[int, ...]
"""Numbers of a change of a topic, compared in order. No two changes have the same ones."""

TOMBSTONES_MAX: Final = 65_536
"""Default number of deletions remembered: a few megabytes, minutes of deletions at full rate."""

TOMBSTONE_AGE: Final = 600.0
"""Default seconds a deletion is remembered: far longer than a message travels between shards or
nodes."""

SCAN_STEPS: Final = 1024
"""Default work of one `Scan.take`: about two milliseconds."""

_LEVEL_END: Final = b"\0"
_AFTER_SUBTREE: Final = b"\1"
_RESERVED: Final = b"$"
_AFTER_RESERVED: Final = b"%"


class RetainOutcome(Enum):
    """Result of a change."""

    STORED = "stored"
    DELETED = "deleted"
    ABSENT = "absent"
    """Nothing to delete; the deletion is remembered."""
    STALE = "stale"
    """Superseded by an earlier change with an equal or greater stamp."""
    TOO_MANY_MESSAGES = "too many messages"
    TOO_MANY_BYTES = "too many bytes"


class Retained(Generic[M]):
    """One retained message. `size` in bytes; `expires_at` in seconds of the caller's clock."""

    __slots__ = ("expires_at", "message", "size", "stamp")

    def __init__(self, message: M, size: int, stamp: Stamp, expires_at: float | None) -> None:
        self.message = message
        self.size = size
        self.stamp = stamp
        self.expires_at = expires_at


class RetainedStore(Generic[M]):
    """Topics to retained messages, within limits.

    `max_messages` and `max_bytes` bound the messages; `max_tombstones` and `tombstone_age`
    (seconds) the number and age of remembered deletions.
    """

    def __init__(
        self,
        max_messages: int,
        max_bytes: int,
        max_tombstones: int = TOMBSTONES_MAX,
        tombstone_age: float = TOMBSTONE_AGE,
    ) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._max_tombstones = max_tombstones
        self._tombstone_age = tombstone_age
        self._records: dict[bytes, Retained[M]] = {}
        self._keys = OrderedKeys()
        """Keys of `_records`, the same objects."""
        self._expiries = OrderedKeys()
        """For each record that expires: eight bytes of milliseconds, then its key."""
        self._tombstones: dict[bytes, tuple[Stamp, float]] = {}
        """Stamp and time of deletions, oldest first; no key is in `_records` as well."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def byte_count(self) -> int:
        """Sum of the messages' sizes, in bytes."""
        return self._bytes

    @property
    def tombstone_count(self) -> int:
        """Number of deletions still remembered."""
        return len(self._tombstones)

    def get(self, topic: bytes) -> Retained[M] | None:
        """Return the retained message of one topic. It may be past its `expires_at` until `expire`
        runs."""
        return self._records.get(_key_of(topic))

    def stamp(self, topic: bytes) -> Stamp | None:
        """Return the stamp of a topic's message or remembered deletion."""
        key = _key_of(topic)
        found = self._records.get(key)
        if found is not None:
            return found.stamp
        deleted = self._tombstones.get(key)
        return None if deleted is None else deleted[0]

    def set(
        self,
        topic: bytes,
        message: M,
        size: int,
        stamp: Stamp,
        expires_at: float | None = None,
        *,
        limited: bool = True,
    ) -> RetainOutcome:
        """Retain a message: STORED, STALE, or refused by a limit with the old message kept.

        `limited=False` is for a message that its own shard has admitted: refusing it here would let
        copies differ for good, and shards can admit only few at the same time.
        """
        key = _key_of(topic)
        old = self._records.get(key)
        if old is not None:
            last: Stamp | None = old.stamp
        else:
            deleted = self._tombstones.get(key)
            last = deleted[0] if deleted is not None else None
        if last is not None and stamp <= last:
            return RetainOutcome.STALE
        total = self._bytes + size - (old.size if old is not None else 0)
        if limited:
            if old is None and len(self._records) >= self._max_messages:
                return RetainOutcome.TOO_MANY_MESSAGES
            if total > self._max_bytes:
                return RetainOutcome.TOO_MANY_BYTES
        if old is None:
            self._tombstones.pop(key, None)
            self._keys.add(key)
        elif old.expires_at is not None:
            self._expiries.discard(_expiry_key(old.expires_at, key))
        if expires_at is not None:
            self._expiries.add(_expiry_key(expires_at, key))
        self._records[key] = Retained(message, size, stamp, expires_at)
        self._bytes = total
        return RetainOutcome.STORED

    def delete(self, topic: bytes, stamp: Stamp, now: float) -> RetainOutcome:
        """Delete a topic's message and remember that: DELETED, ABSENT or STALE.

        `now` is in seconds, of the clock given to `purge_tombstones`. Beyond `max_tombstones` the
        oldest deletion is forgotten.
        """
        key = _key_of(topic)
        old = self._records.get(key)
        if old is not None:
            if stamp <= old.stamp:
                return RetainOutcome.STALE
            self._drop(key, old)
        else:
            deleted = self._tombstones.get(key)
            if deleted is not None:
                if stamp <= deleted[0]:
                    return RetainOutcome.STALE
                del self._tombstones[key]
        self._tombstones[key] = (stamp, now)
        if len(self._tombstones) > self._max_tombstones:
            del self._tombstones[next(iter(self._tombstones))]
        return RetainOutcome.ABSENT if old is None else RetainOutcome.DELETED

    def forget(self, topic: bytes) -> None:
        """Remove a topic's message or remembered deletion, whatever its stamp, without a trace."""
        key = _key_of(topic)
        record = self._records.get(key)
        if record is not None:
            self._drop(key, record)
        self._tombstones.pop(key, None)

    def purge_tombstones(self, now: float) -> int:
        """Forget deletions older than `tombstone_age`; return their number."""
        horizon = now - self._tombstone_age
        due: list[bytes] = []
        for key, (_stamp, deleted_at) in self._tombstones.items():
            if deleted_at > horizon:
                break
            due.append(key)
        for key in due:
            del self._tombstones[key]
        return len(due)

    def tombstones(self) -> Iterator[tuple[bytes, Stamp]]:
        """Yield remembered deletions, oldest first. The store must not change meanwhile."""
        for key, (stamp, _deleted_at) in self._tombstones.items():
            yield _topic_of(key), stamp

    def expire(self, now: float, limit: int) -> list[bytes]:
        """Drop up to `limit` messages whose `expires_at` is not after `now`; return their topics.

        No tombstone is left: an older message arriving late carries its own expiry.
        """
        bound = (floor(now * 1000) + 1).to_bytes(8, "big")
        expired: list[bytes] = []
        while len(expired) < limit:
            due = self._expiries.between(b"", bound, limit - len(expired))
            if not due:
                break
            for entry in due:
                key = entry[8:]
                self._drop(key, self._records[key])
                expired.append(_topic_of(key))
        return expired

    def match(self, topic_filter: bytes) -> Scan:
        """Return a search for the topics that the filter matches (not shared, no `$share/`)."""
        return Scan(self._keys, topic_filter)

    def snapshot(self) -> Iterator[tuple[bytes, Retained[M]]]:
        """Yield all messages in the order of topics; the store may change while the iterator is in
        use."""
        start = b""
        while keys := self._keys.between(start, None, 256):
            for key in keys:
                record = self._records.get(key)
                if record is not None:
                    yield _topic_of(key), record
            start = keys[-1] + _LEVEL_END

    def _drop(self, key: bytes, record: Retained[M]) -> None:
        del self._records[key]
        self._keys.discard(key)
        self._bytes -= record.size
        if record.expires_at is not None:
            self._expiries.discard(_expiry_key(record.expires_at, key))


class Scan:
    """A resumable search by filter; also an iterator over topics.

    The state is one bound: all keys below it are done. Each step either moves the bound forward to
    the next place where a match may be, or takes part of a range that matches whole.
    """

    __slots__ = (
        "_above",
        "_bound",
        "_found",
        "_keys",
        "_multi",
        "_range_stop",
        "_ranging",
        "_wanted",
        "done",
    )

    def __init__(self, keys: OrderedKeys, topic_filter: bytes) -> None:
        self._keys = keys
        self._wanted = topic_filter.split(SEPARATOR)
        self._multi = self._wanted[-1] == MULTI
        if self._multi:
            self._wanted.pop()
        # For each depth, the number of levels up to the nearest '+' above it; 0 for none.
        self._above = [0]
        for depth, want in enumerate(self._wanted):
            self._above.append(depth + 1 if want == SINGLE else self._above[depth])
        literal = self._wanted.index(SINGLE) if self._above[-1] else len(self._wanted)
        self._bound = _LEVEL_END.join(self._wanted[:literal])
        self._ranging = False
        self._range_stop: bytes | None = None
        self._found: list[bytes] = []
        self.done = False
        """True when every topic was returned; may become so one `take` late."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._found:
            if self.done:
                raise StopIteration
            self._found = self.take(64)[::-1]
        return self._found.pop()

    def take(self, count: int, steps: int = SCAN_STEPS) -> list[bytes]:
        """Return up to `count` more topics, after at most `steps` steps of one or two microseconds.

        The result may be empty although `done` is still False: then the steps ran out.
        """
        keys: list[bytes] = []
        while not self.done and steps > 0 and len(keys) < count:
            steps -= 1
            if not self._ranging:
                self._step(keys)
                continue
            part = self._keys.between(self._bound, self._range_stop, count - len(keys))
            if part:
                keys += part
                self._bound = part[-1] + _LEVEL_END
            elif self._range_stop is None:
                self.done = True
            else:
                self._ranging = False
                self._bound = self._range_stop
        return [_topic_of(key) for key in keys]

    def _step(self, keys: list[bytes]) -> None:
        """Compare the next key with the filter, level by level, and move the bound."""
        key = self._keys.first_from(self._bound)
        if key is None:
            self.done = True
            return
        levels = key.split(_LEVEL_END)
        wanted = self._wanted
        if key[:1] == _RESERVED and wanted[:1] in ([], [SINGLE]):
            self._bound = _AFTER_RESERVED  # [MQTT-4.7.2-1]
            return
        for depth, want in enumerate(wanted):
            if depth == len(levels):
                # The key ends above the filter's depth: continue below it.
                self._bound = key + _LEVEL_END + (b"" if want == SINGLE else want)
                return
            level = levels[depth]
            if want in (SINGLE, level):
                continue
            if level < want:
                self._bound = _LEVEL_END.join([*levels[:depth], want])
            else:
                self._leave(levels, depth)
            return
        if self._multi:
            self._bound = key
            self._ranging = True
            if wanted:
                self._range_stop = _LEVEL_END.join(levels[: len(wanted)]) + _AFTER_SUBTREE
            else:
                self._range_stop = _RESERVED if key < _RESERVED else None
            return
        if len(levels) == len(wanted):
            keys.append(key)
        self._leave(levels, len(wanted))

    def _leave(self, levels: list[bytes], depth: int) -> None:
        """Skip past the level that the nearest `+` above `depth` matches: nothing more matches
        below it."""
        above = self._above[depth]
        if above == 0:
            self.done = True
        else:
            self._bound = _LEVEL_END.join(levels[:above]) + _AFTER_SUBTREE


def _key_of(topic: bytes) -> bytes:
    return topic.replace(SEPARATOR, _LEVEL_END)


def _topic_of(key: bytes) -> bytes:
    return key.replace(_LEVEL_END, SEPARATOR)


def _expiry_key(expires_at: float, key: bytes) -> bytes:
    return ceil(expires_at * 1000).to_bytes(8, "big") + key
