"""One column of a shard's queues, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxmq.ipc.column_messages import QueueColumn
from fluxmq.shards.amqp.queue_columns import QueueColumnReader
from tests.unit.shards.amqp.support import AmqpNode, Publisher

MakeAmqp = Callable[..., AmqpNode]


def column(node: AmqpNode, name: str, at_once: int) -> tuple[dict[str, Any], int]:
    """A column of the first shard's queues, and the number of pages."""
    shard = node.amqp()
    reader = QueueColumnReader(shard.queries.queues, shard.queries.figures_of, at_once)
    found: dict[str, Any] = {}
    pages = after = 0
    while after >= 0:
        page = reader.page(QueueColumn(name, after))
        assert len(page.names) <= at_once
        found |= dict(zip(page.names, page.values, strict=True))
        after = page.following
        pages += 1
    return found, pages


def test_a_column_comes_in_pages_and_without_what_is_nothing(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    for number in range(5):
        node.queue(f"lasting-{number}")
        node.queue(f"passing-{number}", durable=False)
    Publisher(node).publish("", "lasting-3", b"1", b"2")
    Publisher(node).publish("", "passing-1", b"1")
    node.settle()
    for at_once in (1, 3, 10, 100):
        found, pages = column(node, "messages", at_once)
        assert found == {"lasting-3": 2, "passing-1": 1}
        assert pages == 10 // at_once + 1
    assert set(column(node, "state", 4)[0].values()) == {"running"}
    assert len(column(node, "state", 4)[0]) == 10
    assert column(node, "nothing", 4)[0] == {}
