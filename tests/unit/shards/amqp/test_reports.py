"""What a shard tells of AMQP as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest

from fluxmq.metrics.exposition import Exposition, MetricSource
from fluxmq.metrics.metric import Scope
from fluxmq.metrics.registry import AMQP_STATES, METRICS, Sample, find, labels_problem
from fluxmq.routing.topology.changes import DeclareExchange, SetPolicy
from fluxmq.routing.topology.records import Exchange, Policy
from fluxmq.shards.amqp import reports
from fluxmq.shards.amqp.reports import (
    AmqpReports,
    message_samples,
    method_name,
    topology_samples,
)
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, user

MakeAmqp = Callable[..., AmqpNode]

PEOPLE = (user(),)


def told(node: AmqpNode) -> AmqpReports:
    """The reports of the first shard."""
    amqp = node.amqp()
    return AmqpReports(amqp.broker, amqp.topology, amqp.messages)


def values(samples: Iterable[Sample], name: str) -> dict[str, float]:
    """The samples of a metric that are not 0, by their label's value; empty for those without one."""
    found = {}
    for each, labels, value in samples:
        if each == name and value:
            found["".join(labels.values())] = value
    return found


def is_declared(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> set[str]:
    """The names of samples, all of which the registry has with just these labels."""
    names = set()
    for name, labels, _ in samples:
        metric = find(name)
        assert metric is not None, name
        assert labels_problem(metric, name, labels) is None
        assert metric.scope is Scope.SHARD
        names.add(name)
    return names


def test_every_metric_of_amqp_is_told_and_declared(make_amqp: MakeAmqp) -> None:
    node = make_amqp(people=PEOPLE)
    client = AmqpClient(node)
    client.send(1, "channel.open")
    client.send(1, "basic.get", queue="nope")
    assert [each.name for each in client.read()] == ["channel.open-ok", "channel.close"]
    client.send(1, "channel.close-ok")
    client.send(0, "connection.close", reply_code=200, reply_text="")
    samples = [*told(node).samples(), *message_samples(node[0].reactor.tally)]
    names = is_declared(samples)
    prefixes = ("fluxmq_amqp_", "fluxmq_topology_", "fluxmq_broker_messages_")
    assert names == {name for name in METRICS if name.startswith(prefixes)}
    exposition = Exposition()
    exposition.add(MetricSource(Scope.SHARD, samples, 0))
    assert exposition.undeclared == 0
    assert b'fluxmq_amqp_errors_total{code="404",shard="0"} 1' in exposition.text()


def test_connections_channels_and_consumers_are_counted(make_amqp: MakeAmqp) -> None:
    node = make_amqp(people=PEOPLE)
    node.queue("q")
    first, second = AmqpClient(node), AmqpClient(node)
    for number in (1, 2):
        first.send(number, "channel.open")
    second.send(1, "channel.open")
    first.send(2, "basic.consume", queue="q", consumer_tag="t")
    second.send(1, "basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True)
    node[0].broker.alarms.set(("disk",))
    samples = list(told(node).samples())
    assert values(samples, "fluxmq_amqp_connections") == {"running": 2}
    assert values(samples, "fluxmq_amqp_connections_opened_total") == {"": 2}
    assert values(samples, "fluxmq_amqp_channels") == {"": 3}
    assert values(samples, "fluxmq_amqp_consumers") == {"": 2}
    methods = values(samples, "fluxmq_amqp_methods_total")
    assert methods["channel.open"] == 3
    assert methods["basic.consume"] == 2
    assert methods["connection.start-ok"] == 2
    second.send(0, "connection.close", reply_code=200, reply_text="")
    samples = list(told(node).samples())
    assert values(samples, "fluxmq_amqp_connections") == {"running": 1}
    assert values(samples, "fluxmq_amqp_connections_closed_total") == {"client": 1}
    assert values(samples, "fluxmq_amqp_consumers") == {"": 1}


def test_a_client_that_was_told_to_wait_is_blocked(make_amqp: MakeAmqp) -> None:
    node = make_amqp(people=PEOPLE)
    client = AmqpClient(node)
    (state,) = node.amqp().handler.clients
    state.connection.publishing = True
    node[0].broker.alarms.set(("disk",))
    assert values(told(node).samples(), "fluxmq_amqp_connections") == {"blocked": 1}
    assert [each.name for each in client.read()] == ["connection.blocked"]
    node[0].broker.alarms.set(())
    assert values(told(node).samples(), "fluxmq_amqp_connections") == {"running": 1}
    state.pause()
    assert values(told(node).samples(), "fluxmq_amqp_connections") == {"flow": 1}
    assert {"running", "flow", "blocked"} < set(AMQP_STATES)


def test_many_connections_are_counted_some_at_a_time(
    make_amqp: MakeAmqp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "CENSUS_STEP", 4)
    node = make_amqp(people=PEOPLE)
    clients = [AmqpClient(node) for _ in range(5)]
    for client in clients:
        client.send(1, "channel.open")
    census = told(node).census
    counts = []
    for _ in range(3):
        census.step()
        counts.append(census.result.channels)
    # A connection and its channel are two: four in the first two turns, the last in the third.
    assert counts == [0, 0, 5]
    assert census.result.states == {"running": 5}


def test_the_topology_is_counted(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    topology = node.amqp().topology.topology
    before = values(topology_samples(topology), "fluxmq_topology_records")
    node.exchange("e")
    node.queue("q")
    node.bind("e", "q", "k")
    node.control.change(SetPolicy(Policy("/", "p", "^q$", "queues", 0, {"max-length": 2})))
    samples = list(topology_samples(topology))
    assert values(samples, "fluxmq_topology_revision") == {"": node.control.topology.revision}
    after = values(samples, "fluxmq_topology_records")
    assert {kind: number - before.get(kind, 0) for kind, number in after.items()} == {
        "vhost": 0,
        "exchange": 1,
        "queue": 1,
        "binding": 1,
        "policy": 1,
    }


def test_changes_of_the_topology_under_way_are_counted(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    node.control.held = True
    answers: list[object] = []
    for name in ("a", "b", "c"):
        change = DeclareExchange(Exchange("/", name, "direct"))
        node.amqp().broker.change([change], answers.append)
    assert values(told(node).samples(), "fluxmq_topology_changes_waiting") == {"": 3}
    node.control.held = False
    node.control.work()
    assert answers == [None, None, None]
    assert values(told(node).samples(), "fluxmq_topology_changes_waiting") == {}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("BasicGet", "basic.get"),
        ("QueueDeclareOk", "queue.declare-ok"),
        ("ConnectionUpdateSecret", "connection.update-secret"),
        ("TxCommit", "tx.commit"),
    ],
)
def test_methods_are_named_as_the_specification_does(name: str, written: str) -> None:
    assert method_name(name) == written
