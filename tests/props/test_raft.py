"""Whatever happens to a group of nodes, in whatever order, it stays safe, and comes to agree when faults end."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.raft.memberships import decode_membership, encode_membership
from fluxmq.raft.types import Membership
from tests.props.raft_schedules import NAMES, Move, Schedule, drawn_moves

MOVE = st.tuples(st.sampled_from(NAMES), st.integers(0, 60), st.integers(0, 60))
IDS = st.lists(st.integers(1, 2**64 - 1), unique=True, max_size=8)


@given(st.lists(MOVE, max_size=80), st.booleans(), st.booleans(), st.integers(0, 99))
def test_any_short_schedule(
    moves: list[Move], pre_vote: bool, check_quorum: bool, seed: int
) -> None:
    # Timeouts are not Hypothesis's to draw: it would find that equal ones never elect anybody.
    schedule = Schedule(Random(seed).randrange, pre_vote=pre_vote, check_quorum=check_quorum)
    schedule.run(moves)
    schedule.finish()


@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans(), st.booleans())
def test_long_schedules_in_proportion(
    seed: int, voters: int, pre_vote: bool, check_quorum: bool
) -> None:
    """Moves as often as they happen, so that much is committed between the faults."""
    random = Random(seed)
    schedule = Schedule(random.randrange, voters, pre_vote=pre_vote, check_quorum=check_quorum)
    schedule.run(drawn_moves(random, 800))
    schedule.finish()


def test_schedules_do_something() -> None:
    """The properties above would hold of a group to which nothing happens."""
    committed = terms = memberships = snapshots = 0
    for seed in range(20):
        random = Random(seed)
        schedule = Schedule(random.randrange)
        schedule.run(drawn_moves(random, 1500))
        schedule.finish()
        committed += len(schedule.cluster.committed)
        terms += len(schedule.cluster.leaders)
        memberships += sum(entry.kind == 2 for entry in schedule.cluster.committed.values())
        snapshots += schedule.snapshots
    assert committed > 500
    assert terms > 60
    assert memberships > 40
    assert snapshots > 5


@given(IDS, IDS)
def test_memberships_survive_their_encoding(voters: list[int], learners: list[int]) -> None:
    membership = Membership(tuple(voters), tuple(learners))
    assert decode_membership(encode_membership(membership)) == membership
