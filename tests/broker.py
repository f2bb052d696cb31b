"""Starts the real broker for tests, on free loopback ports, and stops it.

Responsible for one whole process tree: a configuration file, `python -m fluxmq.supervisor.main`, the
wait until `/ready` says so, killing one shard, the stop by SIGTERM and its exit code, and the output
kept for the report of a failure. It knows the broker from outside only: its command line, its HTTP
pages, its processes. What a test then says to the broker is the test's business.

With `FLUXMQ_TEST_BROKER=host:port` the conformance suite talks to that broker instead (its WebSocket
and TLS ports in `FLUXMQ_TEST_BROKER_WS` and `FLUXMQ_TEST_BROKER_TLS`); tests that need settings of
their own are then skipped. `FLUXMQ_TEST_WORKERS` is the number of shards of the shared broker, two unless told otherwise:
clients then meet across shards about half the time.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

START_DEADLINE = 60.0
STOP_DEADLINE = 40.0
RESTART_DEADLINE = 30.0
POLL_INTERVAL = 0.02
CERTIFICATES = Path(__file__).parent / "certificates"
REPOSITORY = Path(__file__).parent.parent
HOST = "127.0.0.1"

Settings = Mapping[str, Any]


PORTS = 1_500
"""Ports for each of the test processes that run side by side."""
RANGES = 7
FIRST_PORT = 22_000
"""Below the ports that the kernel gives to who connects: a broker that is down for a moment finds its own free again."""
_given: set[int] = set()
"""Those that were given lately: nobody may have begun to listen on them yet."""


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on at this moment, and that no other test process takes."""
    first = FIRST_PORT + PORTS * _own_range()
    if len(_given) > PORTS // 2:
        _given.clear()
    drawn = [port for port in range(first, first + PORTS) if port not in _given]
    random.shuffle(drawn)
    found = list(itertools.islice(filter(is_free, drawn), count))
    _given.update(found)
    return found


@functools.cache
def _own_range() -> int:
    """The number of this process's range, which it has locked; of another test run as well if all are taken."""
    wanted = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    for number in range(wanted, wanted + RANGES):
        path = Path(tempfile.gettempdir()) / f"fluxmq-test-ports-{number % RANGES}.lock"
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)  # until this process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return number % RANGES
    return wanted % RANGES


def loopback(number: int) -> str:
    """A loopback address that no other test process uses; ``number``: from 1."""
    return f"127.{_own_range() + 1}.0.{number}"


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Whether nobody has a port of the loopback address at this moment."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def merged(base: Settings, extra: Settings) -> dict[str, Any]:
    """`base` with `extra` laid over it, mapping by mapping; None removes a key."""
    result = dict(base)
    for key, value in extra.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def client_tls(certificate: bool = False) -> ssl.SSLContext:
    """A context that trusts the tests' authority, with a client certificate on request."""
    context = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
    if certificate:
        context.load_cert_chain(CERTIFICATES / "client.pem", CERTIFICATES / "client.key")
    return context


@dataclass
class Broker:
    """A running broker. Ports are 0 where nothing listens."""

    host: str
    port: int
    ws_port: int = 0
    tls_port: int = 0
    wss_port: int = 0
    http_port: int = 0
    workers: int = 1
    config: Path = Path()
    output: Path = Path()
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = field(default=False, init=False)

    @property
    def own(self) -> bool:
        """Whether these tests started it (and not FLUXMQ_TEST_BROKER)."""
        return self.process is not None

    def log(self, since: int = 0) -> str:
        """What the broker wrote so far, from a byte position on."""
        return self.output.read_bytes()[since:].decode(errors="replace") if self.own else ""

    def http(self, path: str, timeout: float = 5.0) -> tuple[int, str]:
        """Status and body of a page; OSError while nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://{self.host}:{self.http_port}{path}", timeout=timeout
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> bool:
        """Whether `/ready` answers 200."""
        with suppress(OSError):
            return self.http("/ready")[0] == 200
        return False

    def metrics(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The samples of one metric from `/metrics`, by their sorted labels."""
        from prometheus_client.parser import text_string_to_metric_families

        status, text = self.http("/metrics")
        assert status == 200, f"/metrics answered {status}"
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    def control(self, *arguments: str, stdin: str = "") -> str:
        """Run `fluxmqctl` on this broker, as an operator would, and return what it printed."""
        command = [sys.executable, "-m", "fluxmq.cli.main", "--config", str(self.config)]
        done = subprocess.run(
            [*command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=30,
            cwd=REPOSITORY,
            check=False,
        )
        assert done.returncode == 0, f"fluxmqctl {arguments}: {done.stderr}{self.log()}"
        return done.stdout

    def pids(self) -> dict[str, int]:
        """Process ids by role: "supervisor", "acceptor", "control", "shard 0", "shard 1", ..."""
        assert self.process is not None, "not a broker of ours"
        found = {"supervisor": self.process.pid}
        for each in json.loads(self.control("status", "--json"))["processes"]:
            role = each["role"]
            found[f"shard {each['index']}" if role == "shard" else role] = each["pid"]
        return found

    def kill_shard(self, index: int) -> int:
        """SIGKILL one shard; its process id is returned."""
        pid = self.pids()[f"shard {index}"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_ready(self, within: float = START_DEADLINE) -> None:
        """Wait until `/ready` says so; fails when the broker ends or the deadline passes."""
        end = time.monotonic() + within
        while not self.ready():
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"broker ended ({self.process.returncode}):\n{self.log()}")
            if time.monotonic() > end:
                self.stop(check=False)
                raise AssertionError(f"broker not ready within {within} s:\n{self.log()}")
            time.sleep(POLL_INTERVAL)

    def reload(self, settings: Settings) -> None:
        """Write other settings over the file and send SIGHUP."""
        assert self.process is not None, "not a broker of ours"
        current = yaml.safe_load(self.config.read_text())
        self.config.write_text(yaml.safe_dump(merged(current, settings)))
        self.process.send_signal(signal.SIGHUP)

    def add_user(
        self,
        name: str,
        password: str,
        publish: tuple[str, ...] = ("#",),
        subscribe: tuple[str, ...] = ("#",),
    ) -> None:
        """Add a user with `fluxmqctl`, as an operator would."""
        options = [f"--publish={each}" for each in publish]
        options += [f"--subscribe={each}" for each in subscribe]
        self.control("user", "add", name, "--password-stdin", *options, stdin=f"{password}\n")

    def stop(self, check: bool = True, within: float = STOP_DEADLINE) -> int:
        """SIGTERM, wait, and (when checking) insist on exit code 0; killed after the deadline."""
        if self.process is None or self.stopped:
            return 0
        self.stopped = True
        children: list[psutil.Process] = []
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children()
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait(10)
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        if check and code != 0:
            raise AssertionError(f"broker stopped with exit code {code}:\n{self.log()}")
        return code


def start_broker(
    directory: Path,
    *,
    workers: int = 1,
    settings: Settings | None = None,
    tls: bool = False,
    open_files: int = 0,
    within: float = START_DEADLINE,
) -> Broker:
    """Start a broker with MQTT, WebSocket and HTTP listeners (TLS on request) and wait for it.

    `settings` is laid over the configuration written to `directory`, None removing a key. `open_files`: the limit of open
    files of each of its processes, 0: as it is here. `within`: seconds it may take. The caller stops it; `running_broker` does so by itself.
    """
    port, ws_port, http_port, tls_port, wss_port = free_ports(5)
    config: dict[str, Any] = {
        "server": {
            "mqtt": {
                "tcp": {"addr": f"{HOST}:{port}"},
                "websocket": {"addr": f"{HOST}:{ws_port}"},
            },
            "http": {"addr": f"{HOST}:{http_port}"},
            "shutdown_timeout": "10s",
        },
        # "#" reaches no topic that begins with $; the numbers below $SYS are granted by name.
        "auth": {"anonymous": {"subscribe": ["#", "$SYS/#"]}},
        "broker": {"sys_interval": "1s"},
        "storage": {"data_dir": str(directory / "data")},
        "log": {"level": "info", "format": "text"},
    }
    if tls:
        config["server"]["mqtt"]["tls"] = {
            "addr": f"{HOST}:{tls_port}",
            "cert_file": str(CERTIFICATES / "server.pem"),
            "key_file": str(CERTIFICATES / "server.key"),
            "ca_file": str(CERTIFICATES / "ca.pem"),
            "client_auth": "request",
        }
        secure = {**config["server"]["mqtt"]["tls"], "addr": f"{HOST}:{wss_port}"}
        config["server"]["mqtt"]["websocket_tls"] = secure
    path = directory / "broker.yaml"
    path.write_text(yaml.safe_dump(merged(config, settings or {})))
    output = directory / "broker.log"
    command = [sys.executable, "-m", "fluxmq.supervisor.main"]
    command += ["--config", str(path), "--workers", str(workers)]
    if open_files:
        command = ["prlimit", f"--nofile={open_files}:{open_files}", *command]
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=REPOSITORY)
    broker = Broker(
        host=HOST,
        port=port,
        ws_port=ws_port,
        tls_port=tls_port if tls else 0,
        wss_port=wss_port if tls else 0,
        http_port=http_port,
        workers=workers,
        config=path,
        output=output,
        process=process,
    )
    broker.wait_ready(within)
    return broker


@contextmanager
def running_broker(
    directory: Path, *, workers: int = 1, settings: Settings | None = None, tls: bool = False
) -> Iterator[Broker]:
    """A broker for a block of code; after a failure in the block its exit code does not matter."""
    broker = start_broker(directory, workers=workers, settings=settings, tls=tls)
    try:
        yield broker
    except BaseException:
        broker.stop(check=False)
        raise
    broker.stop()


def external_broker() -> Broker | None:
    """The broker named by FLUXMQ_TEST_BROKER, if any."""
    address = os.environ.get("FLUXMQ_TEST_BROKER")
    if not address:
        return None
    host, _, port = address.rpartition(":")
    return Broker(
        host=host,
        port=int(port),
        ws_port=int(os.environ.get("FLUXMQ_TEST_BROKER_WS", "0")),
        tls_port=int(os.environ.get("FLUXMQ_TEST_BROKER_TLS", "0")),
    )


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker with default limits for every test that does not need its own."""
    broker = external_broker()
    if broker is not None:
        yield broker
        return
    workers = int(os.environ.get("FLUXMQ_TEST_WORKERS", "2"))
    with running_broker(tmp_path_factory.mktemp("broker"), workers=workers, tls=True) as broker:
        yield broker


@pytest.fixture
def broker(shared_broker: Broker) -> Iterator[Broker]:
    """The shared broker; what it logs during a test is shown when the test fails."""
    before = len(shared_broker.log().encode()) if shared_broker.own else 0
    yield shared_broker
    print(shared_broker.log(before))


BrokerFactory = Callable[..., Broker]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerFactory]:
    """Start brokers with settings of the test's own; they are stopped, and checked, at its end."""
    if external_broker() is not None:
        pytest.skip("needs a broker with settings of its own")
    with ExitStack() as stack:

        def start(**arguments: Any) -> Broker:
            directory = tmp_path / f"broker{len(list(tmp_path.glob('broker*')))}"
            directory.mkdir()
            started = stack.enter_context(running_broker(directory, **arguments))
            stack.callback(lambda: print(started.log()))
            return started

        yield start
