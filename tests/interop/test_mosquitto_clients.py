"""mosquitto_pub and mosquitto_sub, the command line clients of Eclipse Mosquitto."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.broker import CERTIFICATES, Broker

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None or shutil.which("mosquitto_pub") is None,
    reason="mosquitto_pub and mosquitto_sub are not installed",
)
DEADLINE = 20.0
Topic = Callable[[], str]


class Tools:
    """Runs the two programs against one broker in one version over one listener."""

    def __init__(self, broker: Broker, version: str, tls: bool, stack: ExitStack) -> None:
        self.broker = broker
        self._stack = stack
        self._options = ["-h", "localhost", "-V", version]
        self._options += ["-p", str(broker.tls_port if tls else broker.port)]
        if tls:
            self._options += ["--cafile", str(CERTIFICATES / "ca.pem")]

    def publish(self, *options: str, data: bytes | None = None) -> None:
        """mosquitto_pub with these options."""
        subprocess.run(
            ["mosquitto_pub", *self._options, *options],
            input=data,
            check=True,
            timeout=DEADLINE,
            capture_output=True,
        )

    def subscriptions(self) -> float:
        """Subscriptions that the broker holds."""
        return sum(self.broker.metrics("fluxmq_subscriptions").values())

    def subscribe(self, *options: str, wait: bool = True) -> subprocess.Popen[bytes]:
        """mosquitto_sub with these options, running; it has subscribed when this returns."""
        before = self.subscriptions()
        process = subprocess.Popen(
            ["mosquitto_sub", *self._options, "-W", "20", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        end = time.monotonic() + DEADLINE
        while wait and self.subscriptions() <= before:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, "mosquitto_sub does not subscribe"
        return process

    def output(self, process: subprocess.Popen[bytes]) -> bytes:
        """What it printed; it must end well."""
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, err.decode()
        return out


@pytest.fixture(params=["mqttv311-tcp", "mqttv5-tcp", "mqttv311-tls", "mqttv5-tls"])
def tools(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Tools]:
    """The programs in each version, over TCP and TLS."""
    version, transport = request.param.split("-")
    with ExitStack() as stack:
        yield Tools(broker, version, transport == "tls", stack)


@pytest.mark.statement("v4:7.0.0-2")
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_publish_and_subscribe(tools: Tools, topic: Topic, qos: str) -> None:
    """Lines from standard input arrive as messages in order."""
    name = topic()
    subscriber = tools.subscribe("-t", name, "-q", qos, "-C", "100")
    lines = b"".join(b"line %d\n" % number for number in range(100))
    tools.publish("-t", name, "-q", qos, "-l", data=lines)
    assert tools.output(subscriber) == lines


def test_large_message(tools: Tools, topic: Topic) -> None:
    """A message of half a MiB."""
    name = topic()
    subscriber = tools.subscribe("-t", name, "-q", "1", "-C", "1", "-N")
    body = bytes(range(256)) * 2048
    tools.publish("-t", name, "-q", "1", "-s", data=body)
    assert tools.output(subscriber) == body


def test_retained(tools: Tools, topic: Topic) -> None:
    """Published first, found after; gone once cleared."""
    name = topic()
    tools.publish("-t", name, "-q", "1", "-r", "-m", "kept")
    reader = tools.subscribe("-t", name, "-C", "1", "-F", "%r %p", wait=False)
    assert tools.output(reader) == b"1 kept\n"
    tools.publish("-t", name, "-q", "1", "-r", "-n")
    reader = tools.subscribe("-t", name, "-C", "1", "-F", "%r %p")
    tools.publish("-t", name, "-m", "live")
    assert tools.output(reader) == b"0 live\n"


def test_will(tools: Tools, topic: Topic) -> None:
    """A subscriber that is killed leaves its will."""
    name = topic()
    watcher = tools.subscribe("-t", name, "-C", "1")
    will = ["--will-topic", name, "--will-payload", "gone", "--will-qos", "1"]
    leaving = tools.subscribe("-t", topic(), *will)
    leaving.kill()
    assert tools.output(watcher) == b"gone\n"


def test_persistent_session(tools: Tools, topic: Topic) -> None:
    """Messages wait for a session that is away."""
    name = topic()
    identifier = name.replace("/", "-")
    options = ["-t", name, "-i", identifier, "-c", "-q", "1"]
    if "mqttv5" in tools._options:
        options += ["-x", "60"]
    first = tools.subscribe(*options, "-C", "1")
    tools.publish("-t", name, "-q", "1", "-m", "one")
    assert tools.output(first) == b"one\n"
    for word in ("two", "three"):
        tools.publish("-t", name, "-q", "1", "-m", word)
    second = tools.subscribe(*options, "-C", "2", wait=False)
    assert tools.output(second) == b"two\nthree\n"


def test_system_topics(tools: Tools) -> None:
    """What `mosquitto_sub -t '$SYS/#'` shows of a broker."""
    reader = tools.subscribe("-t", "$SYS/broker/#", "-C", "3", "-v", wait=False)
    lines = tools.output(reader).decode().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("$SYS/broker/") for line in lines)
