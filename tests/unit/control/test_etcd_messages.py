"""Encoding of requests to etcd and decoding of its answers, against bytes worked out by hand."""

from __future__ import annotations

import pytest

from fluxmq.cluster.protobuf import bytes_field, element, number_field
from fluxmq.control.etcd import messages
from fluxmq.control.etcd.messages import (
    Change,
    Changed,
    Created,
    Delete,
    EtcdTransaction,
    Existing,
    Get,
    KeyValue,
    Leased,
    Put,
    TransactionResult,
    Valued,
    Watched,
)

HEADER = element(1, number_field(3, 7))


def stored(key: bytes, value: bytes, revision: int, lease: int = 0) -> bytes:
    return b"".join(
        (
            bytes_field(1, key),
            number_field(2, 1),  # revision of creation
            number_field(3, revision),
            bytes_field(5, value),
            number_field(6, lease),
        )
    )


def test_a_key_exists_if_it_was_created_after_the_first_revision() -> None:
    encoded = messages.transaction(EtcdTransaction((Existing(b"k"),), ()))
    assert encoded == b"\x0a\x09\x08\x01\x10\x01\x1a\x01k\x28\x00"  # CREATE, GREATER


def test_a_transaction() -> None:
    encoded = messages.transaction(
        EtcdTransaction(
            (Created(b"k", 0), Changed(b"k", 5)),
            (Put(b"k", b"v", 9),),
            (Get(b"k"), Get(b"a", b"b")),
        )
    )
    assert (
        encoded
        == (
            b"\x0a\x07\x10\x01\x1a\x01k\x28\x00"  # CREATE: sent although it is 0, as it is one of several
            b"\x0a\x07\x10\x02\x1a\x01k\x30\x05"
            b"\x12\x0a\x12\x08\x0a\x01k\x12\x01v\x18\x09"
            b"\x1a\x05\x0a\x03\x0a\x01k"
            b"\x1a\x08\x0a\x06\x0a\x01a\x12\x01b"
        )
    )


def test_comparisons_of_values_and_leases() -> None:
    compares = Valued(b"k", b""), Valued(b"k", b"v"), Leased(b"k", 9), Leased(b"k", 0)
    assert messages.transaction(EtcdTransaction(compares, ())) == (
        b"\x0a\x07\x10\x03\x1a\x01k\x3a\x00"
        b"\x0a\x08\x10\x03\x1a\x01k\x3a\x01v"
        b"\x0a\x07\x10\x04\x1a\x01k\x40\x09"
        b"\x0a\x07\x10\x04\x1a\x01k\x40\x00"
    )


def test_a_name_is_one_part_of_a_key() -> None:
    """S2-05, S2-06: whatever characters a client id has."""
    names = "a/b", "a%2Fb", "%", "é"
    assert list(map(messages.key_part, names)) == [b"a%2Fb", b"a%252Fb", b"%25", "é".encode()]


def test_a_transaction_within_another() -> None:
    within = EtcdTransaction((Changed(b"k", 5),), (Delete(b"k"), Get(b"a", b"b", 3, 7)))
    encoded = (
        b"\x0a\x07\x10\x02\x1a\x01k\x30\x05"
        b"\x12\x05\x1a\x03\x0a\x01k"
        b"\x12\x0c\x0a\x0a\x0a\x01a\x12\x01b\x18\x03\x20\x07"
    )
    assert messages.transaction(within) == encoded
    outer = messages.transaction(EtcdTransaction((), (within,)))
    assert outer == element(2, element(4, encoded))
    done = number_field(2, 1) + element(3, element(3, HEADER))
    answer = (
        HEADER + number_field(2, 1) + element(3, element(4, done)) + element(3, element(4, b""))
    )
    assert messages.result_of(answer) == TransactionResult(
        True, 7, (), (TransactionResult(True, 0), TransactionResult(False, 0))
    )


def test_the_result_of_a_transaction() -> None:
    read = element(
        1, HEADER + element(2, stored(b"k", b"v", 5, 9)) + element(2, stored(b"l", b"", 6))
    )
    put = element(2, HEADER)
    answer = HEADER + number_field(2, 1) + element(3, put) + element(3, read)
    entries = (KeyValue(b"k", b"v", 5, 9), KeyValue(b"l", b"", 6, 0))
    assert messages.result_of(answer) == TransactionResult(True, 7, (entries,))
    assert messages.result_of(HEADER) == TransactionResult(False, 7, ())


def test_leases_and_compaction() -> None:
    assert messages.grant(5) == messages.lease_request(5) == messages.compaction(5) == b"\x08\x05"
    answer = HEADER + number_field(2, 9) + number_field(3, 4)
    assert messages.lease_of(answer) == (9, 4)
    assert messages.lease_of(HEADER + number_field(2, 9)) == (9, 0)
    assert messages.revision_of(answer) == 7


def test_a_watch() -> None:
    assert messages.watch(b"a", b"b", 3) == b"\x0a\x0a\x0a\x01a\x12\x01b\x18\x03\x40\x01"
    deleted = element(11, number_field(1, 1) + element(2, stored(b"k", b"", 8)))
    answer = HEADER + element(11, element(2, stored(b"k", b"v", 7))) + deleted
    changes = (Change(False, KeyValue(b"k", b"v", 7, 0)), Change(True, KeyValue(b"k", b"", 8, 0)))
    assert messages.watched_of(answer) == Watched(7, changes, "", 0)
    ended = HEADER + number_field(4, 1) + number_field(5, 6) + bytes_field(6, b"no")
    assert messages.watched_of(ended) == Watched(7, (), "no", 6)
    assert messages.watched_of(HEADER + number_field(7, 1)).more
    assert messages.watched_of(HEADER + number_field(4, 1)).ended == "the server has ended it"


def test_the_end_of_a_prefix() -> None:
    assert messages.end_of(b"/mqtt/") == b"/mqtt0"


@pytest.mark.parametrize(
    "decode",
    [messages.result_of, messages.lease_of, messages.revision_of, messages.watched_of],
)
def test_an_answer_that_is_cut_is_refused(decode: object) -> None:
    with pytest.raises(ValueError, match="cut off"):
        decode(HEADER[:-1])  # type: ignore[operator]
