"""Pairs of shards of two nodes: both sides name the same ones."""

from __future__ import annotations

import itertools

import pytest

from fluxmq.cluster.shard_pairs import Pairs, counterparts, every_shard, first_shard

SIZES = [*itertools.product(range(1, 6), repeat=2)]


def pairs_of(pairs: Pairs, shards: int, others: int) -> set[tuple[int, int]]:
    """As the first node's shards see them."""
    return {(shard, other) for shard in range(shards) for other in pairs(shard, shards, others)}


@pytest.mark.parametrize("pairs", [every_shard, counterparts, first_shard])
@pytest.mark.parametrize(("shards", "others"), SIZES)
def test_both_sides_agree_on_the_pairs_and_no_shard_is_without(
    pairs: Pairs, shards: int, others: int
) -> None:
    found = pairs_of(pairs, shards, others)
    assert found == {(one, other) for other, one in pairs_of(pairs, others, shards)}
    assert {one for one, _ in found} == {*range(shards)}
    assert {other for _, other in found} == {*range(others)}


@pytest.mark.parametrize("pairs", [every_shard, counterparts, first_shard])
@pytest.mark.parametrize(("shards", "others"), SIZES)
def test_an_unknown_number_of_shards_yields_pairs_of_every_number(
    pairs: Pairs, shards: int, others: int
) -> None:
    unknown = pairs_of(pairs, shards, 0)
    assert (0, 0) in unknown
    assert unknown <= pairs_of(pairs, shards, others)


@pytest.mark.parametrize(("shards", "others"), SIZES)
def test_there_are_as_many_pairs_as_the_purpose_needs(shards: int, others: int) -> None:
    assert len(pairs_of(every_shard, shards, others)) == shards * others
    assert len(pairs_of(counterparts, shards, others)) == max(shards, others)
    assert len(pairs_of(first_shard, shards, others)) == shards + others - 1


def test_shards_of_the_larger_node_are_dealt_in_turn() -> None:
    assert pairs_of(counterparts, 2, 5) == {(0, 0), (1, 1), (0, 2), (1, 3), (0, 4)}
