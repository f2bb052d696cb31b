"""The tree keeps the limits on ideas, but for what a list names; the list only shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arch import shape
from tests.arch.tidy import ROOT

LIST = Path(__file__).with_name("shape_allowed.txt")
"""Complaints about code that is older than the limits, a line for each. Nothing is added to it."""


def test_nothing_new_is_beyond_the_limits() -> None:
    allowed = LIST.read_text("utf-8").splitlines()
    found = shape.complaints(shape.sources(ROOT))
    assert sorted(set(found) - set(allowed)) == [], "beyond the limits"
    assert sorted(set(allowed) - set(found)) == [], "take these lines out of the list"
    assert allowed == sorted(set(allowed))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class A:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(20)), []),
        (
            "class A:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(21)),
            ["a.py:A: 21 public methods"],
        ),
        (
            "class A:\n    def __init__(self):\n"
            + "".join(f"        self.a{n} = 0\n" for n in range(16)),
            ["a.py:A: 16 attributes"],
        ),
        ("class A:\n" + "".join(f"    a{n}: int\n" for n in range(16)), []),
        ("def f(a, b, c, d, e, f, g, h): ...", []),
        ("def f(a, b, c, d, e, f, g, *, h, i): ...", ["a.py:f: 9 parameters"]),
        ("class A: ...\nclass B(A): ...", ["a.py:A: only B derives from it"]),
        ("class A: ...\nclass B(A): ...\nclass C(A[int]): ...", []),
        ("class A(Protocol): ...\nclass B(A): ...", []),
        ("class A(Exception): ...\nclass B(A): ...", []),
        ("class A: ...\ndef f():\n    class A: ...", ["A: 2 classes"]),
    ],
)
def test_a_text_is_complained_of(text: str, expected: list[str]) -> None:
    assert shape.complaints([shape.read("a.py", text)]) == expected
