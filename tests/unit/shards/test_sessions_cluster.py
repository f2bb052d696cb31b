"""Sessions in a cluster with etcd: a client id is on one node, and its session follows it with every message.

Longer than 500 lines because the cases share their clients and nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluxmq.ipc.owner_messages import OwnerKeys
from fluxmq.model.outcomes import Outcome
from fluxmq.shards import expected_sessions, owned_ids
from fluxmq.shards.session_arrivals import (
    ENDED_SECONDS,
    PATIENCE_SECONDS,
    PROBES_MAX,
    RETRY_SECONDS,
)
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.net_of_nodes import Net
from tests.unit.shards.node import drain, messages
from tests.unit.shards.pipes import Clock
from tests.unit.shards.plane import Plane

MakePlane = Callable[..., Plane]


@pytest.fixture
def make_plane(clock: Clock, loop: asyncio.AbstractEventLoop) -> Iterator[MakePlane]:
    """Make clusters of nodes with so many shards each, and their store."""
    made: list[Net] = []

    def make(*workers: int, **cluster: Any) -> Plane:
        made.append(Net(clock, loop, *workers, etcd={}, **cluster))
        plane = Plane(made[-1], rules_ids=True)
        made[-1].advance(0.2)
        return plane

    yield make
    for net in made:
        net.close()


def begin(plane: Plane, node: int, name: str = "c", shard: int = 0, **fields: Any) -> Client:
    """Send CONNECT of a client with a session that outlives its connection, unless told otherwise."""
    fields.setdefault("clean", False)
    fields.setdefault("keep_alive", 0)
    fields.setdefault("props", [(wire.SESSION_EXPIRY_INTERVAL, 100)])
    client = plane.net.nodes[node].client(shard)
    client.client_id = name
    client.send(wire.connect(wire.V5, name, **fields))
    plane.net.run()
    return client


def present(client: Client) -> bool:
    """Whether CONNACK, which has come, says that there was a session."""
    answer = client.expect(wire.CONNACK)
    assert answer.reason == 0, str(answer)
    return answer.session_present


def publish(client: Client, payload: bytes, qos: int = 1, topic: str = "t") -> None:
    """Publish without waiting for the answer."""
    client.send(wire.publish(wire.V5, topic, payload, qos=qos, packet_id=client.packet_id()))
    client.stream.node.run()  # type: ignore[attr-defined]


def unanswered(client: Client) -> list[bytes]:
    """Payloads of the messages that have come and are left unanswered."""
    return [each.payload for each in drain(client) if each.kind == wire.PUBLISH]


def holders(plane: Plane, name: str = "c") -> list[int]:
    """The nodes that have a session of a client id."""
    return [number for number, node in enumerate(plane.net.nodes) if node.holders(name)]


def owner(plane: Plane, name: str = "c") -> str:
    """The node that owns a client id."""
    return plane.owners[name].node if name in plane.owners else ""


def hold(plane: Plane, one: int, other: int, held: bool = True) -> None:
    """Let nothing pass between two nodes, or everything again."""
    for end in plane.net.ends(one, other):
        end.held = held
    if not held:
        plane.net.run()


def decide(plane: Plane, node: int, decides: bool = True) -> None:
    """Let etcd decide about a node's claims, or not."""
    for connection in plane.of(node):
        connection.undecided = not decides
    if decides:
        plane.net.run()


def test_a_client_id_is_owned_by_the_node_it_is_connected_to(make_plane: MakePlane) -> None:
    """S2-05, S2-12, S2-19."""
    plane = make_plane(1, 1)
    first = begin(plane, 0)
    assert not present(first)
    assert owner(plane) == "n0"
    second = begin(plane, 1)
    assert present(second)
    assert owner(plane) == "n1"
    assert first.expect(wire.DISCONNECT).reason == 0x8E
    assert holders(plane) == [1]


def test_without_a_session_to_keep_only_the_connection_ends(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    first = begin(plane, 0, props=[], clean=True)
    assert not present(first)
    second = begin(plane, 1, props=[], clean=True)
    assert not present(second)
    assert first.expect(wire.DISCONNECT).reason == 0x8E
    assert (holders(plane), owner(plane)) == ([1], "n1")


def test_a_clean_start_ends_the_session_on_the_other_node(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    first = begin(plane, 0)
    first.take(wire.CONNACK)
    first.subscribe("t", qos=1)
    first.drop()
    publisher = plane.net.client(0)
    publish(publisher, b"lost")
    again = begin(plane, 1, clean=True)
    assert not present(again)
    publish(publisher, b"not subscribed")
    assert unanswered(again) == []
    assert holders(plane) == [1]
    assert plane.net.nodes[0].disks[0].rows_of("c") == []


def test_a_session_moves_with_everything(make_plane: MakePlane) -> None:
    """S1-12, S2-11, S2-15, S2-16: subscriptions and their options, what is in flight, what waits, what was received."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2, props=[(wire.SUBSCRIPTION_IDENTIFIER, 7)])
    client.send(wire.publish(wire.V5, "mine", b"received", qos=2, packet_id=77))
    plane.net.advance(0.2)
    assert client.take(wire.PUBREC, 77).reason == 0
    publish(publisher, b"1", 1)
    publish(publisher, b"2", 2)
    publish(publisher, b"3", 2)
    plane.net.advance(0.2)
    sent = [each for each in drain(client) if each.kind == wire.PUBLISH]
    assert [each.payload for each in sent] == [b"1", b"2", b"3"]
    client.send(wire.acknowledge(wire.PUBREC, sent[1].packet_id))
    plane.net.advance(0.2)
    client.drop()
    publish(publisher, b"4", 1)
    plane.net.advance(0.2)

    again = begin(plane, 1)
    assert present(again)
    plane.net.run()
    found = drain(again)
    first, third, fourth = [each for each in found if each.kind == wire.PUBLISH]
    assert (first.payload, first.dup, first.packet_id) == (b"1", True, sent[0].packet_id)
    assert (third.payload, third.dup, third.packet_id) == (b"3", True, sent[2].packet_id)
    assert (fourth.payload, fourth.dup) == (b"4", False)
    assert all(dict(each.properties)[wire.SUBSCRIPTION_IDENTIFIER] == 7 for each in (first, fourth))
    (released,) = [each for each in found if each.kind == wire.PUBREL]
    assert released.packet_id == sent[1].packet_id
    again.send(wire.publish(wire.V5, "mine", b"received", qos=2, packet_id=77, dup=True))
    other = plane.net.client(2)
    other.subscribe("mine", qos=0)
    plane.net.advance(0.2)
    assert again.take(wire.PUBREC, 77).reason == 0
    assert unanswered(other) == [], "it was published before"


def test_its_messages_are_on_the_new_nodes_disk(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    publisher = plane.net.client(0)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2)
    client.drop()
    for number in range(6):
        publish(publisher, b"%d" % number, 1 + number % 2)
    plane.net.advance(0.2)
    begin(plane, 1).drop()
    plane.net.advance(0.2)
    assert plane.net.nodes[0].disks[0].rows_of("c") == []
    plane.net.restart(1)
    plane.net.connect()
    plane.net.advance(1)
    again = begin(plane, 1)
    assert present(again)
    assert messages(again) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("workers", [(1, 1), (2, 3), (3, 2)])
def test_it_comes_and_goes_between_any_shards(
    make_plane: MakePlane, workers: tuple[int, ...]
) -> None:
    plane = make_plane(*workers)
    publisher = plane.net.client(0)
    names = [f"c{number}" for number in range(8)]
    for name in names:
        client = begin(plane, 0, name)
        client.take(wire.CONNACK)
        client.subscribe(name, qos=2)
    for turn in range(4):
        node = (turn + 1) % 2
        for number, name in enumerate(names):
            publish(publisher, b"%d" % turn, 2, name)
            plane.net.advance(0.1)
            client = begin(plane, node, name, number % workers[node])
            assert present(client)
            assert set(messages(client)) == {b"%d" % turn}
    plane.net.advance(0.2)
    assert [holders(plane, name) for name in names] == [[0]] * len(names)


def test_messages_on_their_way_are_neither_lost_nor_doubled(make_plane: MakePlane) -> None:
    """S2-17, S2-18: while a session moves both nodes get messages for it; what one of them has counts once."""
    plane = make_plane(1, 1, 1)
    publishers = [plane.net.client(node) for node in range(3)]
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2)
    client.drop()
    expected = []

    def all_publish(text: str) -> None:
        for number, each in enumerate(publishers):
            for qos in (1, 2):
                payload = f"{text} {number} {qos}".encode()
                publish(each, payload, qos)
                expected.append(payload)

    hold(plane, 0, 1)
    again = begin(plane, 1)
    all_publish("asked")
    for end in plane.net.ends(0, 1):
        if end.node == "n1":  # what comes to n0
            end.held = False
    plane.net.run()
    all_publish("frozen")
    hold(plane, 0, 2)
    hold(plane, 0, 1, held=False)
    all_publish("known")
    decide(plane, 1, False)
    hold(plane, 0, 2, held=False)
    all_publish("arrived")
    assert owner(plane) == "n0"
    decide(plane, 1)
    assert owner(plane) == "n1"
    plane.net.advance(0.3)
    assert present(again)
    got = messages(again)
    assert sorted(got) == sorted(expected)
    for number in range(3):
        for qos in (1, 2):
            tail = f" {number} {qos}".encode()
            assert [each for each in got if each.endswith(tail)] == [
                each for each in expected if each.endswith(tail)
            ], "in order"


def late(plane: Plane, sender: int, receiver: int, held: bool = True) -> None:
    """Let nothing arrive at a node from another one, or everything again."""
    for (one, _, other, _), end in plane.net.links.items():
        if (one, other) == (receiver, sender):
            end.held = held
    plane.net.run()


def test_a_message_that_is_late_at_the_former_node_moves_along(make_plane: MakePlane) -> None:
    """It was published when the new node did not want it."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2)
    client.drop()
    late(plane, 2, 0)
    publish(publisher, b"late", 2)
    again = begin(plane, 1)
    plane.net.advance(0.2)
    assert drain(again) == [], "it waits for what is on its way"
    late(plane, 2, 0, held=False)
    assert present(again)
    assert messages(again) == [b"late"]


def test_a_message_that_is_late_at_the_new_node_is_not_new(make_plane: MakePlane) -> None:
    """Another client there wants it as well; this one has had it."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    plane.net.client(1).subscribe("t", qos=0)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2)
    late(plane, 2, 1)
    publish(publisher, b"once", 2)
    plane.net.advance(0.2)
    assert messages(client) == [b"once"]
    again = begin(plane, 1)
    plane.net.advance(0.2)
    late(plane, 2, 1, held=False)
    plane.net.advance(0.2)
    assert present(again)
    assert messages(again) == []


def test_a_message_that_comes_after_the_state_is_in_it(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2)
    disk = plane.net.nodes[0].disks[0]
    disk.held = True  # the state is not sent yet
    again = begin(plane, 1)
    late(plane, 2, 1)
    publish(publisher, b"once", 2)
    disk.held = False
    plane.net.advance(0.2)
    assert (owner(plane), drain(again)) == ("n0", []), "it waits for what is on its way"
    late(plane, 2, 1, held=False)
    plane.net.advance(0.2)
    assert owner(plane) == "n1"
    assert present(again)
    assert messages(again) == [b"once"]


def test_what_a_node_sends_again_to_the_former_one_is_refused(make_plane: MakePlane) -> None:
    """The session has moved meanwhile, and its publisher waits."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2)
    client.drop()
    plane.net.cut(0, 2)
    publish(publisher, b"refused", 1)
    again = begin(plane, 1)
    plane.net.advance(0.2)
    assert present(again)
    plane.net.connect()
    plane.net.advance(0.2)
    assert publisher.take(wire.PUBACK).reason == 0x97
    publish(publisher, b"then", 1)
    plane.net.advance(0.2)
    assert messages(again) == [b"then"]
    plane.net.advance(0.2)
    assert publisher.take(wire.PUBACK).reason == 0


def test_the_new_node_has_to_hear_whom_the_former_one_hears(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2)
    client.drop()
    plane.net.cut(1, 2)
    again = begin(plane, 1)
    plane.net.advance(1)
    publish(publisher, b"only the former node hears it", 1)
    plane.net.advance(1)
    assert owner(plane) == "n0"
    plane.net.connect()
    plane.net.advance(1)
    assert present(again)
    assert messages(again) == [b"only the former node hears it"]


def test_the_owner_changes_when_the_session_is_on_the_new_nodes_disk(make_plane: MakePlane) -> None:
    """S2-18."""
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=1)
    client.drop()
    publish(plane.net.client(0), b"kept")
    disk = plane.net.nodes[1].disks[0]
    disk.held = True
    again = begin(plane, 1)
    plane.net.advance(1)
    assert (owner(plane), drain(again)) == ("n0", [])
    disk.held = False
    plane.net.advance(0.2)
    assert owner(plane) == "n1"
    assert present(again)
    assert messages(again) == [b"kept"]


def test_a_full_disk_takes_no_session(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    plane.net.nodes[1].disks[0].reason = Outcome.OVER_LIMIT
    other = begin(plane, 1)
    plane.net.advance(1)
    assert other.expect(wire.CONNACK).reason == 0x88
    plane.net.advance(1)
    assert (holders(plane), owner(plane)) == ([0], "n0")
    assert present(begin(plane, 0))


def test_what_waits_for_a_session_is_bounded(
    make_plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher is told."""
    monkeypatch.setattr(expected_sessions, "EXPECTED_BYTES_MAX", 1000)
    plane = make_plane(1, 1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = plane.net.client(1)
    late(plane, 2, 0)  # so that the former node's barrier is not passed
    again = begin(plane, 1)
    publish(publisher, bytes(600))
    publish(publisher, bytes(600))
    plane.net.run()
    late(plane, 2, 0, held=False)
    plane.net.advance(0.2)
    assert present(again)
    assert messages(again) == [bytes(600)] * 2, "the former node had them"
    assert sorted(each.reason for each in drain(publisher)) == [0, 0x97]


def test_of_two_nodes_one_gets_the_session(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=1)
    decide(plane, 1, False)
    decide(plane, 2, False)
    contenders = [begin(plane, node) for node in (1, 2)]
    decide(plane, 1)
    decide(plane, 2)
    plane.net.advance(3)
    (holder,) = holders(plane)
    assert owner(plane) == f"n{holder}"
    assert [present(each) for each in contenders] == [True, True], "one after the other"
    publisher = plane.net.client(0)
    publish(publisher, b"once")
    plane.net.run()
    assert [unanswered(each) for each in contenders].count([b"once"]) == 1


def test_a_session_stays_if_the_other_node_does_not_go_on(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", "$share/g/s", qos=1)
    hold(plane, 0, 1)
    begin(plane, 1)
    for end in plane.net.ends(0, 1):
        end.held = end.node != "n1"  # n0 hears n1, which hears nothing
    plane.net.run()
    assert client.expect(wire.DISCONNECT).reason == 0x8E
    plane.net.cut(0, 1)
    waiting = begin(plane, 0)
    plane.net.advance(7)
    assert present(waiting)
    assert (holders(plane), owner(plane)) == ([0], "n0")
    publisher = plane.net.client(0)
    for topic in ("t", "s"):
        publish(publisher, topic.encode(), 1, topic)
    assert sorted(messages(waiting)) == [b"s", b"t"]


def test_a_node_that_cannot_be_reached_keeps_its_session(make_plane: MakePlane) -> None:
    """The client is told to try again."""
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.drop()
    plane.net.cut(0, 1)
    other = begin(plane, 1)
    plane.net.advance(16)
    assert other.expect(wire.CONNACK).reason == 0x88
    assert (holders(plane), owner(plane)) == ([0], "n0")


def test_the_session_of_a_node_whose_lease_has_ended_is_left_behind(make_plane: MakePlane) -> None:
    """S2-13; and it is deleted when the node is back."""
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=1)
    plane.net.cut(0, 1)
    for shard in list(plane.net.nodes[0]):
        plane.net.nodes[0].kill(shard.index)
    other = begin(plane, 1)
    plane.net.advance(5)
    assert drain(other) == [], "it waits"
    plane.expire(0)
    plane.net.advance(1)
    assert not present(other)
    assert owner(plane) == "n1"
    plane.lives["n0"] = "2"
    plane.net.nodes[0].start(0)
    plane.net._introduce(0)
    for (one, a, _, _), link in plane.net.links.items():
        if one == 0:
            link.owner = plane.net.peers(one, a)
            link.owner.added(link)
    plane.net.connect()
    plane.net.advance(1)
    assert holders(plane) == [1]
    assert plane.net.nodes[0].disks[0].rows_of("c") == []


def test_a_request_about_long_client_ids_has_few_of_them(
    make_plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owned_ids, "REQUEST_BYTES", 400)
    plane = make_plane(1, 1)
    (connection,) = plane.of(0)
    connection.undecided = True
    names = [f"{number:0100}" for number in range(7)]
    clients = [begin(plane, 0, name, clean=True) for name in names]
    sizes = []
    for _ in range(3):
        (kind, body, answered) = connection.claims.popleft()
        sizes.append(len(OwnerKeys.from_body(body).claims))
        answered(plane.answer(kind, body, connection))
    assert sizes == [1, 4, 2]
    plane.net.run()
    assert not any(map(present, clients))


def test_a_claim_that_was_not_sent_in_time_is_given_up(make_plane: MakePlane) -> None:
    """Its client would be gone when it is answered, and the others behind it as well."""
    plane = make_plane(1, 1)
    (connection,) = plane.of(0)
    connection.undecided = True
    first = begin(plane, 0, "first", clean=True)
    late = begin(plane, 0, "late", clean=True)
    plane.net.advance(PATIENCE_SECONDS - 1)
    assert drain(late) == []
    in_time = begin(plane, 0, "in time", clean=True)
    plane.net.advance(1 + RETRY_SECONDS)
    assert late.expect(wire.CONNACK).reason == 0x88
    asked = plane.asked
    decide(plane, 0)
    assert not present(first)
    assert not present(in_time)
    assert plane.asked == asked + 2
    assert owner(plane, "late") == ""


def test_the_clients_of_a_node_that_has_ended_do_not_all_ask_again_and_again(
    make_plane: MakePlane,
) -> None:
    """They wait for the same moment, and few of them notice it for all."""
    plane = make_plane(1, 1)
    names = [f"c{number}" for number in range(10 * PROBES_MAX)]
    for name in names:
        assert not present(begin(plane, 0, name))
    plane.net.cut(0, 1)
    plane.net.nodes[0].kill(0)
    waiting = [begin(plane, 1, name) for name in names]
    assert plane.asked == 2 * len(names)
    plane.net.advance(5)
    assert 0 < plane.asked - 2 * len(names) <= 50 * PROBES_MAX
    plane.expire(0)
    plane.net.advance(3 * RETRY_SECONDS)
    assert not any(map(present, waiting))
    assert {owner(plane, name) for name in names} == {"n1"}


def test_the_clients_of_a_node_come_back_while_others_of_its_leases_last(
    make_plane: MakePlane,
) -> None:
    plane = make_plane(1, 1)
    names = [f"c{number}" for number in range(4 * PROBES_MAX)]
    for name in names:
        assert not present(begin(plane, 0, name))
    kept = {name: plane.owners[name] for name in names[PROBES_MAX:]}
    plane.net.cut(0, 1)
    plane.net.nodes[0].kill(0)
    waiting = [begin(plane, 1, name) for name in names]
    plane.net.advance(1)
    plane.expire(0)
    plane.owners |= kept
    plane.net.advance(1)
    assert not any(map(present, waiting[:PROBES_MAX]))
    plane.expire(0)
    plane.net.advance(ENDED_SECONDS + 2 * RETRY_SECONDS)
    assert not any(map(present, waiting[PROBES_MAX:]))


def test_a_node_that_comes_back_in_time_has_its_sessions(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = plane.net.client(1)
    publish(publisher, b"kept")
    plane.net.advance(0.2)
    plane.lives["n0"] = "2"
    plane.net.restart(0)
    plane.net.connect()
    plane.net.advance(1)
    assert plane.owners["c"].life == "2"
    again = begin(plane, 1)
    assert present(again)
    assert messages(again) == [b"kept"]


def test_a_node_without_etcd_disconnects_its_clients_in_time(make_plane: MakePlane) -> None:
    """S2-13: before another node can have them."""
    plane = make_plane(2, 1)
    clients = [begin(plane, 0, f"c{number}", number % 2) for number in range(4)]
    for client in clients:
        client.take(wire.CONNACK)
    plane.cut_off.add("n0")
    plane.net.advance(6)
    assert [drain(each) for each in clients] == [[]] * 4
    plane.net.advance(3.5)
    assert [each.expect(wire.DISCONNECT).reason for each in clients] == [0x9C] * 4
    plane.expire(0)
    other = begin(plane, 1, "c0")
    assert not present(other)
    refused = begin(plane, 0, "c1")
    plane.net.advance(16)
    assert refused.expect(wire.CONNACK).reason == 0x88
    plane.cut_off.clear()
    plane.net.advance(2)
    assert [owner(plane, f"c{number}") for number in range(4)] == ["n1", "n0", "n0", "n0"]
    assert [holders(plane, f"c{number}") for number in range(4)] == [[1], [0], [0], [0]]


def test_a_node_may_keep_its_clients(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, lease_loss="keep")
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    plane.cut_off.add("n0")
    plane.net.advance(12)
    assert drain(client) == []
    plane.expire(0)
    plane.cut_off.clear()
    plane.net.advance(2)
    assert owner(plane) == "n0"
    plane.cut_off.add("n0")
    plane.net.advance(12)
    plane.expire(0)
    assert not present(begin(plane, 1))
    assert drain(client) == []
    plane.cut_off.clear()
    plane.net.advance(2)
    assert client.expect(wire.DISCONNECT).reason == 0x8E
    assert holders(plane) == [1]


def test_ids_are_claimed_anew_when_control_has_restarted(make_plane: MakePlane) -> None:
    """Its leases have ended with it."""
    plane = make_plane(2, 1)
    for number in range(4):
        begin(plane, 0, f"c{number}", number % 2).take(wire.CONNACK)
    before = {name: each.revision for name, each in plane.owners.items()}
    for connection in plane.of(0):
        connection.lose()
        connection.back()
    plane.net.advance(0.2)
    assert all(each.revision > before[name] for name, each in plane.owners.items())


def test_an_id_is_released_some_seconds_after_its_session(make_plane: MakePlane) -> None:
    plane = make_plane(2, 1)
    clients = [begin(plane, 0, f"c{number}", number % 2, props=[]) for number in range(4)]
    for client in clients:
        client.take(wire.CONNACK)
        client.drop()
    plane.net.advance(3)
    assert len(plane.owners) == 4
    begin(plane, 0, "c2", props=[]).take(wire.CONNACK)
    plane.net.advance(6)
    assert list(plane.owners) == ["c2"]


def test_a_claim_is_made_after_the_release_that_it_follows(make_plane: MakePlane) -> None:
    """They may be decided in any order: one request is under way at a time, which is fastest as well."""
    plane = make_plane(1, 1)
    (connection,) = plane.of(0)
    begin(plane, 0, props=[], clean=True).disconnect(0)
    decide(plane, 0, False)
    plane.net.advance(6)
    again = begin(plane, 0)
    other = begin(plane, 0, "other")
    (asked,) = (OwnerKeys.from_body(body) for _, body, _ in connection.claims)
    assert [each.client for each in asked.releases] == ["c"]
    assert asked.claims == ()
    decide(plane, 0)
    assert not present(again)
    assert not present(other)
    assert owner(plane) == owner(plane, "other") == "n0"


def test_a_client_that_comes_back_costs_etcd_nothing(make_plane: MakePlane) -> None:
    """S2-14: its node knows that it owns the id."""
    plane = make_plane(1, 1)
    for attempt in range(3):
        assert present(begin(plane, 0)) == (attempt > 0)
        assert plane.claimed == 1


def test_another_principal_gets_nothing(
    make_plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = make_plane(1, 1)
    for node in plane.net.nodes:
        for shard in node:
            monkeypatch.setattr(shard.authentication, "may_return", lambda _principal: True)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    plane.net.nodes[0][0].session("c").principal = "someone"
    other = begin(plane, 1)
    assert other.expect(wire.CONNACK).reason == 0x85
    assert drain(client) == [], "it goes on"
    assert (holders(plane), owner(plane)) == ([0], "n0")


def test_the_answer_of_a_claim_may_be_lost(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=1)
    client.drop()
    publisher = plane.net.client(0)
    publish(publisher, b"kept")
    lost = iter([True, True, False])
    plane.repeat = lambda: next(lost, False)
    again = begin(plane, 1)
    plane.net.advance(3)
    assert present(again)
    assert messages(again) == [b"kept"]
    assert (holders(plane), owner(plane)) == ([1], "n1")
