"""Messages of etcd's API, version 3, as far as the broker uses them. Pure.

Only the fields in use are encoded and read: as in all of protobuf, others have their default value,
or are skipped. Source: https://github.com/etcd-io/etcd, ``api/etcdserverpb/rpc.proto`` and
``api/mvccpb/kv.proto``.
"""

from __future__ import annotations

from typing import Final, NamedTuple, assert_never

from fluxmq.cluster.protobuf import bytes_field, bytes_of, element, fields, number_field, number_of

TRANSACT: Final = "/etcdserverpb.KV/Txn"
COMPACT: Final = "/etcdserverpb.KV/Compact"
GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
WATCH: Final = "/etcdserverpb.Watch/Watch"
MEMBERS: Final = "/etcdserverpb.Cluster/MemberList"
ADD_MEMBER: Final = "/etcdserverpb.Cluster/MemberAdd"
REMOVE_MEMBER: Final = "/etcdserverpb.Cluster/MemberRemove"

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


class Existing(NamedTuple):
    """Comparison: there is such a key."""

    key: bytes


class Valued(NamedTuple):
    """Comparison: the key has this value; not so if there is no such key."""

    key: bytes
    value: bytes


class Leased(NamedTuple):
    """Comparison: the key is under this lease."""

    key: bytes
    lease: int


class Put(NamedTuple):
    """Set a key. It vanishes with its lease, unless that is 0."""

    key: bytes
    value: bytes
    lease: int = 0


class Get(NamedTuple):
    """Read one key, or all from ``key`` up to, but without, ``end``: in order, and at most ``limit``
    of them unless that is 0."""

    key: bytes
    end: bytes = b""
    limit: int = 0
    revision: int = 0
    """The store's revision to read at; 0 for the latest."""


class Delete(NamedTuple):
    """Delete a key, if it is there."""

    key: bytes


class EtcdTransaction(NamedTuple):
    """If all comparisons hold, carry out ``success``, else ``failure``. Transactions within
    another must not change the same key."""

    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


Compare = Created | Changed | Existing | Valued | Leased
Operation = Put | Get | Delete | EtcdTransaction


class TransactionResult(NamedTuple):
    """Result of a transaction. ``entries``: those that each of its reads found, in order;
    ``nested``: the results of the transactions within it, whose revision is its own."""

    succeeded: bool
    revision: int
    entries: tuple[tuple[KeyValue, ...], ...] = ()
    nested: tuple[TransactionResult, ...] = ()


class Change(NamedTuple):
    """Change of a key. ``entry`` has an empty value if the key was deleted."""

    deleted: bool
    entry: KeyValue


class Watched(NamedTuple):
    """Message of a watch. ``revision``: the store's; ``ended``: why the watch is over, or empty;
    ``compacted``: the oldest revision that is still there, if the watch began at an older one;
    ``more``: the next message goes on, perhaps with the last change's revision."""

    revision: int
    changes: tuple[Change, ...]
    ended: str
    compacted: int
    more: bool = False


class EtcdMember(NamedTuple):
    """A member of etcd. ``started``: whether it has ever run."""

    number: int
    name: str
    urls: tuple[str, ...]
    started: bool


def key_part(name: str) -> bytes:
    """Return a name as one part of a key between slashes, with ``%2F`` for a slash and ``%25`` for a
    percent sign."""
    return name.replace("%", "%25").replace("/", "%2F").encode()


def name_of(part: bytes) -> str:
    """Return the name of which this is one part of a key. Raises ValueError."""
    return part.decode().replace("%2F", "/").replace("%25", "%")


def end_of(prefix: bytes) -> bytes:
    """Return the key behind all those that begin with a prefix, whose last byte is not 255."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def revision_of(answer: bytes) -> int:
    """Return the store's revision in an answer's header. Raises ValueError."""
    return number_of(bytes_of(answer, _HEADER), _REVISION)


def transaction(wanted: EtcdTransaction) -> bytes:
    """Encode a TxnRequest."""
    encoded = [element(1, _compare(each)) for each in wanted.compares]
    encoded += [element(2, _operation(each)) for each in wanted.success]
    encoded += [element(3, _operation(each)) for each in wanted.failure]
    return b"".join(encoded)


def _compare(compare: Compare) -> bytes:
    # A target is one of several, of which the one that is set is sent even if it is 0.
    result = b""  # equal
    match compare:
        case Created(_, revision):
            target, operand = 1, number_field(5, revision) or b"\x28\0"
        case Changed(_, revision):
            target, operand = 2, number_field(6, revision) or b"\x30\0"
        case Existing(_):
            result, target, operand = number_field(1, 1), 1, b"\x28\0"  # created after revision 0
        case Valued(_, value):
            target, operand = 3, element(7, value)
        case Leased(_, lease):
            target, operand = 4, number_field(8, lease) or b"\x40\0"
        case _:
            assert_never(compare)
    return result + number_field(2, target) + bytes_field(3, compare.key) + operand


def _operation(operation: Operation) -> bytes:
    match operation:
        case Get(key, end, limit, revision):
            read = bytes_field(1, key) + bytes_field(2, end) + number_field(3, limit)
            return element(1, read + number_field(4, revision))
        case Put(key, value, lease):
            put = bytes_field(1, key) + bytes_field(2, value)
            return element(2, put + number_field(3, lease))
        case Delete(key):
            return element(3, bytes_field(1, key))
        case EtcdTransaction():
            return element(4, transaction(operation))


def result_of(answer: bytes) -> TransactionResult:
    """Decode a TxnResponse. Raises ValueError."""
    found, nested = [], []
    for number, value in fields(answer):
        if number == 3 and isinstance(value, bytes):
            for kind, response in fields(value):
                if kind == 1 and isinstance(response, bytes):  # of a read
                    found.append(tuple(map(entry_of, _elements(response, 2))))
                elif kind == 4 and isinstance(response, bytes):
                    nested.append(result_of(response))
    return TransactionResult(
        bool(number_of(answer, 2)), revision_of(answer), tuple(found), tuple(nested)
    )


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
    created += number_field(8, 1)  # many changes come in several messages of a bounded size
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
    return Watched(
        revision_of(answer), tuple(changes), ended, number_of(answer, 5), bool(number_of(answer, 7))
    )


def new_member(url: str) -> bytes:
    """Encode a MemberAddRequest: a member at this address for the others."""
    return element(1, url.encode())


def member_request(number: int) -> bytes:
    """Encode a MemberRemoveRequest."""
    return number_field(1, number)


def members_of(answer: bytes) -> tuple[EtcdMember, ...]:
    """Decode a MemberListResponse. Raises ValueError."""
    return tuple(
        EtcdMember(
            number_of(each, 1),
            bytes_of(each, 2).decode(),
            tuple(url.decode() for url in _elements(each, 3)),
            bool(_elements(each, 4)),
        )
        for each in _elements(answer, 2)
    )


def _elements(data: bytes, number: int) -> list[bytes]:
    return [value for each, value in fields(data) if each == number and isinstance(value, bytes)]
