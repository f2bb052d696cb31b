"""Handing connections to shards: batches, full sockets, absent shards, room."""

import os
import socket
from collections.abc import Iterator

import pytest

from fluxmq.ipc import handoff
from fluxmq.ipc.handoff import Handoff
from fluxmq.ipc.table import ProcessTable
from fluxmq.supervisor import delivery
from fluxmq.supervisor.delivery import ShardHandoff


class Shards:
    """The receiving ends of two shards and their rows."""

    def __init__(self) -> None:
        pairs = [handoff.pair() for _ in range(2)]
        self.receivers = [receiver for _, receiver in pairs]
        self.table = ProcessTable.create(3)
        for index in range(2):
            self.table.assign(1 + index, "shard", index)
        self.table.assign(0, "acceptor", 0)
        self.delivery = ShardHandoff([sender.detach() for sender, _ in pairs], self.table, 10_000)

    def received(self, shard: int) -> list[str]:
        peers = []
        while batch := handoff.receive(self.receivers[shard]):
            for each in batch:
                peers.append(each.peer)
                os.close(each.fd)
        return peers


@pytest.fixture
def shards() -> Iterator[Shards]:
    made = Shards()
    yield made
    for connection in made.delivery.close():
        os.close(connection.fd)
    for receiver in made.receivers:
        receiver.close()
    made.table.close()
    os.close(made.table.fd)


def connection(name: str, listener: int = 0) -> Handoff:
    return Handoff(os.open("/dev/null", os.O_RDONLY), listener, name, b"first bytes")


def test_connections_arrive_in_order_and_our_descriptors_are_closed(shards: Shards) -> None:
    before = len(os.listdir("/proc/self/fd"))
    names = [f"peer-{number}" for number in range(150)]
    for name in names:
        assert shards.delivery.put(1, connection(name), 0.0)
    shards.delivery.flush(0.0)
    assert shards.delivery.backlog() == 0
    assert len(os.listdir("/proc/self/fd")) == before
    assert shards.received(1) == names
    assert shards.received(0) == []
    assert shards.delivery.handed == [150, *[0] * (len(handoff.LISTENERS) - 1)]


def test_any_shard_prefers_those_that_serve(shards: Shards) -> None:
    assert [shards.delivery.any_shard() for _ in range(4)] == [0, 1, 0, 1]
    shards.table.set_ready(2)
    assert [shards.delivery.any_shard() for _ in range(3)] == [1, 1, 1]
    shards.table.set_ready(1)
    assert sorted(shards.delivery.any_shard() for _ in range(4)) == [0, 0, 1, 1]


def test_an_absent_shards_clients_wait_and_the_newest_is_turned_away(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "BACKLOG_MAX", 5)
    shards.receivers[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    sent = 0
    while 0 not in shards.delivery.blocked:  # fill the socket
        assert shards.delivery.put(0, connection(f"peer-{sent}"), 1.0)
        sent += 1
        shards.delivery.flush(0.0)
    while shards.delivery.put(0, connection(f"peer-{sent}"), 1.0):
        sent += 1
    assert shards.delivery.backlog() == 5
    assert shards.delivery.put(1, connection("other"), 1.0)  # the other shard is not concerned
    shards.delivery.flush(0.0)
    assert shards.received(1) == ["other"]
    received = shards.received(0)
    shards.delivery.writable(0)
    shards.delivery.flush(0.0)
    assert received + shards.received(0) == [f"peer-{number}" for number in range(sent)]


def test_what_waited_too_long_is_given_up(shards: Shards) -> None:
    shards.delivery.blocked.add(0)
    shards.delivery.put(0, connection("early"), 1.0)
    shards.delivery.put(0, connection("late"), 5.0)
    assert shards.delivery.expire(1.0 + delivery.BACKLOG_SECONDS - 0.1) == []
    (expired,) = shards.delivery.expire(1.0 + delivery.BACKLOG_SECONDS)
    assert expired.peer == "early"
    os.close(expired.fd)


def test_room_counts_what_is_on_its_way(shards: Shards) -> None:
    shards.table.set_connections(1, 0, 3)
    shards.table.set_connections(2, 0, 4)
    assert not shards.delivery.has_room(0, 0)
    shards.delivery.flush(0.0)
    assert not shards.delivery.has_room(0, 7)
    assert shards.delivery.has_room(0, 8)
    shards.delivery.put(0, connection("eighth"), 0.0)
    assert not shards.delivery.has_room(0, 8)
    assert shards.delivery.has_room(1, 1)  # another listener
    shards.delivery.flush(0.0)
    assert not shards.delivery.has_room(0, 8)  # in the socket
    assert shards.received(0) == ["eighth"]
    shards.delivery.flush(0.0)
    assert shards.delivery.has_room(0, 8)  # received; the shard's row says how many there are
    shards.table.set_connections(1, 0, 4)
    shards.delivery.recount()
    assert not shards.delivery.has_room(0, 8)


def test_connections_just_received_count_as_on_their_way(shards: Shards) -> None:
    """A shard empties its socket before its row says so."""
    for name in ("a", "b"):
        assert shards.delivery.put(0, connection(name), 0.0)
    shards.delivery.flush(0.0)
    shards.table.set_taking(1, True)
    shards.received(0)
    assert not shards.delivery.has_room(0, 2)
    shards.table.set_connections(1, 0, 2)
    shards.delivery.flush(0.0)
    shards.table.set_taking(1, False)
    assert not shards.delivery.has_room(0, 2)
    assert shards.delivery.has_room(0, 3)


def test_a_shard_that_never_rests_has_each_connection_once(shards: Shards) -> None:
    """A recount that comes while the shard receives, again and again, does not add up."""
    shards.table.set_taking(1, True)
    for number in range(50):
        assert shards.delivery.put(0, connection(str(number)), 0.0)
        shards.delivery.flush(0.0)
        assert shards.received(0) == [str(number)]
        shards.table.set_connections(1, 0, number + 1)
        shards.delivery.recount()
        assert shards.delivery.room(0, 1000) == 1000 - (number + 1) - 1, (
            "the last one twice, for once"
        )
        shards.table.set_connections(1, 0, number + 1, received=number + 1)
        shards.delivery.recount()
        assert shards.delivery.room(0, 1000) == 1000 - (number + 1)


def test_connections_that_a_shard_has_lost_are_forgotten(shards: Shards) -> None:
    for name in ("a", "b"):
        assert shards.delivery.put(0, connection(name), 0.0)
    shards.delivery.flush(0.0)
    assert shards.received(0) == ["a", "b"]  # and the shard dies
    shards.delivery.recount()
    assert shards.delivery.room(0, 10) == 10
    assert shards.delivery.put(0, connection("c"), 0.0)
    shards.delivery.flush(0.0)
    shards.delivery.recount()
    assert shards.delivery.room(0, 10) == 9, "one is in the socket"
    assert shards.received(0) == ["c"]


def test_amqp_goes_to_the_shard_with_the_fewest_connections_of_its_kind(shards: Shards) -> None:
    shards.table.set_ready(1)
    shards.table.set_ready(2)
    shards.table.set_connections(1, 3, 5)
    shards.table.set_connections(1, 4, 1)
    shards.table.set_connections(2, 0, 100)  # MQTT's do not count
    shards.table.set_connections(2, 3, 4)
    assert shards.delivery.lightest_shard((3, 4)) == 1
    for number in range(3):
        assert shards.delivery.put(1, connection(f"peer-{number}", 3), 0.0)
    assert shards.delivery.lightest_shard((3, 4)) == 0
    shards.table.set_ready(1, False)
    assert shards.delivery.lightest_shard((3, 4)) == 1


def test_a_shard_gets_no_more_than_it_has_descriptors_for(shards: Shards) -> None:
    """Review finding 4: connections took the descriptors that storage needs."""
    delivery = shards.delivery
    delivery._connections_max = 3
    for number in range(3):
        assert delivery.has_place(1)
        assert delivery.places == 3 - number
        assert delivery.put(1, connection(str(number), number), 0.0)
    assert not delivery.has_place(1)
    assert delivery.has_place(0)
    assert delivery.places == 0
    delivery.flush(0.0)
    assert not delivery.has_place(1)
    assert [delivery.any_shard() for _ in range(3)] == [0, 1, 0]  # none serves
    shards.table.set_ready(1)
    shards.table.set_ready(2)
    assert [delivery.any_shard() for _ in range(3)] == [0, 0, 0]
    assert delivery.lightest_shard((0,)) == 0
    # The shard has them now, and counts them itself; one ends.
    assert shards.received(1) == ["0", "1", "2"]
    for listener in range(3):
        shards.table.set_connections(2, listener, 1)
    delivery.flush(0.0)
    assert not delivery.has_place(1)
    shards.table.set_connections(2, 2, 0)
    delivery.flush(0.0)
    assert delivery.has_place(1)
    assert delivery.places == 1
