"""Finds symbols of the source by their names, whatever modules they have been moved to."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("fluxmq", "spark/fluxmq_spark")


@dataclass(frozen=True)
class Place:
    """A symbol's lines in a file, counted from 0; `last` is the first behind it."""

    file: str
    first: int
    last: int


@cache
def places(root: Path) -> dict[str, list[Place]]:
    """Return all symbols of the source by their names, as `find` takes them."""
    found: dict[str, list[Place]] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text("utf-8")
            file = path.relative_to(root).as_posix()
            module = file.removesuffix(".py").removesuffix("/__init__").split("/")
            for name, place in _symbols(ast.parse(text), file, ""):
                found.setdefault(name, []).append(place)
                for depth in range(1, len(module) + 1):
                    found.setdefault(f"{'.'.join(module[-depth:])}:{name}", []).append(place)
    return found


def _symbols(tree: ast.AST, file: str, prefix: str) -> Iterator[tuple[str, Place]]:
    """Yield functions and classes at any depth, and names assigned at the top of a module or class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = prefix + node.name
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield name, Place(file, first - 1, node.end_lineno or 0)
            yield from _symbols(node, file, name + ".")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield prefix + target.id, Place(file, node.lineno - 1, node.end_lineno or 0)
        else:
            yield from _symbols(node, file, prefix)


def find(root: Path, symbol: str) -> Place:
    """Return the place of `Class.method`, `function` or `CONSTANT`.

    A name that is in several modules is written `module:Class.method`, with as much of the module's path as tells them
    apart. Raises LookupError when there is no such symbol, or more than one.
    """
    found = places(root).get(symbol, [])
    if len(found) != 1:
        where = ", ".join(sorted({each.file for each in found})) or "nowhere"
        raise LookupError(f"{symbol} is in {where}, not in one place")
    return found[0]


def pattern(code: str) -> re.Pattern[str]:
    """Compile a pattern for a piece of code that does not depend on where its lines are broken."""
    tokens = re.findall(r"\w+|[^\w\s]", code)
    parts = [re.escape(tokens[0])]
    for before, after in itertools.pairwise(tokens):
        apart = re.match(r"\w", after) and re.match(r"\w", before)
        parts += [r"\s+" if apart else r"\s*", re.escape(after)]
    return re.compile("".join(parts))
