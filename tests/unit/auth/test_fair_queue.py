"""A bounded queue shared fairly among keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.auth.fair_queue import FairQueue


def test_keys_take_turns() -> None:
    """Review finding 8."""
    queue: FairQueue[str] = FairQueue(10, 10)
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert queue.add(item[0], item) is None
    found = [queue.take() for _ in range(7)]
    assert found == ["a1", "b1", "c1", "a2", "c2", "a3", None]


def test_a_full_queue_makes_room_for_who_has_less() -> None:
    queue: FairQueue[str] = FairQueue(4, 3)
    assert [queue.add("a", item) for item in ("a1", "a2", "a3", "a4")] == [None] * 3 + ["a4"]
    assert queue.add("b", "b1") is None
    assert queue.add("b", "b2") == "a3"
    assert queue.add("b", "b3") == "b3", "as many as a has"
    assert queue.add("c", "c1") in ("a2", "b2")
    assert len(queue) == 4


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=200),
    st.integers(1, 12),
    st.integers(1, 6),
)
def test_nothing_is_lost_and_nothing_exceeds(
    steps: list[tuple[str, bool]], most: int, most_per_key: int
) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(most, most_per_key)
    inside: list[tuple[str, int]] = []
    for number, (key, take) in enumerate(steps):
        if take:
            item = queue.take()
            assert (item is None) == (not inside)
            if item is not None:
                own = [each for each in inside if each[0] == item[0]]
                assert item == own[0]
                inside.remove(item)
            continue
        inside.append((key, number))
        refused = queue.add(key, (key, number))
        if refused is not None:
            inside.remove(refused)
        assert len(queue) == len(inside) <= most
        assert max(len([k for k, _ in inside if k == key]) for key in "abcde") <= most_per_key
