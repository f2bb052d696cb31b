"""Nodes with many shards: where the clients are put, and the model."""

from __future__ import annotations

import pytest

from fluxmq.protocols.sniff import shard_of
from perf.cores import LONE, Costs, capacity, capacity_rows, cost_rows, with_shards


@pytest.mark.parametrize("shards", [1, 2, 64])
@pytest.mark.parametrize("apart", [False, True])
def test_clients_are_where_they_are_asked_for(shards: int, apart: bool) -> None:
    placed = with_shards(LONE, shards, apart)
    assert [shard_of(each.encode(), shards) for each in placed.publisher_ids] == [0]
    expected = shards - 1 if apart else 0
    assert [shard_of(each.encode(), shards) for each in placed.subscriber_ids] == [expected]
    placed.check()


def test_cores_carry_what_the_mean_message_costs() -> None:
    assert capacity(1, 20.0, 40.0) == pytest.approx(50_000)
    assert capacity(2, 20.0, 40.0) == pytest.approx(2 * 1e6 / 30)
    # With many cores nearly all subscribers are elsewhere.
    assert capacity(64, 20.0, 40.0) / 64 == pytest.approx(1e6 / 40, rel=0.01)


def test_rows() -> None:
    one, many = Costs(1, 2.0, 30.0, 0.0, 1.0, 0.0), Costs(64, 33.0, 32.0, 64.0, 1.0, 2.0)
    assert cost_rows([one, many]) == [
        ["1", "2.00", "30.00", "", "1.00", ""],
        ["64", "33.00", "32.00", "64.00", "1.00", "2.00"],
    ]
    assert capacity_rows(many)[0] == ["2", f"{2e6 / 48:,.0f}", f"{2e6 / 1.5:,.0f}"]
