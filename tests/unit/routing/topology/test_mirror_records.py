"""Records of mirrored groups: how they are stored, and which mirror leads after what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxmq.routing.topology.mirror_records import (
    MirrorMember,
    MirrorRecord,
    StoppedMember,
    alone,
    begun,
    forgotten,
    promoted,
    removed,
    replaced,
    returned,
    stopped,
    synchronised,
)

EVERYWHERE = ("a", "b", "c", "d")


def record(
    *members: tuple[str, int, bool], failure: str = "always", shutdown: str = "when-synced"
) -> MirrorRecord:
    """A record whose first member leads."""
    made = begun([node for node, _, _ in members], 1, failure, shutdown)
    described = json.loads(made.encode())
    described["epoch"] = 5
    described["members"] = [
        {"node": node, "since": since, "synchronised": synced} for node, since, synced in members
    ]
    return MirrorRecord.decode(json.dumps(described).encode())


SYNCED = record(("a", 1, True), ("b", 9, True), ("c", 4, True))
UNSYNCED = record(("a", 1, True), ("b", 9, False), ("c", 4, False))


def synced(of: MirrorRecord) -> set[str]:
    return {each.node for each in of.members if each.synchronised}


def test_a_record_is_stored_as_json_and_read_back() -> None:
    made = stopped(begun(["b", "a"], 7, "always", "when-synced"), "a", 8)
    assert json.loads(made.encode()) == {
        "epoch": 1,
        "leader": "b",
        "members": [
            {"node": "b", "since": 7, "synchronised": True},
            {"node": "a", "since": 7, "synchronised": True},
        ],
        "promote_on_failure": "always",
        "promote_on_shutdown": "when-synced",
        "first": ["b", "a"],
        "stopped": [{"node": "a", "at": 8}],
        "forced": 0,
    }
    assert MirrorRecord.decode(made.encode()) == made
    assert (made.mirrors, made.synchronised_mirrors) == (("a",), ("a",))


@pytest.mark.parametrize(
    "changed",
    [
        {"epoch": 0},
        {"epoch": "1"},
        {"leader": "z"},
        {"leader": ""},
        {"members": []},
        {"members": [{"node": "a", "since": 1, "synchronised": False}]},
        {"members": [{"node": "a", "since": 1, "synchronised": True}] * 2},
        {"members": [{"node": "a", "since": -1, "synchronised": True}]},
        {"members": [{"node": "a", "since": 1, "synchronised": True, "weight": 3}]},
        {"stopped": [{"node": "b", "at": 1}] * 2},
        {"first": ["a", "a"]},
        {"promote_on_failure": "never"},
        {"promote_on_shutdown": True},
        {"forced": -1},
        {"later": 1},
    ],
)
def test_values_that_are_no_record_are_refused(changed: dict[str, Any]) -> None:
    described = {**json.loads(begun(["a"], 1, "always", "always").encode()), **changed}
    with pytest.raises(ValueError, match="mirrored group"):
        MirrorRecord.decode(json.dumps(described).encode())


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b"\xff", b"null"])
def test_values_that_are_no_json_object_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="mirrored group"):
        MirrorRecord.decode(value)


def test_the_synchronised_mirror_that_has_run_longest_leads() -> None:
    """S4-06, S4-11, S4-40: in an epoch of its own, without the former leader."""
    after = promoted(SYNCED, EVERYWHERE, orderly=False)
    assert after is not None
    assert (after.epoch, after.leader, after.forced) == (6, "c", 0)
    assert synced(after) == {"b", "c"}
    assert after.member("a") == MirrorMember("a", 0, synchronised=False)
    assert MirrorRecord.decode(after.encode()) == after


def test_a_leader_whose_process_has_ended_is_replaced_by_a_synchronised_mirror_only() -> None:
    """S4-06: any other one waits, since the leader may be back soon with everything."""
    after = replaced(SYNCED, EVERYWHERE)
    assert after == promoted(SYNCED, EVERYWHERE, orderly=False)
    assert replaced(UNSYNCED, EVERYWHERE) is None
    assert replaced(SYNCED, ("a",)) is None
    left = stopped(stopped(SYNCED, "c", 20), "a", 21)
    other = replaced(left, EVERYWHERE)
    assert other is not None
    assert other.leader == "b", "c stopped before the leader"


def test_a_mirror_that_is_down_is_passed_over() -> None:
    """S4-40: it stays synchronised until the new leader has taken it out."""
    after = promoted(SYNCED, ("b",), orderly=False)
    assert after is not None
    assert after.leader == "b"
    assert synced(after) == {"b", "c"}


def test_a_synchronised_mirror_comes_before_an_older_one_that_is_not() -> None:
    """S4-06."""
    mixed = record(("a", 1, True), ("b", 9, True), ("c", 4, False), failure="when-synced")
    for orderly in (False, True):
        after = promoted(mixed, EVERYWHERE, orderly)
        assert after is not None
        assert (after.leader, after.forced) == ("b", 0)


@pytest.mark.parametrize(
    ("failure", "shutdown", "orderly", "leads"),
    [
        ("always", "when-synced", False, "c"),
        ("always", "when-synced", True, None),
        ("always", "always", False, "c"),
        ("always", "always", True, "c"),
        ("when-synced", "when-synced", False, None),
        ("when-synced", "when-synced", True, None),
        ("when-synced", "always", False, None),
        ("when-synced", "always", True, None),
    ],
)
def test_whether_an_unsynchronised_mirror_leads(
    failure: str, shutdown: str, orderly: bool, leads: str | None
) -> None:
    """S4-33, S4-58, S4-59, S4-63, S4-64, S4-65, S4-66, S4-67: on failure, and at an orderly stop."""
    members = (("a", 1, True), ("b", 9, False), ("c", 4, False))
    before = record(*members, failure=failure, shutdown=shutdown)
    after = promoted(before, EVERYWHERE, orderly)
    assert (None if after is None else after.leader) == leads


def test_the_copy_of_an_unsynchronised_leader_is_the_only_one_that_counts() -> None:
    """S4-40, S4-62: the others take it over."""
    after = promoted(UNSYNCED, EVERYWHERE, orderly=False)
    assert after is not None
    assert (after.epoch, after.forced, synced(after)) == (6, 1, {"c"})
    down = record(("a", 1, True), ("b", 2, True), ("c", 4, False))
    later = promoted(down, ("c",), orderly=False)
    assert later is not None
    assert (later.leader, later.forced, synced(later)) == ("c", 1, {"c"}), "b is down"


def test_after_an_orderly_stop_the_end_of_the_leader_is_no_failure() -> None:
    """S4-63: nobody is promoted when its lease ends, either."""
    assert promoted(stopped(UNSYNCED, "a", 20), ("b", "c"), orderly=False) is None


def test_nobody_leads_where_no_mirror_is_left() -> None:
    """S4-61."""
    assert promoted(SYNCED, ("a",), orderly=False) is None
    assert promoted(begun(["a"], 1, "always", "always"), EVERYWHERE, orderly=False) is None


def test_a_mirror_that_was_away_when_the_leader_failed_does_not_lead() -> None:
    """S4-61, S4-68: unless it is synchronised, so that nothing was confirmed without it."""
    away = removed(record(("a", 1, True), ("b", 9, True)), "b")
    assert promoted(away, ("b",), orderly=False) is None
    for present, leads in ((("a",), None), (("a", "b"), "b")):
        seen = promoted(away, ("b",), orderly=False, present=present)
        assert (None if seen is None else seen.leader) == leads
    back = returned(away, "b", 30)
    after = promoted(back, ("b",), orderly=False)
    assert after is not None
    assert (after.leader, after.forced) == ("b", 1)
    two = stopped(record(("a", 1, True), ("b", 9, True)), "b", 20)
    crashed = promoted(two, ("b",), orderly=False)
    assert crashed is not None
    assert (crashed.leader, crashed.forced) == ("b", 0)


def test_the_node_that_stopped_last_leads_again() -> None:
    """S4-61, S4-68: nodes stop in turn, and come back in the same order."""
    at = record(("a", 1, True), ("b", 2, True), ("c", 3, True), failure="always", shutdown="always")
    for moment, (leaving, staying) in enumerate([("a", "bc"), ("b", "c")], 50):
        at = stopped(at, leaving, moment)
        after = promoted(at, staying, orderly=True)
        assert after is not None
        at = after
    at = stopped(at, "c", 60)
    assert promoted(at, (), orderly=True) is None
    assert [each.node for each in at.stopped] == ["a", "b", "c"]
    assert at.leader == "c"
    for alive in ("a", "ab"):
        assert promoted(at, alive, orderly=False) is None, "they wait for it"
    at = returned(at, "c", 70)
    for node in "ab":
        at = returned(at, node, 71)
    assert (at.leader, at.stopped) == ("c", ())
    assert at.member("a") == MirrorMember("a", 71, synchronised=False)


def test_mirrors_that_stopped_before_their_leader_wait_for_it() -> None:
    """S4-68: even synchronised ones."""
    both = stopped(stopped(SYNCED, "b", 20), "a", 21)
    assert promoted(both, ("b",), orderly=False) is None
    after = promoted(both, ("b", "c"), orderly=False)
    assert after is not None
    assert after.leader == "c", "it has never stopped"


def test_a_mirror_leaves_and_is_synchronised_again() -> None:
    """S3-03, S4-39, S4-51: and counts as running since it came back."""
    away = removed(SYNCED, "c")
    assert (away.leader, away.epoch, synced(away)) == ("a", 5, {"a", "b"})
    assert removed(away, "c") is away
    back = returned(away, "c", 30)
    assert back.mirrors == ("b", "c")
    assert back.synchronised_mirrors == ("b",)
    again = synchronised(back, "c", 40)
    assert again.member("c") == MirrorMember("c", 30, synchronised=True)
    assert synchronised(again, "c", 50) is again
    assert synchronised(away, "c", 40).member("c") == MirrorMember("c", 40, synchronised=True)


def test_a_leader_that_was_alone_is_the_only_one_that_is_synchronised() -> None:
    """S3-09."""
    after = alone(SYNCED)
    assert (after.leader, after.epoch, synced(after)) == ("a", 5, {"a"})
    assert [each.since for each in after.members] == [1, 0, 0]
    assert alone(after) is after


def test_what_cannot_be_decided_is_refused() -> None:
    with pytest.raises(ValueError, match="without its leader"):
        removed(SYNCED, "a")
    with pytest.raises(ValueError, match="no member"):
        synchronised(SYNCED, "z", 1)
    assert removed(SYNCED, "z") is SYNCED
    assert stopped(SYNCED, "z", 1) is SYNCED
    assert returned(SYNCED, "z", 1) is SYNCED
    assert returned(SYNCED, "b", 1) is SYNCED


def test_a_node_that_stops_twice_is_recorded_once() -> None:
    twice = stopped(stopped(stopped(SYNCED, "b", 1), "c", 2), "b", 3)
    assert twice.stopped == (StoppedMember("c", 2), StoppedMember("b", 3))


def test_of_a_forgotten_leader_the_mirror_that_stopped_last_takes_the_place() -> None:
    """S4-69: whatever the policy says."""
    members = (("a", 1, True), ("b", 0, False), ("c", 0, False))
    before = record(*members, failure="when-synced")
    before = stopped(stopped(stopped(before, "c", 20), "b", 21), "a", 22)
    after = forgotten(before, "a")
    assert after is not None
    assert (after.leader, after.epoch, after.forced) == ("b", 6, 1)
    assert after.member("a") is None
    assert after.stopped_at("a") is None
    assert MirrorRecord.decode(after.encode()) == after


def test_a_synchronised_mirror_takes_the_place_of_a_forgotten_leader_before_others() -> None:
    """S4-69, S4-70: in whatever order they stopped, since it lacks nothing; also once they run again."""
    mixed = record(("a", 1, True), ("b", 9, True), ("c", 4, False))
    before = stopped(stopped(stopped(mixed, "b", 20), "c", 21), "a", 22)
    again = forgotten(returned(returned(before, "b", 30), "c", 30), "a")
    assert again is not None
    assert (again.leader, again.forced, synced(again)) == ("b", 0, {"b"})
    after = forgotten(before, "a")
    assert after is not None
    assert (after.leader, after.forced, synced(after)) == ("b", 0, {"b"})


def test_forgetting_a_mirror_leaves_the_leader_and_forgetting_the_last_node_nothing() -> None:
    """S4-69."""
    after = forgotten(stopped(SYNCED, "c", 20), "c")
    assert after is not None
    assert (after.leader, after.epoch, after.mirrors, after.stopped) == ("a", 5, ("b",), ())
    assert forgotten(begun(["a"], 1, "always", "always"), "a") is None
    assert forgotten(SYNCED, "z") == SYNCED
