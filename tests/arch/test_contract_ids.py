"""Statements of docs/contract.md and the tests that carry their ids."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\bS[12]-\d\d\b")


def carried() -> Iterator[tuple[str, str]]:
    """The ids in the docstrings of tests, with the test's name."""
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text("utf-8")
        if not ID.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
                "test_"
            ):
                for found in ID.findall(ast.get_docstring(node) or ""):
                    yield found, node.name


def test_every_statement_about_clusters_has_a_test() -> None:
    stated, otherwise = (
        (ROOT / "docs/contract.md").read_text("utf-8").split("## Held in another way")
    )
    ids = re.findall(r"^\| (S[12]-\d\d) \|", stated, re.MULTILINE)
    assert len(ids) == len(set(ids)) == 22 + 36
    assert {each for each, _ in carried()} == set(ids)
    assert set(ID.findall(otherwise)) <= set(ids)
