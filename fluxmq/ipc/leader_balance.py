"""Balance of leaders over nodes, so that none leads many more groups than another: one rule for
shards, which balance by themselves, and for `fluxmqctl rebalance`. Pure.

A group that one node should lead by its name (`plans.preferred_leader`) is led by that node, while it
may; the others are spread around those. Existing leaders move only while one node has at least `APART`
more than another; new groups get a first leader by rendezvous hashing over their voters, evenly.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fluxmq.settings.group_names import preferred_leader

APART: Final = 2
"""Surplus of leaders on one node that makes one of them move: a difference of one is as even as it
gets."""


def first_leaders(groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the first leaders of new groups, by their voters: the one that should lead, or for each
    of the others the node that has the fewest so far, of several the one with the highest hash. Equal
    on every node that knows the same groups."""
    chosen = {
        group: node
        for group, voters in groups.items()
        if (node := preferred_leader(group)) in voters
    }
    loads = Counter(chosen.values())
    for group, voters in sorted(groups.items()):
        if voters and group not in chosen:
            chosen[group] = min(voters, key=lambda node: (loads[node], _weight(group, node)))
            loads[chosen[group]] += 1
    return chosen


def _weight(group: str, node: str) -> bytes:
    return hashlib.sha256(f"{group}\0{node}".encode()).digest()


class LeaderPlacement(NamedTuple):
    """The leader of a group, and the candidates: one alone for a group that is to be led by it."""

    leader: str
    voters: tuple[str, ...]


def leader_placement(group: str, leader: str, voters: Sequence[str]) -> LeaderPlacement:
    """Return the placement of a group that may move: to the node that should lead it, if that may."""
    wanted = preferred_leader(group)
    candidates = (wanted,) if wanted in voters else tuple(dict.fromkeys((leader, *voters)))
    return LeaderPlacement(leader, candidates)


def rebalanced(groups: Mapping[str, LeaderPlacement]) -> list[tuple[str, str]]:
    """Return the groups to transfer, and to whom, so that leaders are spread evenly. Deterministic.

    A group with one candidate goes to it. Of the others leaders move from the node with the most to
    the one with the fewest while the first has at least `APART` more, over other nodes when no group
    of the one can be led by the other. Nothing moves without need, and each group once.
    """
    leaders = {
        group: placed.voters[0] if len(placed.voters) == 1 else placed.leader
        for group, placed in groups.items()
    }
    loads = Counter({node: 0 for placed in groups.values() for node in placed.voters})
    loads.update(leaders.values())
    while path := _path(groups, leaders, loads):
        for group, to in path:
            loads[leaders[group]] -= 1
            loads[to] += 1
            leaders[group] = to
    return [(group, to) for group, to in sorted(leaders.items()) if to != groups[group].leader]


def _path(
    groups: Mapping[str, LeaderPlacement], leaders: Mapping[str, str], loads: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Return moves that take one leader from a node with many, perhaps over others, to one with
    few; none when balanced."""
    for start in sorted(loads, key=lambda node: (-loads[node], node)):
        reached: dict[str, tuple[str, str] | None] = {start: None}
        ahead = deque([start])
        while ahead:
            node = ahead.popleft()
            for group in sorted(name for name, leader in leaders.items() if leader == node):
                for to in groups[group].voters:
                    if to not in reached:
                        reached[to] = (group, node)
                        ahead.append(to)
        end = min(reached, key=lambda node: (loads[node], node))
        if loads[start] - loads[end] >= APART:
            return _back(reached, end)
    return []


def _back(reached: Mapping[str, tuple[str, str] | None], end: str) -> list[tuple[str, str]]:
    moves: list[tuple[str, str]] = []
    step = reached[end]
    while step is not None:
        group, node = step
        moves.append((group, end))
        end, step = node, reached[node]
    return moves
