"""AMQP 0.9.1 on the hot path: any cutting of the bytes means the same, compiled and uncompiled write the same."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.mqtt.scan import COMPILED
from tests.props.amqp_streams import meaning, streams
from tests.props.hot_bursts import cuts
from tests.unit.protocols.amqp091.line import NO_PROPERTIES, Line, cut
from tests.unit.variants import INSTALLED, Hot, uncompiled

differential = pytest.mark.skipif(
    not COMPILED, reason="the hot path runs uncompiled: nothing to compare with"
)
GIVEN = 30
"""Deliveries that each channel begins with."""


def received(
    hot: Hot, pieces: list[bytes], receive_bytes: int = 65536, *, filtered: bool = False
) -> tuple[list[Any], dict[int, set[int]]]:
    """What the handler got, errors without their text, and the tags left outstanding."""
    line = Line(hot, receive_bytes=receive_bytes, filtered=filtered)
    ledgers = {number: line.ledger(number) for number in (1, 2)}
    for ledger in ledgers.values():
        ledger.given("consumer", GIVEN, 1)
    line.send(*pieces)
    line.close()
    events = [event[:2] if event[0] == "broken" else event for event in line.events]
    left = {
        number: {tag for _, first, last in ledger.all() for tag in range(first, last + 1)}
        for number, ledger in ledgers.items()
    }
    return events, left


def expected(data: bytes) -> tuple[list[Any], dict[int, set[int]]]:
    """The same, read naively."""
    outstanding = {number: set(range(1, GIVEN + 1)) for number in (1, 2)}
    return meaning(data, outstanding), outstanding


@given(streams())
def test_a_stream_means_what_its_frames_say(data: bytes) -> None:
    assert received(INSTALLED, [data]) == expected(data)


@given(st.data(), st.sampled_from([16, 64, 700, 65536]), st.booleans())
def test_any_cutting_means_the_same(
    data: st.DataObject, receive_bytes: int, filtered: bool
) -> None:
    stream = data.draw(streams())
    pieces = data.draw(cuts(stream, 12))
    assert received(INSTALLED, pieces, receive_bytes, filtered=filtered) == expected(stream)


@differential
@given(st.data(), st.sampled_from([64, 65536]))
def test_compiled_and_uncompiled_read_the_same(data: st.DataObject, receive_bytes: int) -> None:
    pieces = data.draw(cuts(data.draw(streams())))
    assert received(uncompiled(), pieces, receive_bytes) == received(
        INSTALLED, pieces, receive_bytes
    )


def run_from(hot: Hot, payloads: list[bytes]) -> Any:
    """A detached run of these payloads (of the first, where they make several)."""
    found: list[Any] = []
    line = Line(hot)

    def publish_run(connection: Any, channel: int, run: Any) -> None:
        run.detach()
        found.append(run)

    line.publish_run = publish_run  # type: ignore[method-assign]
    line.ledger()
    from_client = b"".join(_published(payload) for payload in payloads)
    hot.amqp_parser.AmqpParser(1 << 20).process(
        line.connection, bytearray(from_client), len(from_client)
    )
    line.close()
    return found[0]


def _published(payload: bytes) -> bytes:
    parts = [
        (1, struct.pack(">HHHBB", 60, 40, 0, 0, 0) + b"\x00"),
        (2, struct.pack(">HHQ", 60, 0, len(payload)) + NO_PROPERTIES),
        *([(3, payload)] if payload else []),
    ]
    return b"".join(
        struct.pack(">BHI", kind, 1, len(content)) + content + b"\xce" for kind, content in parts
    )


PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=20) | st.builds(
    lambda payload, count: [payload] * count, st.binary(max_size=40), st.integers(1, 20)
)
NUMBERS = st.sampled_from([0, 1, (1 << 62) - 100])


@given(
    PAYLOADS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.integers(0, 7),
    st.binary(max_size=9),
    st.data(),
)
def test_batches_and_deliveries(
    payloads: list[bytes],
    expiry: int,
    delay: int,
    producer: int,
    sequence: int,
    attributes: int,
    key: bytes,
    data: st.DataObject,
) -> None:
    """Built, read back and delivered, the messages are those published; both forms give the same bytes."""
    arguments = (expiry, delay, producer, sequence, attributes)
    kinds = [INSTALLED, uncompiled()] if COMPILED else [INSTALLED]
    made = []
    count = 0
    for hot in kinds:
        run = run_from(hot, payloads)
        count = run.count
        made.append(hot.amqp_run.build_amqp_batches(run, key, b"block", 7, *arguments))
    assert made[0] == made[-1]
    (built,) = made[0]
    index = data.draw(st.integers(0, count - 1))
    some = data.draw(st.integers(1, count - index))
    frame_max = data.draw(st.sampled_from([9, 20, 4096]))
    redelivered = data.draw(st.booleans())
    base, tag = data.draw(NUMBERS), data.draw(NUMBERS)
    properties, offset_at = data.draw(st.sampled_from([(b"", -1), (b"p" * 9, -1), (b"p" * 9, 1)]))
    written = []
    for hot in kinds:
        batch = hot.batch_format.parse(built)
        batch.stamp(base, 1, 1)
        delivered = hot.amqp_delivery.encode_deliveries(
            *(batch, index, some, 3, b"tag", tag, redelivered, b"ex", key),
            *(properties, frame_max, offset_at),
        )
        written.append(delivered)
        assert [batch.payload(each) for each in range(count)] == payloads[:count]
    assert written[0] == written[-1]
    assert read_bodies(written[0]) == payloads[index : index + some]
    headers = [payload[12:] for kind, _, payload in cut(written[0]) if kind == 2]
    for number, header in enumerate(headers):
        offset = (base + index + number).to_bytes(8, "big")
        assert header == (b"p" + offset if offset_at == 1 else properties)
    tags = [payload[8:16] for kind, _, payload in cut(written[0]) if kind == 1]
    assert tags == [(tag + number).to_bytes(8, "big") for number in range(some)]


def read_bodies(data: bytes) -> list[bytes]:
    """The contents of a stream of deliveries."""
    found: list[bytes] = []
    for kind, channel, payload in cut(data):
        assert channel == 3
        if kind == 1:
            found.append(b"")
        elif kind == 3:
            found[-1] += payload
    return found


GIVES = st.tuples(
    st.just("give"), st.sampled_from(["a", "b", "c", None]), st.integers(1, 9), st.booleans()
)
ANSWERS = st.tuples(
    st.sampled_from(["acknowledge", "settle"]), st.integers(0, 60), st.booleans(), st.just(0)
)
OTHERS = st.tuples(
    st.sampled_from(["take", "forget"]), st.sampled_from(["a", "b"]), st.just(0), st.just(0)
)


@pytest.mark.parametrize("hot", [INSTALLED, uncompiled()], ids=lambda hot: hot.name)
@given(st.lists(GIVES | ANSWERS | ANSWERS | OTHERS, max_size=60), st.randoms())
def test_every_delivery_is_settled_once(hot: Hot, steps: list[Any], random: Any) -> None:
    """A ledger against a dictionary of every tag."""
    ledger = hot.amqp_ledger.ChannelLedger(1)
    unsettled: dict[int, tuple[Any, int]] = {}
    acknowledged: list[tuple[Any, int]] = []
    offset = 0
    for name, *arguments in steps:
        if name == "give":
            consumer, count, gap = arguments
            offset += 5 if gap else 0
            first = ledger.given(consumer, count, offset)
            if consumer is not None:
                unsettled.update(
                    {first + number: (consumer, offset + number) for number in range(count)}
                )
            offset += count
        elif name in ("acknowledge", "settle"):
            tag, multiple, _ = arguments
            tags = named(unsettled, tag, multiple)
            found = [unsettled.pop(each) for each in tags or ()]
            living = [each for each in found if each[0] is not None]
            if name == "settle":
                settled = ledger.settle(tag, multiple)
                assert (settled is None) == (tags is None)
                assert sorted(messages(settled or [])) == sorted(living)
            else:
                assert ledger.acknowledge(tag, multiple) == (tags is not None)
                acknowledged += living
        elif name == "take":
            taken = ledger.take_acknowledged()
            assert sorted(messages(taken)) == sorted(acknowledged)
            assert no_neighbours(taken)
            acknowledged = []
        else:
            (consumer, *_) = arguments
            forgotten = sorted(each for each in unsettled.values() if each[0] == consumer)
            assert sorted(messages(ledger.forget(consumer))) == forgotten
            unsettled = {
                tag: (None, 0) if each[0] == consumer else each for tag, each in unsettled.items()
            }
        living = [each for each in unsettled.values() if each[0] is not None]
        assert messages(ledger.all()) == living
        assert ledger.unsettled == len(living)
        for consumer in ("a", "b"):
            assert ledger.outstanding(consumer) == sum(each[0] == consumer for each in living)


def named(unsettled: dict[int, Any], tag: int, multiple: bool) -> list[int] | None:
    """The tags that an answer names; None when it is wrong."""
    if multiple and tag == 0:
        return list(unsettled)
    if tag not in unsettled:
        return None
    return [each for each in unsettled if each <= tag] if multiple else [tag]


def messages(ranges: list[tuple[Any, int, int]]) -> list[tuple[Any, int]]:
    """Consumer and offset of every message."""
    return [(who, offset) for who, first, last in ranges for offset in range(first, last + 1)]


def no_neighbours(ranges: list[tuple[Any, int, int]]) -> bool:
    """Whether ranges that follow each other are one."""
    ends = {(who, last + 1) for who, _, last in ranges}
    return not any((who, first) in ends for who, first, _ in ranges)


@pytest.mark.parametrize("hot", [INSTALLED, uncompiled()], ids=lambda hot: hot.name)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=20), st.data())
def test_every_publish_is_answered_once(
    hot: Hot, runs: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """In whatever order runs are done, and however often the answers are fetched."""
    window = hot.amqp_confirms.ConfirmWindow()
    waiting = []
    expected_answers = {}
    for count, ok in runs:
        first = window.publish(count)
        waiting.append((first, count, ok))
        expected_answers.update({first + number: ok for number in range(count)})
    answered: dict[int, bool] = {}
    for first, count, ok in data.draw(st.permutations(waiting)):
        window.done(first, count, ok)
        if data.draw(st.booleans()):
            take(window, answered, window.next)
            assert first in answered
    take(window, answered, window.next)
    assert answered == expected_answers
    assert window.unanswered == 0


def take(window: Any, answered: dict[int, bool], end: int) -> None:
    """Read the answers as a client does: what `multiple` names and was not answered yet."""
    for _, _, payload in cut(window.answers(1)):
        _, method, tag, multiple = struct.unpack(">HHQB", payload)
        numbers = range(1, tag + 1) if multiple else [tag]
        fresh = [number for number in numbers if number not in answered]
        assert fresh
        assert tag < end
        assert multiple or fresh == [tag]
        answered.update(dict.fromkeys(fresh, method == 80))
