"""Queues of the settings file: as records, declared again by clients, under policies."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.engine.names import config_of
from fluxmq.routing.topology.arguments import check_queue, queue_type
from fluxmq.routing.topology.changes import AddVhost, DeclareQueue, SetPolicy
from fluxmq.routing.topology.configured import configured_queue
from fluxmq.routing.topology.effective import effective
from fluxmq.routing.topology.queue_config import queue_settings
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings import queues as settings

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"limits": {"message_ttl": 604_800.0}}, {}),
    ({"limits": {"message_ttl": 0.0}}, {}),
    ({"limits": {"message_ttl": 60.0}}, {"x-message-ttl": 60_000}),
    ({"limits": {"max_length": 5}}, {"x-max-length": 5}),
    ({"limits": {"max_length_bytes": 5}}, {"x-max-length-bytes": 5}),
    ({"limits": {"overflow": "reject-publish"}}, {"x-overflow": "reject-publish"}),
    ({"expires": 1.5}, {"x-expires": 1500}),
    ({"consumer": {"delivery_limit": 4}}, {}),
    ({"type": "quorum", "consumer": {"delivery_limit": 4}}, {"x-delivery-limit": 3}),
    ({"type": "quorum", "consumer": {"delivery_limit": -1}}, {"x-delivery-limit": -1}),
    ({"type": "quorum"}, {}),
    ({"type": "stream", "retention": {"max_age": 7200.0}}, {"x-max-age": "7200s"}),
    ({"type": "stream", "retention": {"max_age": 0.5}}, {}),
    ({"type": "stream", "retention": {"max_length_bytes": 9}}, {"x-max-length-bytes": 9}),
    ({"type": "stream", "limits": {"message_ttl": 60.0, "max_length": 5}}, {}),
]


@pytest.mark.parametrize(("values", "arguments"), CASES)
def test_what_the_file_says_is_what_a_client_would_have_said(
    values: dict[str, Any], arguments: dict[str, Any]
) -> None:
    section = settings.QueueSettings(name="orders", **values)
    queue = configured_queue(section)
    kind = values.get("type", "classic")
    assert queue == QueueRecord(
        "/", "orders", kind, durable=True, arguments=arguments, origin="settings"
    )
    check_queue(queue)
    topology = Topology()
    topology.apply_all([AddVhost(Vhost("/")), DeclareQueue(queue)])
    # What policies add is laid over the file's values, which must not change by that.
    config = config_of(section)
    for field, value in queue_settings(queue, effective(topology, queue)).items():
        assert getattr(config, field) == value
    for given in ({}, arguments, {"x-queue-type": kind}):
        again = QueueRecord("/", "orders", queue_type(given), durable=True, arguments=given)
        assert topology.check_queue(again)


def test_other_arguments_are_others() -> None:
    topology = Topology()
    section = settings.QueueSettings(name="orders", limits=settings.QueueLimits(max_length=5))
    topology.apply_all([AddVhost(Vhost("/")), DeclareQueue(configured_queue(section))])
    for given in ({"x-max-length": 6}, {"x-message-ttl": 5}):
        with pytest.raises(Refusal) as caught:
            topology.check_queue(QueueRecord("/", "orders", durable=True, arguments=given))
        assert caught.value.code == 406


def test_a_policy_makes_a_limit_of_the_file_smaller_not_larger() -> None:
    topology = Topology()
    section = settings.QueueSettings(name="orders", limits=settings.QueueLimits(max_length=500))
    queue = configured_queue(section)
    topology.apply_all([AddVhost(Vhost("/")), DeclareQueue(queue)])
    for limit, wanted in ((1000, 500), (100, 100)):
        topology.apply(SetPolicy(Policy("/", "p", "", definition={"max-length": limit})))
        assert queue_settings(queue, effective(topology, queue)) == {"max_length": wanted}
