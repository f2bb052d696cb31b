"""The compiled hot path is what is being tested, unless the uncompiled one was asked for.

An extension that silently failed to build, or that is older than its source, would leave the tests passing on the wrong
code. When nothing was compiled for this interpreter (no C compiler), the uncompiled path is all there is, and pytest's
header says so.
"""

import ast
import importlib
import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fluxmq._hot

ROOT = Path(__file__).resolve().parents[2]
PURE = os.environ.get("FLUXMQ_PURE") == "1"


def load_setup() -> ModuleType:
    """The project's setup.py as a module; it builds nothing when imported."""
    spec = importlib.util.spec_from_file_location("fluxmq_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup = load_setup()
SOURCES: dict[str, Path] = setup.hot_sources()
BUILT = [name for name in SOURCES if setup.built_path(name).exists()]


def test_the_sources_are_found() -> None:
    assert "fluxmq._hot.scan" in SOURCES
    assert "fluxmq._hot" not in SOURCES
    assert "fluxmq._hot.__init__" not in SOURCES
    assert all((ROOT / source).is_file() for source in SOURCES.values())


def test_make_compiles_again_when_any_compiled_module_has_changed() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert {folder for folder in setup.EVERYDAY if f" {folder}/*.py" not in makefile} == set()


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


@pytest.mark.parametrize("source", sorted(setup.everyday_sources().values()), ids=str)
def test_nothing_that_is_compiled_waits_while_it_handles_an_error(source: Path) -> None:
    """mypyc forgets that an error was handled when the handler awaits: it is raised again behind the handler."""
    tree = ast.parse((ROOT / source).read_text("utf-8"))
    assert waits_while_it_handles(tree) == []


def test_a_handler_that_waits_is_found() -> None:
    source = (
        "async def f():\n try:\n  await g()\n except E:\n  h()\n  await g()\n finally:\n  yield\n"
    )
    assert waits_while_it_handles(ast.parse(source)) == [8, 6]


def test_an_uncompiled_module_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "fluxmq" / "_hot"
    folder.mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "a.py": '"""A."""\n',
        "b.py": '"""Fallback of a, uncompiled.\n\nMore."""\n',
        "c.py": '"""C.\n\nRuns uncompiled too."""\n',
        "d.pyx": "",
        "d.pxd": "",
        "e.pyi": "",
    }.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    assert list(setup.hot_sources()) == ["fluxmq._hot.a", "fluxmq._hot.c", "fluxmq._hot.d"]
    assert setup.missing() == ["fluxmq._hot.a", "fluxmq._hot.c", "fluxmq._hot.d"]


def test_a_stale_extension_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "fluxmq" / "_hot"
    folder.mkdir(parents=True)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    (folder / "a.py").write_text('"""A."""\n')
    built = setup.built_path("fluxmq._hot.a")
    built.write_bytes(b"")
    os.utime(folder / "a.py", (100, 100))
    os.utime(built, (200, 200))
    assert setup.missing() == []
    (folder / "a.pxd").write_text("")
    assert setup.missing() == ["fluxmq._hot.a"]
    os.utime(folder / "a.pxd", (150, 150))
    assert setup.missing() == []
    os.utime(folder / "a.py", (201, 201))
    assert setup.missing() == ["fluxmq._hot.a"]


@pytest.mark.skipif(PURE, reason="the uncompiled hot path was asked for")
@pytest.mark.skipif(not BUILT, reason="no C compiler: nothing was compiled for this interpreter")
def test_no_extension_is_missing_or_stale() -> None:
    assert setup.missing() == [], "run: make native"
    assert fluxmq._hot.COMPILED
    for name in SOURCES:
        file = importlib.import_module(name).__file__
        assert file is not None
        assert Path(file) == setup.built_path(name)


def modules_under(pure: str) -> dict[str, str]:
    """Where a fresh interpreter takes the hot path's modules from: name to file, or the error."""
    program = (
        "import importlib, fluxmq._hot as hot\nprint('COMPILED', hot.COMPILED)\n"
        f"for name in {sorted(name for name, source in SOURCES.items() if source.suffix == '.py' and name not in setup.IN_PLACE_ONLY)!r}:\n"
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
