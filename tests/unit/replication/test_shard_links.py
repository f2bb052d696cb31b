"""The other shards as a shard sees them: of its own node and of others."""

from __future__ import annotations

from typing import Any

from fluxmq.replication.placement import Places
from fluxmq.replication.shard_links import ShardLinks
from fluxmq.storage.directory import Placement

ABROAD = 257


class Link:
    """A link that notes what is sent."""

    def __init__(self, peer: int, *, up: bool = True) -> None:
        self.peer, self.up = peer, up
        self.sent: list[tuple[str, tuple[object, ...]]] = []

    def send_control(self, name: str, *arguments: object) -> None:
        self.sent.append((name, arguments))


class Abroad(Link):
    """A link to a shard of another node."""

    node = "node2"


def links_of(shard: int, pins: dict[str, int], *links: Any) -> ShardLinks:
    placement = Placement(2, 2, pins=pins)
    made = ShardLinks("node1", shard, Places(placement))
    made.own = {each.peer: each for each in links if each.peer < ABROAD}
    made.abroad = {each.peer: each for each in links if each.peer >= ABROAD}
    return made


def test_a_shard_is_found_wherever_it_is() -> None:
    near, far = Link(1), Abroad(ABROAD)
    links = links_of(0, {}, near, far)
    found: list[Any] = [links.to(peer) for peer in (1, ABROAD, 7)]
    assert found == [near, far, None]
    assert [links.node_of(peer) for peer in (1, ABROAD, 7)] == ["node1", "node2", ""]


def test_only_links_that_are_up_lead_to_a_node() -> None:
    up, down = Abroad(ABROAD), Abroad(ABROAD + 1, up=False)
    found: list[Any] = [*links_of(0, {}, up, down).of("node2")]
    assert found == [up]


def test_all_shards_that_can_be_reached_are_told() -> None:
    near, away, far = Link(1), Link(2, up=False), Abroad(ABROAD)
    links_of(0, {}, near, away, far).say("leads", "g", 3)
    assert near.sent == far.sent == [("leads", ("g", 3))]
    assert away.sent == []


def test_what_is_for_a_group_goes_to_its_shard() -> None:
    other = Link(1)
    links = links_of(0, {"here": 0, "there": 1}, other)
    assert not links.forward("here", "quarantine", "here")
    assert other.sent == []
    assert links.forward("there", "quarantine", "there")
    assert other.sent == [("quarantine", ("there",))]


def test_a_group_of_a_shard_that_is_away_is_still_not_here() -> None:
    other = Link(1, up=False)
    assert links_of(0, {"there": 1}, other).forward("there", "removed", "there", 4)
    assert other.sent == []
