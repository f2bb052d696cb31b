"""Statements of docs/contract.md and docs/mirroring.md, and the tests that carry their ids."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\bS[12]-\d\d\b")
MIRRORING = re.compile(r"\bS[34]-\d\d\b")


def carried(ids: re.Pattern[str] = ID) -> Iterator[tuple[str, str]]:
    """The ids in the docstrings of tests, with the test's name."""
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text("utf-8")
        if not ids.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                for found in ids.findall(ast.get_docstring(node) or ""):
                    yield found, node.name


def test_every_statement_about_clusters_has_a_test() -> None:
    stated, otherwise = (
        (ROOT / "docs/contract.md").read_text("utf-8").split("## Held in another way")
    )
    ids = re.findall(r"^\| (S[12]-\d\d) \|", stated, re.MULTILINE)
    assert len(ids) == len(set(ids)) == 22 + 36
    assert {each for each, _ in carried()} == set(ids)
    assert set(ID.findall(otherwise)) <= set(ids)


def test_every_statement_about_mirrored_queues_is_explained_and_shown_by_the_test_that_is_named() -> (
    None
):
    text = (ROOT / "docs/mirroring.md").read_text("utf-8")
    rows = re.findall(r"^\| (S[34]-\d\d) \| (.+) \| (.+) \| `(\w+)` \|$", text, re.MULTILINE)
    expected = [f"S3-{n:02}" for n in range(1, 10)] + [f"S4-{n:02}" for n in range(1, 78)]
    assert [row[0] for row in rows] == expected
    shown = set(carried(MIRRORING))
    assert [row for row in rows if (row[0], row[3]) not in shown] == []


def test_the_page_about_mirrored_queues_advises() -> None:
    """S4-03, S4-05, S4-17, S4-60, S4-77."""
    text = " ".join((ROOT / "docs/mirroring.md").read_text("utf-8").split())
    for advice in (
        "waits for its slowest mirror",
        "do not distribute load",
        "A majority of the nodes is a good number of copies",
        "Use confirms with `when-synced`",
        "Use quorum queues instead if you can",
    ):
        assert advice in text
