"""Runs of AMQP publishes as batches: what every message has, and where a batch ends."""

from __future__ import annotations

import pytest

from fluxmq.model.batch_format import (
    MESSAGES_MAX,
    PAYLOAD_BYTES_MAX,
    PROTOCOL_AMQP_0_9_1,
    Batch,
    parse,
    verify,
)
from fluxmq.protocols.amqp091.parser import AmqpParser
from fluxmq.protocols.amqp091.run import AmqpPublishRun, build_amqp_batches
from tests.unit.protocols.amqp091.line import NO_PROPERTIES, Line, publish

NOW = 1_700_000_000_000_000


def runs_of(payloads: list[bytes], frame_max: int = 1 << 21) -> list[AmqpPublishRun]:
    """What the parser makes of publishes of these payloads, detached."""
    line = Line()
    line.connection.frame_max = frame_max
    line.ledger()
    found: list[AmqpPublishRun] = []

    def publish_run(connection: object, channel: int, run: AmqpPublishRun) -> None:
        run.detach()
        found.append(run)

    line.publish_run = publish_run  # type: ignore[method-assign]
    data = bytearray(b"".join(publish(payload, piece=frame_max) for payload in payloads))
    AmqpParser(1 << 26).process(line.connection, data, len(data))
    line.close()
    return found


def built(run: AmqpPublishRun, **arguments: int) -> list[Batch]:
    """The run's batches, read back."""
    batches = [parse(data) for data in build_amqp_batches(run, b"key", b"block", NOW, **arguments)]
    for batch in batches:
        verify(batch)
    return batches


def payloads_of(batches: list[Batch]) -> list[bytes]:
    """Every payload."""
    return [batch.payload(index) for batch in batches for index in range(batch.count)]


@pytest.mark.parametrize(
    "payloads",
    [
        [b""],
        [b"x"],
        [b""] * 20,
        [b"same"] * 20,
        [b"x" * size for size in (0, 1, 300, 0, 2)],
    ],
)
def test_the_messages_of_a_run(payloads: list[bytes]) -> None:
    (run,) = runs_of(payloads)
    (batch,) = built(run)
    assert payloads_of([batch]) == payloads == run.payloads()
    for index in range(batch.count):
        assert (batch.key(index), batch.properties(index)) == (b"key", b"block")
        assert batch.time(index) == NOW
        assert batch.attributes(index) == PROTOCOL_AMQP_0_9_1
        assert batch.expiry(index) == batch.delay(index) == batch.producer(index) == 0


def test_columns() -> None:
    (run,) = runs_of([b"a", b"b", b"c"])
    (batch,) = built(run, expiry_us=5, delay_us=6, producer=7, sequence=8, attributes=4)
    for index in range(3):
        assert (batch.expiry(index), batch.delay(index), batch.producer(index)) == (5, 6, 7)
        assert batch.sequence(index) == 8 + index
        assert batch.attributes(index) == PROTOCOL_AMQP_0_9_1 | 4
    (batch,) = built(run, producer=7)
    assert [batch.sequence(index) for index in range(3)] == [0, 0, 0]
    assert payloads_of([batch]) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("empty", [True, False])
def test_a_batch_has_a_bounded_number_of_messages(empty: bool) -> None:
    payloads = [b"" if empty else b"%04d" % number for number in range(MESSAGES_MAX + 5)]
    (run,) = runs_of(payloads)
    batches = built(run, producer=1, sequence=100)
    assert [batch.count for batch in batches] == [MESSAGES_MAX, 5]
    assert batches[1].sequence(0) == 100 + MESSAGES_MAX
    assert payloads_of(batches) == payloads


@pytest.mark.parametrize("sizes", [(400_000,) * 4, (400_000, 400_001, 400_000, 1, 0)])
def test_a_batch_has_a_bounded_number_of_bytes(sizes: tuple[int, ...]) -> None:
    payloads = [bytes(size) for size in sizes]
    (run,) = runs_of(payloads)
    batches = built(run)
    assert [batch.count for batch in batches] == [2, len(sizes) - 2]
    assert payloads_of(batches) == payloads


def test_a_larger_message_is_alone_in_its_batch() -> None:
    payloads = [b"a", bytes(PAYLOAD_BYTES_MAX + 1), b"b"]
    (run,) = runs_of(payloads)
    batches = built(run)
    assert [batch.count for batch in batches] == [1, 1, 1]
    assert payloads_of(batches) == payloads


@pytest.mark.parametrize("payload", [b"", b"whole"])
def test_a_message_put_together_elsewhere(payload: bytes) -> None:
    run = AmqpPublishRun.of(3, b"ex", b"key", True, False, NO_PROPERTIES, payload)
    run.detach()
    assert (run.channel, run.exchange, run.routing_key, run.count) == (3, b"ex", b"key", 1)
    assert (run.mandatory, run.immediate, run.properties) == (True, False, NO_PROPERTIES)
    assert run.payload_bytes == run.largest == len(payload)
    assert run.payload(0) == payload
    assert payloads_of(built(run)) == [payload]


@pytest.mark.parametrize("payloads", [[b"a", b"b", b"c"], [b"a", b"", b"ccc"]])
def test_payloads_in_any_order(payloads: list[bytes]) -> None:
    (run,) = runs_of(payloads)
    for index in (2, 0, 1, 1, 2):
        assert run.payload(index) == payloads[index]
    for index in (-1, 3):
        with pytest.raises(IndexError):
            run.payload(index)
