"""How far a log may be trimmed so that it keeps what it must and no more. Pure: the state in, an offset out.

Works by whole segments, because only whole segments give space back. Exact counts are the queue machine's matter.
"""

from __future__ import annotations

from fluxmq.storage.log_state import LogState


def retained_start(
    state: LogState,
    now: int,
    age: int | None = None,
    bytes_max: int | None = None,
    messages_max: int | None = None,
) -> int:
    """Return the first offset to keep: never before the log's start, always at a segment's end if beyond it.

    A segment goes when all of its messages are older than `age` (µs before `now`, µs since the epoch); or while the log
    has more than `bytes_max` bytes or `messages_max` messages. None of a kind is no limit. For bytes and messages the
    segment that is written to stays; for age it goes like any other.
    """
    start = state.start
    remaining = state.bytes
    for segment in state.segments:
        too_old = age is not None and segment.last_time < now - age
        messages = state.next_offset - max(start, segment.base_offset)
        too_much = (bytes_max is not None and remaining > bytes_max) or (
            messages_max is not None and messages > messages_max
        )
        if not too_old and not (too_much and segment.sealed):
            break
        remaining -= segment.file_bytes
        start = max(start, segment.next_offset)
    return start
