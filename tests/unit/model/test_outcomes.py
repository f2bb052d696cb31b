"""The engine's outcomes: their numbers, and the texts that go with them."""

from __future__ import annotations

from fluxmq.model.outcomes import (
    EXPLANATIONS_MAX,
    REFUSED_MIN,
    Explanations,
    Outcome,
    QueueOutcome,
)


def test_outcomes_keep_their_numbers() -> None:
    """Shards and nodes of earlier versions send and expect these numbers on links."""
    assert {each.name: each.value for each in Outcome} == {
        "OK": 0x00,
        "NOT_PENDING": 0x10,
        "CANCELLED": 0x80,
        "FAILED": 0x83,
        "DENIED": 0x87,
        "OVER_LIMIT": 0x97,
        "MOVED": 0x183,
        "FENCED": 0x283,
    }
    assert {each.name: each.value for each in QueueOutcome} == {
        "OK": 0,
        "NO_QUEUE": 1,
        "UNAVAILABLE": 2,
        "REFUSED": 3,
        "EXCLUSIVE": 4,
        "IN_USE": 5,
        "NOT_EMPTY": 6,
        "LOCKED": 7,
    }


def test_refusals_begin_at_the_limit() -> None:
    accepted = [each for each in Outcome if each < REFUSED_MIN]
    assert accepted == [Outcome.OK, Outcome.NOT_PENDING]


def test_an_explanation_leaves_the_outcome_in_the_lowest_byte() -> None:
    explanations = Explanations()
    explained = explanations.explain(Outcome.FAILED, "group g is led by b")
    assert explained & 0xFF == Outcome.FAILED
    assert explanations.text(explained) == "group g is led by b"
    assert explanations.explain(Outcome.FAILED, "group g is led by b") == explained
    assert [explanations.text(each) for each in Outcome] == [""] * len(Outcome)


def test_an_explained_refusal_is_none_that_hosts_retry() -> None:
    """The first text had the number of FENCED, so that a host parked the refused append for good."""
    explanations = Explanations()
    numbers = {explanations.explain(Outcome.FAILED, str(number)) for number in range(3)}
    assert numbers.isdisjoint({Outcome.MOVED, Outcome.FENCED})


def test_explanations_are_bounded() -> None:
    explanations = Explanations()
    for number in range(EXPLANATIONS_MAX):
        explanations.explain(Outcome.FAILED, str(number))
    assert explanations.explain(Outcome.FAILED, "one too many") == Outcome.FAILED
