"""docs/one-message.md names stops that exist and lead to each other.

A change that moves or renames a stop changes the page. The page is the only place to adapt.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "one-message.md"
WALKS = 3
STOPS_MAX = 12
STOP = re.compile(r"(\d+)\. `(\w+)\.(\w+)` in `(fluxmq/[\w/]+\.py)`: (\S.*)")
PORT = re.compile(r"Next through `(\w+)` \(`(fluxmq/[\w/]+\.py)`\)\.$")


class Stop(NamedTuple):
    """A stop of a walk."""

    number: int
    owner: str
    method: str
    path: str
    text: str


def walks(page: str) -> dict[str, list[Stop]]:
    """Return the stops of each walk by its heading; numbered items that are not stops fail."""
    found = {}
    for section in page.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        items = [" ".join(each.split()) for each in re.split(r"\n(?=\d+\. )", body)[1:]]
        matches = [(item, STOP.fullmatch(item)) for item in items]
        assert all(match for _, match in matches), [item for item, match in matches if not match]
        found[heading] = [
            Stop(int(match[1]), match[2], match[3], match[4], match[5])
            for _, match in matches
            if match is not None
        ]
    return found


def load(path: str, name: str) -> type:
    """Return a class by the path of its module and its name."""
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    found = getattr(module, name)
    assert isinstance(found, type), f"{path}: {name} is no class"
    assert found.__module__ == module.__name__, f"{path} only imports {name}"
    return found


def imports(path: str) -> set[str]:
    """Return what a module imports, also for types alone: modules, and names as module.name."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
    return found


def reaches(found: type, port: type) -> bool:
    """Return whether a class, or a base of it, is in a module that imports or defines a port."""
    modules = {each.__module__ for each in found.__mro__ if each.__module__.startswith("fluxmq.")}
    return port.__module__ in modules or any(
        f"{port.__module__}.{port.__name__}" in imports(module.replace(".", "/") + ".py")
        for module in modules
    )


def implements(found: type, port: type) -> bool:
    """Return whether a class has all methods of a port."""
    return all(
        callable(getattr(found, name, None))
        for each in port.__mro__
        if each.__module__.startswith("fluxmq.")
        for name, member in vars(each).items()
        if isinstance(member, FunctionType) and not name.startswith("_")
    )


def gap(before: list[Stop], stop: Stop) -> str:
    """Return the reason why a stop cannot be found from the one before it; empty if it can."""
    last = before[-1]
    here, there = load(last.path, last.owner), load(stop.path, stop.owner)
    named = PORT.search(last.text)
    if named is not None:
        port = load(named[2], named[1])
        if not getattr(port, "_is_protocol", False):
            return f"{named[1]} is no Protocol"
        calls = reaches(here, port) and (reaches(there, port) or implements(there, port))
        answers = implements(here, port) and reaches(there, port)
        return "" if calls or answers else f"{here} and {there} do not share {named[1]}"
    returns = any((each.owner, each.path) == (stop.owner, stop.path) for each in before)
    module = stop.path.removesuffix(".py").replace("/", ".")
    return "" if returns or module in imports(last.path) else f"{last.path} imports no {module}"


FOUND = walks(PAGE.read_text())


def test_the_page_has_three_short_walks() -> None:
    assert len(FOUND) == WALKS
    for heading, stops in FOUND.items():
        assert 1 < len(stops) <= STOPS_MAX, heading
        assert [stop.number for stop in stops] == list(range(1, len(stops) + 1)), heading


@pytest.mark.uncompiled  # some methods are C's alone otherwise
@pytest.mark.parametrize("heading", FOUND)
def test_every_stop_exists(heading: str) -> None:
    for stop in FOUND[heading]:
        method = getattr(load(stop.path, stop.owner), stop.method, None)
        assert callable(method), f"{stop.path} has no {stop.owner}.{stop.method}"


@pytest.mark.parametrize("heading", FOUND)
def test_every_stop_leads_to_the_next(heading: str) -> None:
    stops = FOUND[heading]
    gaps = [reason for at in range(1, len(stops)) if (reason := gap(stops[:at], stops[at]))]
    assert gaps == []


def test_a_gap_is_seen() -> None:
    """A stop that is neither imported nor behind the named port is refused."""
    _, stops = next(iter(FOUND.items()))
    publish, handler, *_, settle = stops
    assert gap([publish], handler) == ""
    assert gap([publish._replace(text="Checks the run.")], handler)
    assert gap([publish], settle)
    assert gap([settle], handler)


def test_a_stop_with_no_method_is_seen() -> None:
    with pytest.raises(AssertionError):
        walks("# Page\n\n## Walk\n\n1. `Reactor`: no module and no method\n")
