"""Consuming from a stream: where it begins."""

from __future__ import annotations

import pytest

from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.protocols.amqp091.methods import BasicConsume, BasicQos
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp091.consume_request import stream_start
from tests.unit.sessions.amqp091.consumers import STREAM
from tests.unit.sessions.amqp091.memory import MemoryBroker, Peer
from tests.unit.sessions.amqp091.scripts import play


@pytest.mark.parametrize(
    ("value", "start"),
    [
        (None, None),
        ("first", ("first", 0)),
        ("last", ("last", 0)),
        ("next", ("next", 0)),
        (5, ("offset", 5)),
        (-5, ("offset", 0)),
        (1 << 70, ("offset", (1 << 63) - 1)),
        ("offset=17", ("offset", 17)),
        (Timestamp(7), ("timestamp", 7_000_000)),
        ("timestamp=7", ("timestamp", 7_000_000)),
        ("timestamp=1700000000000", ("timestamp", 1_700_000_000_000_000)),
        ("1h", ("interval", 3_600_000_000)),
        ("7D", ("interval", 7 * 86_400_000_000)),
    ],
)
def test_where_a_streams_consumer_begins(value: object, start: tuple[str, int] | None) -> None:
    assert stream_start(value, QueueRecord("/", "q", "stream")) == start


@pytest.mark.parametrize("value", [True, "bogus", "offset=-1", "offset=", 1.5, [], {}, "1w", ""])
def test_what_is_no_place_in_a_stream(value: object) -> None:
    with pytest.raises(SoftError, match="x-stream-offset"):
        stream_start(value, QueueRecord("/", "q", "stream"))


def test_a_streams_consumer_asks_for_what_its_arguments_say() -> None:
    broker = MemoryBroker()
    peer = Peer(broker)
    arguments = {
        "x-stream-offset": "first",
        "x-consumer-group": "g",
        "x-auto-commit": False,
        "x-stream-filter": ["a.#", "b"],
        "x-priority": 3,
    }
    play(
        peer, [STREAM, BasicQos(0, 7), BasicConsume("q", "t", exclusive=True, arguments=arguments)]
    )
    wanted = broker.queues["/", "q"].consumers[0].wanted
    assert (wanted.start, wanted.group, wanted.auto_commit) == (("first", 0), "g", False)
    assert (wanted.filters, wanted.priority, wanted.limit) == (("a.#", "b"), 3, 7)
    assert (wanted.tag, wanted.exclusive, wanted.taking) == ("t", True, False)
    assert wanted.timeout == 0
