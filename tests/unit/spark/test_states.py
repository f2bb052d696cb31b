"""What a consumer group has settled: from the broker's file to the offsets and states that reading wants."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.group_states import GROUPS_NAME, ConsumerGroupState, QueueGroups, Range, encode
from fluxmq_spark.catalog import QueueFiles
from fluxmq_spark.errors import Damage, OptionError
from fluxmq_spark.options import STATE_ALL, STATE_UNACKNOWLEDGED
from fluxmq_spark.selection import ACKNOWLEDGED, DEAD, PENDING, READY, Selection
from fluxmq_spark.states import BEHIND_ALL, read_groups, selection_of
from fluxmq_spark.storage import LocalStorage

STORAGE = LocalStorage()


def group_of(
    name: str = "workers",
    cursor: int = 10,
    pending: tuple[Range, ...] = (),
    dead: tuple[Range, ...] = (),
    *,
    whole: bool = True,
) -> ConsumerGroupState:
    """A work group."""
    waiting, given_up = (
        sum(last - first + 1 for first, last, _ in ranges) for ranges in (pending, dead)
    )
    floor = pending[0][0] if pending else cursor
    return ConsumerGroupState(
        name, "work", "", cursor, 1, pending, dead, floor, waiting, given_up, whole
    )


def written(path: Path, *groups: ConsumerGroupState) -> QueueFiles:
    """A queue's directory with that file."""
    (path / GROUPS_NAME).write_bytes(encode(QueueGroups(1, 0, 20, groups)))
    return QueueFiles("orders", "default", str(path))


def states(selection: Selection, stop: int) -> list[str]:
    """The state of each offset below `stop`."""
    found: list[str] = selection.states(0, stop).to_pylist()
    return found


def wanted(selection: Selection, stop: int) -> list[int]:
    """The offsets below `stop` that are wanted."""
    mask = selection.mask(0, stop)
    return [offset for offset in range(stop) if mask is None or mask[offset]]


def test_unacknowledged_is_everything_but_the_settled(tmp_path: Path) -> None:
    files = written(tmp_path, group_of(pending=((2, 3, 1), (7, 7, 2)), dead=((5, 5, 1),)))
    selection = selection_of(STORAGE, files, "workers", STATE_UNACKNOWLEDGED)
    assert selection.ranges == ((2, 3), (5, 5), (7, 7), (10, BEHIND_ALL))
    assert wanted(selection, 12) == [2, 3, 5, 7, 10, 11]
    assert states(selection, 12) == [
        *(ACKNOWLEDGED, ACKNOWLEDGED, PENDING, PENDING, ACKNOWLEDGED, DEAD),
        *(ACKNOWLEDGED, PENDING, ACKNOWLEDGED, ACKNOWLEDGED, READY, READY),
    ]


def test_all_is_everything_with_its_state(tmp_path: Path) -> None:
    files = written(tmp_path, group_of("other", 3), group_of(pending=((9, 9, 1),)))
    selection = selection_of(STORAGE, files, "workers", STATE_ALL)
    assert wanted(selection, 12) == list(range(12))
    assert states(selection, 12)[8:] == [ACKNOWLEDGED, PENDING, READY, READY]


def test_ranges_that_reach_the_cursor_are_one(tmp_path: Path) -> None:
    files = written(tmp_path, group_of(pending=((4, 9, 1),)))
    selection = selection_of(STORAGE, files, "workers", STATE_UNACKNOWLEDGED)
    assert selection.ranges == ((4, BEHIND_ALL),)


RANGES = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=8)


def disjoint(parts: list[tuple[int, int]]) -> tuple[Range, ...]:
    """Ranges from gaps and lengths."""
    found, after = [], 0
    for gap, length in parts:
        found.append((after + gap, after + gap + length - 1, 1))
        after += gap + length
    return tuple(found)


@given(RANGES, RANGES, st.integers(0, 60))
def test_every_offset_has_the_state_that_the_ranges_say(
    tmp_path_factory: pytest.TempPathFactory,
    pending_parts: list[tuple[int, int]],
    dead_parts: list[tuple[int, int]],
    cursor: int,
) -> None:
    pending, dead = disjoint(pending_parts), disjoint(dead_parts)
    path = tmp_path_factory.mktemp("queue")
    files = written(path, group_of(cursor=cursor, pending=pending, dead=dead))

    def state(offset: int) -> str:
        if any(first <= offset <= last for first, last, _ in pending):
            return PENDING
        if any(first <= offset <= last for first, last, _ in dead):
            return DEAD
        return READY if offset >= cursor else ACKNOWLEDGED

    expected = [state(offset) for offset in range(120)]
    selection = selection_of(STORAGE, files, "workers", STATE_UNACKNOWLEDGED)
    assert states(selection, 120) == expected
    assert wanted(selection, 120) == [
        offset for offset in range(120) if expected[offset] != ACKNOWLEDGED
    ]
    assert selection.ranges is not None
    for (_, before), (after, _) in zip(selection.ranges, selection.ranges[1:], strict=False):
        assert before + 1 < after
    for (_, before, _), (after, _, _) in zip(selection.labels, selection.labels[1:], strict=False):
        assert before < after


def test_a_broker_that_wrote_nothing_yet_is_named(tmp_path: Path) -> None:
    files = QueueFiles("orders", "default", str(tmp_path))
    assert read_groups(STORAGE, files) is None
    with pytest.raises(OptionError, match="'orders': the broker has not written where"):
        selection_of(STORAGE, files, "workers", STATE_ALL)


def test_a_group_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    files = written(tmp_path, *(group_of(f"g{number}") for number in range(25)))
    with pytest.raises(OptionError, match=r"no consumer group 'nobody'; it has 'g0', .* 5 more"):
        selection_of(STORAGE, files, "nobody", STATE_ALL)
    with pytest.raises(OptionError, match="it has none"):
        selection_of(STORAGE, written(tmp_path), "nobody", STATE_ALL)


def test_a_group_with_too_many_ranges_is_refused(tmp_path: Path) -> None:
    files = written(tmp_path, group_of(whole=False))
    with pytest.raises(OptionError, match="too many ranges"):
        selection_of(STORAGE, files, "workers", STATE_ALL)


def test_a_file_that_is_not_right_is_damage(tmp_path: Path) -> None:
    files = written(tmp_path, group_of())
    path = tmp_path / GROUPS_NAME
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Damage, match="groups, byte 0: the group file has"):
        selection_of(STORAGE, files, "workers", STATE_ALL)
