"""Shards to cores, and pins."""

import pytest

from fluxmq.supervisor.placement import (
    WORKERS_MAX,
    PlacementError,
    parse_workers,
    plan,
    quota_cores,
    worth_binding,
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


def test_what_is_not_bound_has_no_cores_to_be_pinned_to() -> None:
    assert plan(2, [0, 1], []).bound
    assert not plan(2, [0, 1], [], bound=False).bound
    with pytest.raises(PlacementError, match="--pin orders: shards have no cores"):
        plan(2, [0, 1], ["orders=1"], bound=False)


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


def test_containers_that_share_cores_do_not_bind_to_the_same_ones() -> None:
    assert worth_binding(4, None)
    assert worth_binding(4, 4)
    assert not worth_binding(4, 2)
