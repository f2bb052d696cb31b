"""Starting and stopping the brokers of a comparison, each on a free loopback port with nothing kept.

FluxMQ runs from this checkout as an operator would start it; mosquitto and nats-server are the first on PATH.
The settings are those under which a peer is not held back: mosquitto may have 1000 messages in flight, sends
without Nagle's delay and persists nothing; nats-server runs with its defaults. Every broker is its own process
group, dies with this process, and is killed when it does not stop by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from perf import handshake
from perf.run import Target, Timing
from perf.workload import Workload

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.02
PR_SET_PDEATHSIG = 1
HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent

MOSQUITTO_CONF = """\
listener {port} 127.0.0.1
allow_anonymous true
max_inflight_messages 1000
set_tcp_nodelay true
persistence false
log_dest none
"""

FLUXMQ_YAML = """\
server:
  mqtt:
    tcp:
      addr: "127.0.0.1:{port}"
      max_connections: 100000
storage:
  data_dir: "{data}"
log:
  level: warning
  format: text
"""

_LIBC = ctypes.CDLL(None)


class BrokerError(RuntimeError):
    """A broker did not start; the text has what it said."""


def executable(name: str) -> str | None:
    """Return the path of a peer's binary, also in directories that are not on every user's path."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(slots=True)
class Prepared:
    """A broker that is ready for one run. ``counts`` is what else is to be recorded with it; complete after the run.
    ``cores``: where its generator has to run; none where that is open."""

    target: Target
    workload: Workload
    counts: dict[str, int] = field(default_factory=dict)
    cores: tuple[int, ...] = ()


class Running(Protocol):
    """Interface of a broker, or of a cluster of them, to a comparison."""

    name: str

    def prepared(self, workload: Workload, timing: Timing) -> AbstractContextManager[Prepared]: ...

    def stop(self) -> None: ...


@dataclass(slots=True)
class Broker:
    """A running broker. ``stop`` may be called more than once."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    log: Path
    stopped: bool = field(default=False)
    subscriber_port: int = 0
    attendants: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stop_timeout_s: float = STOP_TIMEOUT_S
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def target(self) -> Target:
        """The broker as a run sees it."""
        return Target(self.name, HOST, self.port, (self.process.pid,), self.subscriber_port)

    @contextmanager
    def prepared(self, workload: Workload, timing: Timing) -> Iterator[Prepared]:
        """As it is: what a run needs, its clients declare."""
        yield Prepared(self.target(), workload)

    def said(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-2000:].strip()

    def end(self) -> None:
        """SIGTERM, then SIGKILL to its whole process group."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.stop_timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def restart(self, probe: Callable[[int], None], timeout_s: float) -> float:
        """Stop and start again on the same files and port; the moment of the start. Raises ``BrokerError``."""
        self.end()
        began = time.monotonic()
        self.process = spawn(self.arguments, Path(self.folder.name), self.environment, self.log)
        await_answer(self, probe, timeout_s)
        return began

    def stop(self) -> None:
        """End it; its files are removed."""
        if self.stopped:
            return
        self.stopped = True
        self.end()
        for attendant in self.attendants:
            attendant.kill()
            attendant.wait()
        self.folder.cleanup()


def answers_mqtt(port: int) -> None:
    """Raises ``OSError`` unless an MQTT client is let in."""
    with handshake.dial(HOST, port) as connection:
        handshake.connect_mqtt(connection, "perf-probe", 4)


def answers_nats(port: int) -> None:
    """Raises ``OSError`` unless a NATS server greets."""
    with handshake.dial(HOST, port) as connection:
        connection.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        handshake.await_pong(connection)


def start_fluxmq(name: str, workers: int, pure: bool = False, cores: str | None = None) -> Broker:
    """FluxMQ from this checkout with that many shards; ``pure`` runs it uncompiled."""
    environment = {key: value for key, value in os.environ.items() if key != "FLUXMQ_PURE"}
    environment["PYTHONPATH"] = str(ROOT)
    if pure:
        environment["FLUXMQ_PURE"] = "1"

    def command(folder: Path, port: int) -> list[str]:
        settings = folder / "fluxmq.yaml"
        settings.write_text(FLUXMQ_YAML.format(port=port, data=folder / "data"))
        arguments = ["--config", str(settings), "--workers", str(workers)]
        return [sys.executable, "-m", "fluxmq.supervisor.main", *arguments]

    return launch(name, command, answers_mqtt, environment, cores)


def start_mosquitto(cores: str | None = None) -> Broker:
    """The mosquitto on PATH. Raises ``BrokerError`` where it is not installed."""
    binary = executable("mosquitto")
    if binary is None:
        raise BrokerError("mosquitto is not installed")

    def command(folder: Path, port: int) -> list[str]:
        conf = folder / "mosquitto.conf"
        conf.write_text(MOSQUITTO_CONF.format(port=port))
        return [binary, "-c", str(conf)]

    return launch("mosquitto", command, answers_mqtt, dict(os.environ), cores)


def start_nats(cores: str | None = None) -> Broker:
    """The nats-server on PATH, core only. Raises ``BrokerError`` where it is not installed."""
    binary = executable("nats-server")
    if binary is None:
        raise BrokerError("nats-server is not installed")

    def command(folder: Path, port: int) -> list[str]:
        return [binary, "-a", HOST, "-p", str(port)]

    return launch("nats", command, answers_nats, dict(os.environ), cores)


def start(name: str, cores: str | None = None) -> Running:
    """A broker by the name cases use: fluxmq, fluxmq-pure, fluxmq-2 (shards), mosquitto or nats; those with
    durable queues are ``perf.durable``'s and ``perf.amqp_brokers``'s, those of three nodes ``perf.cluster_brokers``'s."""
    from perf import amqp_brokers, cluster_brokers, durable

    for starters in (durable.STARTERS, amqp_brokers.STARTERS):
        if name in starters:
            return starters[name](cores)
    if name in cluster_brokers.NAMES:
        return cluster_brokers.start(name, cores)
    if name == "mosquitto":
        return start_mosquitto(cores)
    if name == "nats":
        return start_nats(cores)
    workers = 2 if name == "fluxmq-2" else 1
    return start_fluxmq(name, workers, name == "fluxmq-pure", cores)


def spawn(
    arguments: list[str], folder: Path, environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """A process in a group of its own that dies with this one."""
    with log.open("wb") as output:
        return subprocess.Popen(
            arguments,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of C, no locks
        )


def launch(
    name: str,
    command: Callable[[Path, int], list[str]],
    probe: Callable[[int], None],
    environment: dict[str, str],
    cores: str | None,
    timeout_s: float = START_TIMEOUT_S,
) -> Broker:
    """Start a broker in a new folder on a free port and wait until ``probe`` is answered.

    Raises ``BrokerError``.
    """
    folder = tempfile.TemporaryDirectory(prefix=f"perf-{name}-", ignore_cleanup_errors=True)
    port = free_port()
    log = Path(folder.name) / "output"
    arguments = command(Path(folder.name), port)
    if cores is not None:
        arguments = ["taskset", "-c", cores, *arguments]
    process = spawn(arguments, Path(folder.name), environment, log)
    broker = Broker(name, port, process, folder, log)
    broker.arguments, broker.environment = arguments, environment
    await_answer(broker, probe, timeout_s)
    return broker


def await_answer(broker: Broker, probe: Callable[[int], None], timeout_s: float) -> None:
    """Wait until a broker answers; stopped, and ``BrokerError`` raised, when it does not."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            probe(broker.port)
        except OSError:
            if broker.process.poll() is None and time.monotonic() < deadline:
                time.sleep(POLL_S)
                continue
            said = broker.said()
            broker.stop()
            raise BrokerError(f"{broker.name} did not start: {said or 'it said nothing'}") from None
        return


@cache
def version(name: str) -> str:
    """The version a peer reports, for the record; empty where it is not installed."""
    binary = executable({"nats": "nats-server"}.get(name, name))
    if name == "rabbitmq":
        found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return found[-1].name.replace("_", "-") if found else ""
    if name not in ("mosquitto", "nats", "lavinmq") or binary is None:
        return ""
    argument = "-h" if name == "mosquitto" else "--version"
    result = subprocess.run(
        [binary, argument], capture_output=True, text=True, timeout=10, check=False
    )
    said = (result.stdout or result.stderr).splitlines()[0].strip()
    return said if name in said.lower() else f"{name} {said}"


def optimised() -> bool:
    """Return whether this interpreter was built with profile-guided optimisation. Distributions' are, the one under
    ``/usr``; Debian's does not record the option."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "--enable-optimizations" in options or sys.base_prefix == "/usr"


def labelled(name: str) -> str:
    """A broker's name as cases use it with its version; FluxMQ's with that of the interpreter and how it was built."""
    kind = name.partition("-")[0]
    if kind == "fluxmq":
        built = "PGO" if optimised() else "no PGO"
        return f"{name} (Python {platform.python_version()}, {built})"
    said = re.search(r"\d+(\.\d+)+", version({"jetstream": "nats"}.get(kind, kind)))
    return f"{name} {said.group()}" if said else name
