"""The dashboard and the alert rules ask for metrics, and labels, that a node has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pika  # type: ignore[import-untyped]
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fluxmq.metrics.registry import find
from tests.broker import HOST, REPOSITORY, BrokerFactory, free_port

BOARD = REPOSITORY / "packaging/grafana/fluxmq.json"
ALERTS = REPOSITORY / "packaging/prometheus/alerts.yaml"
OWN = {"instance", "le", "shard"}
"""Labels that Prometheus, histograms and the scrape add."""


def expressions() -> Iterator[str]:
    """Every expression of both."""
    for panel in json.loads(BOARD.read_text())["panels"]:
        yield from (each["expr"] for each in panel["targets"])
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        yield from (each["expr"] for each in group["rules"])


def test_every_metric_is_declared_with_its_labels() -> None:
    for expression in expressions():
        names = re.findall(r"fluxmq_\w+", expression)
        assert names, expression
        known = OWN
        for name in names:
            metric = find(re.sub(r"_(bucket|sum|count)$", "", name)) or find(name)
            assert metric is not None, name
            known = known | {*metric.labels}
        labels = re.findall(r"(\w+)=~?\"", expression)
        labels += re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression)))
        assert {*labels} <= known, expression


def test_a_scrape_has_what_the_dashboard_shows(own_broker: BrokerFactory) -> None:
    """But for what only a cluster has, or a node with TLS."""
    port = free_port()
    settings = {
        "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
        "queues": [{"name": "durable"}],
    }
    broker = own_broker(settings=settings, workers=2)
    pika.BlockingConnection(pika.ConnectionParameters(HOST, port)).close()
    status, text = broker.http("/metrics")
    assert status == 200
    shown = {name for each in expressions() for name in re.findall(r"fluxmq_\w+", each)}
    absent = {name for name in shown if f"\n# TYPE {name} " not in text and name not in text}
    elsewhere = ("fluxmq_raft_", "fluxmq_tls_")
    assert {each for each in absent if not each.startswith(elsewhere)} == set()


def test_a_scrape_has_rabbitmqs_names_on_request(own_broker: BrokerFactory) -> None:
    """Its published dashboards join everything with the identity."""
    port = free_port()
    broker = own_broker(
        settings={"server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}}, workers=2
    )
    with pika.BlockingConnection(pika.ConnectionParameters(HOST, port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("scraped", durable=True)
        for _ in range(3):
            channel.basic_publish("", "scraped", b"m")
        channel.basic_get("scraped")
        status, text = broker.http("/metrics?prefix=rabbitmq")
        single = broker.http("/metrics/per-object?prefix=rabbitmq")[1]
    assert status == 200
    found = {
        each.name: each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.labels.get("protocol") != "mqtt"
    }
    assert found["rabbitmq_identity_info"] == 1
    assert found["rabbitmq_connections"] == found["rabbitmq_channels"] == 1
    assert found["rabbitmq_queues"] == 1
    assert found["rabbitmq_queue_messages"] == 3
    assert found["rabbitmq_queue_messages_ready"] == 2
    assert found["rabbitmq_global_messages_received_total"] == 3
    assert found["rabbitmq_global_messages_confirmed_total"] == 3
    assert found["rabbitmq_disk_space_available_bytes"] > 0
    assert found["rabbitmq_resident_memory_limit_bytes"] > 0
    assert not any(name.startswith("fluxmq_") for name in found)
    assert broker.http("/metrics?prefix=other")[0] == 400
    assert 'rabbitmq_queue_messages{queue="scraped",vhost="/"} 3.0' in single


def test_alerts_say_where_and_what_to_do() -> None:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert "$labels.instance" in rule["annotations"]["summary"]
            assert rule["labels"]["severity"] in ("warning", "critical")
