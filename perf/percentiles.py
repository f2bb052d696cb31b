"""Percentiles of the durations a ``Histogram`` counted.

In the manner of HdrHistogram: values are kept in buckets of a bounded relative width (1/128), so any
percentile of any mixture of runs can be read afterwards, and histograms of several processes add up. A
percentile is answered with the highest value of its bucket, as HdrHistogram does: never flattering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SHOWN = (0.5, 0.9, 0.99, 0.999, 1.0)
"""The quantiles that every result carries."""


def cell_top(cell: int) -> int:
    """The largest value, in nanoseconds, that is counted in a cell."""
    if cell < 256:
        return cell
    shift = (cell - 128) // 128
    return ((cell - 128 * shift + 1) << shift) - 1


def sparse(counts: Sequence[int]) -> dict[int, int]:
    """The cells that are not empty."""
    return {cell: count for cell, count in enumerate(counts) if count}


def merged(parts: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """The sum of several histograms."""
    total: dict[int, int] = {}
    for part in parts:
        for cell, count in part.items():
            total[cell] = total.get(cell, 0) + count
    return total


def quantile(cells: Mapping[int, int], fraction: float) -> int:
    """The value in nanoseconds below or at which ``fraction`` of the counted durations lie; 0 if none."""
    total = sum(cells.values())
    if not total:
        return 0
    wanted = max(1, -int(-fraction * total // 1))
    seen = 0
    for cell in sorted(cells):
        seen += cells[cell]
        if seen >= wanted:
            return cell_top(cell)
    raise AssertionError("a quantile is at most 1")


def summary(cells: Mapping[int, int]) -> dict[str, float]:
    """Count and quantiles in microseconds: ``{"count": ..., "p50": ..., "p99": ..., "max": ...}``."""
    named = {1.0: "max"}
    result: dict[str, float] = {"count": float(sum(cells.values()))}
    for fraction in SHOWN:
        name = named.get(fraction, f"p{fraction * 100:g}")
        result[name] = quantile(cells, fraction) / 1000
    return result
