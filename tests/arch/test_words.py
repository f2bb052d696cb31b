"""The tree does not use words that plainer ones have replaced.

Four lists, by how likely a word is to mean something else:

* `PARTS`: words with no legitimate use here. No class, function, parameter, attribute, variable or module
  has one as part of its name, and no docstring, comment or page uses one outside of code.
* `CLASSES`, `NAMES`, `MODULES`: ordinary English words, such as "order", "again" or "held". They are fine in
  prose and as part of a name; no class or type alias, no parameter and no module has exactly this name.
* `ACTIVITIES`: a module is named for a thing, so its name does not end in -ing, except for these.
* `PHRASES`: turns of phrase that are not idiomatic English, in docstrings, comments and pages.

`EXEMPT` lists where a standard uses the word itself.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest

from tests.arch.tidy import ROOT


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PARTS: Final = _words(
    """
    keeper keepers desk desks portion portions stray strays hungry roomy crowded neighbourhood vitals everyday bury buried
    """
)
"""As a part of any name, and as a word in prose."""

CLASSES: Final = _words(
    """
    QueueHost Hosting Hosted LeaderHost Once Departed Crossing Nowhere Held Wanted Told Taken Asked Answer Done Ticket Carrier Claim
    Claims Owed Standing Fate Dying Deaths Flights Doubts Turns Spans Marks Neighbourhood Begun Agreed Elsewhere Forgetting Deciding
    Confirming Ending Vitals Entered Homes Safety Gate Gates Keeping Sink Sinks Cutting Joining TakingOver
    """
)
"""Names of classes and type aliases."""

NAMES: Final = _words(
    """
    orders_of again later told order portion ticket keeper desk owed fate patience impatient crowded hungry safety kept_links
    taking_over neighbourhood vitals flights doubts
    """
)
"""Names of parameters."""

MODULES: Final = _words(
    """
    keeper raft_keeper topology_keeper desk desks portion tickets carrier claims flights doubts turns spans marks dying deaths strays
    neighbourhood begun agreed elsewhere forgetting deciding confirming ending vitals entered homes safety kept_links taking_over gates
    keeping once between sinks cutting joining orders asked hosted hosting hosts
    """
)

ACTIVITIES: Final = _words(
    """
    publishing subscribing clustering routing lettering greeting wiring listing mirroring
    """
)
"""Last words of modules that may end in -ing: the standard's activity, or a thing."""

PHRASES: Final = (
    r"is to be had",
    r"are to be had",
    r"nobody has it",
    r"who asks is told",
    r"for as long as that is worth",
    r"is had from",
    r"filled anew",
    r"let .{1,30} no more",
)

EXEMPT: Final = {
    "ticket": (
        "fluxmq/protocols/amqp091/",
        "fluxmq/sessions/amqp091/",
    ),  # a field of access.request-ok
}

PROSE: Final = re.compile(rf"\b(?:{'|'.join(sorted(PARTS))})\b|{'|'.join(PHRASES)}", re.IGNORECASE)
CODE: Final = re.compile(r"``[^`]+``|`[^`\n]+`|```.*?```", re.DOTALL)


def parts(name: str) -> set[str]:
    """The words of a name, in lower case."""
    return {each.lower() for each in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    every = node.args
    for each in [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]:
        if each is not None:
            yield each.arg


def in_names(place: str, text: str) -> Iterator[str]:
    """Complain of the names that a source defines."""
    stem = place.rpartition("/")[2].removesuffix(".py")
    if stem in MODULES or parts(stem) & PARTS:
        yield f"{place}: module {stem}"
    if stem.endswith("ing") and place.startswith("fluxmq/") and parts(stem).isdisjoint(ACTIVITIES):
        yield f"{place}: module {stem} names an activity"
    for node in ast.walk(ast.parse(text)):
        named: list[str] = []
        if isinstance(node, ast.ClassDef):
            named = [node.name]
            if node.name.lstrip("_") in CLASSES:
                yield f"{place}:{node.lineno}: class {node.name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            named = [node.name]
            for each in _arguments(node):
                if each in NAMES and not place.startswith(EXEMPT.get(each, ("-",))):
                    yield f"{place}:{node.lineno}: parameter {each} of {node.name}"
                if parts(each) & PARTS:
                    yield f"{place}:{node.lineno}: parameter {each} of {node.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            named = [node.attr]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            named = [node.id]
            if node.id in CLASSES:
                yield f"{place}:{node.lineno}: {node.id}"
        for name in named:
            if parts(name) & PARTS:
                yield f"{place}:{getattr(node, 'lineno', 0)}: {name}"


def in_prose(place: str, text: str) -> Iterator[str]:
    """Complain of words in a docstring, comment or page, outside of code."""
    for hit in PROSE.finditer(CODE.sub("", text)):
        yield f"{place}: {hit[0]!r}"


def prose_of(text: str) -> str:
    """Comments and docstrings of a source."""
    holders = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        each.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, holders)
        for each in node.body
        if isinstance(each, ast.Expr)
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, str)
    ]
    comments = [
        each.string
        for each in tokenize.generate_tokens(io.StringIO(text).readline)
        if each.type == tokenize.COMMENT
    ]
    return "\n\n".join([*found, *comments])


@cache
def sources() -> tuple[tuple[str, str], ...]:
    """The sources that a person wrote, by their places."""
    paths = [path for root in ("fluxmq", "spark") for path in sorted((ROOT / root).rglob("*.py"))]
    return tuple(
        (path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
        for path in paths
        if "generated" not in path.parts
    )


def test_no_name_is_one_of_the_old_words() -> None:
    assert [each for place, text in sources() for each in in_names(place, text)] == []


def test_no_sentence_uses_the_old_words() -> None:
    found = [
        each
        for place, text in sources()
        # To tell prose from code takes most of the time: only sources with a hit anywhere need it.
        if PROSE.search(text) or PROSE.search(CODE.sub("", text))
        for each in in_prose(place, prose_of(text))
    ]
    pages = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md")),
    ]
    for path in pages:
        found += in_prose(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    assert found == []


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("a.py", "class RaftKeeper: ...", ["a.py:1: RaftKeeper"]),
        ("a.py", "class Held: ...", ["a.py:1: class Held"]),
        ("a.py", "def f(again): ...", ["a.py:1: parameter again of f"]),
        ("a.py", "again = 1\nordered = again", []),
        ("a.py", "Told = int", ["a.py:1: Told"]),
        ("a.py", "class A:\n    def f(self):\n        self.hungry = 1", ["a.py:3: hungry"]),
        ("spans.py", "", ["spans.py: module spans"]),
        ("fluxmq/moving.py", "", ["fluxmq/moving.py: module moving names an activity"]),
        ("publishing.py", "", []),
        ("fluxmq/protocols/amqp091/m.py", "def f(ticket): ...", []),
    ],
)
def test_a_name_is_complained_of(place: str, text: str, expected: list[str]) -> None:
    assert list(in_names(place, text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The desk of a group.", ["p: 'desk'"]),
        ("See `desk` and the order of things, again.", []),
        ("A copy is to be had elsewhere.", ["p: 'is to be had'"]),
    ],
)
def test_a_sentence_is_complained_of(text: str, expected: list[str]) -> None:
    assert list(in_prose("p", text)) == expected
