"""Sizes and addresses as they are counted in the executors."""

from __future__ import annotations

import numpy
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq_spark.jobs import sizes
from fluxmq_spark.jobs.sizes import SUMMARY, cell_top, cells_of, percentile, sizes_of, summarise


def test_cells_are_narrow_and_in_order() -> None:
    """Every size lies in its cell, which is at most 1/64 wide; cells follow each other without a hole."""
    exact = numpy.arange(0, 70_000, dtype=numpy.int64)
    large = numpy.array([2**k + d for k in range(17, 40) for d in (-1, 0, 1)], dtype=numpy.int64)
    for values in (exact, large):
        cells = cells_of(values)
        assert (numpy.diff(cells) >= 0).all()
        for value, cell in zip(values.tolist(), cells.tolist(), strict=True):
            top = cell_top(cell)
            assert value <= top <= value + value // 64
            assert cell == 0 or cell_top(cell - 1) < value
    assert set(numpy.diff(cells_of(exact)).tolist()) == {0, 1}


@given(
    st.lists(st.integers(0, 1 << 28), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.9, 0.99, 1.0]),
)
def test_percentiles_are_near(values: list[int], share: float) -> None:
    """A percentile is the exact one or at most 1/64 above it, and never above the largest."""
    cells: dict[int, int] = {}
    for cell in cells_of(numpy.array(values, dtype=numpy.int64)).tolist():
        cells[cell] = cells.get(cell, 0) + 1
    ordered = sorted(values)
    exact = ordered[next(at for at in range(len(values)) if at + 1 >= share * len(values))]
    found = percentile(cells, share, max(values))
    assert exact <= found <= min(max(values), exact + exact // 64)


def batch_of(rows: list[tuple[str, str, int]]) -> pa.RecordBatch:
    columns = {
        "queue": [row[0] for row in rows],
        "address": [row[1] for row in rows],
        "payload": [b"." * row[2] for row in rows],
    }
    return pa.RecordBatch.from_pydict(columns)


def summed(batches: list[pa.RecordBatch]) -> dict[tuple[str, str | None, int | None], list[int]]:
    found: dict[tuple[str, str | None, int | None], list[int]] = {}
    for batch in summarise(batches):
        assert batch.schema.equals(SUMMARY)
        for row in batch.to_pylist():
            entry = found.setdefault((row["queue"], row["address"], row["cell"]), [0, 0, 0])
            entry[0] += row["messages"]
            entry[1] += row["bytes"]
            entry[2] = max(entry[2], row["largest"])
    return found


def test_counts_of_batches_add_up() -> None:
    """However messages are cut into batches, addresses and sizes come to the same."""
    rows = [("a", f"t/{number % 3}", number) for number in range(300)] + [("b", "t/0", 5000)] * 2
    whole = summed([batch_of(rows)])
    assert summed([batch_of(rows[:7]), batch_of(rows[7:290]), batch_of(rows[290:])]) == whole
    assert whole["a", "t/1", None] == [100, sum(range(1, 300, 3)), 298]
    assert whole["b", "t/0", None] == [2, 10_000, 5000]
    of_a = [
        (cell, messages, size, largest)
        for (queue, _, cell), (messages, size, largest) in whole.items()
        if queue == "a" and cell is not None
    ]
    found = sizes_of("a", of_a)
    assert (found.messages, found.bytes, found.largest) == (300, sum(range(300)), 299)
    assert found.p50 in range(149, 153)


def test_addresses_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with more addresses than it may remember hands on what it has, and nothing is lost."""
    rows = [("a", f"t/{number}", 1) for number in range(50)]
    batches = [batch_of(rows[at : at + 10]) for at in range(0, 50, 10)] + [batch_of(rows)]
    whole = summed(batches)
    monkeypatch.setattr(sizes, "ADDRESSES_MAX", 15)
    assert len(list(summarise(batches))) == 4
    assert summed(batches) == whole


def test_nothing() -> None:
    """No messages make no counts, and sizes of zero."""
    assert summed([]) == {}
    assert sizes_of("a", []).p99 == 0
