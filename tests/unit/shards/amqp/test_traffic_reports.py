"""A shard's reports of the traffic of its queues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluxmq.engine import traffic_reports
from fluxmq.engine.traffic_reports import TrafficReports
from fluxmq.ipc.traffic_messages import (
    REPORTED_EXCHANGES_MAX,
    QueueNumbers,
    ShardNumbers,
    TrafficReport,
)
from fluxmq.shards.amqp.publishing import COUNTED_EXCHANGES_MAX
from tests.unit.shards.amqp.support import AmqpClient, AmqpNode, Consumer, Publisher, user

MakeAmqp = Callable[..., AmqpNode]


def reports_of(node: AmqpNode) -> TrafficReports:
    """The reports of the first shard."""
    return node.amqp().traffic


def rows(report: TrafficReport) -> dict[str, QueueNumbers]:
    """The rows of a report by name of the queue."""
    return {name: QueueNumbers(*numbers) for _, name, numbers in report.queues}


def test_only_what_has_changed_is_reported(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    lasting = node.queue("lasting")
    node.queue("passing", durable=False)
    reports = reports_of(node)
    assert reports.report().queues == (), "empty queues are as at their beginning"
    Publisher(node).publish("", "lasting", b"1", b"2", b"3")
    node.settle()
    assert rows(reports.report()) == {"lasting": QueueNumbers(publish=3, messages_ready=3)}
    again = reports.report()
    assert (again.queues, again.left) == ((), 0)
    assert ShardNumbers(*again.totals).messages_ready == 3
    consumer = Consumer(node, lasting)
    node.settle()
    held = QueueNumbers(publish=3, deliver=3, messages_unacknowledged=3)
    assert rows(reports.report()) == {"lasting": held}
    consumer.leave()
    back = held._replace(messages_ready=3, messages_unacknowledged=0)
    assert rows(reports.report()) == {"lasting": back}
    Publisher(node).publish("", "passing", b"x")
    node.settle()
    assert rows(reports.report()) == {"passing": QueueNumbers(publish=1, messages_ready=1)}
    assert node.delete(lasting) == 3
    ended = reports.report()
    assert (ended.ended, ended.queues) == ((("/", "lasting"),), ())
    assert ShardNumbers(*ended.totals).messages_ready == 1


def test_gets_acknowledgements_and_redeliveries_are_counted_apart(make_amqp: MakeAmqp) -> None:
    node = make_amqp(people=(user(),))
    queue = node.queue("q")
    reports = reports_of(node)
    client = AmqpClient(node)
    client.send(1, "channel.open")
    Publisher(node).publish("", "q", *(b"m" for _ in range(5)))
    node.settle()
    for no_ack in (False, True):
        client.send(1, "basic.get", queue="q", no_ack=no_ack)
        node.settle()
    client.send(1, "basic.nack", delivery_tag=1, requeue=True)
    node.settle()
    client.send(1, "basic.get", queue="q")
    node.settle()
    client.send(1, "basic.ack", delivery_tag=3)
    node.settle()
    consumer = Consumer(node, queue, automatic=True)
    node.settle()
    found = rows(reports.report())["q"]
    assert found == QueueNumbers(
        publish=5, deliver_no_ack=3, get=2, get_no_ack=1, redeliver=1, ack=1
    )
    consumer.leave()


def test_reports_are_bounded_and_a_new_caller_gets_everything(
    make_amqp: MakeAmqp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a control process that has restarted."""
    monkeypatch.setattr(traffic_reports, "REPORTED_QUEUES_MAX", 2)
    node = make_amqp()
    names = [f"q{number}" for number in range(5)]
    for name in names:
        node.queue(name)
        Publisher(node).publish("", name, b"x")
    node.settle()
    reports = reports_of(node)
    for anew in (False, True):
        found = [reports.report(anew=anew), reports.report(), reports.report()]
        assert [each.left for each in found] == [3, 1, 0]
        assert sorted(name for each in found for name in rows(each)) == names
        assert ShardNumbers(*found[-1].totals).messages_ready == 5
        assert not any(each.ended for each in found)


def test_queues_that_come_and_go_unreported_leave_nothing(make_amqp: MakeAmqp) -> None:
    """As on a node without a management interface."""
    node = make_amqp()
    group = node[0].queues.service.groups[node.queue("kept").group].group
    for _ in range(20):
        node.delete(node.queue("passing"))
    traffic = [each.machine.traffic for each in node[0].queues.service.all_groups()]
    assert sum(len(each.moved) for each in traffic) == 1
    assert sum(len(each.queues) for each in traffic) == 0
    assert group.machine.traffic.reported == {}


def test_messages_in_and_out_of_exchanges_are_counted(make_amqp: MakeAmqp) -> None:
    node = make_amqp()
    node.exchange("fan", "fanout")
    for name in ("one", "two"):
        node.queue(name)
        node.bind("fan", name)
    Publisher(node).publish("fan", "", b"a", b"b")
    Publisher(node).publish("", "none", b"c")
    node.settle()
    reports = reports_of(node)
    assert set(reports.report().exchanges) == {("/", "fan", (2, 4)), ("/", "", (1, 0))}
    assert reports.report().exchanges == ()


def test_exchanges_that_are_counted_are_limited(make_amqp: MakeAmqp) -> None:
    """With one more, all counts begin anew."""
    node = make_amqp()
    reports = reports_of(node)
    counted = node.amqp().broker._publishing.traffic
    counted.update({("/", f"e{number}"): [1, 1] for number in range(COUNTED_EXCHANGES_MAX)})
    for _ in range(COUNTED_EXCHANGES_MAX // REPORTED_EXCHANGES_MAX):
        assert len(reports.report().exchanges) == REPORTED_EXCHANGES_MAX
    assert len(reports.report().exchanges) == COUNTED_EXCHANGES_MAX % REPORTED_EXCHANGES_MAX
    Publisher(node).publish("", "none", b"x")
    assert reports.report().exchanges == (("/", "", (1, 0)),)
    assert len(counted) == 1
