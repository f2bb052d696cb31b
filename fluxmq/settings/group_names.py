"""Names of the replication groups that are made on demand: each says how its group begins.

A group of queues without a group of their own is named after the node that should lead it. It begins
on nodes that the cluster began with, or on nodes of a *node set*: those that the cluster had at a
later time, known everywhere by an identifier (see `node_sets`). As the name says all of it, no two
nodes can begin one group differently.

A mirrored group has the nodes that it begins on in a record, which the cluster keeps in etcd and never
changes in that respect. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SIZED: Final = "copies-"
"""Beginning of the names of the groups for queues that want another number of copies than the default
group has; the number follows."""
LED: Final = "leader-"
"""Beginning of the names of the groups that one node should lead, or, behind ``copies-N-``, of those with
another number of copies; the node's name follows."""
OF_SET: Final = "nodes-"
"""Beginning of the names of the groups that begin on a node set; its identifier, the number of copies
and the leader follow."""

MIRRORED: Final = "mirrors-"
"""Beginning of the names of mirrored groups; part of a hash follows, of the nodes and rules by which they
begin."""

_LED: Final = re.compile(f"(?:(?:{OF_SET}[0-9a-f]{{8}}-)?{SIZED}[0-9]{{1,3}}-)?{LED}(.+)")
_OF_SET: Final = re.compile(f"{OF_SET}([0-9a-f]{{8}})-{SIZED}([0-9]{{1,3}})-{LED}(.+)")

_MIRRORED: Final = re.compile(f"{MIRRORED}[0-9a-f]{{16}}")


class SetGroup(NamedTuple):
    """A group that begins on nodes of a node set: with so many copies, one of them on ``leader``."""

    node_set: str
    copies: int
    leader: str


def preferred_leader(group: str) -> str:
    """Return the node that should lead a group by the group's name; empty if any may."""
    found = _LED.fullmatch(group)
    return "" if found is None else found[1]


def copies_in(group: str) -> int:
    """Return the number of copies that the name of a group by size says; 0 if it is not such a
    name."""
    size = group.partition(f"-{LED}")[0]
    digits = size.removeprefix(SIZED) if size.startswith(SIZED) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 4 else 0


def group_of_set(group: str) -> SetGroup | None:
    """Return what the name of a group says that begins on a node set; None for other names."""
    found = _OF_SET.fullmatch(group)
    return None if found is None else SetGroup(found[1], int(found[2]), found[3])


def name_of_set(wanted: SetGroup) -> str:
    """Return the name of a group that begins on a node set."""
    return f"{OF_SET}{wanted.node_set}-{SIZED}{wanted.copies}-{LED}{wanted.leader}"


def is_mirrored(group: str) -> bool:
    """Return whether this is the name of a mirrored group."""
    return _MIRRORED.fullmatch(group) is not None
