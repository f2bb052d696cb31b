"""The two brokers under test, each started with nothing kept and stopped afterwards."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from fluxmq.cli import main as cli
from perf import rabbitmq
from tests.broker import HOST, Broker, free_ports, running_broker
from tests.differential.runner import Target

FLUXMQ, RABBITMQ = "fluxmq", "rabbitmq"
PLUGINS = ("rabbitmq_consistent_hash_exchange",)


def fluxmq_settings(port: int) -> dict[str, Any]:
    """The AMQP listener and nothing else that is not shipped so."""
    return {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}}


def fluxmq_target(broker: Broker, port: int) -> Target:
    """A running FluxMQ; ``fluxmqctl`` is its command line."""

    def control(words: Sequence[str]) -> bool:
        # In this process: to start another one takes longer than most commands.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                return cli.run(["--config", str(broker.config), *words]) == 0
            except SystemExit:  # words that are no command
                return False

    return Target(FLUXMQ, HOST, port, control)


@contextmanager
def fluxmq(workers: int = 1) -> Iterator[Target]:
    """FluxMQ from this checkout."""
    with tempfile.TemporaryDirectory(prefix="differential-") as folder:
        (port,) = free_ports(1)
        with running_broker(
            Path(folder), workers=workers, settings=fluxmq_settings(port)
        ) as broker:
            yield fluxmq_target(broker, port)


@contextmanager
def rabbit() -> Iterator[Target]:
    """Debian's RabbitMQ with its consistent hash exchange. Raises ``BrokerError`` where it is not installed."""
    node = rabbitmq.start("differential", plugins=PLUGINS)
    try:
        yield Target(RABBITMQ, HOST, node.amqp_port, lambda words: node.control(*words)[0] == 0)
    finally:
        node.broker.stop()
