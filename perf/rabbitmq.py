"""Debian's RabbitMQ as nodes of their own: own port mapper, own cookie, own data directories, gone when stopped.

The system's service need not run and is not touched. ``control`` is ``rabbitmqctl`` on a node. Nodes started beside a
first one share its port mapper and its cookie, and may join its cluster.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perf import amqp, brokers, handshake
from perf.brokers import HOST, Broker, BrokerError

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
START_S = 60.0
STOP_S = 20.0
CONTROL_S = 60.0
PLUGINS = ("rabbitmq_mqtt",)

CONF = """\
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


@dataclass(slots=True)
class Node:
    """A running node, and what its tools need to find it."""

    broker: Broker
    amqp_port: int
    mqtt_port: int
    environment: dict[str, str]

    @property
    def name(self) -> str:
        """Its name as Erlang has it."""
        return self.environment["RABBITMQ_NODENAME"]

    def join(self, first: Node) -> None:
        """Become a member of another node's cluster. Raises ``BrokerError``."""
        for arguments in (("stop_app",), ("reset",), ("join_cluster", first.name), ("start_app",)):
            code, said = self.control(*arguments)
            if code:
                raise BrokerError(f"rabbitmqctl {' '.join(arguments)} on {self.name}: {said}")

    def control(self, *arguments: str, timeout_s: float = CONTROL_S) -> tuple[int, str]:
        """``rabbitmqctl`` with these arguments: its exit code and what it printed."""
        done = subprocess.run(
            [str(CONTROL), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return done.returncode, (done.stdout + done.stderr).strip()


def answers_amqp(port: int) -> None:
    """Raises ``OSError`` unless an AMQP client is let in."""
    with handshake.dial(HOST, port) as connection:
        amqp.open_channel(connection)


def installed() -> bool:
    """Return whether RabbitMQ is installed."""
    return SERVER.exists() and shutil.which("epmd") is not None


def start(
    name: str,
    cores: str | None = None,
    mqtt: bool = False,
    plugins: Sequence[str] = PLUGINS,
    beside: Node | None = None,
    more: str = "",
) -> Node:
    """Start a node; ``mqtt``: publishers speak MQTT; ``beside``: the node whose port mapper and cookie it uses;
    ``more``: further lines of its configuration.

    Raises ``BrokerError`` where it is not installed.
    """
    mapper = shutil.which("epmd")
    if not SERVER.exists() or mapper is None:
        raise BrokerError("rabbitmq-server is not installed")
    kept = tempfile.TemporaryDirectory(prefix=f"perf-{name}-", ignore_cleanup_errors=True)
    folder = Path(kept.name)
    ports = {kind: brokers.free_port() for kind in ("amqp", "mqtt", "mapper", "distribution")}
    (folder / "rabbitmq.conf").write_text(CONF.format(**ports) + more)
    (folder / "plugins").write_text(f"[{','.join(plugins)}].\n")
    environment = _environment(folder, ports)
    attendants = []
    if beside is not None:
        for shared in ("HOME", "ERL_EPMD_PORT"):
            environment[shared] = beside.environment[shared]
    else:
        _write_cookie(folder)
        # Started by hand, else the node would start one that outlives it.
        attendants.append(
            brokers.spawn(
                [mapper, "-port", str(ports["mapper"]), "-address", HOST],
                folder,
                environment,
                folder / "mapper",
            )
        )
    command = [str(SERVER)]
    if cores is not None:
        command = ["taskset", "-c", cores, *command]
    process = brokers.spawn(command, folder, environment, folder / "output")
    broker = Broker(name, ports["amqp"], process, kept, folder / "output")
    broker.attendants, broker.stop_timeout_s = attendants, STOP_S
    broker.arguments, broker.environment = command, environment
    brokers.await_answer(broker, answers_amqp, START_S)
    if mqtt:
        broker.port, broker.subscriber_port = ports["mqtt"], ports["amqp"]
        brokers.await_answer(broker, brokers.answers_mqtt, START_S)
    return Node(broker, ports["amqp"], ports["mqtt"], environment)


def _environment(folder: Path, ports: dict[str, int]) -> dict[str, str]:
    return {
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


def _write_cookie(folder: Path) -> None:
    """Write the cookie by which nodes know each other; Erlang wants it readable by its owner alone."""
    path = folder / ".erlang.cookie"
    path.touch(0o600)
    path.write_text(secrets.token_hex(20))
    path.chmod(0o400)
