"""The combined interest of a node's shards, as other nodes learn it.

Other nodes need to know whether any session of this node wants a filter, and how many members it has
in each shared group, not which of its shards they are on. So a filter is told when the first shard
begins to want it and when the last one ceases; most changes are told to no other node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

Member = tuple[bytes, bytes]
"""A shared group: its share name and its filter."""
Counts = tuple[int, int, int]
"""Members of a shared group: connected, disconnected, and those with persistent sessions."""
OWN_SHARD = -1
"""The number of the shard that adds up; others have their own."""
NO_MEMBERS: Counts = (0, 0, 0)


class InterestChange(NamedTuple):
    """Interest that begins, ends or changes.

    ``begun``: filters, those that persistent sessions have among them in ``kept``. ``members``:
    shared groups with the node's member counts, all zero for a group without members.
    """

    begun: list[bytes]
    ceased: list[bytes]
    kept: list[bytes]
    members: list[tuple[bytes, bytes, int, int, int]]


class NodeInterest:
    """Counts what the shards of a node want; tells what has changed since it was last asked."""

    def __init__(self) -> None:
        self._wanted: dict[bytes, dict[int, bool]] = {}
        """Filters, with the shards that want them, and whether for persistent sessions."""
        self._members: dict[Member, dict[int, Counts]] = {}
        self._told: dict[bytes, bool] = {}
        """Filters that other nodes know, and whether they know them as of persistent sessions."""
        self._changed: dict[bytes, None] = {}
        self._changed_members: dict[Member, None] = {}

    @property
    def changed(self) -> bool:
        """True if there is something to tell."""
        return bool(self._changed or self._changed_members)

    def set_filter(self, shard: int, topic_filter: bytes, wanted: bool, kept: bool = False) -> None:
        """Set whether a shard wants a filter; ``kept``: persistent sessions there have it."""
        shards = self._wanted.get(topic_filter)
        if wanted:
            if shards is None:
                shards = self._wanted[topic_filter] = {}
            shards[shard] = kept
        elif shards is not None:
            shards.pop(shard, None)
            if not shards:
                del self._wanted[topic_filter]
        self._note(topic_filter)

    def set_members(self, shard: int, member: Member, counts: Counts) -> None:
        """Set a shard's members of a shared group."""
        shards = self._members.setdefault(member, {})
        if any(counts):
            shards[shard] = counts
        else:
            shards.pop(shard, None)
            if not shards:
                del self._members[member]
        self._changed_members[member] = None

    def _note(self, topic_filter: bytes) -> None:
        """Keep in mind whether other nodes have to be told about a filter."""
        if self._told.get(topic_filter) == self._kept(topic_filter):
            self._changed.pop(topic_filter, None)
        else:
            self._changed[topic_filter] = None

    def _kept(self, topic_filter: bytes) -> bool | None:
        """Return whether persistent sessions want a filter; None if no session does."""
        shards = self._wanted.get(topic_filter)
        return None if shards is None else any(shards.values())

    def take_change(self) -> InterestChange:
        """Return what has changed since the last call; it counts as told."""
        change = InterestChange([], [], [], [])
        for topic_filter in self._changed:
            kept = self._kept(topic_filter)
            if kept is None:
                change.ceased.append(topic_filter)
                self._told.pop(topic_filter, None)
                continue
            change.begun.append(topic_filter)
            if kept:
                change.kept.append(topic_filter)
            self._told[topic_filter] = kept
        change.members.extend(self._counted(self._changed_members))
        self._changed.clear()
        self._changed_members.clear()
        return change

    def all(self, piece: int) -> Iterator[InterestChange]:
        """Yield everything that other nodes have been told, in changes of at most ``piece`` filters
        or groups."""
        filters = list(self._told)
        for at in range(0, len(filters), piece):
            part = filters[at : at + piece]
            yield InterestChange(part, [], [each for each in part if self._told[each]], [])
        members = list(self._members)
        for at in range(0, len(members), piece):
            yield InterestChange([], [], [], self._counted(members[at : at + piece]))

    def _counted(self, members: Iterable[Member]) -> list[tuple[bytes, bytes, int, int, int]]:
        found = []
        for name, topic_filter in members:
            shards = self._members.get((name, topic_filter), {}).values()
            online, offline, kept = (
                sum(column) for column in zip(NO_MEMBERS, *shards, strict=True)
            )
            found.append((name, topic_filter, online, offline, kept))
        return found


class AnnouncedInterest:
    """Interest that a node has announced since its stream began, until it has said whether sessions
    have left it since the former one ended. ``whole``: that was everything."""

    def __init__(self) -> None:
        self.filters: set[bytes] = set()
        self.groups: set[tuple[bytes, bytes]] = set()
        self.whole = False

    def add(self, change: InterestChange) -> None:
        """Add a change."""
        self.filters.update(change.begun)
        self.filters.difference_update(change.ceased)
        self.groups.difference_update(each[:2] for each in change.members)
        self.groups.update(each[:2] for each in change.members if each[2] or each[3])
