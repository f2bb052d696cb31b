"""The jobs' tables, numbers and progress as a person reads them."""

from __future__ import annotations

import io

import pytest

from fluxmq_spark.jobs.console import Console, cell_text, moment, plural, seconds, size, table_lines


def test_table() -> None:
    """Numbers stand to the right, text to the left, and columns are as wide as they must be."""
    rows = [("orders", 1_234_567, 0.5), ("a", 7, None)]
    assert table_lines(("queue", "messages", "rate"), rows) == [
        "queue    messages  rate",
        "------  ---------  ----",
        "orders  1,234,567  0.50",
        "a               7     -",
    ]
    assert table_lines(("queue",), []) == ["(nothing)"]


def test_cells() -> None:
    """What would break a line is shown as a dot, and what is too long is cut."""
    assert cell_text("a\x1b[31m\nb") == "a·[31m·b"
    assert cell_text("x" * 100) == "x" * 59 + "…"
    assert [cell_text(each) for each in (True, 12.345, 1.234)] == ["yes", "12.3", "1.23"]


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0.44, "0.4 s"),
        (200, "3 min 20 s"),
        (3599, "59 min 59 s"),
        (7500, "2 h 5 min"),
        (86399, "23 h 59 min"),
        (273_600, "3 d 4 h"),
        (86_400_000, "1,000 d 0 h"),
    ],
)
def test_seconds(amount: float, text: str) -> None:
    """Two units are enough."""
    assert seconds(amount) == text


def test_units() -> None:
    """Bytes, counts and moments."""
    assert [size(each) for each in (0, 1023, 1536, 5 << 30, 3 << 50)] == [
        *("0 B", "1023 B", "1.5 KiB", "5.0 GiB", "3,072.0 TiB"),
    ]
    assert [plural(1, "batch", "batches"), plural(2000, "batch", "batches")] == [
        "1 batch",
        "2,000 batches",
    ]
    assert [moment(None), moment(1_790_000_000_000_000)] == ["-", "2026-09-21 14:13:20"]


def test_progress() -> None:
    """A stage that ended says how long it took, also when it failed."""
    out, err = io.StringIO(), io.StringIO()
    console = Console("job", out=out, err=err)
    with (
        pytest.raises(ValueError, match="inside"),
        console.stage("reading", lambda: "1 of 2 tasks"),
    ):
        raise ValueError("inside")
    assert err.getvalue().startswith("job: reading: ")
    assert err.getvalue().endswith(" s\n")
    assert out.getvalue() == ""
