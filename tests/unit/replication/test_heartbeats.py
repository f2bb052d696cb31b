"""Combined heartbeats: one frame for all groups that rest, and everything that has to wake them."""

from __future__ import annotations

import pytest

from fluxmq.raft.types import Role
from fluxmq.replication.heartbeats import BEATS_PER_LOOK, CALM_BEATS, beat_seconds
from fluxmq.replication.heartbeats import SILENCE as SILENCE_PART
from tests.unit.replication.shards_at_rest import (
    ELECTION,
    SILENCE,
    TICKS_PER_BEAT,
    GroupHere,
    Shards,
)

GROUPS = 6
BEATS_TO_REST = CALM_BEATS + 1
BEATS_PER_ELECTION = -(-ELECTION // TICKS_PER_BEAT)


@pytest.fixture
def shards() -> Shards:
    """Shards whose groups all rest."""
    made = Shards(GROUPS)
    made.beat(BEATS_TO_REST)
    assert made.resting() == [GROUPS] * 3
    return made


def group(shards: Shards, number: int, name: str = "g0") -> GroupHere:
    return shards[number].groups[name]


def test_all_groups_share_one_frame_each_way(shards: Shards) -> None:
    before = {name: cluster.said for name, cluster in shards.clusters.items()}
    sent = shards.sent
    shards.beat(50)
    assert shards.sent - sent == 50 * 4, "a frame to two shards at each beat, and their answers"
    assert {name: cluster.said for name, cluster in shards.clusters.items()} == before
    assert shards.resting() == [GROUPS] * 3
    assert set(shards.leaders().values()) == {1}


def test_shards_that_lead_each_others_groups_wake_each_other_once_a_beat(shards: Shards) -> None:
    """The answer goes with the next frame of the one that answers."""
    assert shards.clusters["g0"][1].node.transfer_leadership(3)
    shards.clusters["g0"].settle()
    shards.beat(2 * BEATS_TO_REST)
    assert shards.resting() == [GROUPS] * 3
    shards[1].heartbeats.beat()
    shards.carry()
    assert shards[1].heartbeats._peers[3].silent == 1, "it has not answered yet"
    shards[3].heartbeats.beat()
    assert [what for peer, what, _ in shards[3].frames if peer == 1] == ["beaten", "beat"]
    shards.carry()
    assert shards[1].heartbeats._peers[3].silent == 0
    shards.beat(50)
    assert shards.resting() == [GROUPS] * 3


def test_what_has_changed_is_answered_at_once(shards: Shards) -> None:
    """Groups of shards that lead each other's: a member that does not rest says so without delay."""
    assert shards.clusters["g0"][1].node.transfer_leadership(3)
    shards.clusters["g0"].settle()
    shards.beat(2 * BEATS_TO_REST)
    group(shards, 3, "g1").stirred()
    shards[1].heartbeats.beat()
    shards.carry()
    assert not group(shards, 1, "g1").leases


def test_a_proposal_wakes_its_group_alone_and_is_committed(shards: Shards) -> None:
    cluster = shards.clusters["g0"]
    cluster.propose(1, b"x")
    cluster.settle()
    assert shards.resting() == [GROUPS - 1] * 3
    assert [member.commands for member in cluster.members.values()] == [[b"x"]] * 3
    shards.beat(BEATS_TO_REST)
    assert shards.resting() == [GROUPS] * 3


def test_followers_of_a_leader_that_died_elect_within_two_timeouts(shards: Shards) -> None:
    shards.stop(1)
    shards.beat(SILENCE)
    assert shards.resting()[1:] == [GROUPS] * 2, "a few frames may be late"
    shards.beat(2 * BEATS_PER_ELECTION - SILENCE)
    assert set(shards.leaders().values()) <= {2, 3}


def test_followers_wake_at_once_when_the_stream_to_their_leader_ends(shards: Shards) -> None:
    shards.part(1, 2)
    assert shards.resting() == [0, 0, GROUPS]
    shards.beat()
    assert shards.resting() == [0, 0, 0], "the leader has told the third"


def test_a_leader_without_a_majority_steps_down_within_two_timeouts(shards: Shards) -> None:
    shards.stop(2)
    shards.stop(3)
    shards.beat(2 * BEATS_PER_ELECTION)
    for cluster in shards.clusters.values():
        assert cluster[1].node.status().role is Role.FOLLOWER


def test_a_leader_with_a_majority_does_not_mind_a_silent_shard(shards: Shards) -> None:
    shards.stop(3)
    shards.beat(3 * BEATS_PER_ELECTION)
    assert shards.resting()[:2] == [GROUPS] * 2
    assert set(shards.leaders().values()) == {1}


def test_followers_of_a_slow_leader_rest_again_as_soon_as_it_is_heard(shards: Shards) -> None:
    shards.stop(1)
    shards.beat(SILENCE + 1)
    assert shards.resting()[1:] == [0, 0]
    said = {name: cluster.said for name, cluster in shards.clusters.items()}
    shards.go_on(1)
    shards.beat()
    assert shards.resting() == [GROUPS] * 3
    assert {name: cluster.said for name, cluster in shards.clusters.items()} == said


def test_a_follower_that_campaigned_meanwhile_does_not_rest_again(shards: Shards) -> None:
    shards.stop(1)
    shards.beat(SILENCE + 1)
    shards.clusters["g0"][2].node.campaign()
    shards.clusters["g0"].collect()
    shards.go_on(1)
    shards.beat()
    assert not group(shards, 2).leases
    assert group(shards, 2, "g1").leases


def test_a_frame_of_an_older_term_is_not_trusted(shards: Shards) -> None:
    cluster = shards.clusters["g0"]
    cluster.propose(1, b"x")
    cluster.settle()
    shards.beat()
    term, index = cluster[1].node.quiescence.end
    for number in (2, 3):
        group(shards, number).stirred()
    shards[2].heartbeats.on_beat(1, 1000, [("g0", term - 1, index)], [])
    assert not group(shards, 2).leases
    assert shards[2].frames[-1] == (1, "beaten", (1000, ["g0"]))
    shards[3].heartbeats.on_beat(1, 1000, [("g0", term, index)], [])
    assert group(shards, 3).leases, "it would follow that term"


@pytest.mark.parametrize("named", ["g0", "elsewhere"])
def test_a_group_that_the_shard_does_not_have_is_refused(shards: Shards, named: str) -> None:
    term, index = group(shards, 1).quiescence.end
    shards[2].heartbeats.remove(group(shards, 2))
    shards[2].heartbeats.on_beat(1, 1000, [(named, term, index)], [])
    _, what, arguments = shards[2].frames[-1]
    assert what == "beaten"
    assert named in arguments[1]


def test_an_answer_does_not_count_for_a_group_that_does_not_rest_there(shards: Shards) -> None:
    group(shards, 2).working = False  # it has failed, and would not answer heartbeats of its own
    shards.beat(BEATS_PER_LOOK + 1)
    assert not group(shards, 1).leases, "the leader knows"
    assert group(shards, 1, "g1").leases


def test_a_leader_does_not_count_who_has_not_answered_since_the_group_rests() -> None:
    shards = Shards(1)
    shards.beat(BEATS_TO_REST - 1)
    shards[1].heartbeats.beat()
    assert shards[1].heartbeats.resting == 1
    group(shards, 1).stirred()
    progress = group(shards, 1).member.node.status().progress
    assert [peer.active for peer in progress.values()] == [False, False]
    shards.beat(BEATS_TO_REST)
    group(shards, 1).stirred()
    progress = group(shards, 1).member.node.status().progress
    assert [peer.active for peer in progress.values()] == [True, True]


def test_a_late_answer_does_not_wake_a_group_that_rests_again(shards: Shards) -> None:
    lease = group(shards, 1).leases[2]
    shards.beat(3)
    number = shards[1].heartbeats._peers[2].number
    group(shards, 1).stirred()
    shards.tick(TICKS_PER_BEAT)
    for _ in range(BEATS_TO_REST):
        shards[1].heartbeats.beat()
    assert group(shards, 1).leases[2].number > number >= lease.number
    shards[1].heartbeats.on_answer(2, number + 1, ["g0"])
    assert group(shards, 1).leases


def test_a_follower_wakes_when_its_leader_no_longer_leads(shards: Shards) -> None:
    group(shards, 1).working = False  # it says nothing any more
    shards.beat(BEATS_PER_LOOK)
    assert shards.resting() == [GROUPS - 1] * 3
    shards.beat(2 * BEATS_PER_ELECTION)
    assert shards.leaders()["g1"] == 1


def test_a_higher_term_wakes_a_leader_at_rest(shards: Shards) -> None:
    cluster = shards.clusters["g0"]
    assert cluster[1].node.transfer_leadership(3)
    cluster.settle()
    assert shards.leaders()["g0"] == 3
    assert not group(shards, 1).leases
    assert not group(shards, 2).leases
    shards.beat(BEATS_TO_REST)
    assert list(group(shards, 1).leases) == [3]
    assert shards.resting() == [GROUPS] * 3


def test_a_member_that_cannot_be_reached_leaves_its_group_at_rest(shards: Shards) -> None:
    shards.part(1, 3)
    shards.part(2, 3)
    shards.beat(BEATS_TO_REST)
    assert shards.resting() == [GROUPS, GROUPS, 0]


@pytest.mark.parametrize("doubted", [2, 3])
def test_a_member_that_is_not_believed_keeps_its_group_awake(doubted: int) -> None:
    shards = Shards(2)
    group(shards, 1).unbelieved.add(doubted)
    shards.beat(4 * BEATS_TO_REST)
    assert shards.resting() == [1, 1, 1]


def test_the_only_member_of_a_group_stays_awake() -> None:
    shards = Shards(1, members=1)
    shards.beat(4 * BEATS_TO_REST)
    assert shards.leaders() == {"g0": 1}
    assert shards.resting() == [0, 0, 0]


def test_a_shard_that_does_not_understand_keeps_its_groups_awake() -> None:
    shards = Shards(2)
    shards[1].heartbeats.gone(3)
    shards.beat(4 * BEATS_TO_REST)
    assert shards.resting() == [0, 0, 0]
    assert set(shards.leaders().values()) == {1}


def test_an_answer_to_no_frame_is_refused(shards: Shards) -> None:
    with pytest.raises(ValueError, match="an answer to beat"):
        shards[1].heartbeats.on_answer(2, 1000, [])


@pytest.mark.parametrize(
    ("timings", "interval"),
    [
        ([(0.15, 1.0)], 0.15),
        ([(0.25, 1.0)], 0.25),
        ([(0.9, 1.0)], 0.25),
        ([(0.15, 1.0), (0.01, 0.1), (5.0, 60.0)], 0.01),
    ],
)
def test_beats_suit_the_fastest_group(timings: list[tuple[float, float]], interval: float) -> None:
    found, silence = beat_seconds(timings)
    assert found == interval
    shortest = min(election for _, election in timings)
    assert 1 <= silence <= SILENCE_PART * shortest / interval
