"""docs/mqtt-conformance.md is complete and fresh."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.conformance import matrix

# How many statements the standards number, by chapter (their appendix B). Lists that lose one do not pass.
CHAPTERS = {
    "v4": {"1": 3, "2": 9, "3": 95, "4": 26, "6": 4, "7": 4},
    "v5": {"1": 5, "2": 7, "3": 175, "4": 60, "6": 4},
}
NUMBER = re.compile(r"[1-7](\.\d+){2}-[1-9]\d?")


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_lists_are_complete(version: str) -> None:
    """Each statement once, as many as the standard has, numbered from 1 without a gap."""
    numbers = [each.number for each in matrix.statements(version)]
    assert all(NUMBER.fullmatch(number) for number in numbers)
    assert len(set(numbers)) == len(numbers)
    assert Counter(number.partition(".")[0] for number in numbers) == CHAPTERS[version]
    last: dict[str, int] = {}
    for number in numbers:
        section, _, position = number.partition("-")
        # Section 2.2.1 of MQTT 5.0 begins with 2: its first statement was dropped before publication.
        start = 1 if (version, section) == ("v5", "2.2.1") else 0
        assert int(position) == last.get(section, start) + 1, number
        last[section] = int(position)


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_every_statement_has_a_test_or_a_reason(version: str) -> None:
    """No row of the matrix is empty."""
    tests = matrix.covering()
    bare = [
        each.number
        for each in matrix.statements(version)
        if not each.reason and f"{version}:{each.number}" not in tests
    ]
    assert bare == []


def test_every_marker_names_a_statement() -> None:
    """A marker with a slip of the pen would cover nothing."""
    known = {f"{v}:{each.number}" for v in matrix.LISTS for each in matrix.statements(v)}
    assert set(matrix.covering()) - known == set()


def test_document_is_fresh() -> None:
    """The page is what `python -m tests.conformance.matrix` writes now."""
    assert matrix.DOCUMENT.read_text() == matrix.document(), (
        "run python -m tests.conformance.matrix"
    )


def test_every_test_named_exists() -> None:
    """Each `file::test` of the page is a test function of the tree."""
    text = matrix.DOCUMENT.read_text()
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", text))
    assert named
    for file, name in named:
        (path,) = matrix.TESTS.glob(f"*/{file}")
        assert f"def {name}(" in path.read_text()
