"""The rules of tidiness that no linter has: each a function from a file's text to complaints.

``test_tidy`` applies them to the tree and to texts of its own that break each of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE_LINES_MAX = 500
"""A longer module explains itself: a paragraph of its docstring begins with ``LONG_BECAUSE``."""
EXPLAINED_LINES_MAX = 800
LONG_BECAUSE = "Longer than 500 lines because "
FUNCTION_LINES_MAX = 70
CODE = ("fluxmq", "perf", "tests", "spark")
TEXTS = {".py", ".pyx", ".pxd", ".md", ".cfg", ".toml", ".yaml", ".yml", ".sh", ".js", ".json", ""}
LEFT_OUT = {".git", ".venv", "build", "dist", "data", "node_modules", "__pycache__", "results"}
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

# Spelled in parts, so that this file does not break its own rules.
MARKS = re.compile(r"\b(" + "|".join(["FIX" + "ME", "TO" + "DO", "XX" + "X"]) + r")\b")
PLACES = re.compile(r"(?<![\w./-])(/wo" + "rk/|/tmp/pl" + "an|/ro" + "ot/|/ho" + r"me/\w)")

# Modules that are used without an import of the program's, each with its reason.
USED_OTHERWISE = {
    "fluxmq.model.batches": "the format as readers outside of the broker need it",
}
LOADED_BY_NAME = ("perf.micro.",)

# Functions that may be longer, each with its reason. The list may only shrink.
LONG_FUNCTIONS: dict[str, str] = {}


def source_files(root: Path = ROOT) -> Iterator[Path]:
    """Every Python source of the project, setup.py included."""
    yield root / "setup.py"
    for folder in CODE:
        for path in sorted((root / folder).rglob("*.py")):
            if not LEFT_OUT.intersection(path.relative_to(root / folder).parts):
                yield path


def text_files(root: Path = ROOT) -> Iterator[Path]:
    """Every text of the project that a person wrote."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") and part not in {".ci", ".gitignore"} for part in parts)
        data = parts[0] in LEFT_OUT or "__pycache__" in parts or "results" in parts
        if path.is_file() and path.suffix in TEXTS and not hidden and not data:
            yield path


def is_generated(tree: ast.Module) -> bool:
    """Return whether a module says in its first line that a program wrote it; tables may be long
    then."""
    return (ast.get_docstring(tree) or "").startswith("Generated")


def long_module(text: str) -> Iterator[str]:
    """Complain of a module above 500 lines that does not say why, and of any above 800."""
    lines = text.count("\n")
    tree = ast.parse(text)
    if lines <= MODULE_LINES_MAX or is_generated(tree):
        return
    if lines > EXPLAINED_LINES_MAX:
        yield f"{lines} lines, more than {EXPLAINED_LINES_MAX}"
    elif not re.search(rf"^{LONG_BECAUSE}", ast.get_docstring(tree) or "", re.MULTILINE):
        yield f"{lines} lines, more than {MODULE_LINES_MAX}, and its docstring does not say why"


def long_functions(text: str) -> Iterator[tuple[str, str]]:
    """Functions of more than 70 lines, docstring not counted, each with its name."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        lines = node.end_lineno - node.lineno + 1
        if ast.get_docstring(node) is not None:
            docstring = node.body[0]
            assert docstring.end_lineno is not None, "a parsed docstring ends somewhere"
            lines -= docstring.end_lineno - docstring.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield node.name, f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"


def missing_docstring(text: str) -> Iterator[str]:
    """A module opens with what it is responsible for."""
    tree = ast.parse(text)
    if tree.body and not ast.get_docstring(tree):
        yield "no docstring"


def unfinished(text: str) -> Iterator[str]:
    """Marks of work left for later."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := MARKS.search(line):
            yield f"line {number}: {found[0]}"


def machine_paths(text: str) -> Iterator[str]:
    """Paths that exist on one machine only."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := PLACES.search(line):
            yield f"line {number}: {found[0]}"


def empty_name(path: Path) -> Iterator[str]:
    """Names under which anything could be put, so that everything is."""
    for part in (*path.parts[:-1], path.stem):
        if part in EMPTY_NAMES:
            yield f"the name {part} says nothing"


def dynamic_imports(text: str) -> Iterator[str]:
    """Imports that the import contracts cannot see."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in {"__import__", "import_module", "importlib.import_module"}:
                yield f"line {node.lineno}: {called}"


def compiled_imports(text: str) -> Iterator[str]:
    """Imports of a .pyx, which the contracts do not read: C and the interpreter's own declarations are all it needs."""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(?:from|cimport|import)\s+([\w.]+)", line)
        if found and found[1].partition(".")[0] not in {"cpython", "libc", "posix", "cython"}:
            yield f"line {number}: {found[1]}"


def imported_modules(text: str, module: str, *, is_package: bool) -> set[str]:
    """Names a module imports, absolute; ``from a import b`` counts as both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, *([base] if base else [])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    # The same files under Cython: the declarations are a module's as much as its functions.
    return {name.replace("cython.cimports.", "") for name in found}


def runs_by_itself(text: str) -> bool:
    """Return whether a module can be started with ``python -m``."""
    return "__name__ ==" in text


def unused_modules(modules: dict[str, str], entry_points: Iterable[str]) -> list[str]:
    """Modules of the program that nothing in it imports and nobody can start; ``modules`` is name to text."""
    used = set(entry_points)
    for name, text in modules.items():
        is_package = any(other.startswith(name + ".") for other in modules)
        used |= imported_modules(text, name, is_package=is_package)
    return sorted(
        name
        for name, text in modules.items()
        if name not in used
        and name not in USED_OTHERWISE
        and not name.startswith(LOADED_BY_NAME)
        and name.rpartition(".")[2] != "__main__"
        and not any(other.startswith(name + ".") for other in modules)
        and not runs_by_itself(text)
    )


def dead_links(path: Path, text: str) -> Iterator[str]:
    """Links of a page to files that are not there."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and not (path.parent / target).exists():
            yield f"links to {target}, which is not there"
