"""Messages of etcd's API, version 3, as far as the broker uses them. Pure.

Only the fields in use are encoded and read: as in all of protobuf, others have their default value,
or are skipped. Source: https://github.com/etcd-io/etcd, ``api/etcdserverpb/rpc.proto`` and
``api/mvccpb/kv.proto``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.cluster.protobuf import bytes_field, bytes_of, element, fields, number_field, number_of

TRANSACT: Final = "/etcdserverpb.KV/Txn"
COMPACT: Final = "/etcdserverpb.KV/Compact"
GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
WATCH: Final = "/etcdserverpb.Watch/Watch"

_HEADER: Final = 1
_REVISION: Final = 3


class KeyValue(NamedTuple):
    """A key with its value. ``revision``: the store's at its last change; ``lease``: 0 for none."""

    key: bytes
    value: bytes
    revision: int
    lease: int


class Created(NamedTuple):
    """Comparison: the key's revision of creation is ``revision``; 0 if there is no such key."""

    key: bytes
    revision: int


class Changed(NamedTuple):
    """Comparison: the key's last change is of ``revision``; 0 if there is no such key."""

    key: bytes
    revision: int


class Put(NamedTuple):
    """Set a key. It vanishes with its lease, unless that is 0."""

    key: bytes
    value: bytes
    lease: int = 0


class Get(NamedTuple):
    """Read one key, or all from ``key`` up to, but without, ``end``."""

    key: bytes
    end: bytes = b""


class TransactionResult(NamedTuple):
    """Result of a transaction. ``entries``: those that each of its reads found, in order."""

    succeeded: bool
    revision: int
    entries: tuple[tuple[KeyValue, ...], ...]


class Change(NamedTuple):
    """Change of a key. ``entry`` has an empty value if the key was deleted."""

    deleted: bool
    entry: KeyValue


class Watched(NamedTuple):
    """Message of a watch. ``revision``: the store's; ``ended``: why the watch is over, or empty;
    ``compacted``: the oldest revision that is still there, if the watch began at an older one."""

    revision: int
    changes: tuple[Change, ...]
    ended: str
    compacted: int


def end_of(prefix: bytes) -> bytes:
    """Return the key behind all those that begin with a prefix, whose last byte is not 255."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def revision_of(answer: bytes) -> int:
    """Return the store's revision in an answer's header. Raises ValueError."""
    return number_of(bytes_of(answer, _HEADER), _REVISION)


def transaction(
    compares: tuple[Created | Changed, ...],
    success: tuple[Put | Get, ...],
    failure: tuple[Put | Get, ...] = (),
) -> bytes:
    """Encode a TxnRequest: if all comparisons hold, carry out ``success``, else ``failure``."""
    encoded = [element(1, _compare(each)) for each in compares]
    encoded += [element(2, _operation(each)) for each in success]
    encoded += [element(3, _operation(each)) for each in failure]
    return b"".join(encoded)


def _compare(compare: Created | Changed) -> bytes:
    create, modified = (1, 5), (2, 6)  # target, and the field of its number
    target, field = create if isinstance(compare, Created) else modified
    # A target is one of several, of which the one that is set is sent even if it is 0.
    number = number_field(field, compare.revision) or bytes((field << 3, 0))
    return number_field(2, target) + bytes_field(3, compare.key) + number


def _operation(operation: Put | Get) -> bytes:
    if isinstance(operation, Get):
        return element(1, bytes_field(1, operation.key) + bytes_field(2, operation.end))
    put = bytes_field(1, operation.key) + bytes_field(2, operation.value)
    return element(2, put + number_field(3, operation.lease))


def result_of(answer: bytes) -> TransactionResult:
    """Decode a TxnResponse. Raises ValueError."""
    found = []
    for number, value in fields(answer):
        if number == 3 and isinstance(value, bytes):
            for kind, response in fields(value):
                if kind == 1 and isinstance(response, bytes):  # of a read
                    found.append(tuple(map(entry_of, _elements(response, 2))))
    return TransactionResult(bool(number_of(answer, 2)), revision_of(answer), tuple(found))


def entry_of(data: bytes) -> KeyValue:
    """Decode a KeyValue. Raises ValueError."""
    return KeyValue(bytes_of(data, 1), bytes_of(data, 5), number_of(data, 3), number_of(data, 6))


def compaction(revision: int) -> bytes:
    """Encode a CompactionRequest."""
    return number_field(1, revision)


def grant(seconds: int) -> bytes:
    """Encode a LeaseGrantRequest; the server chooses the lease's id."""
    return number_field(1, seconds)


def lease_request(lease: int) -> bytes:
    """Encode a LeaseRevokeRequest or a LeaseKeepAliveRequest."""
    return number_field(1, lease)


def lease_of(answer: bytes) -> tuple[int, int]:
    """Return id and remaining seconds of a lease, 0 if it is over, from the answer to a grant or a
    keep-alive. Raises ValueError."""
    return number_of(answer, 2), number_of(answer, 3)


def watch(key: bytes, end: bytes, start: int) -> bytes:
    """Encode a WatchRequest that creates a watch of the changes from a revision on."""
    created = bytes_field(1, key) + bytes_field(2, end) + number_field(3, start)
    return element(1, created)


def watched_of(answer: bytes) -> Watched:
    """Decode a WatchResponse. Raises ValueError."""
    changes = [
        Change(number_of(event, 1) == 1, entry_of(bytes_of(event, 2)))
        for event in _elements(answer, 11)
    ]
    ended = ""
    if number_of(answer, 4):
        ended = bytes_of(answer, 6).decode("utf-8", "replace") or "the server has ended it"
    return Watched(revision_of(answer), tuple(changes), ended, number_of(answer, 5))


def _elements(data: bytes, number: int) -> list[bytes]:
    return [value for each, value in fields(data) if each == number and isinstance(value, bytes)]
