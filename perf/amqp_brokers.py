"""The brokers of ``python -m perf amqp``: FluxMQ over AMQP, RabbitMQ with each of its queue types, LavinMQ, JetStream.

FluxMQ runs with one shard and syncs before it confirms; its queues are declared by the generator as durable quorum
queues. RabbitMQ's three names are one node, which is up as long as one of them is used: what is compared is how a
queue was declared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from perf import artemis, brokers, durable, lavinmq, rabbitmq
from perf.brokers import HOST, Broker
from perf.lavinmq import LAVINMQ

FLUXMQ, FLUXMQ_PURE, FLUXMQ_BESIDE = "fluxmq-amqp", "fluxmq-amqp-pure", "fluxmq-amqp-beside-slow"
FLUXMQ_EARLY = "fluxmq-amqp-early"
"""Classic queues, which deliver before the sync."""
FLUXMQ_10, FLUXMQ_10_PURE = "fluxmq-amqp10", "fluxmq-amqp10-pure"
FLUXMQ_10_BESIDE = "fluxmq-amqp10-beside-slow"
CLASSIC, QUORUM, STREAM = "rabbitmq-classic", "rabbitmq-quorum", "rabbitmq-stream"
RABBIT_10 = "rabbitmq-amqp10"
"""A node of its own with the plugin for AMQP 1.0."""
QUEUE_TYPES: Mapping[str, str] = {
    CLASSIC: "classic",
    QUORUM: "quorum",
    STREAM: "stream",
    FLUXMQ_EARLY: "classic",
    LAVINMQ: "classic",
}
RABBIT_10_PLUGINS = ("rabbitmq_amqp1_0",)
CONNECTIONS_MAX = 25_000


@dataclass(slots=True)
class _Shared:
    """RabbitMQ's one node and how many names of it are in use."""

    node: rabbitmq.Node | None = None
    users: int = 0


_rabbit = _Shared()


@dataclass(slots=True)
class SharedBroker(Broker):
    """One name of RabbitMQ's node; the node stops with the last."""

    shared: _Shared = field(default_factory=_Shared)

    def restart(self, probe: Callable[[int], None], timeout_s: float) -> float:
        """The node is one: it restarts for all of its names."""
        assert self.shared.node is not None
        began = self.shared.node.broker.restart(probe, timeout_s)
        self.process = self.shared.node.broker.process
        return began

    def stop(self) -> None:
        """Give the name back."""
        if self.stopped:
            return
        self.stopped = True
        self.shared.users -= 1
        if self.shared.users == 0 and self.shared.node is not None:
            self.shared.node.broker.stop()
            self.shared.node = None


def start_rabbitmq(name: str, cores: str | None) -> Broker:
    """RabbitMQ by one of its names. Raises ``BrokerError`` where it is not installed."""
    if _rabbit.node is None:
        _rabbit.node = rabbitmq.start("rabbitmq", cores, plugins=())
    own = _rabbit.node.broker
    _rabbit.users += 1
    return SharedBroker(name, own.port, own.process, own.folder, own.log, shared=_rabbit)


def fluxmq_command(folder: Path, port: int, early: bool = False) -> list[str]:
    """FluxMQ with an AMQP listener, and an MQTT one that nobody uses."""
    settings = durable.fluxmq_settings(
        brokers.free_port(), brokers.free_port(), folder / "data", queues=0
    )
    settings["server"]["amqp"] = {
        "tcp": {"addr": f"{HOST}:{port}", "max_connections": CONNECTIONS_MAX}
    }
    settings.setdefault("queue_manager", {})["deliver_before_sync"] = early
    return durable.fluxmq_command(settings, folder)


def start_fluxmq(name: str, cores: str | None, pure: bool = False, early: bool = False) -> Broker:
    """FluxMQ from this checkout. Raises ``BrokerError``."""
    environment = durable.environment(**({"FLUXMQ_PURE": "1"} if pure else {}))
    command = partial(fluxmq_command, early=early)
    return brokers.launch(name, command, rabbitmq.answers_amqp, environment, cores)


def start_beside_slow(name: str, cores: str | None, *protocol: str) -> Broker:
    """FluxMQ with a queue of its own kept busy by a consumer that is too slow for it."""
    broker = start_fluxmq(name, cores)
    command = [sys.executable, "-m", "perf.slow_consumer", str(broker.port), *protocol]
    folder = Path(broker.folder.name)
    attendant = brokers.spawn(command, folder, durable.environment(), folder / "slow")
    broker.attendants.append(attendant)
    return broker


STARTERS: Mapping[str, Callable[[str | None], Broker]] = {
    FLUXMQ: lambda cores: start_fluxmq(FLUXMQ, cores),
    FLUXMQ_PURE: lambda cores: start_fluxmq(FLUXMQ_PURE, cores, pure=True),
    FLUXMQ_EARLY: lambda cores: start_fluxmq(FLUXMQ_EARLY, cores, early=True),
    FLUXMQ_BESIDE: lambda cores: start_beside_slow(FLUXMQ_BESIDE, cores),
    FLUXMQ_10: lambda cores: start_fluxmq(FLUXMQ_10, cores),
    FLUXMQ_10_BESIDE: lambda cores: start_beside_slow(FLUXMQ_10_BESIDE, cores, "amqp10"),
    FLUXMQ_10_PURE: lambda cores: start_fluxmq(FLUXMQ_10_PURE, cores, pure=True),
    RABBIT_10: lambda cores: rabbitmq.start(RABBIT_10, cores, plugins=RABBIT_10_PLUGINS).broker,
    artemis.ARTEMIS: artemis.start,
    LAVINMQ: lavinmq.start,
    CLASSIC: lambda cores: start_rabbitmq(CLASSIC, cores),
    QUORUM: lambda cores: start_rabbitmq(QUORUM, cores),
    STREAM: lambda cores: start_rabbitmq(STREAM, cores),
}
"""By the names that cases use."""
