"""A client's bytes have the same effect however they are cut, and whatever they are, no error but the
standard's leaves the sessions."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.amqp10.codec import encode
from fluxmq.protocols.amqp10.frames import frame
from fluxmq.protocols.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    RejectedState,
    ReleasedState,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from fluxmq.protocols.amqp10.types import Described, ULong
from tests.props.amqp10_streams import BEGINNING, cut, outcome

ADDRESSES = st.sampled_from(["/queues/q", "/queues/none", "/exchanges/amq.topic/k", "v1", None])
SMALL = st.integers(0, 3)
MESSAGES = st.one_of(
    st.builds(lambda size: b"\0\x53\x75\xa0" + bytes((size,)) + bytes(size), st.integers(0, 255)),
    st.builds(
        lambda text, size: (
            encode(Described(ULong(0x73), [None, None, "/queues/q", text]))
            + encode(Described(ULong(0x75), bytes(size)))
        ),
        st.sampled_from(["a", "b"]),
        st.integers(0, 700),
    ),
    st.binary(max_size=40),
)
STATES = st.sampled_from([AcceptedState(), ReleasedState(), RejectedState(), None])


def _frames(*bodies: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.one_of(*bodies).map(lambda body: frame(0, body))


FRAMES = st.one_of(
    _frames(
        st.builds(
            AttachFrame,
            st.just("s"),
            SMALL,
            st.just(False),
            target=st.builds(TargetTerminus, ADDRESSES),
            initial_delivery_count=st.just(0),
        ),
        st.builds(
            AttachFrame,
            st.just("r"),
            SMALL,
            st.just(True),
            st.sampled_from([0, 1, 2]),
            source=st.builds(SourceTerminus, ADDRESSES),
            target=st.just(TargetTerminus("t")),
        ),
        st.builds(
            FlowFrame,
            *(st.just(0), st.integers(0, 100), st.just(0), st.just(100), SMALL),
            *(SMALL, st.integers(0, 20), st.none()),
            drain=st.booleans(),
            echo=st.booleans(),
        ),
        st.builds(DispositionFrame, st.booleans(), SMALL, st.integers(0, 9), st.booleans(), STATES),
        st.builds(DetachFrame, SMALL, st.booleans()),
        st.just(EndFrame()),
        st.just(BeginFrame(None, 0, 10, 10)),
        st.just(CloseFrame()),
    ),
    st.builds(
        lambda handle, number, more, aborted, settled, message: frame(
            0,
            TransferFrame(handle, number, b"t", 0, settled, more, aborted=aborted),
            message,
        ),
        *(SMALL, SMALL, st.booleans(), st.booleans(), st.booleans(), MESSAGES),
    ),
    st.just(b"\0\0\0\x08\x02\0\0\0"),
)


@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(0, 1 << 16), max_size=8))
def test_cutting_the_stream_changes_nothing(frames: list[bytes], places: list[int]) -> None:
    data = BEGINNING + b"".join(frames)
    assert outcome(cut(data, places)) == outcome([data])


@given(
    st.lists(FRAMES, max_size=8),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4),
    st.lists(st.integers(0, 1 << 16), max_size=4),
)
def test_changed_bytes_raise_nothing_and_may_be_cut(
    frames: list[bytes], changes: list[tuple[int, int]], places: list[int]
) -> None:
    data = bytearray(BEGINNING + b"".join(frames))
    for place, value in changes:
        data[place % len(data)] = value
    assert outcome(cut(bytes(data), places)) == outcome([bytes(data)])


@given(st.binary(max_size=80))
def test_any_body_of_a_frame_is_answered(body: bytes) -> None:
    size = (8 + len(body)).to_bytes(4, "big")
    named = b"\0\x53" + bytes((0x10 + len(body) % 9,)) + body
    longer = (8 + len(named)).to_bytes(4, "big")
    for sent in (size + b"\x02\0\0\0" + body, longer + b"\x02\0\0\0" + named):
        frames = outcome([BEGINNING, sent])[0]
        assert frames[2][1].startswith("OpenFrame")
