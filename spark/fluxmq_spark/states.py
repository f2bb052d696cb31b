"""Settled and unsettled messages of a consumer group, from the file that the broker writes beside a
queue's segments.

The file is of one moment, a second or so old on a running broker; its ranges are of offsets, so it
is right for that moment whatever is read with it. With a filter, messages that do not match it
count as ready above the cursor: only the broker has examined them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fluxmq.model.group_states import GROUPS_NAME, ConsumerGroupState, QueueGroups, decode
from fluxmq.model.segments import SegmentError
from fluxmq_spark.catalog import QueueFiles
from fluxmq_spark.errors import Damage, OptionError
from fluxmq_spark.options import STATE_UNACKNOWLEDGED
from fluxmq_spark.selection import DEAD, PENDING, Selection
from fluxmq_spark.storage import Storage

BEHIND_ALL: Final = 1 << 62
"""An offset that no queue reaches, with room for arithmetic in eight bytes."""

GROUPS_SHOWN_MAX: Final = 20
"""Maximum groups that an error lists: a queue may have thousands."""

Labels = tuple[tuple[int, int, str], ...]
"""First and last offset, and state; ascending and disjoint."""


def read_groups(storage: Storage, files: QueueFiles) -> QueueGroups | None:
    """Return the broker's record of a queue's groups, None if there is none yet. Raises Damage."""
    path = f"{files.directory}/{GROUPS_NAME}"
    try:
        data = storage.read(path)
    except FileNotFoundError:
        return None
    try:
        return decode(data)
    except SegmentError as error:
        raise Damage(path, 0, str(error)) from None


def selection_of(storage: Storage, files: QueueFiles, group: str, state: str) -> Selection:
    """Return the wanted messages of a queue, and the state of each in a consumer group.

    `state`: an option's value; STATE_UNACKNOWLEDGED omits what the group has settled, others omit
    nothing. Raises OptionError when the broker has no record of the group's position, or no such
    group, and Damage.
    """
    groups = read_groups(storage, files)
    where = f"queue {files.queue!r}"
    if groups is None:
        what = f"there is no file {files.directory}/{GROUPS_NAME}"
        raise OptionError(
            f"{where}: the broker has not written where its consumer groups are: {what}"
        )
    found = groups.group(group)
    if found is None:
        there = ", ".join(repr(each.name) for each in groups.groups[:GROUPS_SHOWN_MAX]) or "none"
        more = len(groups.groups) - GROUPS_SHOWN_MAX
        there += f" and {more} more" if more > 0 else ""
        raise OptionError(f"{where} has no consumer group {group!r}; it has {there}")
    if not found.whole:
        count = found.pending_messages + found.dead_messages
        raise OptionError(
            f"{where}: consumer group {group!r} has {count} messages pending or dead in too many"
            " ranges for the broker to write them down; read without group"
        )
    labels = _labels(found)
    ranges: tuple[tuple[int, int], ...] = ((0, BEHIND_ALL),)
    if state == STATE_UNACKNOWLEDGED:
        open_ranges = [(first, last) for first, last, _ in labels]
        ranges = _united([*open_ranges, (found.cursor, BEHIND_ALL)])
    return Selection(ranges, labels, found.cursor)


def _labels(group: ConsumerGroupState) -> Labels:
    """Return pending and dead ranges together; offsets that are both (redelivered after a seek) are
    pending."""
    labels = [(first, last, PENDING) for first, last, _ in group.pending]
    pending = iter(group.pending)
    held = next(pending, None)
    for first, last, _ in group.dead:
        while held is not None and held[1] < first:
            held = next(pending, None)
        while held is not None and held[0] <= last:
            if first < held[0]:
                labels.append((first, held[0] - 1, DEAD))
            first = held[1] + 1
            if first > last:
                break
            held = next(pending, None)
        if first <= last:
            labels.append((first, last, DEAD))
    return tuple(sorted(labels))


def _united(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges as ascending and disjoint ones that are not adjacent."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if united and first <= united[-1][1] + 1:
            united[-1] = (united[-1][0], max(united[-1][1], last))
        else:
            united.append((first, last))
    return tuple(united)
