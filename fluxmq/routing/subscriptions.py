"""Subscriptions of one shard: the subscribers with a filter that matches a topic.

Filters without wildcards are the majority, and sit in a plain dictionary; the others form a trie of
levels. Matching walks the trie breadth first with a list as its only state, so the depth of a topic
costs no stack. Every stored subscription is the very tuple that `match` returns, and a filter with
one subscriber is that tuple alone: matching allocates nothing but the list.

Subscribers are opaque: sessions, numbers of other shards, shared groups. Filters must be valid;
`$share/...` never comes here, only the filter behind it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

from fluxmq.routing.topics import MULTI, SEPARATOR, SINGLE, is_reserved, is_wildcard

S = TypeVar("S", bound=Hashable)
V = TypeVar("V")

_Entry: TypeAlias = "tuple[bytes, S, V] | dict[S, tuple[bytes, S, V]]"
"""Subscriptions of one filter: the record itself if there is one, else records by subscriber."""


class _LevelNode(Generic[S, V]):
    """A prefix of levels. `here` belongs to the filter that ends here, `multi` to prefix/#.

    No node but the root is ever without child, `here` and `multi`.
    """

    __slots__ = ("children", "here", "multi", "single")

    def __init__(self) -> None:
        self.children: dict[bytes, _LevelNode[S, V]] | None = None
        self.single: _LevelNode[S, V] | None = None
        self.here: _Entry[S, V] | None = None
        self.multi: _Entry[S, V] | None = None

    def is_empty(self) -> bool:
        return not self.children and self.single is None and self.here is None is self.multi


class SubscriptionTree(Generic[S, V]):
    """Filters to (filter, subscriber, value). `revision` grows with every change.

    `value` is the caller's data for delivery (granted QoS, identifier, options).
    """

    def __init__(self) -> None:
        self._exact: dict[bytes, _Entry[S, V]] = {}
        self._root: _LevelNode[S, V] = _LevelNode()
        self._count = 0
        self._filters = 0
        self.revision = 0

    def __len__(self) -> int:
        """Return the number of subscriptions: pairs of filter and subscriber."""
        return self._count

    @property
    def filter_count(self) -> int:
        """Number of distinct filters."""
        return self._filters

    def match(self, topic: bytes) -> list[tuple[bytes, S, V]]:
        """Return all subscriptions whose filter matches `topic`, in no particular order."""
        entries: list[_Entry[S, V]] = []
        exact = self._exact.get(topic)
        if exact is not None:
            entries.append(exact)
        levels = topic.split(SEPARATOR)
        root = self._root
        if not is_reserved(topic):
            _collect([root], levels, entries)
        elif root.children is not None and levels[0] in root.children:
            # [MQTT-4.7.2-1]: wildcards at the first level do not apply.
            _collect([root.children[levels[0]]], levels[1:], entries)
        found: list[tuple[bytes, S, V]] = []
        for entry in entries:
            if isinstance(entry, dict):
                found.extend(entry.values())
            else:
                found.append(entry)
        return found

    def add(self, topic_filter: bytes, subscriber: S, value: V) -> bool:
        """Subscribe, or replace the value of a subscription. Return True when the filter is new
        here."""
        self.revision += 1
        if not is_wildcard(topic_filter):
            old = self._exact.get(topic_filter)
            self._exact[topic_filter] = self._with(old, topic_filter, subscriber, value)
            return old is None
        levels, ends_multi = _walk(topic_filter)
        node = self._root
        for level in levels:
            if level == SINGLE:
                if node.single is None:
                    node.single = _LevelNode()
                node = node.single
                continue
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _LevelNode()
            node = child
        if ends_multi:
            old = node.multi
            node.multi = self._with(old, topic_filter, subscriber, value)
        else:
            old = node.here
            node.here = self._with(old, topic_filter, subscriber, value)
        return old is None

    def remove(self, topic_filter: bytes, subscriber: S) -> bool:
        """Unsubscribe; a no-op if not subscribed. Return True when the filter was removed."""
        if not is_wildcard(topic_filter):
            old = self._exact.get(topic_filter)
            if old is None or not _holds(old, subscriber):
                return False
            left = self._without(old, subscriber)
            if left is None:
                del self._exact[topic_filter]
            else:
                self._exact[topic_filter] = left
            return left is None
        levels, ends_multi = _walk(topic_filter)
        path = self._path(levels)
        if path is None:
            return False
        node = path[-1]
        old = node.multi if ends_multi else node.here
        if old is None or not _holds(old, subscriber):
            return False
        left = self._without(old, subscriber)
        if ends_multi:
            node.multi = left
        else:
            node.here = left
        if left is None:
            _prune(path, levels)
        return left is None

    def subscriptions(self, topic_filter: bytes) -> list[tuple[bytes, S, V]]:
        """Return the subscriptions with exactly this filter."""
        entry = self._find(topic_filter)
        if entry is None:
            return []
        return list(entry.values()) if isinstance(entry, dict) else [entry]

    def get(self, topic_filter: bytes, subscriber: S) -> V | None:
        """Return the value of one subscription, None when there is none."""
        entry = self._find(topic_filter)
        if isinstance(entry, dict):
            record = entry.get(subscriber)
            return None if record is None else record[2]
        return entry[2] if entry is not None and entry[1] == subscriber else None

    def filters(self) -> Iterator[bytes]:
        """Yield every distinct filter. The tree must not change while the iterator is in use."""
        yield from self._exact
        pending = [self._root]
        while pending:
            node = pending.pop()
            for entry in (node.here, node.multi):
                if entry is not None:
                    yield _filter_of(entry)
            if node.single is not None:
                pending.append(node.single)
            if node.children is not None:
                pending.extend(node.children.values())

    def _find(self, topic_filter: bytes) -> _Entry[S, V] | None:
        if not is_wildcard(topic_filter):
            return self._exact.get(topic_filter)
        levels, ends_multi = _walk(topic_filter)
        path = self._path(levels)
        if path is None:
            return None
        return path[-1].multi if ends_multi else path[-1].here

    def _path(self, levels: list[bytes]) -> list[_LevelNode[S, V]] | None:
        """Return the nodes from the root along `levels`, None when the trie has no such path."""
        node: _LevelNode[S, V] | None = self._root
        path = [self._root]
        for level in levels:
            if level == SINGLE:
                node = path[-1].single
            else:
                children = path[-1].children
                node = children.get(level) if children else None
            if node is None:
                return None
            path.append(node)
        return path

    def _with(
        self, entry: _Entry[S, V] | None, topic_filter: bytes, subscriber: S, value: V
    ) -> _Entry[S, V]:
        """Return `entry` with one more subscription, or with another value for it."""
        if entry is None:
            self._count += 1
            self._filters += 1
            return (topic_filter, subscriber, value)
        # All records of a filter share its first bytes object.
        record = (_filter_of(entry), subscriber, value)
        if isinstance(entry, dict):
            self._count += subscriber not in entry
            entry[subscriber] = record
            return entry
        if entry[1] == subscriber:
            return record
        self._count += 1
        return {entry[1]: entry, subscriber: record}

    def _without(self, entry: _Entry[S, V], subscriber: S) -> _Entry[S, V] | None:
        """Return `entry` without one of its subscriptions, None when that was the last."""
        self.revision += 1
        self._count -= 1
        if not isinstance(entry, dict):
            self._filters -= 1
            return None
        del entry[subscriber]
        return entry if len(entry) > 1 else next(iter(entry.values()))


def _collect(
    nodes: list[_LevelNode[S, V]], levels: list[bytes], entries: list[_Entry[S, V]]
) -> None:
    """Append the entries of all filters below `nodes` that match `levels`."""
    for level in levels:
        following = []
        for node in nodes:
            if node.multi is not None:
                entries.append(node.multi)
            if node.children is not None:
                child = node.children.get(level)
                if child is not None:
                    following.append(child)
            if node.single is not None:
                following.append(node.single)
        if not following:
            return
        nodes = following
    for node in nodes:
        if node.here is not None:
            entries.append(node.here)
        if node.multi is not None:
            entries.append(node.multi)


def _walk(topic_filter: bytes) -> tuple[list[bytes], bool]:
    """Return the levels leading to a wildcard filter's node, and whether it ends in `#` below
    it."""
    levels = topic_filter.split(SEPARATOR)
    ends_multi = levels[-1] == MULTI
    if ends_multi:
        levels.pop()
    return levels, ends_multi


def _holds(entry: _Entry[S, V], subscriber: S) -> bool:
    return subscriber in entry if isinstance(entry, dict) else entry[1] == subscriber


def _filter_of(entry: _Entry[S, V]) -> bytes:
    return next(iter(entry.values()))[0] if isinstance(entry, dict) else entry[0]


def _prune(path: list[_LevelNode[S, V]], levels: list[bytes]) -> None:
    """Drop the empty nodes at the end of a path."""
    for depth in range(len(levels), 0, -1):
        if not path[depth].is_empty():
            return
        parent = path[depth - 1]
        if levels[depth - 1] == SINGLE:
            parent.single = None
        else:
            children = parent.children
            assert children is not None  # the path leads through it
            del children[levels[depth - 1]]
            if not children:
                parent.children = None
