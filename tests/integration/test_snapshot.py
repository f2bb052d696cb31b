"""A copy of a queue of a whole broker that goes on taking messages, and where the broker says that a group is."""

from __future__ import annotations

import threading
from pathlib import Path

from fluxmq.model.group_states import GROUPS_NAME, decode
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import log_batches
from tests.broker import Broker, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, eventually, tcp

SETTINGS = {
    "queues": [{"name": "orders"}],
    "auth": {"anonymous": {"publish": ["#", "$queue/#"], "subscribe": ["#", "$queue/#"]}},
    "storage": {"segment_bytes": "2MiB", "min_free_bytes": 0},
}
PAYLOAD = b"." * 5_000
FIRST = 1_500
"""Messages before the copies: a few segments."""
COPIES = 3


def publish(client: Client, first: int, count: int) -> None:
    """Publish numbered messages, each confirmed."""
    for number in range(first, first + count):
        assert client.publish("$queue/orders", b"%d %s" % (number, PAYLOAD), qos=1) == 0


def numbers(directory: Path) -> list[int]:
    """The numbers of the messages in a copy, by offset."""
    return [
        int(batch.payload(index).split()[0])
        for batch in log_batches(Files(), str(directory))
        for index in range(batch.count)
    ]


def test_a_queue_is_copied_while_its_broker_runs(tmp_path: Path) -> None:
    with running_broker(tmp_path, settings=SETTINGS) as broker:
        publisher = Client(tcp(broker.host, broker.port), wire.V5)
        publisher.connect("publisher")
        publish(publisher, 0, FIRST)
        ended = threading.Event()
        after = [FIRST]

        def go_on() -> None:
            while not ended.is_set():
                publish(publisher, after[0], 10)
                after[0] += 10

        writing = threading.Thread(target=go_on)
        writing.start()
        try:
            copies = [
                Path(
                    broker.control("snapshot", "orders", str(tmp_path / f"copy{number}")).split()[
                        -1
                    ]
                )
                for number in range(COPIES)
            ]
        finally:
            ended.set()
            writing.join()
        found = [numbers(copy) for copy in copies]
        for copy, each in zip(copies, found, strict=True):
            assert each == list(range(len(each)))
            assert FIRST - 100 < len(each) <= after[0]
            assert "0 damaged, 0 to be repaired" in broker.control("log", "verify", str(copy))
        assert [len(each) for each in found] == sorted(len(each) for each in found)
        publisher.disconnect()
        _look_at_groups(broker, tmp_path, after[0])


def _look_at_groups(broker: Broker, tmp_path: Path, stored: int) -> None:
    """The broker says within seconds what a consumer has been given and has settled."""
    client = Client(tcp(broker.host, broker.port), wire.V5)
    client.connect("worker", props=[(wire.RECEIVE_MAXIMUM, 10)])
    client.subscribe("$queue/orders", qos=1)
    given = [client.next() for _ in range(10)]
    (path,) = (tmp_path / "data" / "groups").glob("*/queues/orders")

    def pending() -> list[tuple[int, int]]:
        assert broker.ready()
        state = decode((path / GROUPS_NAME).read_bytes())
        assert state.next_offset <= stored
        return [(first, last) for group in state.groups for first, last, _ in group.pending]

    eventually(lambda: pending() == [(0, 9)], "what was given is pending", 20)
    client.send(wire.acknowledge(wire.PUBACK, given[4].packet_id, 0))
    eventually(
        lambda: (4, 4) not in pending() and pending()[:1] == [(0, 3)], "what was settled is not", 20
    )
    client.disconnect()
