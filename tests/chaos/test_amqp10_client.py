"""The campaign's clients of AMQP 1.0 on a node: what it accepts is confirmed, and comes to a consumer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.broker import HOST, free_ports, running_broker
from tests.chaos import amqp10_client
from tests.chaos.board import Board, Host, until
from tests.chaos.configurations import BY_NAME
from tests.chaos.consumers import Amqp10Consumer
from tests.chaos.publishers import Amqp10Publisher, Route
from tests.chaos.records import OK, SENT, Deliver, History, Join, Publish, Settle, read
from tests.chaos.settings import AMQP_GROUP, QUORUM, STREAM, WORK
from tests.chaos.workload import Workload

COUNT = 120
WITHIN_S = 30.0


async def through(board: Board) -> None:
    """Publish a few messages, and consume them."""
    consumer = Amqp10Consumer(board, "consumer", 0, WORK, AMQP_GROUP)
    publisher = Amqp10Publisher(board, "publisher", 0, Route(41, (WORK,), 20, 10_000.0, COUNT, 60))
    consumer.start()
    publisher.start()
    assert await until(lambda: len(board.confirmed[WORK]) == COUNT, WITHIN_S)
    assert await until(lambda: not board.missing(WORK, AMQP_GROUP), WITHIN_S)
    assert await until(lambda: not consumer.waiting, WITHIN_S)
    assert publisher.finished()
    await asyncio.gather(publisher.stop(), consumer.stop())
    assert publisher.connections == 1
    host = board.hosts[0]
    unknown = await amqp10_client.Connection.open(host.amqp, host.address, "unknown")
    with pytest.raises(OSError, match="amqp:not-found"):
        await unknown.consume("/queues/nowhere", 1)
    await asyncio.wait_for(unknown.closed, WITHIN_S)


def test_what_a_node_accepts_over_amqp_1_0_is_confirmed_and_comes(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {
        "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
        "queues": [{"name": WORK, "type": "classic", "topics": []}],
    }
    path = tmp_path / "history"
    with running_broker(tmp_path, settings=settings), History(path) as history:
        asyncio.run(through(Board(history, [Host("node1", HOST, 0, port)], Random(1), 1)))
    with path.open("rb") as lines:
        records = list(read(lines))
    published = [each for each in records if isinstance(each, Publish)]
    published.sort(key=lambda each: each.sequence)
    assert [each.sequence for each in published] == list(range(COUNT))
    assert {(each.outcome, each.protocol) for each in published} == {(OK, "amqp10")}
    delivered = [each for each in records if isinstance(each, Deliver)]
    assert [each.digest for each in delivered] == [each.digest for each in published]
    assert not any(each.repeat for each in delivered)
    settled = [each for each in records if isinstance(each, Settle)]
    assert {each.outcome for each in settled} == {SENT}
    assert sum(len(each.messages) for each in settled) == COUNT
    assert [each.queue for each in records if isinstance(each, Join)] == [WORK]


def test_every_queue_has_publishers_of_every_protocol(tmp_path: Path) -> None:
    with History(tmp_path / "history") as history:
        board = Board(history, [Host("node1", "nowhere", 0, 0)], Random(1), 1)
        workload = Workload(board, BY_NAME["short"])
    protocols = {(each.route.queues[0], each.protocol) for each in workload.publishers}
    for queue in (WORK, QUORUM, STREAM):
        assert {(queue, name) for name in ("mqtt", "amqp", "amqp10")} <= protocols
    numbers = [each.route.number for each in workload.publishers]
    assert len(set(numbers)) == len(numbers), "a publisher's number is its identity"
    amqp10 = [each for each in workload.consumers if isinstance(each, Amqp10Consumer)]
    assert {each.queue for each in amqp10} == {WORK, QUORUM}
