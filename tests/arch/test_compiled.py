"""The compiled hot path is what is being tested, unless the uncompiled one was asked for.

An extension that silently failed to build, or that is older than its source, would leave the tests passing on the wrong
code. When nothing was compiled for this interpreter (no C compiler), the uncompiled path is all there is, and pytest's
header says so.
"""

import ast
import importlib
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fluxmq.protocols.mqtt.scan import COMPILED
from tests.arch.compiled import CYTHON_SOURCES, MYPYC_SOURCES, setup

ROOT = Path(__file__).resolve().parents[2]
PURE = os.environ.get("FLUXMQ_PURE") == "1"


SOURCES = CYTHON_SOURCES
BUILT = [name for name in SOURCES if setup.built_path(name).exists()]


def test_every_module_of_the_table_is_there() -> None:
    for folder, names in setup.CYTHON_MODULES.items():
        assert {f"{folder.replace('/', '.')}.{name}" for name in names} <= set(SOURCES)
    assert all((ROOT / source).is_file() for source in SOURCES.values())
    for folder, names in setup.MYPYC_MODULES.items():
        found = {name for name in MYPYC_SOURCES if name.startswith(folder.replace("/", "."))}
        assert names == ("*",) or len(names) <= len(found), folder


def test_every_module_with_c_types_is_in_the_table() -> None:
    """Declarations without a compiled module are shared ones, and hold nothing that a module would have to define."""
    compiled = {source.with_suffix("") for source in SOURCES.values()}
    for folder in ("fluxmq", "perf"):
        for path in (ROOT / folder).rglob("*.pyx"):
            assert path.relative_to(ROOT).with_suffix("") in compiled
        for path in (ROOT / folder).rglob("*.pxd"):
            if path.relative_to(ROOT).with_suffix("") not in compiled:
                text = path.read_text("utf-8")
                assert "cpdef" not in text
                assert "cdef class" not in text


def declared(text: str) -> dict[str, set[str]]:
    """Attributes and methods of each class that a ``.pxd`` declares, and under "" its functions."""
    found: dict[str, set[str]] = {"": set()}
    place = ""
    for line in text.splitlines():
        if match := re.match(r"cdef class (\w+)", line):
            place = match[1]
            found[place] = set()
        elif re.match(r"\S", line) and not line.startswith(("#", "@")):
            place = ""
        if match := re.match(r"\s*c(?:p?def) (?!class|extern|enum|inline)(.*)", line):
            if "(" in match[1]:
                found[place] |= set(re.findall(r"(\w+)\(", match[1])[:1])
            elif place:
                found[place] |= set(re.findall(r"(\w+)(?:,|$)", match[1]))
    return found


def defined(tree: ast.Module) -> dict[str, set[str]]:
    """The same of a source: every name that a class assigns to ``self`` or defines."""
    found = {"": {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}}
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef):
            found[each.name] = {
                node.attr
                for node in ast.walk(each)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                if isinstance(node.value, ast.Name) and node.value.id == "self"
            }
            found[each.name] |= {
                node.name for node in each.body if isinstance(node, ast.FunctionDef)
            }
    return found


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_what_is_declared_for_the_compiler_is_what_the_source_has(name: str) -> None:
    """The types are the source's; declarations that outlive what they declared would only cost memory."""
    source = ROOT / SOURCES[name]
    declarations = source.with_suffix(".pxd")
    if source.suffix != ".py" or not declarations.exists():
        return
    there = defined(ast.parse(source.read_text("utf-8")))
    for place, names in declared(declarations.read_text("utf-8")).items():
        assert names - there[place] - {"__weakref__"} == set(), place


def test_declarations_are_read() -> None:
    text = "cdef int _N\ncdef class A(B):\n    cdef public int x, y\n    cpdef int f(self, int a) except -1\ncpdef int g(int a)\n"
    assert declared(text) == {"": {"g"}, "A": {"x", "y", "f"}}
    tree = ast.parse("class A:\n def f(self): self.x = 1\ndef g(): pass")
    assert defined(tree) == {"": {"f", "g"}, "A": {"x", "f"}}


def waits_while_it_handles(function: ast.AST) -> list[int]:
    """Lines of ``except`` and ``finally`` clauses in which a function lets others run."""
    found = []
    for each in ast.walk(function):
        if isinstance(each, ast.Try):
            clauses = [each.finalbody, *(handler.body for handler in each.handlers)]
            for statement in itertools.chain(*clauses):
                found += [
                    node.lineno
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom)
                ]
    return found


@pytest.mark.parametrize("source", sorted(MYPYC_SOURCES.values()), ids=str)
def test_nothing_that_is_compiled_waits_while_it_handles_an_error(source: Path) -> None:
    """mypyc forgets that an error was handled when the handler awaits: it is raised again behind the handler."""
    tree = ast.parse((ROOT / source).read_text("utf-8"))
    assert waits_while_it_handles(tree) == []


def test_a_handler_that_waits_is_found() -> None:
    source = (
        "async def f():\n try:\n  await g()\n except E:\n  h()\n  await g()\n finally:\n  yield\n"
    )
    assert waits_while_it_handles(ast.parse(source)) == [8, 6]


def test_a_stale_extension_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "fluxmq" / "a"
    folder.mkdir(parents=True)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "CYTHON_MODULES", {"fluxmq/a": ("b", "c")})
    (folder / "b.py").write_text('"""B."""\n')
    (folder / "c.pyx").write_text("")
    (folder / "d.py").write_text('"""Not in the table."""\n')
    assert setup.missing() == ["fluxmq.a.b", "fluxmq.a.c"]
    built = setup.built_path("fluxmq.a.b")
    for each, seconds in ((folder / "b.py", 100), (folder / "c.pyx", 100)):
        os.utime(each, (seconds, seconds))
        module = setup.built_path(f"fluxmq.a.{each.stem}")
        module.write_bytes(b"")
        os.utime(module, (200, 200))
    assert setup.missing() == []
    (folder / "b.pxd").write_text("")
    assert setup.missing() == ["fluxmq.a.b"]
    os.utime(folder / "b.pxd", (150, 150))
    assert setup.missing() == []
    os.utime(folder / "b.py", (201, 201))
    assert setup.missing() == ["fluxmq.a.b"]
    assert built.exists()


@pytest.mark.skipif(PURE, reason="the uncompiled hot path was asked for")
@pytest.mark.skipif(not BUILT, reason="no C compiler: nothing was compiled for this interpreter")
def test_no_extension_is_missing_or_stale() -> None:
    assert setup.missing() == [], "run: make native"
    assert COMPILED
    for name in SOURCES:
        file = importlib.import_module(name).__file__
        assert file is not None
        assert Path(file) == setup.built_path(name)


def modules_under(pure: str) -> dict[str, str]:
    """Return the files from which a fresh interpreter takes the hot path's modules, by name, or the
    error."""
    program = (
        "import importlib, fluxmq.protocols.mqtt.scan as scan\nprint('COMPILED', scan.COMPILED)\n"
        f"for name in {sorted(name for name, source in SOURCES.items() if source.suffix == '.py' and name.partition('.')[0] not in setup.IN_PLACE_ONLY)!r}:\n"
        "    print(name, importlib.import_module(name).__file__)\n"
    )
    environ = {**os.environ, "FLUXMQ_PURE": pure, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_pure_means_pure() -> None:
    found = modules_under("1")
    assert found.pop("COMPILED") == "False"
    assert found == {name: str(ROOT / SOURCES[name]) for name in found}
    assert len(found) > 1


@pytest.mark.skipif(not BUILT, reason="no C compiler: nothing was compiled for this interpreter")
def test_compiled_modules_are_taken_when_there() -> None:
    found = modules_under("")
    assert found.pop("COMPILED") == "True"
    assert {name: file for name, file in found.items() if name in BUILT} == {
        name: str(setup.built_path(name)) for name in found if name in BUILT
    }
