"""The brokers of the durable queue comparison, each with an empty data directory on one file system.

FluxMQ runs with one shard and its shipped defaults except for what a load generator needs: a receive maximum
as wide as the window, and the queues. RabbitMQ runs a node of its own (own port mapper, own cookie, own data
directory) with its MQTT plugin; its queues are quorum queues of one member. nats-server runs JetStream with
files and its default sync interval, which means that it does not sync before it acknowledges.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perf import amqp, brokers, handshake
from perf.brokers import HOST, ROOT, Broker, BrokerError

FLUXMQ, FLUXMQ_SLOW, FLUXMQ_GROUPS = "fluxmq-queue", "fluxmq-queue-5ms", "fluxmq-64-groups"
FLUXMQ_ONE_GROUP = "fluxmq-64-queues"
RABBIT_AMQP, RABBIT_MQTT = "rabbitmq-amqp", "rabbitmq-mqtt"
JETSTREAM, JETSTREAM_WORK = "jetstream", "jetstream-workqueue"

GROUPS = 64
SLOW_SYNC_S = 0.005
"""The sync time of a disk without a write cache; here it is injected, into FluxMQ only."""

RABBIT_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
RABBIT_START_S = 60.0
RABBIT_STOP_S = 20.0
TOPIC = "perf"
"""Queues are called ``perf-0`` and so on."""

RABBIT_CONF = """\
listeners.tcp.1 = 127.0.0.1:{amqp}
mqtt.listeners.tcp.1 = 127.0.0.1:{mqtt}
mqtt.allow_anonymous = true
mqtt.default_user = guest
mqtt.default_pass = guest
loopback_users = none
log.file = false
log.console = true
log.console.level = critical
"""


def fluxmq_settings(
    port: int, http_port: int, data: Path, queues: int = 1, groups: int = 0
) -> dict[str, Any]:
    """The configuration: ``queues`` durable queues, spread over ``groups`` replication groups; 0 names none."""
    limits = {"max_depth": 100_000_000}
    listed: list[dict[str, Any]] = []
    for number in range(queues):
        name = f"{TOPIC}-{number}"
        queue: dict[str, Any] = {"name": name, "topics": [f"$queue/{name}"], "limits": limits}
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


def answers_amqp(port: int) -> None:
    """Raises ``OSError`` unless an AMQP client is let in."""
    with handshake.dial(HOST, port) as connection:
        amqp.open_channel(connection)


def start_rabbitmq(name: str, cores: str | None) -> Broker:
    """Debian's RabbitMQ as a node of its own. Raises ``BrokerError`` where it is not installed."""
    mapper = shutil.which("epmd")
    if not RABBIT_SERVER.exists() or mapper is None:
        raise BrokerError("rabbitmq-server is not installed")
    kept = tempfile.TemporaryDirectory(prefix=f"perf-{name}-", ignore_cleanup_errors=True)
    folder = Path(kept.name)
    ports = {kind: brokers.free_port() for kind in ("amqp", "mqtt", "mapper", "distribution")}
    (folder / "rabbitmq.conf").write_text(RABBIT_CONF.format(**ports))
    (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
    settings = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(ports["mapper"]),
        "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_NODENAME": f"perf{ports['amqp']}@localhost",
        "RABBITMQ_NODE_PORT": str(ports["amqp"]),
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    # Started by hand, else the node would start one that outlives it.
    attendant = brokers.spawn(
        [mapper, "-port", str(ports["mapper"]), "-address", HOST],
        folder,
        settings,
        folder / "mapper",
    )
    command = [str(RABBIT_SERVER)]
    if cores is not None:
        command = ["taskset", "-c", cores, *command]
    process = brokers.spawn(command, folder, settings, folder / "output")
    broker = Broker(name, ports["amqp"], process, kept, folder / "output")
    broker.attendants, broker.stop_timeout_s = [attendant], RABBIT_STOP_S
    brokers.await_answer(broker, answers_amqp, RABBIT_START_S)
    if name == RABBIT_MQTT:
        broker.port, broker.subscriber_port = ports["mqtt"], ports["amqp"]
        brokers.await_answer(broker, brokers.answers_mqtt, RABBIT_START_S)
    return broker


def start_jetstream(name: str, cores: str | None) -> Broker:
    """Debian's nats-server with JetStream. Raises ``BrokerError`` where it is not installed."""
    binary = brokers.executable("nats-server")
    if binary is None:
        raise BrokerError("nats-server is not installed")

    def command(folder: Path, port: int) -> list[str]:
        arguments = ["-a", HOST, "-p", str(port), "-js", "-sd", str(folder / "data")]
        return [binary, *arguments]

    return brokers.launch(name, command, brokers.answers_nats, dict(os.environ), cores)


STARTERS: Mapping[str, Callable[[str | None], Broker]] = {
    FLUXMQ: lambda cores: start_fluxmq(FLUXMQ, cores),
    FLUXMQ_SLOW: lambda cores: start_fluxmq(FLUXMQ_SLOW, cores, delay_s=SLOW_SYNC_S),
    FLUXMQ_GROUPS: lambda cores: start_fluxmq(FLUXMQ_GROUPS, cores, GROUPS, GROUPS),
    FLUXMQ_ONE_GROUP: lambda cores: start_fluxmq(FLUXMQ_ONE_GROUP, cores, GROUPS, 1),
    RABBIT_AMQP: lambda cores: start_rabbitmq(RABBIT_AMQP, cores),
    RABBIT_MQTT: lambda cores: start_rabbitmq(RABBIT_MQTT, cores),
    JETSTREAM: lambda cores: start_jetstream(JETSTREAM, cores),
    JETSTREAM_WORK: lambda cores: start_jetstream(JETSTREAM_WORK, cores),
}
"""By the names that cases use."""
