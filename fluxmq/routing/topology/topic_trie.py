"""Binding keys of a topic exchange: words between dots, ``*`` for one word, ``#`` for zero or more.

The empty key has no words, ``.`` has two empty ones, as in RabbitMQ; ``*`` matches an empty word.
Matching goes through the words once with a set of nodes as its only state, so that patterns with
many ``#`` cost no more than their number.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

V = TypeVar("V", bound=Hashable)

ONE: Final = "*"
ANY: Final = "#"


def words_of(key: str) -> list[str]:
    """Return the words of a routing or binding key."""
    return key.split(".") if key else []


class _WordNode(Generic[V]):
    """A prefix of words; ``here`` counts by value how often the pattern that ends here was
    added."""

    __slots__ = ("children", "here", "loops")

    def __init__(self, loops: bool) -> None:
        self.children: dict[str, _WordNode[V]] = {}
        self.here: dict[V, int] = {}
        self.loops = loops
        """True when the last word of the prefix is ``#``: it stays here for further words."""


class TopicTrie(Generic[V]):
    """Binding keys to values. A value counts as often as it was added."""

    __slots__ = ("_exact", "_root")

    def __init__(self) -> None:
        self._exact: dict[str, dict[V, int]] = {}
        """Keys without wildcards, the majority: equal words are equal text."""
        self._root: _WordNode[V] = _WordNode(False)

    def __bool__(self) -> bool:
        return bool(self._exact or self._root.children or self._root.here)

    def add(self, key: str, value: V) -> None:
        """Let ``key`` lead to ``value``, once more if it does already."""
        if ONE not in key and ANY not in key:
            here = self._exact.setdefault(key, {})
        else:
            node = self._root
            for word in words_of(key):
                child = node.children.get(word)
                if child is None:
                    child = node.children[word] = _WordNode(word == ANY)
                node = child
            here = node.here
        here[value] = here.get(value, 0) + 1

    def remove(self, key: str, value: V) -> None:
        """Undo one `add`. Raises `KeyError` when there was none."""
        if ONE not in key and ANY not in key:
            _forget(self._exact[key], value)
            if not self._exact[key]:
                del self._exact[key]
            return
        path = [self._root]
        words = words_of(key)
        for word in words:
            path.append(path[-1].children[word])
        _forget(path[-1].here, value)
        while words and not path[-1].here and not path[-1].children:
            path.pop()
            del path[-1].children[words.pop()]

    def find(self, key: str) -> dict[V, int]:
        """Return the values whose binding key matches a routing key."""
        found = dict(self._exact.get(key, ()))
        if not self._root.children:
            return found
        nodes = _with_loops([self._root])
        for word in words_of(key):
            following: list[_WordNode[V]] = []
            for node in nodes:
                if node.loops:
                    following.append(node)
                children = node.children
                if not children:
                    continue
                if ONE in children:
                    following.append(children[ONE])
                if word in children and word not in (ONE, ANY):
                    following.append(children[word])
            nodes = _with_loops(following)
            if not nodes:
                return found
        for node in nodes:
            found.update(node.here)
        return found


def _with_loops(nodes: list[_WordNode[V]]) -> list[_WordNode[V]]:
    """Return the nodes and those that ``#`` reaches from them without a word, each once."""
    if all(ANY not in node.children for node in nodes) and len(nodes) < 2:
        return nodes
    reached = {id(node): node for node in nodes}
    waiting = list(reached.values())
    while waiting:
        child = waiting.pop().children.get(ANY)
        if child is not None and id(child) not in reached:
            reached[id(child)] = child
            waiting.append(child)
    return list(reached.values())


def _forget(here: dict[V, int], value: V) -> None:
    left = here[value] - 1
    if left:
        here[value] = left
    else:
        del here[value]
