"""A broker for other people's AMQP clients: FluxMQ, or with FLUXMQ_TEST_AMQP=rabbitmq Debian's RabbitMQ.

The tests are the ordinary examples of the clients' documentation. Running them against RabbitMQ shows that they ask
for nothing but what RabbitMQ does.
"""

from __future__ import annotations

import gc
import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from perf import rabbitmq
from tests.broker import HOST, free_ports, running_broker
from tests.interop.amqp091.relay import Relay

WORKERS = int(os.environ.get("FLUXMQ_TEST_WORKERS", "2"))

Names = Callable[[], str]


@dataclass(frozen=True)
class AmqpBroker:
    """Where a broker listens. ``name``: fluxmq or rabbitmq."""

    name: str
    port: int
    mqtt_port: int
    host: str = HOST

    @property
    def url(self) -> str:
        """For clients that take one."""
        return f"amqp://guest:guest@{self.host}:{self.port}/"


@pytest.fixture(scope="session")
def amqp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    """One broker for all these tests."""
    if os.environ.get("FLUXMQ_TEST_AMQP") == "rabbitmq":
        node = rabbitmq.start("interop")
        try:
            yield AmqpBroker("rabbitmq", node.amqp_port, node.mqtt_port)
        finally:
            node.broker.stop()
        return
    (port,) = free_ports(1)
    settings = {
        "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
        # "#" reaches no topic that begins with $: queues are granted by name.
        "auth": {"anonymous": {"publish": ["#", "$queue/#"], "subscribe": ["#", "$queue/#"]}},
    }
    folder = tmp_path_factory.mktemp("amqp")
    with running_broker(folder, workers=WORKERS, settings=settings) as broker:
        yield AmqpBroker("fluxmq", port, broker.port)
        print(broker.log())


@pytest.fixture
def url(amqp: AmqpBroker) -> str:
    """The broker's address."""
    return amqp.url


@pytest.fixture
def name() -> Names:
    """Makes names that no other test uses."""
    root, numbers = f"interop-{uuid.uuid4().hex[:12]}", itertools.count(1)
    return lambda: f"{root}-{next(numbers)}"


@pytest.fixture
def relay(amqp: AmqpBroker) -> Iterator[Relay]:
    """A way to the broker that can be cut."""
    with Relay(amqp.host, amqp.port) as between:
        yield between


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clients leave sockets and loops behind when a connection fails, which is not what is tested here."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            for kind in (
                "ResourceWarning",
                "DeprecationWarning",
                "pytest.PytestUnraisableExceptionWarning",
            ):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a client left behind goes while this test's filters hold."""
    yield
    gc.collect()
