"""LavinMQ over AMQP 0.9.1, where its command ``lavinmq`` is on PATH: one node with its defaults in a new folder.

LavinMQ confirms a persistent message after a ``syncfs`` of the file system of its data directory, which writes what anybody
else has written there as well: nothing else should write to that file system meanwhile. Its consumers get a message
before that.
"""

from __future__ import annotations

import os
from pathlib import Path

from perf import brokers, rabbitmq
from perf.brokers import HOST, Broker, BrokerError

LAVINMQ = "lavinmq"


def start(cores: str | None) -> Broker:
    """A new node. Raises ``BrokerError`` where it is not installed."""
    binary = brokers.executable(LAVINMQ)
    if binary is None:
        raise BrokerError("lavinmq is not on PATH")

    def command(folder: Path, port: int) -> list[str]:
        arguments = ["--data-dir", str(folder / "data"), "--bind", HOST, "--log-level", "error"]
        arguments += ["--control-unix-path", str(folder / "control"), "--amqp-port", str(port)]
        for other in ("mqtt", "http", "metrics-http"):
            arguments += [f"--{other}-port", str(brokers.free_port())]
        return [binary, *arguments]

    return brokers.launch(LAVINMQ, command, rabbitmq.answers_amqp, dict(os.environ), cores)
