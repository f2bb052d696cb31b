"""What a dispatcher has under way: claims applied in their order, joined claims as one."""

import pytest

from fluxmq.queues.inflight_claims import InflightClaims


def test_what_is_claimed_again_is_not_claimed_twice() -> None:
    inflight_claims = InflightClaims()
    assert not inflight_claims
    inflight_claims.add_again([(3, 5)])
    assert inflight_claims
    assert list(inflight_claims.unclaimed(1, 9)) == [(1, 2), (6, 9)]
    inflight_claims.applied()
    assert list(inflight_claims.unclaimed(1, 9)) == [(1, 9)]
    assert not inflight_claims


def test_ranges_count_until_their_claim_is_applied() -> None:
    inflight_claims = InflightClaims()
    inflight_claims.add_new(3, 10)
    inflight_claims.add_again([(1, 1), (4, 4)])
    inflight_claims.add_new(1, 12)
    assert inflight_claims.ranges == 3 + 2 * 2 + 1
    for left in (5, 1, 0):
        inflight_claims.applied()
        assert inflight_claims.ranges == left


def test_joined_claims_are_applied_once() -> None:
    inflight_claims = InflightClaims()
    inflight_claims.add_new(1, 10)
    inflight_claims.add_new(2, 12)
    inflight_claims.add_again([(1, 1)])  # asked for in the same run, behind both
    inflight_claims.add_new(4, 15)
    inflight_claims.join(12)
    assert inflight_claims.ranges == 9
    inflight_claims.applied()
    assert inflight_claims.ranges == 6
    assert list(inflight_claims.unclaimed(0, 2)) == [(0, 0), (2, 2)]
    inflight_claims.applied()
    assert list(inflight_claims.unclaimed(0, 2)) == [(0, 2)]
    inflight_claims.applied()
    assert not inflight_claims
    with pytest.raises(AssertionError, match="never proposed"):
        inflight_claims.applied()


def test_only_claims_of_new_messages_are_joined() -> None:
    inflight_claims = InflightClaims()
    inflight_claims.add_again([(1, 1)])
    inflight_claims.add_new(1, 10)
    with pytest.raises(AssertionError, match="new messages"):
        inflight_claims.join(10)
