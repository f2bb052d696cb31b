"""A broker of two shards, and clients on a shard of one's choice, for the tests that need them.

Which shard a client identifier belongs to is read off the connection counts of `/metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.broker import Broker, client_tls, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5

KEEP = [(wire.SESSION_EXPIRY_INTERVAL, 120)]
BOTH_WAYS = pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of two shards."""
    directory = tmp_path_factory.mktemp("two")
    with running_broker(directory, workers=2, tls=True) as started:
        yield started


class Shards(Mqtt):
    """Makes clients on a shard of one's choice."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        super().__init__(broker, stack)
        self.pools: dict[int, list[str]] = {0: [], 1: []}

    def counts(self) -> list[float]:
        """Open connections by shard."""
        samples = self.broker.metrics("fluxmq_connections")
        return [
            sum(value for labels, value in samples.items() if ("shard", str(shard)) in labels)
            for shard in (0, 1)
        ]

    def settle(self) -> list[float]:
        """The counts, once the connections of earlier tests have been noticed to be gone."""
        seen = [self.counts(), self.counts()]

        def steady() -> bool:
            seen.append(self.counts())
            return seen[-1] == seen[-2]

        eventually(steady, "steady counts")
        return seen[-1]

    def home(self, identifier: str) -> int:
        """The shard that a client identifier belongs to."""
        before = self.settle()
        with Client(tcp(self.broker.host, self.broker.port), V5) as probe:
            assert probe.connect(identifier).reason == 0
            after: list[float] = eventually(
                lambda: (now := self.counts()) != before and now, "the new connection"
            )
            probe.disconnect()
        eventually(lambda: self.counts() == before, "the end of the connection")
        return 0 if after[0] > before[0] else 1

    def id_on(self, shard: int) -> str:
        """A client identifier that belongs to a shard."""
        while not self.pools[shard]:
            candidate = self.client_id()
            self.pools[self.home(candidate)].append(candidate)
        return self.pools[shard].pop()

    def on(self, shard: int, version: int = V5, **fields: Any) -> Client:
        """A client connected to a shard."""
        return self.connect(version, self.id_on(shard), **fields)


@pytest.fixture(scope="module")
def found_ids(node: Broker) -> dict[int, list[str]]:
    """Client identifiers by shard, enough for the module."""
    with ExitStack() as stack:
        shards = Shards(node, stack)
        for shard in (0, 1):
            shards.pools[shard] = [shards.id_on(shard) for _ in range(8)]
    return shards.pools


@pytest.fixture
def shards(node: Broker, found_ids: dict[int, list[str]]) -> Iterator[Shards]:
    """Clients of the broker with two shards."""
    with ExitStack() as stack:
        made = Shards(node, stack)
        # The identifiers of the module are used by test after test; each begins with a clean start.
        made.pools = {shard: list(found) for shard, found in found_ids.items()}
        yield made
        for found in found_ids.values():
            for identifier in found:
                with Client(tcp(node.host, node.port), V5) as cleaner:
                    cleaner.connect(identifier)
                    cleaner.disconnect()


def plain(shards: Shards) -> Client:
    """A connection over TCP, placed by client identifier."""
    return shards.open(V5)


def secure(shards: Shards) -> Client:
    """A connection over TLS, placed before the client identifier is known."""
    stream = tcp(shards.broker.host, shards.broker.tls_port, client_tls())
    return shards.over(stream, V5)


def browser(shards: Shards) -> Client:
    """A connection over WebSocket."""
    return shards.over(shards.web_socket(), V5)
