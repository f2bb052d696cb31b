"""Nodes that are away while sessions move, or restart then: what they send for these is acknowledged nowhere."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.net_of_nodes import TIMEOUT
from tests.unit.shards.node import drain, messages
from tests.unit.shards.plane import Plane
from tests.unit.shards.test_sessions_cluster import (
    MakePlane,
    begin,
    decide,
    hold,
    holders,
    make_plane,
    owner,
    present,
    publish,
)

__all__ = ["make_plane"]

REFUSED = 0x97


def absent(plane: Plane, shard: int = 0) -> None:
    """A client subscribes to `t` at n0, and goes."""
    client = begin(plane, 0, shard=shard)
    client.take(wire.CONNACK)
    client.subscribe("t", qos=2)
    client.drop()
    plane.net.advance(0.2)


def answer(publisher: Client) -> int | None:
    """The reason of the PUBACK that has come; None if there is none."""
    found = [each for each in drain(publisher) if each.kind == wire.PUBACK]
    return found[0].reason if found else None


def move(plane: Plane, node: int) -> Client:
    """The client connects to another node, and its session goes there."""
    client = begin(plane, node)
    plane.net.advance(0.2)
    assert present(client)
    assert owner(plane) == plane.net.names[node]
    return client


def leaving(plane: Plane) -> Client:
    """The client connects to n1, which has its session, and only lacks the answer of etcd."""
    decide(plane, 1, decides=False)
    client = begin(plane, 1)
    (connection,) = plane.of(1)
    connection.undecided = False
    connection.step()  # n1 asks n0
    connection.undecided = True
    plane.net.advance(0.2)
    assert connection.claims
    return client


def test_a_message_for_a_node_that_restarts_waits_and_is_acknowledged(
    make_plane: MakePlane,
) -> None:
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    absent(plane)
    plane.net.cut(0, 2)
    publish(publisher, b"m")
    plane.net.restart(0)
    assert answer(publisher) is None
    plane.net.connect()
    plane.net.advance(0.2)
    assert answer(publisher) == 0
    client = begin(plane, 0)
    assert present(client)
    assert messages(client) == [b"m"]


def test_a_restarted_node_that_hands_a_session_over_does_not_acknowledge_for_it(
    make_plane: MakePlane,
) -> None:
    """It had no stream with the publisher's node since its start."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    absent(plane)
    plane.net.cut(0, 2)
    publish(publisher, b"m")
    plane.net.restart(0)
    plane.net.connect(0, 1)
    again = move(plane, 1)
    plane.net.connect(0, 2)
    plane.net.advance(0.2)
    assert answer(publisher) == REFUSED
    assert messages(again) == []


def test_a_node_remembers_after_a_restart_that_a_session_has_left(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    absent(plane)
    plane.net.cut(0, 2)
    publish(publisher, b"m")
    move(plane, 1)
    plane.net.restart(0)
    plane.net.connect()
    plane.net.advance(0.2)
    assert answer(publisher) == REFUSED


def test_a_stream_that_brought_nothing_does_not_count(make_plane: MakePlane) -> None:
    """It was lost before what was sent over it had arrived."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    absent(plane)
    plane.net.cut(0, 2)
    publish(publisher, b"m")
    move(plane, 1)
    plane.net.advance(0.2)
    hold(plane, 0, 2)
    plane.net.connect()
    plane.net.advance(0.2)
    plane.net.cut(0, 2)
    plane.net.advance(0.2)
    hold(plane, 0, 2, held=False)
    plane.net.connect()
    plane.net.advance(0.2)
    assert answer(publisher) == REFUSED


def test_until_a_node_knows_that_a_session_has_left_it_is_refused(make_plane: MakePlane) -> None:
    """It publishes over its new stream what it has not sent before."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    absent(plane)
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    again = move(plane, 1)
    for end in plane.net.ends(0, 2):  # what n0 says is on its way to n2
        end.held = end.node == "n0"
    plane.net.connect(0, 2)
    publish(publisher, b"m")
    plane.net.advance(0.2)
    hold(plane, 0, 2, held=False)
    plane.net.advance(0.2)
    assert answer(publisher) == REFUSED
    plane.net.connect()
    plane.net.advance(0.2)
    publish(publisher, b"then")
    plane.net.advance(0.2)
    assert messages(again) == [b"then"]
    assert answer(publisher) == 0


def test_a_session_that_is_leaving_delays_the_answers(make_plane: MakePlane) -> None:
    """To a node that is met again meanwhile, and that does not know the session's new node."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    absent(plane)
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    again = leaving(plane)
    plane.net.connect(0, 2)
    plane.net.advance(0.2)
    publish(publisher, b"m")
    plane.net.advance(0.2)
    assert answer(publisher) is None
    decide(plane, 1)
    plane.net.advance(0.2)
    assert present(again)
    assert answer(publisher) == REFUSED
    assert messages(again) == []


def test_a_session_that_stays_after_all_has_what_came(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    absent(plane)
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    leaving(plane).drop()
    plane.net.connect(0, 2)
    publish(publisher, b"m")
    plane.net.cut(0, 1)
    plane.net.advance(6)
    assert answer(publisher) == 0
    assert owner(plane) == "n0"
    client = begin(plane, 0)
    assert present(client)
    assert messages(client) == [b"m"]


def test_a_session_does_not_leave_without_a_node_that_came_late(make_plane: MakePlane) -> None:
    """That node is connected with the former one, not yet with the new one."""
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    absent(plane)
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    for end in plane.net.ends(0, 1):  # "found" is on its way
        end.held = end.node == "n0"
    again = begin(plane, 1)
    plane.net.connect(0, 2)
    for end in plane.net.ends(0, 1):
        end.held = False
    plane.net.advance(0.5)
    publish(publisher, b"m")
    plane.net.advance(0.5)
    assert (owner(plane), drain(again)) == ("n0", [])
    assert answer(publisher) == 0
    plane.net.connect()
    plane.net.advance(1)
    assert present(again)
    assert messages(again) == [b"m"]


def move_unseen(plane: Plane) -> Client:
    """The session goes from n0 to n1 while n2 is away from both; then n2 meets n0."""
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    again = move(plane, 1)
    plane.net.connect(0, 2)
    plane.net.advance(0.5)
    return again


def waits_for_the_other(plane: Plane, again: Client) -> None:
    """A publisher of n2, which is away from n1, waits until it is not: the subscriber may be there."""
    publisher = plane.net.client(2)
    publish(publisher, b"m")
    plane.net.advance(0.2)
    assert answer(publisher) is None, "the subscriber's node may be away"
    plane.net.connect()
    plane.net.advance(0.2)
    assert answer(publisher) == 0
    assert messages(again) == [b"m"]


def test_interest_that_ends_while_two_nodes_are_away_may_be_at_the_other(
    make_plane: MakePlane,
) -> None:
    plane = make_plane(1, 1, 1)
    absent(plane)
    waits_for_the_other(plane, move_unseen(plane))


@pytest.mark.parametrize("shard", [0, 1])
def test_so_it_is_if_it_ends_when_the_stream_begins(make_plane: MakePlane, shard: int) -> None:
    """Changes that a shard has not told yet when a stream begins come first over that stream; those
    that another shard has not told it come later."""
    plane = make_plane(2, 1, 1)
    absent(plane, shard)
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    again = begin(plane, 1)
    assert present(again)
    plane.net.connect(0, 2)
    plane.net.advance(0.5)
    waits_for_the_other(plane, again)


@pytest.mark.parametrize("expiry", [0, 100])
def test_so_it_is_if_another_session_has_the_same_filter(
    make_plane: MakePlane, expiry: int
) -> None:
    plane = make_plane(1, 1, 1)
    absent(plane)
    props = ((wire.SESSION_EXPIRY_INTERVAL, expiry),)
    plane.net.client(0, name="stays", props=props).subscribe("t", qos=1)
    plane.net.advance(0.2)
    waits_for_the_other(plane, move_unseen(plane))


def test_so_it_is_if_the_other_node_has_been_away_for_long(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    absent(plane)
    plane.net.cut(1, 2)
    plane.net.advance(TIMEOUT + 1.0)
    waits_for_the_other(plane, move_unseen(plane))


def test_so_it_is_if_the_other_node_has_told_nothing_yet(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    absent(plane)
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    again = move(plane, 1)
    for end in plane.net.ends(1, 2):
        end.held = end.node == "n1"
    plane.net.connect(1, 2)
    plane.net.connect(0, 2)
    plane.net.advance(0.5)
    publisher = plane.net.client(2)
    publish(publisher, b"m")
    plane.net.advance(0.2)
    assert answer(publisher) is None, "n1 has not said whether the subscriber is there"
    for end in plane.net.ends(1, 2):
        end.held = False
    plane.net.advance(0.2)
    assert answer(publisher) == 0
    assert messages(again) == [b"m"]


def test_a_node_that_is_away_gets_nothing_of_sessions_that_have_stayed(
    make_plane: MakePlane,
) -> None:
    """A node that says that none has left has its own interest alone."""
    plane = make_plane(1, 1, 1)
    absent(plane)
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    plane.net.connect(0, 2)
    plane.net.advance(0.5)
    publisher = plane.net.client(2)
    publish(publisher, b"m")
    plane.net.advance(0.2)
    assert answer(publisher) == 0


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("workers", [(1, 1, 1), (2, 1, 1)])
def test_a_session_that_has_come_back_does_not_get_again_what_it_had_elsewhere(
    make_plane: MakePlane, workers: tuple[int, ...], restarts: bool
) -> None:
    plane = make_plane(*workers)
    publisher = plane.net.client(2)
    absent(plane, shard=workers[0] - 1)
    plane.net.cut(0, 2)
    client = move(plane, 1)
    publish(publisher, b"here", qos=2)
    publish(publisher, b"also", qos=2)
    plane.net.advance(0.2)
    assert messages(client) == [b"here", b"also"]
    client.drop()
    plane.net.cut(1, 2)
    client = move(plane, 0)
    publish(publisher, b"new", qos=2)
    if restarts:
        plane.net.restart(0)
        plane.net.connect(0, 1)
        client = begin(plane, 0)
        assert present(client)
    plane.net.connect()
    plane.net.advance(0.5)
    assert messages(client) == [b"new"]
    assert [each.reason for each in drain(publisher) if each.kind == wire.PUBREC] == 3 * [REFUSED]


@pytest.mark.parametrize("restarting", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("shard", [0, 1])
def test_what_another_node_sends_again_after_a_restart_arrives_once(
    make_plane: MakePlane, shard: int, restarting: tuple[int, ...]
) -> None:
    """One shard receives it, and passes it on to the other if the session is there."""
    plane = make_plane(2, 1)
    publisher = plane.net.client(1)
    absent(plane, shard=shard)
    for end in plane.net.ends(0, 1):  # what n0 says is on its way, and lost
        end.held = end.node == "n0"
    publish(publisher, b"once", qos=2)
    plane.net.advance(0.2)
    assert drain(publisher) == []
    plane.net.restart(0, *restarting)
    hold(plane, 0, 1, held=False)
    plane.net.connect()
    plane.net.advance(1)
    publish(publisher, b"then", qos=2)
    plane.net.advance(0.5)
    client = begin(plane, 0)
    assert present(client)
    assert messages(client) == [b"once", b"then"]


def test_a_session_that_has_moved_to_another_shard_knows_what_it_had_at_the_former_one(
    make_plane: MakePlane,
) -> None:
    plane = make_plane(2, 1)
    publisher = plane.net.client(1)
    absent(plane)
    for end in plane.net.ends(0, 1):
        end.held = end.node == "n0"
    publish(publisher, b"once", qos=2)
    plane.net.advance(0.2)
    client = begin(plane, 0, shard=1)
    assert present(client)
    assert messages(client) == [b"once"]
    plane.net.restart(0, 0)
    hold(plane, 0, 1, held=False)
    plane.net.connect()
    plane.net.advance(1)
    assert [each.kind for each in drain(publisher)] == [wire.PUBREC]
    publish(publisher, b"then", qos=2)
    plane.net.advance(0.5)
    assert messages(client) == [b"then"]


def test_members_of_groups_may_be_at_a_node_that_is_away(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1, 1)
    publisher = plane.net.client(2)
    client = begin(plane, 0)
    client.take(wire.CONNACK)
    client.subscribe("$share/g/t", qos=1)
    client.drop()
    plane.net.advance(0.2)
    plane.net.cut(0, 2)
    plane.net.cut(1, 2)
    again = move(plane, 1)
    plane.net.connect(0, 2)
    plane.net.advance(0.5)
    publish(publisher, b"m")
    plane.net.advance(0.2)
    assert answer(publisher) is None
    plane.net.connect()
    plane.net.advance(0.2)
    assert answer(publisher) == 0
    assert messages(again) == [b"m"]


def test_a_restarted_shard_claims_its_sessions_anew(make_plane: MakePlane) -> None:
    """The key changes, so that a node that has got the former state does not become the owner with it."""
    plane = make_plane(1, 1)
    absent(plane)
    before = plane.owners["c"].revision
    plane.net.restart(0)
    plane.net.connect()
    plane.net.advance(0.5)
    assert owner(plane) == "n0"
    assert plane.owners["c"].revision > before


def test_publishers_wait_until_it_is_known_whose_a_restored_session_is(
    make_plane: MakePlane,
) -> None:
    plane = make_plane(2, 1)
    home = next(
        number for number in range(2) if plane.net.nodes[0][number].ownership.home("c") == number
    )
    publisher = plane.net.client(0, 1 - home)
    absent(plane, home)
    plane.net.nodes[0].kill(home)
    plane.net.run()
    plane.net.nodes[0].start(home)
    plane.net.run()
    for connection in plane.all():
        connection.undecided = True
    plane.net.advance(0.5)
    publish(publisher, b"m")
    plane.net.advance(0.5)
    assert answer(publisher) is None
    for connection in plane.all():
        connection.undecided = False
    plane.net.advance(0.5)
    assert answer(publisher) == 0
    assert holders(plane) == [0]


def test_a_restored_session_that_has_left_has_nobody_wait(make_plane: MakePlane) -> None:
    """Its shard has restarted before it knew that; what came meanwhile is refused."""
    plane = make_plane(2, 1)
    home = next(
        number for number in range(2) if plane.net.nodes[0][number].ownership.home("c") == number
    )
    publisher = plane.net.client(0, 1 - home)
    absent(plane, home)
    again = leaving(plane)
    plane.net.nodes[0].kill(home)
    plane.net.run()
    plane.net.nodes[0].start(home)
    plane.net.run()
    for connection in plane.all():
        connection.undecided = True
    plane.net.advance(0.5)
    publish(publisher, b"m")
    plane.net.advance(0.2)
    assert answer(publisher) is None
    decide(plane, 1)
    decide(plane, 0)
    plane.net.advance(0.5)
    assert owner(plane) == "n1"
    assert holders(plane) == [1]
    assert answer(publisher) == REFUSED
    assert present(again)
