"""Several shards as processes: each hears every other, from the start and after every loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.broker import Broker, running_broker
from tests.conformance.client import Client, eventually, tcp

WORKERS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """More shards than this machine may have cores."""
    with running_broker(tmp_path_factory.mktemp("links"), workers=WORKERS) as found:
        yield found


def links_up(broker: Broker) -> int:
    """Directions in which a shard hears another."""
    return int(sum(broker.metrics("fluxmq_link_up").values()))


def everybody_hears_everybody(broker: Broker, name: str) -> None:
    """Clients on all shards (so many that none is left out) get one another's messages, once."""
    count = 6 * WORKERS
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(tcp(broker.host, broker.port), 5)) for _ in range(count)
        ]
        for number, client in enumerate(clients):
            assert client.connect(f"{name}{number}").reason == 0
            client.subscribe(f"{name}/#", f"$share/g/{name}/#", qos=1)
        counts = broker.metrics("fluxmq_connections")
        assert len({dict(labels)["shard"] for labels, value in counts.items() if value}) == WORKERS
        for number, client in enumerate(clients):
            client.publish(f"{name}/{number}", b"%d" % number, qos=1)
        shared = 0
        for client in clients:
            got = [client.receive().payload for _ in range(count)]
            got += [message.payload for message in client.ping()]
            assert {int(payload) for payload in got} == set(range(count))
            shared += len(got) - count
        assert shared == count


def test_all_links_are_up(broker: Broker) -> None:
    expected = WORKERS * (WORKERS - 1)
    eventually(lambda: links_up(broker) == expected, "links of the start")
    everybody_hears_everybody(broker, "start")


@pytest.mark.parametrize("victims", [(0,), (1, 2), (0, 1, 2, 3)])
def test_links_are_up_again(broker: Broker, victims: tuple[int, ...]) -> None:
    """After the loss of one, of some and of all."""
    for victim in victims:
        broker.kill_shard(victim)
    expected = WORKERS * (WORKERS - 1)

    def back() -> bool:
        return broker.ready() and links_up(broker) == expected

    eventually(back, "links after a loss")
    everybody_hears_everybody(broker, "-".join(map(str, victims)))
