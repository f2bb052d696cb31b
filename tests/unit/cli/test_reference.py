"""The metrics in docs/operations.md are those of the registry."""

from pathlib import Path

import pytest

from fluxmq.cli.reference import BEGIN, END, metrics_tables, renewed
from fluxmq.metrics.registry import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_the_page_is_fresh():
    page = PAGE.read_text("utf-8")
    assert page == renewed(page), "run `make docs`"


def test_every_metric_is_in_a_table_once():
    tables = metrics_tables()
    for name in METRICS:
        assert tables.count(f"| `{name}` |") == 1


def test_only_what_stands_between_the_marks_is_rewritten():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    fresh = renewed(page)
    assert fresh.startswith(f"before\n{BEGIN}\n")
    assert fresh.endswith(f"{END}\nafter\n")
    assert "\nold\n" not in fresh
    assert renewed(fresh) == fresh
    with pytest.raises(ValueError, match="markers"):
        renewed("no marks here")
