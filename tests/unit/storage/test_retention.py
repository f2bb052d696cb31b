"""How far a log may be trimmed."""

from __future__ import annotations

import pytest

from fluxmq.storage.log_state import LogState, SegmentState
from fluxmq.storage.retention import retained_start

SEGMENTS = (
    SegmentState(0, 10, 9936, 0, 100, True, bytes(16)),
    SegmentState(10, 30, 9936, 100, 250, True, bytes(16)),
    SegmentState(30, 60, 9936, 250, 400, True, bytes(16)),
    SegmentState(60, 65, 5000, 400, 420, False, bytes(16)),
)
LOG = LogState(0, 65, SEGMENTS)
NONE = (None, None, None)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (NONE, 0),
        ((1000, None, None), 0),
        ((900, None, None), 0),
        ((899, None, None), 10),
        ((700, None, None), 30),
        ((599, None, None), 60),
        ((579, None, None), 65),
        ((None, 35000, None), 0),
        ((None, 34999, None), 10),
        ((None, 15000, None), 30),
        ((None, 14999, None), 60),
        ((None, 1, None), 60),
        ((None, None, 65), 0),
        ((None, None, 64), 10),
        ((None, None, 55), 10),
        ((None, None, 35), 30),
        ((None, None, 34), 60),
        ((None, None, 1), 60),
        ((899, 15000, 65), 30),
    ],
)
def test_whole_segments_go(
    limits: tuple[int | None, int | None, int | None], expected: int
) -> None:
    assert retained_start(LOG, 1000, *limits) == expected


def test_it_never_goes_back() -> None:
    trimmed = LogState(15, 65, SEGMENTS[1:])
    assert retained_start(trimmed, 1000) == 15
    assert retained_start(trimmed, 1000, messages_max=50) == 15
    assert retained_start(trimmed, 1000, messages_max=49) == 30
    assert retained_start(LogState(7, 7, ()), 1000, 1, 1, 1) == 7
