"""No module imports itself by way of others, type-only imports included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import grimp
import pytest


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return all that `start` imports, directly or by way of others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for module in graph[waiting.pop()] - found:
            found.add(module)
            waiting.append(module)
    return found


def circles(graph: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the modules of each circle, sorted, in one line."""
    reach = {module: reached(graph, module) for module in graph}
    seen: set[str] = set()
    for module in sorted(graph):
        if module in reach[module] and module not in seen:
            circle = {other for other in reach[module] if module in reach[other]}
            seen |= circle
            yield " ".join(sorted(circle))


def test_no_module_imports_itself() -> None:
    found = grimp.build_graph("fluxmq")
    graph = {module: found.find_modules_directly_imported_by(module) for module in found.modules}
    assert len(graph) > 400
    assert list(circles(graph)) == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, ["a b"]),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "e"}, "e": {"d"}}, ["b c", "d e"]),
    ],
)
def test_a_circle_is_found(graph: Mapping[str, set[str]], expected: list[str]) -> None:
    assert list(circles(graph)) == expected
