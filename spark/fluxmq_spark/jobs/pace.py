"""Rate limit in messages per second, enforced by the task that passes rows on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]

SLICES_A_SECOND: Final = 20
"""Slices per second of rows: consumers see an even flow, and a slice costs little."""


def paced(
    batches: Iterable[pa.RecordBatch],
    rate: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, never more than `rate` a second since the first, plus
    one slice."""
    slice_rows = max(1, int(rate / SLICES_A_SECOND))
    began, sent = clock(), 0
    for batch in batches:
        for first in range(0, batch.num_rows, slice_rows):
            due = began + sent / rate
            while (left := due - clock()) > 0:
                sleep(left)
            piece = batch.slice(first, slice_rows)
            sent += piece.num_rows
            yield piece
