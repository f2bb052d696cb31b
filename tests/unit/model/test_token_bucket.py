"""Rates over time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.token_bucket import TokenBucket


def test_a_second_may_be_used_at_once_and_debts_are_waited_for() -> None:
    bucket = TokenBucket(10, 100.0)
    assert bucket.take(10, 100.0) == 0
    assert bucket.take(5, 100.0) == pytest.approx(0.5)
    assert bucket.take(0, 100.4) == pytest.approx(0.1)
    assert bucket.take(1, 100.6) == pytest.approx(0)
    assert bucket.take(10, 200.0) == 0, "a longer pause saves up no more than a second's"
    assert bucket.take(1, 200.0) == pytest.approx(0.1)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=50))
def test_whoever_waits_as_told_keeps_the_rate(amounts: list[int]) -> None:
    bucket, now = TokenBucket(100, 0.0), 0.0
    for amount in amounts:
        now += bucket.take(amount, now)
    assert sum(amounts) <= 100 * (now + 1) + 1e-6
