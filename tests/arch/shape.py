"""Limits on ideas instead of lines: how much a class and a function may be about.

Each function goes from the sources of ``fluxmq`` to complaints of the form ``place: what is too much``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

PUBLIC_METHODS_MAX: Final = 20
ATTRIBUTES_MAX: Final = 15
PARAMETERS_MAX: Final = 8
"""Beside ``self``: more of them are a value of their own."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A file by its path from the root: the classes and functions in it, at any depth."""

    place: str
    classes: list[ast.ClassDef]
    functions: list[Function]


def read(place: str, text: str) -> Source:
    """Parse a file."""
    nodes = list(ast.walk(ast.parse(text)))
    return Source(
        place,
        [each for each in nodes if isinstance(each, ast.ClassDef)],
        [each for each in nodes if isinstance(each, Function)],
    )


def sources(root: Path) -> list[Source]:
    """Parse all sources of ``fluxmq`` that a person wrote."""
    paths = sorted((root / "fluxmq").rglob("*.py"))
    return [
        read(path.relative_to(root).as_posix(), path.read_text("utf-8"))
        for path in paths
        if "generated" not in path.parts
    ]


def _classes(files: Iterable[Source]) -> Iterator[tuple[str, ast.ClassDef]]:
    for file in files:
        for node in file.classes:
            yield file.place, node


def _name(node: ast.expr) -> str:
    """The last part of a base's name, without what it is subscripted with."""
    return ast.unparse(node).partition("[")[0].rpartition(".")[2]


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(_name(base) == "Protocol" for base in node.bases)


def many_methods(files: Iterable[Source]) -> Iterator[str]:
    """Classes with more public methods than one idea needs. Properties count; what Python itself calls does not."""
    for place, node in _classes(files):
        methods = [each for each in node.body if isinstance(each, Function)]
        names = {each.name for each in methods if not each.name.startswith("_")}
        if len(names) > PUBLIC_METHODS_MAX:
            yield f"{place}:{node.name}: {len(names)} public methods"


def many_attributes(files: Iterable[Source]) -> Iterator[str]:
    """Classes whose instances hold more than one idea needs: fields, and what methods assign to ``self``.

    Tables of settings and of numbers (classes that only have fields, and enumerations) are left out.
    """
    for place, node in _classes(files):
        if not any(isinstance(each, ast.FunctionDef) for each in node.body):
            continue
        found = {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        found |= {
            each.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            if isinstance(each.value, ast.Name) and each.value.id == "self"
        }
        if len(found) > ATTRIBUTES_MAX:
            yield f"{place}:{node.name}: {len(found)} attributes"


def many_parameters(files: Iterable[Source]) -> Iterator[str]:
    """Functions that are told more than one idea needs."""
    for file in files:
        for node in file.functions:
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = len([each for each in given if each.arg not in {"self", "cls"}])
            if count > PARAMETERS_MAX:
                yield f"{file.place}:{node.name}: {count} parameters"


def only_children(files: Iterable[Source]) -> Iterator[str]:
    """Base classes that one class alone derives from: page breaks of one idea. Protocols and errors are left out."""
    known = {node.name: place for place, node in _classes(files) if not _is_protocol(node)}
    children: dict[str, list[str]] = {}
    for _, node in _classes(files):
        for base in node.bases:
            children.setdefault(_name(base), []).append(node.name)
    errors = _errors(files)
    for name, derived in sorted(children.items()):
        if name in known and len(derived) == 1 and name not in errors:
            yield f"{known[name]}:{name}: only {derived[0]} derives from it"


def _errors(files: Iterable[Source]) -> set[str]:
    """Names of the exceptions."""
    bases = {node.name: [_name(each) for each in node.bases] for _, node in _classes(files)}
    found = {"Exception", "ValueError", "OSError", "RuntimeError", "LookupError", "KeyError"}
    while True:
        more = {name for name, above in bases.items() if found.intersection(above)} - found
        if not more:
            return found
        found |= more


def shared_names(files: Iterable[Source]) -> Iterator[str]:
    """Names that several classes bear."""
    counted = Counter(node.name for _, node in _classes(files))
    for name, times in sorted(counted.items()):
        if times > 1:
            yield f"{name}: {times} classes"


RULES: Final = (many_methods, many_attributes, many_parameters, only_children, shared_names)


def complaints(files: list[Source]) -> list[str]:
    """All of them, sorted."""
    return sorted(line for rule in RULES for line in rule(files))
