"""Wills in a cluster with etcd: each is published once, by its node or, if that has ended, by another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluxmq.shards import wills
from fluxmq.shards.wills import CLAIM_SECONDS
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.net_of_nodes import Net
from tests.unit.shards.node import drain
from tests.unit.shards.pipes import Clock
from tests.unit.shards.plane import Plane

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


def mortal(plane: Plane, node: int, name: str = "c", expiry: int = 0, **will: Any) -> Client:
    """A client with a will."""
    payload = will.pop("payload", b"gone")
    told = wire.Will("will", payload, **will)
    props = [(wire.SESSION_EXPIRY_INTERVAL, expiry)]
    client = plane.net.client(node, 0, name, will=told, props=props, clean=not expiry)
    plane.net.run()
    return client


def reader(plane: Plane, node: int) -> Client:
    client = plane.net.client(node)
    client.subscribe("will", qos=0)
    return client


def payloads(client: Client) -> list[bytes]:
    return [each.payload for each in drain(client) if each.kind == wire.PUBLISH]


def test_control_is_told_of_wills_and_of_their_end(make_plane: MakePlane) -> None:
    """S2-09."""
    plane = make_plane(1, 1)
    client = mortal(plane, 0, qos=1, retain=True)
    node, will = plane.wills["c"]
    assert (node, will.topic, will.payload, will.qos, will.retain) == (
        *("n0", b"will", b"gone"),
        *(1, True),
    )
    client.disconnect(0)
    plane.net.run()
    assert plane.wills == {}
    plane.net.client(0, 0, "without").drop()
    plane.net.run()
    assert plane.wills == {}


def test_a_will_is_published_by_its_node(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    subscribers = [reader(plane, node) for node in (0, 1)]
    mortal(plane, 0).drop()
    plane.net.run()
    assert [payloads(each) for each in subscribers] == [[b"gone"], [b"gone"]]
    assert plane.wills == {}


def test_a_will_that_another_node_has_published_is_not_published_again(
    make_plane: MakePlane,
) -> None:
    """S2-23: the node was cut off, and thought to have ended."""
    plane = make_plane(1, 1, 1)
    subscribers = [reader(plane, node) for node in range(3)]
    client = mortal(plane, 0)
    plane.ended(0, by=1)
    assert [payloads(each) for each in subscribers] == [[b"gone"]] * 3
    client.drop()
    plane.net.run()
    assert [payloads(each) for each in subscribers] == [[]] * 3
    mortal(plane, 0, payload=b"again").drop()
    plane.net.run()
    assert [payloads(each) for each in subscribers] == [[b"again"]] * 3


def test_the_will_of_the_next_connection_takes_its_place(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    client = mortal(plane, 0, expiry=100, properties=[(wire.WILL_DELAY_INTERVAL, 50)])
    assert plane.wills["c"][1].delay == 50
    client.drop()
    plane.net.run()
    assert "c" in plane.wills, "it is not due"
    again = plane.net.client(0, 0, "c", clean=False, props=[(wire.SESSION_EXPIRY_INTERVAL, 9)])
    plane.net.run()
    assert plane.wills == {}
    again.drop()
    mortal(plane, 0, expiry=9, properties=[(wire.WILL_DELAY_INTERVAL, 50)])
    assert plane.wills["c"][1].delay == 9, "the session ends before"


def test_a_will_is_published_unclaimed_while_etcd_is_away(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    subscriber = reader(plane, 1)
    client = mortal(plane, 0)
    plane.refusing = True
    client.drop()
    plane.net.advance(CLAIM_SECONDS - 1)
    assert payloads(subscriber) == []
    plane.net.advance(2)
    assert payloads(subscriber) == [b"gone"]
    plane.refusing = False
    plane.net.advance(1)
    assert payloads(subscriber) == []
    assert plane.wills == {}, "nor does another node publish it"


def test_what_control_was_not_told_comes_before_the_claim(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    subscriber = reader(plane, 1)
    plane.refusing = True
    mortal(plane, 0).drop()
    plane.net.run()
    assert payloads(subscriber) == []
    plane.refusing = False
    plane.net.advance(1)
    assert payloads(subscriber) == [b"gone"]
    assert plane.wills == {}


def test_claims_are_made_while_many_connect(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    subscriber = reader(plane, 1)
    client = mortal(plane, 0)
    (own,) = plane.of(0)
    own.mute = True
    client.drop()
    for number in range(200):
        mortal(plane, 0, f"c{number}")
    own.mute = False
    plane.net.run()
    assert payloads(subscriber) == [b"gone"]
    assert len(plane.wills) == 200


def test_wills_that_control_is_not_told_of_are_bounded(
    make_plane: MakePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wills, "UNTOLD_MAX", 3)
    plane = make_plane(1, 1)
    plane.refusing = True
    for number in range(5):
        mortal(plane, 0, f"c{number}")
    plane.refusing = False
    plane.net.advance(1)
    assert sorted(plane.wills) == ["c2", "c3", "c4"]


def test_wills_are_told_to_a_control_process_that_restarts(make_plane: MakePlane) -> None:
    plane = make_plane(1, 1)
    (own,) = plane.of(0)
    own.lose()
    mortal(plane, 0)
    assert plane.wills == {}
    own.back()
    plane.net.advance(1)
    assert list(plane.wills) == ["c"]
