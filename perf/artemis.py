"""ActiveMQ Artemis over AMQP 1.0, where its command ``artemis`` is on PATH: an instance of its own in a new folder.

The instance is as ``artemis create`` makes it: messages in a journal that is synced before their sender hears of it,
with the buffer's timeout measured on this disk. Queues are made by Artemis when a link is attached.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from perf import amqp10, brokers, handshake
from perf.brokers import HOST, Broker, BrokerError

ARTEMIS = "artemis-amqp10"
CREATE_S = 60.0
START_S = 60.0
PREFIX = "anycastPrefix=/amq/queue/;protocols=AMQP;"
"""Of the acceptor: what follows in an address is a queue, as at the other brokers."""


def answers_amqp10(port: int) -> None:
    """Raises ``OSError`` unless a session begins."""
    with handshake.dial(HOST, port) as connection:
        amqp10.open_session(connection)


def create(binary: str, instance: Path, port: int) -> None:
    """Make an instance with one acceptor. Raises ``BrokerError``."""
    arguments = [binary, "create", "--silent", "--user", "guest", "--password", "guest"]
    arguments += ["--require-login", "--host", HOST, "--default-port", str(port), "--no-web"]
    for protocol in ("amqp", "mqtt", "stomp", "hornetq"):
        arguments.append(f"--no-{protocol}-acceptor")
    made = subprocess.run(
        [*arguments, str(instance)], capture_output=True, text=True, timeout=CREATE_S, check=False
    )
    if made.returncode:
        raise BrokerError(f"artemis create: {made.stdout}{made.stderr}")
    path = instance / "etc" / "broker.xml"
    settings = path.read_text()
    acceptor = f"tcp://{HOST}:{port}?"
    if acceptor not in settings:
        raise BrokerError(f"artemis create made no acceptor {acceptor}")
    path.write_text(settings.replace(acceptor, acceptor + PREFIX))


def start(cores: str | None) -> Broker:
    """A new instance. Raises ``BrokerError`` where it is not installed."""
    binary = brokers.executable("artemis")
    if binary is None:
        raise BrokerError("artemis is not on PATH")

    def command(folder: Path, port: int) -> list[str]:
        instance = folder / "instance"
        create(binary, instance, port)
        return [str(instance / "bin" / "artemis"), "run"]

    return brokers.launch(ARTEMIS, command, answers_amqp10, dict(os.environ), cores, START_S)
