"""The count of a shard's sessions: in steps, and not again while nothing happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.shards import reports
from fluxmq.shards.amqp.reports import AmqpReports
from fluxmq.shards.reports import Census
from tests.unit.shards.node import Node

MakeNode = Callable[..., Node]


def test_sessions_at_rest_are_counted_once_until_one_comes_or_goes(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "CENSUS_STEP", 2)
    node = make_node(1)
    clients = [node.connect(0, f"c{number}") for number in range(4)]
    amqp = node[0].amqp
    census = Census(node[0].broker, AmqpReports(amqp.broker, amqp.topology, amqp.messages))
    for _ in range(2):
        census.step(resting=True)
    settled = census.result
    assert settled.connected == 4
    for _ in range(4):
        census.step(resting=True)
    assert census.result is settled, "they are not counted again"
    clients[0].disconnect()
    node.run()
    for _ in range(2):
        census.step(resting=True)
    assert census.result.connected == 3
    settled = census.result
    census.step()
    census.step()
    assert census.result is not settled, "something has happened"
