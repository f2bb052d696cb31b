"""The brokers of the durable queue comparison, each with an empty data directory on one file system.

FluxMQ runs with one shard and its shipped defaults except for what a load generator needs: a receive maximum
as wide as the window, and the queues. RabbitMQ runs a node of its own (own port mapper, own cookie, own data
directory, see ``perf.rabbitmq``) with its MQTT plugin; its queues are quorum queues of one member. nats-server runs JetStream with
files and its default sync interval, which means that it does not sync before it acknowledges, or, as ``jetstream-sync``,
so that it does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perf import brokers, rabbitmq
from perf.brokers import HOST, ROOT, Broker, BrokerError

FLUXMQ, FLUXMQ_SLOW, FLUXMQ_GROUPS = "fluxmq-queue", "fluxmq-queue-5ms", "fluxmq-64-groups"
FLUXMQ_ONE_GROUP = "fluxmq-64-queues"
RABBIT_AMQP, RABBIT_MQTT = "rabbitmq-amqp", "rabbitmq-mqtt"
JETSTREAM, JETSTREAM_WORK = "jetstream", "jetstream-workqueue"
JETSTREAM_SYNC = "jetstream-sync"
"""With ``sync_interval: always``: the promise of the others. nats-server has it from 2.10 on."""

GROUPS = 64
SLOW_SYNC_S = 0.005
"""The sync time of a disk without a write cache; here it is injected, into FluxMQ only."""

TOPIC = "perf"
"""Queues are called ``perf-0`` and so on."""


def fluxmq_settings(
    port: int, http_port: int, data: Path, queues: int = 1, groups: int = 0
) -> dict[str, Any]:
    """The configuration: ``queues`` durable queues, spread over ``groups`` replication groups; 0 names none."""
    listed: list[dict[str, Any]] = []
    for number in range(queues):
        name = f"{TOPIC}-{number}"
        queue: dict[str, Any] = {"name": name, "topics": [f"$queue/{name}"]}
        if groups:
            queue["replication"] = {"enabled": True, "group": f"g{number % groups}"}
        listed.append(queue)
    settings: dict[str, Any] = {
        "server": {
            "mqtt": {"tcp": {"addr": f"{HOST}:{port}", "max_connections": 10_000}},
            "http": {"addr": f"{HOST}:{http_port}"},
        },
        "session": {"max_inflight_messages": 65_535},
        "storage": {"data_dir": str(data), "queue_ack_durability": "fsync"},
        "log": {"level": "warning", "format": "text"},
        "queues": listed,
    }
    if groups:
        settings["cluster"] = {"raft": {"enabled": True, "auto_provision_groups": True}}
    return settings


def fluxmq_command(settings: dict[str, Any], folder: Path) -> list[str]:
    """Write the configuration (JSON is YAML) and say how to start with it."""
    path = folder / "fluxmq.yaml"
    path.write_text(json.dumps(settings, indent=1))
    arguments = ["--config", str(path), "--workers", "1"]
    return [sys.executable, "-m", "fluxmq.supervisor.main", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, with FluxMQ from this checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("FLUXMQ_PURE", "FLUXMQ_SYNC_DELAY")}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def start_fluxmq(
    name: str, cores: str | None, queues: int = 1, groups: int = 0, delay_s: float = 0.0
) -> Broker:
    """FluxMQ from this checkout with durable queues. Raises ``BrokerError``."""

    def command(folder: Path, port: int) -> list[str]:
        settings = fluxmq_settings(port, brokers.free_port(), folder / "data", queues, groups)
        return fluxmq_command(settings, folder)

    changes = {"FLUXMQ_SYNC_DELAY": str(delay_s)} if delay_s else {}
    return brokers.launch(name, command, brokers.answers_mqtt, environment(**changes), cores)


def start_jetstream(name: str, cores: str | None, sync: bool = False) -> Broker:
    """The nats-server on PATH with JetStream. Raises ``BrokerError`` where it is not installed."""
    binary = brokers.executable("nats-server")
    if binary is None:
        raise BrokerError("nats-server is not installed")

    def command(folder: Path, port: int) -> list[str]:
        stored: dict[str, str] = {"store_dir": str(folder / "data")}
        if sync:
            stored["sync_interval"] = "always"
        path = folder / "nats.conf"
        path.write_text(json.dumps({"jetstream": stored}))
        return [binary, "-a", HOST, "-p", str(port), "-c", str(path)]

    return brokers.launch(name, command, brokers.answers_nats, dict(os.environ), cores)


STARTERS: Mapping[str, Callable[[str | None], Broker]] = {
    FLUXMQ: lambda cores: start_fluxmq(FLUXMQ, cores),
    FLUXMQ_SLOW: lambda cores: start_fluxmq(FLUXMQ_SLOW, cores, delay_s=SLOW_SYNC_S),
    FLUXMQ_GROUPS: lambda cores: start_fluxmq(FLUXMQ_GROUPS, cores, GROUPS, GROUPS),
    FLUXMQ_ONE_GROUP: lambda cores: start_fluxmq(FLUXMQ_ONE_GROUP, cores, GROUPS, 1),
    RABBIT_AMQP: lambda cores: rabbitmq.start(RABBIT_AMQP, cores).broker,
    RABBIT_MQTT: lambda cores: rabbitmq.start(RABBIT_MQTT, cores, mqtt=True).broker,
    JETSTREAM: lambda cores: start_jetstream(JETSTREAM, cores),
    JETSTREAM_WORK: lambda cores: start_jetstream(JETSTREAM_WORK, cores),
    JETSTREAM_SYNC: lambda cores: start_jetstream(JETSTREAM_SYNC, cores, sync=True),
}
"""By the names that cases use."""
