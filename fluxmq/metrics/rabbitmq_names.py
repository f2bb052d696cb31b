"""The metrics of a scrape under RabbitMQ's names, so that dashboards made for RabbitMQ draw them.

Pure. Only names whose meaning FluxMQ's metrics have are given; the metrics of Erlang's machine, for
example, are absent. Source: the documentation of RabbitMQ's plugin rabbitmq_prometheus, aggregated
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric as Family

RABBITMQ: Final = "rabbitmq"
"""Value of the query parameter ``prefix`` that asks for these names."""


class ScrapedNode(NamedTuple):
    """Names of the node and of its cluster, and the version of the RabbitMQ whose behaviour the node
    provides."""

    node: str
    cluster: str
    version: str = ""


class _Source(NamedTuple):
    """Samples that are added up: those of a metric that have ``labels``, shown with ``shown``."""

    metric: str
    labels: Mapping[str, str] = {}
    shown: Mapping[str, str] = {}
    factor: int = 1


_AMQP: Final = {"protocol": "amqp091"}
_MQTT: Final = {"protocol": "mqtt"}
_METRICS: Final[tuple[tuple[str, str, str, tuple[_Source, ...]], ...]] = (
    ("connections", "gauge", "Connections currently open", (_Source("fluxmq_connections"),)),
    ("channels", "gauge", "Channels currently open", (_Source("fluxmq_amqp_channels"),)),
    ("consumers", "gauge", "Consumers currently connected", (_Source("fluxmq_queue_consumers"),)),
    ("queues", "gauge", "Queues available", (_Source("fluxmq_queues"),)),
    (
        "connections_opened_total",
        "counter",
        "Connections opened",
        (_Source("fluxmq_connections_opened_total"),),
    ),
    (
        "connections_closed_total",
        "counter",
        "Connections closed or terminated",
        (_Source("fluxmq_connections_closed_total"),),
    ),
    ("queue_messages", "gauge", "Messages in queues", (_Source("fluxmq_queue_messages"),)),
    (
        "queue_messages_ready",
        "gauge",
        "Messages ready to be delivered to consumers",
        (_Source("fluxmq_queue_messages"), _Source("fluxmq_queue_unsettled", factor=-1)),
    ),
    (
        "queue_messages_unacked",
        "gauge",
        "Messages delivered to consumers but not yet acknowledged",
        (_Source("fluxmq_queue_unsettled"),),
    ),
    (
        "queue_messages_bytes",
        "gauge",
        "Size of messages in queues",
        (_Source("fluxmq_queue_bytes"),),
    ),
    ("queue_consumers", "gauge", "Consumers on queues", (_Source("fluxmq_queue_consumers"),)),
    (
        "global_messages_received_total",
        "counter",
        "Messages received from publishers",
        (
            _Source("fluxmq_amqp_published_total", shown=_AMQP),
            _Source("fluxmq_messages_received_total", shown=_MQTT),
        ),
    ),
    (
        "global_messages_received_confirm_total",
        "counter",
        "Messages received from publishers expecting confirmations",
        (
            _Source("fluxmq_amqp_confirms_total", shown=_AMQP),
            _Source("fluxmq_messages_received_total", {"qos": "1"}, _MQTT),
            _Source("fluxmq_messages_received_total", {"qos": "2"}, _MQTT),
        ),
    ),
    (
        "global_messages_confirmed_total",
        "counter",
        "Messages confirmed to publishers",
        (_Source("fluxmq_amqp_confirms_total", {"answer": "ack"}, _AMQP),),
    ),
    (
        "global_messages_unroutable_returned_total",
        "counter",
        "Messages that could not be routed and were returned to publishers",
        (_Source("fluxmq_amqp_returned_total", shown=_AMQP),),
    ),
    (
        "global_messages_delivered_total",
        "counter",
        "Messages delivered to consumers",
        (
            _Source("fluxmq_amqp_delivered_total", shown=_AMQP),
            _Source("fluxmq_messages_sent_total", shown=_MQTT),
        ),
    ),
    (
        "global_messages_redelivered_total",
        "counter",
        "Messages redelivered to consumers",
        (_Source("fluxmq_amqp_redelivered_total", shown=_AMQP),),
    ),
    (
        "global_messages_acknowledged_total",
        "counter",
        "Messages acknowledged by consumers",
        (_Source("fluxmq_amqp_settled_total", {"verb": "ack"}, _AMQP),),
    ),
    (
        "global_messages_get_empty_total",
        "counter",
        "basic.get requests that found no message",
        (_Source("fluxmq_amqp_gets_total", {"answer": "empty"}, _AMQP),),
    ),
    (
        "process_resident_memory_bytes",
        "gauge",
        "Memory used in bytes",
        (_Source("fluxmq_memory_held_bytes"),),
    ),
    (
        "resident_memory_limit_bytes",
        "gauge",
        "Memory high watermark in bytes",
        (_Source("fluxmq_memory_high_watermark_bytes"),),
    ),
    (
        "alarms_memory_used_watermark",
        "gauge",
        "1 while publishers are paused because memory is low",
        (_Source("fluxmq_alarm", {"kind": "memory"}),),
    ),
    (
        "alarms_free_disk_space_watermark",
        "gauge",
        "1 while publishers are paused because disk space is low",
        (_Source("fluxmq_alarm", {"kind": "disk"}),),
    ),
    (
        "disk_space_available_bytes",
        "gauge",
        "Disk space available in bytes",
        (_Source("fluxmq_disk_available_bytes"),),
    ),
    (
        "disk_space_available_limit_bytes",
        "gauge",
        "Disk space below which publishers are paused",
        (_Source("fluxmq_disk_reserve_bytes"),),
    ),
    (
        "erlang_uptime_seconds",
        "gauge",
        "Node uptime",
        (_Source("fluxmq_process_uptime_seconds", {"process": "control"}),),
    ),
)


def renamed(
    families: Iterable[Family],
    identity: ScrapedNode,
    named: Callable[[str], tuple[str, str]] | None = None,
) -> list[Family]:
    """Return the families under RabbitMQ's names, added up over shards, listeners and queues.

    With ``named``, which returns virtual host and name of a queue, queues are shown one by one.
    Dashboards join everything with ``rabbitmq_identity_info``.
    """
    known = {_full(each): each for each in families}
    found = [
        _information(
            "identity_info",
            "Names of the node and the cluster",
            {
                "rabbitmq_node": identity.node,
                "rabbitmq_cluster": identity.cluster,
                "rabbitmq_cluster_permanent_id": identity.cluster,
            },
        ),
        _information(
            "build_info",
            "Versions",
            {"rabbitmq_version": identity.version, "product_name": "FluxMQ"},
        ),
    ]
    for name, kind, text, sources in _METRICS:
        family = Family(f"{RABBITMQ}_{name}".removesuffix("_total"), text, kind)
        totals: dict[tuple[tuple[str, str], ...], float] = {}
        single = named if name.startswith("queue_") else None
        for source in sources:
            if single is None:
                totals.setdefault(tuple(source.shown.items()), 0.0)
            for each in known[source.metric].samples if source.metric in known else ():
                if source.labels.items() <= each.labels.items():
                    key = tuple(source.shown.items())
                    if single is not None:
                        vhost, queue = single(each.labels["queue"])
                        key = ("vhost", vhost), ("queue", queue)
                    totals[key] = totals.get(key, 0.0) + source.factor * each.value
        for labels, value in totals.items():
            family.add_sample(f"{RABBITMQ}_{name}", dict(labels), max(value, 0.0))
        found.append(family)
    return found


def _full(family: Family) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _information(name: str, text: str, labels: Mapping[str, str]) -> Family:
    family = Family(f"{RABBITMQ}_{name}", text, "gauge")
    family.add_sample(f"{RABBITMQ}_{name}", dict(labels), 1.0)
    return family
