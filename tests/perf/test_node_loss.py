"""The generator's side of a node that is killed: many sessions, which come back elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from perf import brokers, many_sessions
from perf.brokers import HOST
from perf.many_sessions import Clients, Crowd
from perf.node_loss import CONNECTIONS_OF_SHARD, counts_of, workers_of

COUNT = 30


def wait(done: Callable[[], bool]) -> None:
    """Wait until something is so, for a bounded time."""
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sessions_come_back_at_another_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """From several processes; each is counted once, with its subscription."""
    monkeypatch.setattr(many_sessions, "PORTS_OF_SOURCE", COUNT // 2)
    monkeypatch.setattr(many_sessions, "REFUSED_S", (0.05, 0.1))
    first, second = brokers.start_fluxmq("fluxmq", 1), brokers.start_fluxmq("fluxmq", 1)
    clients = Clients(Crowd(COUNT, HOST, clean=0.5, spread_s=0.1), [first.port])
    try:
        assert len(clients.pids()) == 2
        wait(lambda: clients.there == COUNT)
        clients.choose([second.port])
        began = time.monotonic()
        first.stop()
        wait(lambda: clients.again == clients.there == COUNT)
        found = clients.finish()
    finally:
        clients.kill()
        first.stop()
        second.stop()
    assert len(found.moments) == COUNT
    assert min(found.moments) > began
    assert found.present == 0


def test_a_refused_connection_is_counted_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_sessions, "REFUSED_S", (0.01, 0.02))
    clients = Clients(Crowd(1, HOST), [brokers.free_port()])
    try:
        wait(lambda: clients.refused >= 3)
        found = clients.finish()
    finally:
        clients.kill()
    assert sum(found.refusals.values()) >= 3
    assert list(found.moments) == []


def test_a_node_has_as_many_shards_as_its_connections_need() -> None:
    assert workers_of(1) == 1
    assert workers_of(10 * CONNECTIONS_OF_SHARD) >= 10


def test_commits_and_transactions_of_etcd_are_read() -> None:
    page = """# HELP etcd_server_proposals_applied_total x
etcd_server_proposals_applied_total 42
grpc_server_handled_total{grpc_code="OK",grpc_method="Range",grpc_type="unary"} 5
grpc_server_handled_total{grpc_code="OK",grpc_method="Txn",grpc_type="unary"} 7
grpc_server_handled_total{grpc_code="Unknown",grpc_method="Txn",grpc_type="unary"} 1
"""
    assert counts_of(page) == {"transactions": 8.0, "commits": 42.0}
