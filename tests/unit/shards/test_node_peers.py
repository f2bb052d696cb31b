"""Publish and subscribe between nodes: interest, order, and streams that break.

Longer than 500 lines because every case has the same few nodes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator

import pytest

from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.security import Security
from fluxmq.cluster.shard_endpoint import ShardEndpoint
from fluxmq.net import frames
from fluxmq.shards import node_paths
from fluxmq.shards.node_paths import PAUSE_BACKLOG, QOS_0_BACKLOG_MAX
from fluxmq.shards.publish_links import MEETING_SECONDS, PublishLinks
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.net_of_nodes import TIMEOUT, Net
from tests.unit.shards.node import drain
from tests.unit.shards.pipes import Clock

MakeNet = Callable[..., Net]


@pytest.fixture
def make_net(clock: Clock, loop: asyncio.AbstractEventLoop) -> Iterator[MakeNet]:
    """Make clusters of nodes with so many shards each."""
    made: list[Net] = []

    def make(*workers: int) -> Net:
        net = Net(clock, loop, *workers)
        made.append(net)
        return net

    yield make
    for net in made:
        net.close()


def payloads(client: Client) -> list[bytes]:
    """The payloads that have come for a client, in order."""
    return [packet.payload for packet in drain(client) if packet.kind == wire.PUBLISH]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("workers", [(1, 1), (2, 2), (3, 2), (1, 4)])
def test_every_subscriber_gets_a_message_once_and_in_order(
    make_net: MakeNet, workers: tuple[int, int], qos: int
) -> None:
    net = make_net(*workers)
    places = [(node, shard) for node in (0, 1) for shard in range(workers[node])]
    subscribers = [net.client(node, shard) for node, shard in places]
    for subscriber in subscribers:
        subscriber.subscribe("a/+", qos=qos)
    for node, shard in places:
        publisher = net.client(node, shard)
        for number in range(5):
            publisher.publish("a/b", b"%d" % number, qos=qos)
        for subscriber in subscribers:
            assert payloads(subscriber) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_subscription_that_is_acknowledged_gets_every_message_after_it(
    make_net: MakeNet, workers: int
) -> None:
    """SUBACK waits until the other nodes know."""
    net = make_net(workers, workers)
    publisher, subscriber = net.client(1, workers - 1), net.client(0, 0)
    for link in net.ends(0, 1):
        link.held = True
    subscriber.send(wire.subscribe(wire.V5, 7, [wire.Filter("a", 1)]))
    assert drain(subscriber) == []
    for link in net.ends(0, 1):
        link.held = False
    net.run()
    (suback,) = drain(subscriber)
    assert suback.kind == wire.SUBACK
    publisher.publish("a", b"x", qos=1)
    assert payloads(subscriber) == [b"x"]


def test_a_node_that_does_not_answer_is_left_out(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    subscriber = net.client(0)
    for link in net.ends(0, 1):
        link.held = True
    subscriber.send(wire.subscribe(wire.V5, 7, [wire.Filter("a", 1)]))
    net.advance(1.2)
    assert [link.closed for link in net.ends(0, 1) if link.owner is net.peers(0, 0)] != [0]
    assert drain(subscriber) == []
    net.cut(0, 1)  # as it was asked
    (suback,) = drain(subscriber)
    assert suback.reasons == [1]
    assert net.peers(0, 0).counts.slow >= 1


def test_nothing_is_sent_that_no_node_wants(make_net: MakeNet) -> None:
    net = make_net(1, 1, 1)
    net.client(1).subscribe("a", qos=0)
    publisher = net.client(0)
    publisher.publish("a", b"", qos=1)
    publisher.publish("b", b"", qos=1)
    assert net.peers(0, 0).counts.sent == 1
    assert [net.peers(node, 0).counts.received for node in (1, 2)] == [1, 0]


def test_the_end_of_a_subscription_is_told(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    subscriber, publisher = net.client(1), net.client(0)
    subscriber.subscribe("a", qos=0)
    subscriber.unsubscribe("a")
    net.advance(0.2)
    publisher.publish("a", b"", qos=1)
    assert net.peers(0, 0).counts.sent == 0


def test_messages_of_the_broker_stay_on_their_node(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    net.client(1).subscribe("$SYS/#", qos=0)
    net.client(1).subscribe("#", qos=0)
    assert net.peers(0, 0)._routes.node_filters(512) == {b"#": False}


def test_members_of_a_shared_group_on_all_nodes_share(make_net: MakeNet) -> None:
    net = make_net(2, 1)
    members = [net.client(0, 0), net.client(0, 1), net.client(1, 0)]
    for member in members:
        member.subscribe("$share/g/a", qos=1)
    publisher = net.client(1, 0)
    for number in range(30):
        publisher.publish("a", b"%d" % number, qos=1)
    got = [payloads(member) for member in members]
    assert sorted(int(each) for part in got for each in part) == list(range(30))
    assert [len(part) for part in got] == [10, 10, 10]


def test_the_last_member_of_a_node_leaves_while_a_message_comes(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    leaver, stayer, publisher = net.client(1), net.client(0), net.client(0)
    for member in (leaver, stayer):
        member.subscribe("$share/g/a", qos=1)
    ends = [link for link in net.ends(0, 1) if link.owner is net.peers(0, 0)]
    for link in ends:
        link.held = True  # its node does not hear that the member leaves
    leaver.unsubscribe("$share/g/a")
    for number in range(4):
        publisher.publish("a", b"%d" % number, qos=1)
    for link in ends:
        link.held = False
    net.run()
    assert sorted(payloads(stayer)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_stream_that_breaks_loses_nothing_and_doubles_nothing(
    make_net: MakeNet, lost: bool, qos: int
) -> None:
    net = make_net(1, 1)
    subscriber, publisher = net.client(1), net.client(0)
    subscriber.subscribe("a", qos=qos)
    publisher.publish("a", b"0", qos=qos)
    for link in net.ends(0, 1):
        link.held = True
    for number in (1, 2, 3):
        publisher.publish("a", b"%d" % number, qos=qos)
    for link in net.ends(0, 1):
        link.held = False
    net.cut(0, 1, lost=lost)
    publisher.publish("a", b"4", qos=qos)
    net.connect()
    publisher.publish("a", b"5", qos=qos)
    assert payloads(subscriber) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert net.peers(0, 0)._paths[512]._sent == {}


def test_interest_that_ended_while_a_stream_was_away_is_forgotten(make_net: MakeNet) -> None:
    """S2-04: what a node knows of another's subscriptions is fresh again after a break."""
    net = make_net(1, 1)
    subscriber, publisher = net.client(1), net.client(0)
    subscriber.subscribe("a", qos=0)
    subscriber.subscribe("b", qos=0)
    subscriber.subscribe("$share/g/c", qos=0)
    net.cut(0, 1)
    subscriber.unsubscribe("a")
    subscriber.unsubscribe("$share/g/c")
    net.advance(0.2)  # those who are there are told
    net.connect()
    for topic in ("a", "b", "c"):
        publisher.publish(topic, topic.encode(), qos=1)
    assert payloads(subscriber) == [b"b"]
    assert net.peers(0, 0).counts.sent == 1


def test_a_node_that_stays_away_is_forgotten(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    net.client(1).subscribe("a", qos=0)
    publisher = net.client(0)
    net.cut(0, 1)
    publisher.publish("a", b"", qos=1)
    assert len(net.peers(0, 0)._paths) == 1
    net.advance(TIMEOUT + 1)
    assert net.peers(0, 0)._paths == {}
    publisher.publish("a", b"", qos=1)
    assert net.peers(0, 0).counts.sent == 1


LASTING = [(wire.SESSION_EXPIRY_INTERVAL, 1000)]


def away(net: Net, name: str, topic: str = "a", qos: int = 1) -> None:
    """A client of node 1 that has subscribed and gone; its session stays."""
    client = net.client(1, 0, name, clean=False, props=LASTING)
    client.subscribe(topic, qos=qos)
    client.drop()
    net.run()


def back(net: Net, name: str) -> list[bytes]:
    """The messages that its session has kept for it."""
    client = net.client(1, 0, name, clean=False, props=LASTING)
    assert client.present
    return payloads(client)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("topic", ["a", "$share/g/a"])
def test_a_persistent_session_elsewhere_has_a_message_before_its_publisher_is_answered(
    make_net: MakeNet, qos: int, topic: str
) -> None:
    net = make_net(1, 1)
    away(net, "away", topic, qos)
    publisher = net.client(0)
    disk = net.nodes[1].disks[0]
    disk.held = True
    publisher.send(wire.publish(wire.V5, "a", b"x", qos=qos, packet_id=1))
    net.advance(0.5)
    assert drain(publisher) == []
    disk.held = False
    net.nodes[1][0].store.commit()
    net.advance(0.2)
    (answer,) = drain(publisher)
    assert (answer.kind, answer.reason) == (wire.PUBACK if qos == 1 else wire.PUBREC, 0)
    net.restart(1)
    net.connect()
    assert back(net, "away") == [b"x"]


def test_a_node_that_does_not_keep_a_message_is_no_success(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    away(net, "away")
    publisher = net.client(0)
    net.cut(0, 1)
    publisher.send(wire.publish(wire.V5, "a", b"x", qos=1, packet_id=1))
    net.advance(TIMEOUT - 1)
    assert drain(publisher) == []
    net.advance(2)
    (answer,) = drain(publisher)
    assert (answer.packet_id, answer.reason) == (1, 0x97)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_node_that_restarts_has_not_answered_is_sent_again(
    make_net: MakeNet, qos: int
) -> None:
    """To persistent sessions; with QoS 2 once even if it was on disk already."""
    net = make_net(1, 1)
    away(net, "away", qos=qos)
    publisher = net.client(0)
    answers = [link for link in net.ends(0, 1) if link.owner is net.peers(0, 0)]
    for link in answers:
        link.held = True  # the other node has it, and its answer is lost
    publisher.send(wire.publish(wire.V5, "a", b"x", qos=qos, packet_id=1))
    net.advance(0.5)
    assert drain(publisher) == []
    for link in answers:
        link.held = False
        link.inbox.clear()
    net.restart(1)
    net.connect()
    net.advance(0.3)
    (answer,) = drain(publisher)
    assert answer.reason == 0
    got = back(net, "away")
    assert got == [b"x"] if qos == 2 else set(got) == {b"x"}


def test_an_answer_that_was_lost_is_given_again(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    away(net, "away")
    publisher = net.client(0)
    for link in net.ends(0, 1):
        if link.owner is net.peers(0, 0):
            link.held = True
    publisher.send(wire.publish(wire.V5, "a", b"x", qos=1, packet_id=1))
    net.advance(0.5)
    for link in net.ends(0, 1):
        link.held = False
    net.cut(0, 1)
    net.connect()
    net.advance(0.3)
    (answer,) = drain(publisher)
    assert (answer.packet_id, answer.reason) == (1, 0)
    assert net.peers(1, 0).counts.repeated == 1
    assert back(net, "away") == [b"x"]


def test_messages_expire_by_their_own_time_on_another_node(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    away(net, "away")
    publisher = net.client(0)
    for name, seconds in ((b"short", 1), (b"long", 100)):
        publisher.publish("a", name, qos=1, props=[(wire.MESSAGE_EXPIRY_INTERVAL, seconds)])
    net.advance(5)
    assert back(net, "away") == [b"long"]


def test_the_time_to_live_travels_as_a_duration(make_net: MakeNet) -> None:
    """The clocks of two nodes have nothing to do with each other."""
    net = make_net(1, 1)
    away(net, "away")
    publisher = net.client(0)
    (link,) = (link for link in net.ends(0, 1) if link.owner is net.peers(1, 0))
    link.held = True
    publisher.send(
        wire.publish(
            wire.V5,
            "a",
            b"x",
            qos=1,
            packet_id=1,
            props=[(wire.MESSAGE_EXPIRY_INTERVAL, 1000)],
        )
    )
    net.run()
    frame = bytearray(link.inbox.pop())
    kind, number, _ = frames.node_head(bytes(frame))
    struct.pack_into("<BQd", frame, 0, kind, number, 1.0)
    link.inbox.append(bytes(frame))
    link.held = False
    net.advance(5)
    assert back(net, "away") == []


def test_a_slow_stream_costs_qos_0_messages_and_pauses_other_publishers(
    make_net: MakeNet,
) -> None:
    net = make_net(1, 1)
    subscriber = net.client(1)
    subscriber.subscribe("a", qos=1)
    publisher = net.client(0)
    (link,) = (link for link in net.ends(0, 1) if link.owner is net.peers(0, 0))
    link.backlog_bytes = QOS_0_BACKLOG_MAX + 1
    publisher.publish("a", b"0", qos=0)
    publisher.publish("a", b"1", qos=1)
    assert net.peers(0, 0).counts.dropped == 1
    link.backlog_bytes = PAUSE_BACKLOG + 1
    publisher.publish("a", b"2", qos=1)
    publisher.send(wire.publish(wire.V5, "a", b"3", qos=1, packet_id=3))
    net.run()
    assert payloads(subscriber) == [b"1", b"2"]
    assert net.peers(0, 0).holds, "the shard takes all its turns: nothing else tells of the end"
    assert net.nodes[0][0].next_due == 0.0
    link.backlog_bytes = 0
    net.advance(0.2)
    assert not net.peers(0, 0).holds
    assert payloads(subscriber) == [b"3"]


def test_what_is_kept_for_a_node_is_bounded(
    make_net: MakeNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_paths, "UNANSWERED_BYTES_MAX", 1000)
    net = make_net(1, 1)
    net.client(1).subscribe("a", qos=1)
    away(net, "away", "kept")
    publisher = net.client(0)
    net.cut(0, 1)
    for _ in range(10):
        publisher.publish("a", bytes(400), qos=1)
    path = net.peers(0, 0)._paths[512]
    assert path._bytes < 2000
    assert net.peers(0, 0).counts.dropped == 10 - len(path._sent)
    for number in range(10):
        publisher.send(wire.publish(wire.V5, "kept", bytes(1000), qos=1, packet_id=number + 1))
        net.run()
    assert 5 <= net.peers(0, 0).counts.refused <= 8
    net.advance(TIMEOUT + 1)
    assert [packet.reason for packet in drain(publisher)] == [0x97] * 10


def test_a_node_that_was_forgotten_and_comes_back_gets_messages_again(make_net: MakeNet) -> None:
    """Their numbers go on: the other node drops what it has had."""
    net = make_net(1, 1)
    subscriber, publisher = net.client(1), net.client(0)
    subscriber.subscribe("a", qos=1)
    for number in range(3):
        publisher.publish("a", b"%d" % number, qos=1)
    net.cut(0, 1)
    net.advance(TIMEOUT + 1)
    net.connect()
    publisher.publish("a", b"3", qos=1)
    assert payloads(subscriber) == [b"0", b"1", b"2", b"3"]


def test_a_node_that_is_there_and_does_not_answer_is_no_success(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    away(net, "away")
    publisher = net.client(0)
    for link in net.ends(0, 1):
        link.held = True
    publisher.send(wire.publish(wire.V5, "a", b"x", qos=1, packet_id=1))
    net.advance(TIMEOUT + 0.5)
    (answer,) = drain(publisher)
    assert answer.reason == 0x97


def test_a_node_that_comes_does_not_hold_up_a_subscription(make_net: MakeNet) -> None:
    """It is sent an interest with a number that the others are not sent."""
    net = make_net(1, 1, 1)
    subscriber = net.client(0)
    net.cut(0, 2)
    to_one = [link for link in net.ends(0, 1) if link.owner is net.peers(0, 0)]
    for link in to_one:
        link.held = True
    subscriber.send(wire.subscribe(wire.V5, 7, [wire.Filter("a", 1)]))
    net.run()
    net.connect()
    subscriber.send(wire.subscribe(wire.V5, 8, [wire.Filter("b", 1)]))
    net.run()
    assert drain(subscriber) == []
    for link in to_one:
        link.held = False
    net.run()
    assert [packet.packet_id for packet in drain(subscriber)] == [7, 8]


def test_a_subscription_waits_while_its_node_has_not_met_the_others(make_net: MakeNet) -> None:
    """Nodes that run would not know of it, although no connected node is missing."""
    net = make_net(2, 1)
    for shard in (0, 1):
        net.peers(0, shard).start()
    net.cut(0, 1)
    subscriber, publisher = net.client(0, 1), net.client(1)
    subscriber.send(wire.subscribe(wire.V5, 7, [wire.Filter("a", 1)]))
    assert drain(subscriber) == []
    net.connect()
    net.peers(0, 1).started()
    net.run()
    assert drain(subscriber) == []  # the node's other shard has not met them
    net.peers(0, 0).started()
    net.run()
    (suback,) = drain(subscriber)
    assert suback.kind == wire.SUBACK
    publisher.publish("a", b"x", qos=1)
    assert payloads(subscriber) == [b"x"]


def test_a_shard_knows_when_both_sides_of_a_stream_know_everything(make_net: MakeNet) -> None:
    net = make_net(1, 1)
    here, there = net.links[0, 0, 1, 0], net.links[1, 0, 0, 0]
    peers = net.peers(0, 0)
    assert peers.knows(here)
    for held in (here, there):
        net.cut(0, 1)
        assert not peers.knows(here)
        held.held = True
        net.connect()
        assert not peers.knows(here), "one direction is not enough"
        held.held = False
        net.run()
        assert peers.knows(here)


def test_a_shard_waits_for_other_nodes_for_a_bounded_time(
    make_net: MakeNet, loop: asyncio.AbstractEventLoop
) -> None:
    net = make_net(1, 1)
    peers, endpoint = (
        net.peers(1, 0),
        ShardEndpoint(
            Security("n1", ("n0", "n1")),
            "127.0.0.1:7001",
            StreamHello("n1", 0, 1, 1, ""),
            {"n0": "127.0.0.1:7000"},
        ),
    )
    links = PublishLinks(endpoint, peers, lambda: None, beside_queues=True)
    assert not links.met(1000.0), "it does not listen yet"
    links.start(1000.0)
    assert not links.met(1000.0 + MEETING_SECONDS)
    assert links.met(1000.1 + MEETING_SECONDS)
    told: list[None] = []
    peers.when_known(lambda: told.append(None))
    net.cut(0, 1)
    assert not told
    links.ready()
    assert told
    loop.run_until_complete(links.stop())


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("topic_filter", ["a", "$share/g/a"])
def test_a_frame_has_no_more_messages_than_the_settings_say(
    make_net: MakeNet, topic_filter: str, qos: int
) -> None:
    """`route_batch_max_size`, 256 by default."""
    net = make_net(1, 1)
    subscriber, publisher = net.client(0), net.client(1)
    subscriber.subscribe(topic_filter, qos=qos)
    sent = [b"%d" % number * (1 + number % 3) for number in range(600)]
    (link,) = [each for each in net.ends(0, 1) if each.owner is net.peers(0, 0)]
    link.held = True
    publisher.send(
        b"".join(
            wire.publish(wire.V5, "a", payload, qos=qos, packet_id=(number + 1) * qos)
            for number, payload in enumerate(sent)
        )
    )
    net.run()
    runs = [frame for frame in link.inbox if frame[0] in (frames.NODE_RUN, frames.NODE_SHARED)]
    link.held = False
    got: list[bytes] = []
    while packets := drain(subscriber):
        got += [packet.payload for packet in packets if packet.kind == wire.PUBLISH]
        for packet in packets:
            if packet.kind == wire.PUBLISH and qos:
                subscriber.acknowledge(packet)
    assert got == sent
    assert len(runs) == 3
