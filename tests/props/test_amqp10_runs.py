"""Transfers that are taken as runs have the effect that each has by itself, whatever the messages are."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.amqp10.codec import encode
from fluxmq.protocols.amqp10.frames import frame
from fluxmq.protocols.amqp10.performatives import DetachFrame, DispositionFrame, TransferFrame
from fluxmq.protocols.amqp10.types import Described, Int, Milliseconds, Symbol, ULong, Uuid
from fluxmq.routing.topology.changes import DeclareQueue
from fluxmq.routing.topology.records import QueueRecord
from tests.unit.sessions.amqp091.memory import MemoryBroker
from tests.unit.sessions.amqp10.peer_10 import Peer10

IDS = st.one_of(
    st.none(),
    st.sampled_from(["id-1", "id-22", "ü", "", "i" * 300]),
    st.sampled_from([b"id", b"\xff" * 260]),
    st.sampled_from(
        [ULong(0), ULong(7), ULong(1 << 40), Uuid(bytes(15) + b"\5"), Int(5), Symbol("s")]
    ),
)
OTHERS = st.sampled_from([None, None, "a", "b"])
TIMES = st.sampled_from([None, Milliseconds(0), Milliseconds(1 << 40), Int(7)])


def section(code: int, value: Any) -> bytes:
    """A section of a message."""
    return encode(Described(ULong(code), value))


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message of a program: mostly one like the others."""
    header = draw(st.sampled_from([b"", section(0x70, [True]), section(0x70, [True])]))
    annotations = draw(st.sampled_from([b"", b"", section(0x72, {Symbol("x-opt-a"): "kept"})]))
    fields = [draw(IDS), None, None, draw(OTHERS), None, draw(IDS)]
    if draw(st.booleans()):
        fields += [None, None, None, draw(TIMES)]
        fields += draw(st.sampled_from([[], ["group"]]))
    properties = section(0x73, fields[: draw(st.sampled_from([0, 1, 5, 11, 11, 11]))])
    body = section(0x75, bytes(draw(st.sampled_from([0, 1, 3, 255, 256]))))
    data = header + annotations + draw(st.sampled_from([properties, properties, b""])) + body
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes((draw(st.integers(0, 255)),)) + data[at + 1 :]
    return data


def transfer(number: int, message: bytes, wide: bool) -> bytes:
    """A frame; ``wide``: of a form that no run has."""
    data = frame(0, TransferFrame(0, number, b"t", 0), message)
    if not wide:
        return data
    size, count = data[12], data[13:14]
    fields = data[14 : 13 + size]
    long = (len(fields) + 4).to_bytes(4, "big") + count.rjust(4, b"\0") + fields
    body = data[8:11] + b"\xd0" + long + data[13 + size :]
    return (8 + len(body)).to_bytes(4, "big") + data[4:8] + body


def effect(sent: list[bytes], wide: bool) -> tuple[Any, ...]:
    """The stored messages, the outcome of each, and the end of the link, if it ends."""
    broker = MemoryBroker()
    broker.apply([DeclareQueue(QueueRecord("/", "q"))])
    peer = Peer10(broker)
    peer.sender("/queues/q")
    peer.raw(b"".join(transfer(number, data, wide) for number, data in enumerate(sent)))
    bodies = peer.bodies()
    outcomes = {
        number: each.state
        for each in bodies
        if isinstance(each, DispositionFrame)
        for number in range(each.first, (each.first if each.last is None else each.last) + 1)
    }
    stored = [
        (batch.key(index), batch.properties(index), batch.payload(index), batch.attributes(index))
        for batch, index in broker.queues["/", "q"].messages.values()
    ]
    ends = [each.error for each in bodies if isinstance(each, DetachFrame)]
    return stored, outcomes, ends, broker.tally.amqp_published


@given(st.lists(messages(), min_size=1, max_size=8))
def test_a_run_has_the_effect_of_its_transfers(sent: list[bytes]) -> None:
    assert effect(sent, wide=False) == effect(sent, wide=True)


@given(messages(), st.integers(2, 40))
def test_a_run_of_equal_messages_too(data: bytes, count: int) -> None:
    assert effect([data] * count, wide=False) == effect([data] * count, wide=True)
