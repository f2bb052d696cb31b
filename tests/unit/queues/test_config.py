"""Configuration of a queue: whole numbers, checked, the same after msgpack."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.queues.config import SECOND, QueueConfig, QueueType, ephemeral, quorum


def test_a_length_of_nothing_is_told_only_where_it_is_one() -> None:
    """Row F5: what others than such queues are on disk is as it was."""
    assert "keeps_none" not in QueueConfig("q").pack()
    nothing = QueueConfig("q", keeps_none=True)
    assert QueueConfig.unpack(nothing.pack()) == nothing


def test_packing_gives_the_same_configuration_back() -> None:
    config = QueueConfig("q", QueueType.QUORUM, ("a/#", "b"), max_length=5, dead_letter=True)
    assert QueueConfig.unpack(msgpack.unpackb(msgpack.packb(config.pack()))) == config


@pytest.mark.parametrize(
    "values",
    [
        {"name": ""},
        {"name": "x" * 1_025},
        {"type": 9},
        {"overflow": 9},
        {"max_depth": -1},
        {"claim_batch": 0},
        {"visibility_timeout": 0},
        {"multiplier_thousandths": 999},
        {"initial_backoff": 0},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a"):
        QueueConfig(**{"name": "q", **values})


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (1_000_000, 300)]
)
def test_the_back_off_grows_up_to_its_longest(attempts: int, seconds: int) -> None:
    assert QueueConfig("q").backoff(attempts) == seconds * SECOND


def test_a_back_off_may_stay_the_same() -> None:
    config = QueueConfig("q", multiplier_thousandths=1_000)
    assert config.backoff(1_000_000) == 5 * SECOND


def test_kinds_have_their_own_defaults() -> None:
    assert quorum("q").delivery_limit == 20
    assert QueueConfig("q").delivery_limit == 0
    assert ephemeral("q").expires == 300 * SECOND
    assert QueueConfig("q").target == "$dlq/q"
    assert QueueConfig("q", dead_letter_queue="dead").target == "dead"
