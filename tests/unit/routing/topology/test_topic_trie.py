"""Binding keys of topic exchanges against a definition by recursion, and what RabbitMQ 3.10 does at the edges."""

from __future__ import annotations

import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fluxmq.routing.topology.topic_trie import TopicTrie, words_of


def matches(pattern: str, key: str) -> bool:
    """The definition: ``*`` is one word, ``#`` any number of them."""
    wanted, words = words_of(pattern), words_of(key)

    @cache
    def from_here(place: int, word: int) -> bool:
        if place == len(wanted):
            return word == len(words)
        if wanted[place] == "#":
            return from_here(place + 1, word) or (word < len(words) and from_here(place, word + 1))
        return (
            word < len(words)
            and wanted[place] in ("*", words[word])
            and from_here(place + 1, word + 1)
        )

    return from_here(0, 0)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", [""], [".", "a"]),
        ("*", ["a", "#", "*"], ["", ".", "a.b"]),
        ("#", ["", ".", "a", "a.b.c", "..a"], []),
        (".*", [".", ".a"], ["", "a", "a.b"]),
        ("*.", [".", "a."], ["a", "a.b"]),
        ("a.#", ["a", "a.", "a.b", "a.x.b"], ["", "b", ".a"]),
        ("#.a", ["a", ".a", "..a"], ["a.", "x.a.y"]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
        ("a.*.b", ["a..b", "a.x.b"], ["a.b"]),
        ("a.#.b", ["a.b", "a..b", "a.x.y.b"], ["a", "b", "a.b."]),
        ("*.#.*", ["a.b", ".", "a.b.c"], ["a", ""]),
        ("#.#", ["", "a", "a.b"], []),
        ("a#", ["a#"], ["a", "ab"]),
        ("a*.b", ["a*.b"], ["ax.b"]),
    ],
)
def test_edges(pattern: str, yes: list[str], no: list[str]) -> None:
    trie: TopicTrie[int] = TopicTrie()
    trie.add(pattern, 1)
    assert [key for key in yes if not trie.find(key)] == []
    assert [key for key in no if trie.find(key)] == []


_WORD = st.sampled_from(["a", "b", "", "*", "#"])
_KEYS = st.lists(_WORD, max_size=6).map(".".join)


@given(st.lists(_KEYS, max_size=12), _KEYS)
def test_it_finds_what_the_definition_says(patterns: list[str], key: str) -> None:
    trie: TopicTrie[str] = TopicTrie()
    for pattern in patterns:
        trie.add(pattern, pattern)
    assert trie.find(key).keys() == {pattern for pattern in patterns if matches(pattern, key)}


class TrieAgainstModel(RuleBasedStateMachine):
    """Additions and removals in any order leave what a list of them would."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: TopicTrie[int] = TopicTrie()
        self.model: list[tuple[str, int]] = []

    @rule(key=_KEYS, value=st.integers(0, 2))
    def add(self, key: str, value: int) -> None:
        self.trie.add(key, value)
        self.model.append((key, value))

    @rule(key=_KEYS, value=st.integers(0, 2))
    def remove(self, key: str, value: int) -> None:
        if (key, value) in self.model:
            self.trie.remove(key, value)
            self.model.remove((key, value))
        else:
            with pytest.raises(KeyError):
                self.trie.remove(key, value)

    @rule(key=_KEYS)
    def find(self, key: str) -> None:
        wanted = {value for pattern, value in self.model if matches(pattern, key)}
        assert self.trie.find(key).keys() == wanted

    @invariant()
    def is_empty_when_nothing_is_in_it(self) -> None:
        assert bool(self.trie) is bool(self.model)


TestTrieAgainstModel = TrieAgainstModel.TestCase


def test_many_wildcards_cost_no_more_than_their_number() -> None:
    trie: TopicTrie[int] = TopicTrie()
    trie.add(".".join(["#", "a"] * 60), 1)
    began = time.perf_counter()
    assert not trie.find(".".join(["a"] * 120 + ["b"]))
    assert trie.find(".".join(["a"] * 120))
    assert time.perf_counter() - began < 2.0  # with backtracking it would not end at all
