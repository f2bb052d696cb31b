"""Raft messages cross as bytes and come back as they were; what is damaged or of somebody else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.cluster.raft_messages import decode, encode
from fluxmq.raft.errors import MalformedMessage
from fluxmq.raft.types import Entry, Membership, Message, MessageKind, Snapshot, SnapshotMark

NUMBERS = st.integers(0, 2**64 - 1)
ENTRIES = st.lists(
    st.builds(Entry, NUMBERS, NUMBERS, st.integers(0, 2), st.binary(max_size=40)), max_size=5
)
MEMBERS = st.lists(NUMBERS, max_size=4).map(tuple)
SNAPSHOTS = st.none() | st.builds(
    Snapshot,
    st.builds(SnapshotMark, NUMBERS, NUMBERS, st.builds(Membership, MEMBERS, MEMBERS)),
    st.binary(max_size=40),
)
MESSAGES = st.builds(
    Message,
    kind=st.sampled_from(MessageKind),
    source=st.just(7),
    target=st.just(9),
    term=NUMBERS,
    index=NUMBERS,
    log_term=NUMBERS,
    entries=ENTRIES,
    commit=NUMBERS,
    reject=st.booleans(),
    hint=NUMBERS,
    hint_term=NUMBERS,
    context=NUMBERS,
    snapshot=SNAPSHOTS,
)


@given(MESSAGES)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message), 7, 9) == message


@given(MESSAGES.filter(lambda each: each.snapshot is None), st.data())
def test_a_message_that_is_cut_is_refused(message: Message, data: st.DataObject) -> None:
    frame = encode(message)
    length = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(MalformedMessage):
        decode(frame[:length], 7, 9)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(frame: bytes) -> None:
    try:
        message = decode(frame, 7, 9)
    except MalformedMessage:
        return
    assert encode(message) == frame


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [(0, 2, "version 2"), (1, 99, "kind 99"), (2, 8, "flags 8"), (4, 8, "names 8 as its sender")],
)
def test_what_is_refused_says_why(at: int, value: int, why: str) -> None:
    frame = bytearray(encode(Message(MessageKind.HEARTBEAT, 7, 9, 1)))
    frame[at] = value
    with pytest.raises(MalformedMessage, match=why):
        decode(bytes(frame), 7, 9)
