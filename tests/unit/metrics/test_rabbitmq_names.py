"""RabbitMQ's names of metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from fluxmq.metrics import rabbitmq_names
from fluxmq.metrics.exposition import Exposition, MetricSource, rendered
from fluxmq.metrics.metric import Scope
from fluxmq.metrics.rabbitmq_names import ScrapedNode, renamed
from fluxmq.metrics.registry import Sample, find
from fluxmq.routing.topology.names import internal_name, public_name

IDENTITY = ScrapedNode("node-1", "the cluster", "3.10.8")


def shown(*shards: list[Sample], per_object: bool = False) -> dict[tuple[object, ...], float]:
    """Return the series of a scrape under RabbitMQ's names."""
    exposition = Exposition()
    for index, samples in enumerate(shards):
        exposition.add(MetricSource(Scope.SHARD, samples, index))
    assert exposition.undeclared == 0
    families = renamed(exposition.families(), IDENTITY, public_name if per_object else None)
    text = rendered(families).body.decode()
    return {
        (each.name, *sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_every_source_is_declared_with_its_labels() -> None:
    for _, kind, _, sources in rabbitmq_names._METRICS:
        for source in sources:
            metric = find(source.metric)
            assert metric is not None, source
            assert {*source.labels} <= {*metric.labels}, source
            assert metric.kind.value == kind


def test_samples_of_all_shards_are_added_up() -> None:
    found = shown(
        [
            ("fluxmq_queue_messages", {"queue": "a"}, 5),
            ("fluxmq_queue_messages", {"queue": "b"}, 2),
            ("fluxmq_queue_unsettled", {"queue": "a"}, 1),
            ("fluxmq_amqp_confirms_total", {"answer": "ack"}, 8),
            ("fluxmq_amqp_confirms_total", {"answer": "nack"}, 3),
        ],
        [
            ("fluxmq_queue_messages", {"queue": "c"}, 4),
            ("fluxmq_messages_received_total", {"qos": "0"}, 100),
            ("fluxmq_messages_received_total", {"qos": "1"}, 20),
            ("fluxmq_messages_received_total", {"qos": "2"}, 3),
        ],
    )
    assert found["rabbitmq_queue_messages",] == 11
    assert found["rabbitmq_queue_messages_ready",] == 10
    assert found["rabbitmq_queue_messages_unacked",] == 1
    amqp, mqtt = ("protocol", "amqp091"), ("protocol", "mqtt")
    assert found["rabbitmq_global_messages_confirmed_total", amqp] == 8
    assert found["rabbitmq_global_messages_received_confirm_total", amqp] == 11
    assert found["rabbitmq_global_messages_received_confirm_total", mqtt] == 23
    assert found["rabbitmq_global_messages_received_total", mqtt] == 123
    assert found["rabbitmq_queues",] == 0, "a series that dashboards join is there, if with 0"


def test_queues_are_shown_one_by_one_on_request() -> None:
    found = shown(
        [
            ("fluxmq_queue_messages", {"queue": "a"}, 5),
            ("fluxmq_queue_messages", {"queue": internal_name("v", "b")}, 2),
            ("fluxmq_queue_unsettled", {"queue": "a"}, 1),
            ("fluxmq_connections", {"listener": "server.mqtt.tcp"}, 3),
        ],
        [("fluxmq_queue_messages", {"queue": "c"}, 4)],
        per_object=True,
    )
    ready = {
        key[1:]: each for key, each in found.items() if key[0] == "rabbitmq_queue_messages_ready"
    }
    assert ready == {
        (("queue", "a"), ("vhost", "/")): 4,
        (("queue", "b"), ("vhost", "v")): 2,
        (("queue", "c"), ("vhost", "/")): 4,
    }
    assert found["rabbitmq_connections",] == 3


def test_nothing_is_below_zero() -> None:
    """A shard may report deliveries of messages that another has not counted yet."""
    found = shown([("fluxmq_queue_unsettled", {"queue": "a"}, 1)])
    assert found["rabbitmq_queue_messages_ready",] == 0


def test_dashboards_find_node_and_cluster() -> None:
    labels = [
        ("rabbitmq_cluster", "the cluster"),
        ("rabbitmq_cluster_permanent_id", "the cluster"),
        ("rabbitmq_node", "node-1"),
    ]
    assert shown()["rabbitmq_identity_info", *labels] == 1
    build = [("product_name", "FluxMQ"), ("rabbitmq_version", "3.10.8")]
    assert shown()["rabbitmq_build_info", *build] == 1
