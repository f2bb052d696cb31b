"""Shards to cores, and pins."""

import pytest

from fluxmq.supervisor.placement import (
    WORKERS_MAX,
    PlacementError,
    parse_workers,
    plan,
    quota_cores,
)


def test_one_shard_per_core_and_wrapping() -> None:
    assert plan(2, [0, 1, 2, 3], []).cores == (0, 1)
    assert plan(5, [4, 6], []).cores == (4, 6, 4, 6, 4)
    assert plan(3, [0, 1, 2], []).workers == 3


@pytest.mark.parametrize(("text", "workers"), [("auto", 4), ("1", 1), ("9", 9), ("256", 256)])
def test_workers(text: str, workers: int) -> None:
    assert parse_workers(text, 4) == workers


def test_auto_is_bounded() -> None:
    assert parse_workers("auto", 10_000) == WORKERS_MAX


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "257", "1.5", "²"])
def test_wrong_workers(text: str) -> None:
    with pytest.raises(PlacementError, match="--workers"):
        parse_workers(text, 4)


def test_pins_name_the_shard_of_a_core() -> None:
    assert plan(4, [2, 5], ["orders=5", "audit.log=2"]).pins == {"orders": 1, "audit.log": 0}


@pytest.mark.parametrize(
    ("pins", "complaint"),
    [
        (["orders"], "GROUP=CORE"),
        (["orders="], "GROUP=CORE"),
        (["orders=x"], "GROUP=CORE"),
        (["=1"], "not the name"),
        (["a/b=1"], "not the name"),
        ([f"{'x' * 129}=1"], "not the name"),
        (["orders=7"], "no shard runs on core 7; there are 0, 1"),
        (["orders=0", "orders=1"], "pinned twice"),
    ],
)
def test_wrong_pins(pins: list[str], complaint: str) -> None:
    with pytest.raises(PlacementError, match=complaint):
        plan(2, [0, 1], pins)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", None),
        ("200000 100000", 2),
        ("150000 100000\n", 2),
        ("1000 100000", 1),
        ("", None),
        ("100000 0", None),
        ("what", None),
    ],
)
def test_quota(text: str, cores: int | None) -> None:
    assert quota_cores(text) == cores
