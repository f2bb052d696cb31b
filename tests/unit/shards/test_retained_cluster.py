"""Retained messages that a cluster keeps in etcd, in whole nodes whose store a test rules.

Longer than 500 lines because the rules and the histories that look for exceptions to them share their words.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest

from fluxmq.ipc.retained_messages import INDEX, WHOLE, decode_value
from fluxmq.model.outcomes import Outcome
from fluxmq.shards import retained as retained_module
from fluxmq.shards import retained_commits, retained_fetch
from fluxmq.shards.retained import ANNOUNCED_SECONDS
from fluxmq.shards.retained_commits import PROPERTIES_MAX
from fluxmq.shards.retained_fetch import ASKED_MAX
from fluxmq.storage.state_store import RETAINED
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.net_of_nodes import Net
from tests.unit.shards.node import drain
from tests.unit.shards.pipes import Clock
from tests.unit.shards.plane import Plane

THRESHOLD = 1024
LARGE = bytes(5000)
AWAY = 10.0

MakePlane = Callable[..., Plane]


@pytest.fixture
def make_plane(clock: Clock, loop: asyncio.AbstractEventLoop) -> Iterator[MakePlane]:
    """Make clusters of nodes with so many shards each, and their store."""
    made: list[Net] = []

    def make(*workers: int) -> Plane:
        made.append(Net(clock, loop, *workers, etcd={}))
        plane = Plane(made[-1])
        made[-1].advance(0.2)
        return plane

    yield make
    for net in made:
        net.close()


def retain(client: Client, topic: str, payload: bytes, number: int = 0) -> None:
    """Publish with QoS 1, without waiting, or with QoS 0 if ``number`` is 0."""
    qos = int(number > 0)
    client.send(wire.publish(wire.V5, topic, payload, qos=qos, retain=True, packet_id=number))


def reasons(client: Client) -> list[int]:
    """The answers that have come."""
    return [packet.reason for packet in drain(client) if packet.kind == wire.PUBACK]


def seen(client: Client, topic_filter: str = "#") -> dict[str, bytes]:
    """The retained messages that a subscriber gets."""
    client.subscribe(topic_filter, qos=0)
    found = {each.topic: each.payload for each in drain(client) if each.kind == wire.PUBLISH}
    client.unsubscribe(topic_filter)
    return found


def at(plane: Plane, node: int, shard: int = 0, topic_filter: str = "#") -> dict[str, bytes]:
    return seen(plane.net.client(node, shard), topic_filter)


def agreed(plane: Plane, *lost: bytes) -> dict[str, bytes]:
    """Assert that all shards agree, and return their messages; ``lost``: topics without a holder."""
    plane.net.run()
    found = [
        at(plane, number, shard.index)
        for number, node in enumerate(plane.net.nodes)
        for shard in node
    ]
    assert all(each == found[0] for each in found)
    assert sorted(found[0]) == sorted(topic.decode() for topic in plane.keys if topic not in lost)
    return found[0]


@pytest.mark.parametrize("workers", [(1, 1), (2, 3, 1)])
@pytest.mark.parametrize("size", [1, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1, 100_000])
def test_a_retained_message_of_any_size_is_on_all_nodes(
    make_plane: MakePlane, workers: tuple[int, ...], size: int
) -> None:
    """S2-08, S2-24."""
    plane = make_plane(*workers)
    payload = bytes(7 for _ in range(size))
    assert plane.net.client(0).publish("a/b", payload, qos=1, retain=True) == 0
    assert agreed(plane) == {"a/b": payload}
    assert plane.keys[b"a/b"].kind == (WHOLE if size < THRESHOLD else INDEX)
    value = decode_value(plane.keys[b"a/b"].value)
    assert (value.node, value.size) == ("n0", size)
    assert len(plane.keys[b"a/b"].value) < size + 64 if size < THRESHOLD else 64


def test_a_topic_that_crosses_the_threshold_is_what_it_was_last(make_plane: MakePlane) -> None:
    plane = make_plane(1, 2)
    for node, size in enumerate((10, 2000, 20, THRESHOLD, THRESHOLD - 1, 3000, 0)):
        payload = bytes(size % 256 for _ in range(size))
        plane.net.client(node % 2).publish("a", payload, qos=2, retain=True)
        assert agreed(plane) == ({"a": payload} if size else {})


def test_properties_and_expiry_go_with_the_message(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    for topic, payload in (("small", b"x"), ("large", LARGE)):
        props = [(wire.MESSAGE_EXPIRY_INTERVAL, 60), (wire.CONTENT_TYPE, "text")]
        plane.net.client(0).publish(topic, payload, qos=1, retain=True, props=props)
    plane.net.advance(20)
    reader = plane.net.client(1)
    reader.subscribe("#", qos=0)
    found = {
        each.topic: dict(each.properties) for each in drain(reader) if each.kind == wire.PUBLISH
    }
    for topic in ("small", "large"):
        assert 39 <= found[topic][wire.MESSAGE_EXPIRY_INTERVAL] <= 41
        assert found[topic][wire.CONTENT_TYPE] == "text"
    plane.net.advance(50)
    assert at(plane, 0) == at(plane, 1) == {}


@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("payload", [b"x", LARGE, b""])
def test_a_publish_is_answered_when_it_is_committed(
    make_plane: MakePlane, home: int, payload: bytes
) -> None:
    plane = make_plane(2)
    topic = plane.net.nodes[0].id_of(home, "topic")
    client = plane.net.client(0, 0)
    for connection in plane.all():
        connection.mute = True
    retain(client, topic, payload, 1)
    assert reasons(client) == []
    for connection in plane.all():
        connection.mute = False
    plane.net.run()
    assert reasons(client) == [0]


def test_what_is_committed_by_metadata_is_on_disk_first(make_plane: MakePlane) -> None:
    plane = make_plane(1)
    disk = plane.net.nodes[0].disks[0]
    client, other = plane.net.client(0), plane.net.client(0)
    disk.held = True
    retain(client, "large", LARGE, 1)
    retain(other, "small", b"x", 1)
    assert reasons(other) == [0]
    assert reasons(client) == []
    assert list(plane.keys) == [b"small"]
    disk.held = False
    plane.net.nodes[0][0].store.commit()
    plane.net.run()
    assert reasons(client) == [0]
    assert disk.keys(RETAINED) == [(b"large",), (b"small",)]


@pytest.mark.parametrize("shard", [0, 1])
def test_a_client_sees_its_own_change_at_once(make_plane: MakePlane, shard: int) -> None:
    """Whatever others have committed before it."""
    plane = make_plane(2, 1)
    topic = plane.net.nodes[0].id_of(0, "topic")
    client = plane.net.client(0, shard)
    for connection in plane.of(0):
        connection.mute = True
    retain(client, topic, b"own")
    plane.net.client(1).publish(topic, b"other", qos=1, retain=True)
    assert seen(client) == {topic: b"own"}
    assert at(plane, 1) == {topic: b"other"}
    for connection in plane.of(0):
        connection.mute = False
    assert agreed(plane) == {topic: b"own"}, "it was committed last"


def test_a_client_sees_its_own_deletion_at_once(make_plane: MakePlane) -> None:
    plane = make_plane(2, 1)
    topic = plane.net.nodes[0].id_of(0, "topic")
    client = plane.net.client(0, 1)
    for connection in plane.of(0):
        connection.mute = True
    retain(client, topic, b"")
    plane.net.client(1).publish(topic, b"other", qos=1, retain=True)
    assert seen(client) == {}
    for connection in plane.of(0):
        connection.mute = False
    assert agreed(plane) == {}


def test_after_a_deletion_of_nothing_others_are_heard(make_plane: MakePlane) -> None:
    plane = make_plane(2, 1)
    topic = plane.net.nodes[0].id_of(0, "topic")
    plane.net.client(0, 1).publish(topic, b"", qos=1, retain=True)
    plane.net.client(1).publish(topic, b"x", qos=1, retain=True)
    assert agreed(plane) == {topic: b"x"}


@pytest.mark.parametrize("payload", [b"newer", b""])
@pytest.mark.parametrize("shard", [0, 1])
def test_a_message_is_not_followed_by_an_older_retained_one(
    make_plane: MakePlane, payload: bytes, shard: int
) -> None:
    """A message of another node may come before its commit is told."""
    plane = make_plane(1, 2)
    publisher = plane.net.client(0)
    publisher.publish("t", b"older", qos=1, retain=True)
    for connection in plane.of(1):
        connection.silent = True
    reader = plane.net.client(1, shard)
    reader.subscribe("t", qos=0)
    assert [each.payload for each in drain(reader) if each.kind == wire.PUBLISH] == [b"older"]
    publisher.publish("t", payload, qos=1, retain=True)
    assert [each.payload for each in drain(reader) if each.kind == wire.PUBLISH] == [payload]
    reader.subscribe("+", qos=0)
    expected = [payload] if payload else []
    assert [each.payload for each in drain(reader) if each.kind == wire.PUBLISH] == expected
    for connection in plane.of(1):
        connection.silent = False
    plane.net.run()
    assert len(agreed(plane)) == len(expected)


def test_an_announced_message_that_is_not_committed_is_forgotten(make_plane: MakePlane) -> None:
    plane = make_plane(1, 2)
    publisher = plane.net.client(0)
    publisher.publish("t", b"older", qos=1, retain=True)
    plane.net.client(1).subscribe("t", qos=0)
    plane.refusing = True
    retain(publisher, "t", b"refused", 1)
    assert at(plane, 1) == {"t": b"refused"}
    plane.net.advance(12)
    assert at(plane, 1) == {"t": b"older"}


def test_of_changes_at_once_the_last_committed_is_kept(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    clients = [plane.net.client(node) for node in range(3)]
    for connection in plane.all():
        connection.mute = True
    for number, client in enumerate(clients):
        retain(client, "t", b"%d" % number, 1)
    for node in (2, 0, 1):
        for connection in plane.of(node):
            connection.mute = False
        plane.net.run()
    assert agreed(plane) == {"t": b"1"}
    assert [reasons(client) for client in clients] == [[0], [0], [0]]


def test_of_a_topic_that_changes_quickly_the_latest_is_committed(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = plane.net.client(0)
    (connection,) = plane.of(0)
    connection.mute = True
    for number in range(1, 50):
        retain(client, "t", b"%d" % number, number)
        plane.net.run()
    assert len(connection.requests) == 1
    connection.mute = False
    assert agreed(plane) == {"t": b"49"}
    assert reasons(client) == [0] * 49
    assert plane.revision <= 4


def test_publishers_are_refused_when_nothing_is_committed(make_plane: MakePlane) -> None:
    plane = make_plane(2, 1)
    plane.refusing = True
    client = plane.net.client(0, 0)
    for home in (0, 1):
        retain(client, plane.net.nodes[0].id_of(home, "topic"), b"x", home + 1)
    plane.net.advance(AWAY - 1)
    assert reasons(client) == []
    plane.net.advance(2)
    assert reasons(client) == [Outcome.OVER_LIMIT] * 2
    plane.refusing = False
    plane.net.advance(1)
    assert len(agreed(plane)) == 2, "it was said to be unsure, and is made up for"
    retain(client, plane.net.nodes[0].id_of(1, "topic"), b"y", 1)
    assert reasons(client) == [0]
    plane.net.client(1).publish("topic", b"z", qos=1, retain=True)
    agreed(plane)


def test_an_answer_that_is_lost_changes_nothing(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    lost = iter([True, True, False])
    plane.repeat = lambda: next(lost, False)
    client = plane.net.client(0)
    retain(client, "t", b"x", 1)
    assert reasons(client) == []
    plane.net.advance(2)
    assert reasons(client) == [0]
    assert agreed(plane) == {"t": b"x"}


def test_a_control_process_that_restarts_is_told_again(make_plane: MakePlane) -> None:
    plane = make_plane(2, 1)
    client = plane.net.client(0, 0)
    for connection in plane.of(0):
        connection.lose()
    topics = [plane.net.nodes[0].id_of(home, "topic") for home in (0, 1)]
    for number, topic in enumerate(topics, 1):
        retain(client, topic, b"x", number)
    plane.net.client(1).publish("other", b"y", qos=1, retain=True)
    assert seen(client) == dict.fromkeys(topics, b"x")
    for connection in plane.of(0):
        connection.back()
    plane.net.advance(1)
    assert agreed(plane) == {**dict.fromkeys(topics, b"x"), "other": b"y"}
    assert reasons(client) == [0, 0]


@pytest.mark.parametrize("again", [b"", b"other"])
def test_a_shard_that_was_not_told_forgets_copies_of_that_time(
    make_plane: MakePlane, again: bytes
) -> None:
    plane = make_plane(2, 1)
    topic = plane.net.nodes[0].id_of(1, "topic")
    unheard = plane.of(0)[0]
    unheard.lose()
    plane.net.client(0, 1).publish(topic, b"x", qos=1, retain=True)
    assert at(plane, 0, 0) == {topic: b"x"}, "told by its sibling"
    plane.net.client(1).publish(topic, again, qos=1, retain=True)
    unheard.back()
    plane.net.advance(ANNOUNCED_SECONDS + 1)
    assert agreed(plane) == ({topic: again} if again else {})


def test_a_node_that_was_away_has_what_the_others_have(make_plane: MakePlane) -> None:
    plane = make_plane(2, 1)
    publisher = plane.net.client(1)
    for topic, payload in (("a", b"1"), ("b", b"1"), ("large", LARGE), ("gone", LARGE)):
        publisher.publish(topic, payload, qos=1, retain=True)
    agreed(plane)
    for shard in list(plane.net.nodes[0]):
        plane.net.nodes[0].kill(shard.index)
    publisher.publish("a", b"", qos=1, retain=True)
    publisher.publish("gone", b"", qos=1, retain=True)
    publisher.publish("b", b"2", qos=1, retain=True)
    publisher.publish("large", LARGE + b"2", qos=1, retain=True)
    for index in range(2):
        plane.net.nodes[0].start(index)
    plane.net.restart(0)
    plane.net.connect()
    plane.net.advance(0.5)
    assert agreed(plane) == {"b": b"2", "large": LARGE + b"2"}


def test_what_a_node_kept_for_itself_is_committed_when_it_has_a_store(
    make_plane: MakePlane,
) -> None:
    """Also what it could not commit before it ended."""
    plane = make_plane(2, 1)
    client = plane.net.client(0)
    for connection in plane.of(0):
        connection.lose()
    for number in range(8):
        retain(client, f"small/{number}", b"%d" % number)
        retain(client, f"large/{number}", LARGE)
    plane.net.advance(0.2)  # it is on disk
    plane.net.restart(0)
    plane.net.connect()
    plane.net.advance(1)
    assert len(agreed(plane)) == 16


def test_a_store_that_has_lost_everything_gets_it_again(make_plane: MakePlane) -> None:
    plane = make_plane(2, 1)
    for number in range(20):
        payload = LARGE if number % 3 == 0 else b"%d" % number
        plane.net.client(number % 2).publish(f"t/{number}", payload, qos=1, retain=True)
    before = agreed(plane)
    plane.replace()
    plane.net.advance(1)
    assert agreed(plane) == before
    plane.net.client(1).publish("t/1", b"new", qos=1, retain=True)
    assert agreed(plane)["t/1"] == b"new"


def test_a_large_message_waits_for_a_node_that_has_it(make_plane: MakePlane) -> None:
    plane = make_plane(1, 2, 1)
    publisher = plane.net.client(0)
    publisher.publish("t", b"older", qos=1, retain=True)
    for other in (1, 2):
        plane.net.cut(0, other)
    publisher.publish("t", LARGE, qos=1, retain=True)
    assert at(plane, 1) == {}, "never an older one"
    assert at(plane, 2) == {}
    plane.net.advance(5)
    for link in plane.net.ends(0, 1):
        link.up = False
    plane.net.connect()
    plane.net.advance(0.2)
    assert agreed(plane) == {"t": LARGE}


def test_a_large_message_is_asked_for_before_its_own_node_knows_of_the_commit(
    make_plane: MakePlane,
) -> None:
    plane = make_plane(1, 1)
    (own,) = plane.of(0)
    own.silent = True
    own.mute = True
    retain(plane.net.client(0), "t", LARGE)
    plane.net.run()
    (request,) = own.requests
    plane.commit(request[1])  # its answer is on the way
    plane.net.run()
    assert at(plane, 1) == {}
    own.silent = own.mute = False
    plane.net.advance(0.2)
    assert agreed(plane) == {"t": LARGE}


def test_another_node_passes_a_large_message_on(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    plane.net.cut(0, 2)
    plane.net.client(0).publish("t", LARGE, qos=1, retain=True)
    plane.net.advance(10)
    assert at(plane, 2) == {"t": LARGE}


def test_many_large_messages_are_fetched_some_at_a_time(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    plane.net.cut(0, 1)
    client = plane.net.client(0)
    for number in range(5 * ASKED_MAX):
        client.publish(f"t/{number}", LARGE, qos=1, retain=True)
    asked = []
    for link in plane.net.ends(0, 1):
        link.held = True
    plane.net.connect()
    for link in plane.net.ends(0, 1):
        asked += [frame for frame in link.inbox if b"retained wanted" in frame]
        link.held = False
    assert len(asked) <= ASKED_MAX
    plane.net.run()
    assert len(agreed(plane)) == 5 * ASKED_MAX


def test_properties_count_for_the_size(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = plane.net.client(0)
    for size in (PROPERTIES_MAX // 2, PROPERTIES_MAX):
        props = [(wire.USER_PROPERTY, ("name", "x" * size))]
        client.publish(f"t/{size}", b"small", qos=1, retain=True, props=props)
    kinds = [
        each.kind for _, each in sorted(plane.keys.items(), key=lambda pair: len(pair[1].value))
    ]
    assert sorted(kinds) == [WHOLE, INDEX]
    assert len(agreed(plane)) == 2


def test_no_more_changes_are_taken_than_can_be_kept(
    make_plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_commits, "UNCONFIRMED_MAX", 3)
    plane = make_plane(1, 1)
    client = plane.net.client(0)
    plane.refusing = True
    for number in range(1, 6):
        retain(client, f"t/{number}", b"x", number)
    plane.net.advance(AWAY + 1)
    assert reasons(client) == [Outcome.OVER_LIMIT] * 5
    plane.refusing = False
    plane.net.advance(1)
    assert len(agreed(plane)) == 3, "the others are not retained at all"


def test_announced_messages_are_bounded(
    make_plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_module, "ANNOUNCED_MAX", 2)
    plane = make_plane(1, 1)
    plane.net.client(1).subscribe("t/+", qos=0)
    plane.net.advance(0.2)
    plane.refusing = True
    client = plane.net.client(0)
    for number in range(5):
        retain(client, f"t/{number}", b"x")
    plane.net.run()
    retained = plane.net.nodes[1][0].broker.retained
    assert [retained.message(b"t/%d" % number) is not None for number in range(5)] == [
        *(False, False, False),
        *(True, True),
    ]


def test_questions_for_large_messages_are_bounded(
    make_plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained_fetch, "OWED_MAX", 3)
    plane = make_plane(1, 1)
    (link, _) = plane.net.ends(0, 1)
    plane.net.peers(0, 0).handlers()["retained wanted"](link, [b"%d" % n for n in range(9)])
    assert len(plane.of(0)[0].sync._fetch._owed) == 3
    plane.net.advance(retained_fetch.ANSWER_SECONDS + 0.2)
    assert len(plane.of(0)[0].sync._fetch._owed) == 0


@pytest.mark.parametrize("seed", range(30))
def test_after_all_is_quiet_every_shard_has_what_the_store_has(
    make_plane: MakePlane, seed: int
) -> None:
    """Whatever comes late, is lost or is done again."""
    random_ = random.Random(seed)
    plane = make_plane(2, 1, 2)
    places = [(0, 0), (0, 1), (1, 0), (2, 1)]
    clients = {place: plane.net.client(*place) for place in places}
    plane.repeat = lambda: random_.random() < 0.2
    for number in range(1, 61):
        client = clients[random_.choice(places)]
        size = random_.choice((0, 1, 30, 2000))
        payload = (b"%d" % number).ljust(size, b".") if size else b""
        retain(client, random_.choice("abc"), payload, number if random_.random() < 0.5 else 0)
        connection = random_.choice(list(plane.all()))
        match random_.randrange(10):
            case 0:
                connection.silent = not connection.silent
            case 1:
                connection.mute = not connection.mute
            case 2 if connection.up:
                connection.lose()
            case 3:
                one, other = random_.sample(range(3), 2)
                plane.net.cut(one, other)
            case 4:
                plane.net.connect()
            case 5:
                plane.net.advance(random_.choice((0.1, 1, 3)))
            case 6:
                node = random_.randrange(3)
                plane.net.restart(node)
                for place in places:
                    if place[0] == node:
                        clients[place] = plane.net.client(*place)
    plane.repeat = lambda: False
    for connection in plane.all():
        connection.silent = connection.mute = False
        if not connection.up:
            connection.back()
    plane.net.connect()
    plane.net.advance(70)
    # A node may have ended between the commit of its large message and that of its deletion.
    fetches = [each.sync._fetch for each in plane.all()]
    agreed(plane, *(topic for fetch in fetches for topic in fetch._missing))
