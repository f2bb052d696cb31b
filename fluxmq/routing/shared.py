"""Shared subscriptions: distribution over members (MQTT 5 section 4.8.2).

A group is a share name and a filter. Its members are sessions of this shard, connected or not, and
members on other shards and other nodes known by number only. Each shard that receives a message
deals it out over all members: a local member has weight one, another shard or node the weight of
its members there. That shard deals its part among its own (`split_local`), and that node among its
shards (`on_node`), without passing it on.

Dealing is a rotation over slots, one per member: a run of messages becomes contiguous parts as even
as whole numbers allow, and the next run starts where the last one left off, so single messages
alternate. Members with a connection go first; while there is none anywhere, members whose session
waits offline take turns, so nothing is lost that a session should keep. Groups know nothing of
windows and queues: a member that must not get more is set offline or handed over by its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Wheel(Generic[T]):
    """A list of members with index access, and addition and removal in constant time."""

    __slots__ = ("_places", "members")

    def __init__(self) -> None:
        self.members: list[T] = []
        self._places: dict[T, int] = {}

    def __contains__(self, member: T) -> bool:
        return member in self._places

    def add(self, member: T) -> None:
        """Add a member that is not in yet."""
        self._places[member] = len(self.members)
        self.members.append(member)

    def discard(self, member: T) -> bool:
        """Remove a member by moving the last one into its place; False when it was not in."""
        place = self._places.pop(member, None)
        if place is None:
            return False
        last = self.members.pop()
        if place < len(self.members):
            self.members[place] = last
            self._places[last] = place
        return True


def _deal(
    members: Sequence[T], shards: Sequence[tuple[int, int]], position: int, count: int
) -> tuple[list[tuple[T | int, int]], int]:
    """Divide `count` messages over slots: one per member, then each shard's number of slots.

    Starts at slot `position`; returns the parts and the next position. Takes time in the number of
    parts and shards.
    """
    slots = len(members) + sum(weight for _shard, weight in shards)
    if slots == 0 or count <= 0:
        return [], position
    position %= slots
    every, extra = divmod(count, slots)
    following = (position + extra) % slots
    index, passed = _slot(len(members), shards, position)
    targets = len(members) + len(shards)
    parts: list[tuple[T | int, int]] = []
    for turn in range(targets):
        at = (index + turn) % targets
        target: T | int
        if at < len(members):
            target, weight = members[at], 1
        else:
            target, weight = shards[at - len(members)]
        favoured = min(extra, weight - passed if turn == 0 else weight)
        extra -= favoured
        share = every * weight + favoured
        if share == 0:
            break
        parts.append((target, share))
    if extra:
        # The wheel wrapped around to the first target's slots before the position.
        target, share = parts[0]
        parts[0] = (target, share + extra)
    return parts, following


def _slot(members: int, shards: Sequence[tuple[int, int]], position: int) -> tuple[int, int]:
    """Return the target of slot `position`, and how many of its slots lie before.

    `position` is below the sum of all weights.
    """
    if position < members:
        return position, 0
    index = members
    passed = position - members
    while passed >= shards[index - members][1]:
        passed -= shards[index - members][1]
        index += 1
    return index, passed


class SharedGroup(Generic[T]):
    """One shared subscription on this shard. Compared and hashed by identity.

    `group` is the share name, `filter` the filter behind it. Members may be anything hashable but
    integers, which name shards in the result of `split`.
    """

    def __init__(self, group: bytes, topic_filter: bytes) -> None:
        self.group = group
        self.filter = topic_filter
        self._online: _Wheel[T] = _Wheel()
        self._offline: _Wheel[T] = _Wheel()
        self._remote: dict[int, tuple[int, int]] = {}
        """Other shards: their connected and offline members."""
        self._nodes: dict[int, tuple[int, int]] = {}
        """The same for other nodes."""
        self._position = 0
        self._position_here = 0

    def __repr__(self) -> str:
        return f"SharedGroup({self.group!r}, {self.filter!r})"

    def __len__(self) -> int:
        """Return the number of members on this shard."""
        return len(self._online.members) + len(self._offline.members)

    @property
    def counts(self) -> tuple[int, int]:
        """Number of connected and offline members on this shard, as other shards learn it."""
        return len(self._online.members), len(self._offline.members)

    @property
    def is_empty(self) -> bool:
        """True when no member is left on any shard."""
        return not len(self) and not self._remote and not self._nodes

    def members(self) -> list[T]:
        """Return the members on this shard, connected ones first."""
        return self._online.members + self._offline.members

    def remote(self) -> dict[int, tuple[int, int]]:
        """Return the numbers of connected and offline members on other shards."""
        return dict(self._remote)

    def join(self, member: T, *, connected: bool = True) -> bool:
        """Add a member of this shard, or change its state. Return True when it is new."""
        entered, left = (
            (self._online, self._offline) if connected else (self._offline, self._online)
        )
        if member in entered:
            return False
        known = left.discard(member)
        entered.add(member)
        return not known

    def leave(self, member: T) -> bool:
        """Remove a member of this shard; return False if it was not one."""
        return self._online.discard(member) or self._offline.discard(member)

    def set_connected(self, member: T, connected: bool) -> None:
        """Set whether a member has a connection. Raises `KeyError` for a non-member."""
        if member not in self._online and member not in self._offline:
            raise KeyError(member)
        self.join(member, connected=connected)

    def set_remote(self, shard: int, connected: int, offline: int) -> None:
        """Set another shard's members; zeros remove the shard."""
        if connected or offline:
            self._remote[shard] = (connected, offline)
        else:
            self._remote.pop(shard, None)

    def nodes(self) -> dict[int, tuple[int, int]]:
        """Return the numbers of connected and offline members on other nodes."""
        return dict(self._nodes)

    def set_node(self, node: int, connected: int, offline: int) -> None:
        """Set another node's members; zeros remove the node. Its number is no shard's."""
        if connected or offline:
            self._nodes[node] = (connected, offline)
        else:
            self._nodes.pop(node, None)

    def split(self, count: int, *, on_node: bool = False) -> list[tuple[T | int, int]]:
        """Deal a run of `count` messages out over all members, or those `on_node`, this one.

        Returns contiguous parts in order: (member, or number of a shard or node; messages). Empty
        when the group has no members.
        """
        elsewhere = self._remote if on_node else {**self._remote, **self._nodes}
        members = self._online.members
        shards = [(shard, online) for shard, (online, _) in elsewhere.items() if online]
        if not members and not shards:
            members = self._offline.members
            shards = [(shard, offline) for shard, (_, offline) in elsewhere.items()]
        parts, self._position = _deal(members, shards, self._position, count)
        return parts

    def split_local(self, count: int) -> list[tuple[T, int]]:
        """Deal a part assigned by another shard out over the members here."""
        members = self._online.members or self._offline.members
        parts, self._position_here = _deal(members, (), self._position_here, count)
        return parts  # type: ignore[return-value]  # no shards went in, so none come out

    def choose(self) -> T | int | None:
        """Return the next in turn for one message: a member, another shard's number, or None."""
        parts = self.split(1)
        return parts[0][0] if parts else None


class SharedGroups(Generic[T]):
    """All shared groups that this shard knows, by share name and filter."""

    def __init__(self) -> None:
        self._groups: dict[tuple[bytes, bytes], SharedGroup[T]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SharedGroup[T]]:
        """Iterate over the groups in creation order; joining and leaving meanwhile is allowed."""
        return iter(list(self._groups.values()))

    def get(self, group: bytes, topic_filter: bytes) -> SharedGroup[T] | None:
        """Return the group, None when it has no member anywhere."""
        return self._groups.get((group, topic_filter))

    def obtain(self, group: bytes, topic_filter: bytes) -> tuple[SharedGroup[T], bool]:
        """Return the group and whether it is new: then the caller must add its filter to the
        routing table."""
        key = (group, topic_filter)
        found = self._groups.get(key)
        if found is not None:
            return found, False
        made: SharedGroup[T] = SharedGroup(group, topic_filter)
        self._groups[key] = made
        return made, True

    def release(self, group: SharedGroup[T]) -> bool:
        """Forget the group if it has no member left. Return True if it was removed."""
        if not group.is_empty:
            return False
        return self._groups.pop((group.group, group.filter), None) is not None

    def drop_shard(
        self, shard: int, staying: Callable[[SharedGroup[T]], int] = lambda _group: 0
    ) -> list[SharedGroup[T]]:
        """Forget the members of a shard that died; return the groups that were removed with them.

        `staying` tells how many members of a group come back with the shard: they are offline until
        then.
        """
        gone: list[SharedGroup[T]] = []
        for group in self:
            group.set_remote(shard, 0, staying(group))
            if self.release(group):
                gone.append(group)
        return gone
