"""The distribution fluxmq-spark: puts the formats of the broker's files beside the code that reads
them.

Segments, batches, properties and states of groups are defined once, in ``fluxmq.model``. The wheel
has copies of just the modules that ``fluxmq_spark`` imports, as ``fluxmq_spark.formats``, and all
imports name them there: so that it needs no broker, and neither of the two distributions has a
file of the other. The copies are uncompiled; ``CYTHON`` stands for the little that uncompiled code
needs of Cython.
"""

import ast
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
BROKER = HERE.parent / "fluxmq"
PACKAGE = "fluxmq_spark"
FORMATS = "formats"
MODEL = "fluxmq.model"
"""The only package of the broker whose modules are copied."""
CYTHON = '''"""Names of Cython that uncompiled modules use."""

NULL = None
compiled = False
uint = ulonglong = int


def cast(kind, value):
    """Return the value: numbers have no width here."""
    return value


def cfunc(function):
    """Return the function as it is."""
    return function
'''
INIT = '"""Copies of the broker\'s modules that define what is on disk; fluxmq.model has the originals."""\n'


def imported(text: str) -> set[str]:
    """Modules of the broker that a module imports, conditional imports included."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name == "fluxmq" or name.startswith("fluxmq.")}


def formats(package: Path) -> dict[str, str]:
    """Return the modules to copy with their texts, by the last part of their names: those that the
    package imports, and those that these import."""
    found: dict[str, str] = {}
    wanted = [name for path in package.rglob("*.py") for name in imported(path.read_text("utf-8"))]
    while wanted:
        parent, _, name = wanted.pop().rpartition(".")
        if parent != MODEL:
            raise SystemExit(f"{PACKAGE} imports {parent}.{name}, and may import {MODEL} only")
        if name not in found:
            found[name] = (BROKER / "model" / f"{name}.py").read_text("utf-8")
            wanted += imported(found[name])
    return found


def moved(text: str) -> str:
    """Return a module's text with imports of the copies instead of the originals."""
    text = re.sub(rf"\b{re.escape(MODEL)}\b", f"{PACKAGE}.{FORMATS}", text)
    return re.sub(
        r"^import cython$", f"from {PACKAGE}.{FORMATS} import cython", text, flags=re.MULTILINE
    )


class BuildWithFormats(build_py):
    """Adds ``fluxmq_spark.formats`` to what is built. In place, the originals are used."""

    def run(self) -> None:
        """Build anew: what an earlier build left may have changed its name since."""
        if self.editable_mode:
            super().run()
            return
        built = Path(self.build_lib) / PACKAGE
        shutil.rmtree(built, ignore_errors=True)
        super().run()
        for path in built.rglob("*.py"):
            path.write_text(moved(path.read_text("utf-8")), "utf-8")
        target = built / FORMATS
        target.mkdir()
        (target / "__init__.py").write_text(INIT, "utf-8")
        (target / "cython.py").write_text(CYTHON, "utf-8")
        for name, text in formats(HERE / PACKAGE).items():
            (target / f"{name}.py").write_text(moved(text), "utf-8")


def version() -> str:
    """Return the broker's version, which is this distribution's too."""
    found = re.search(
        r'^__version__ = "(.+)"$', (BROKER / "__init__.py").read_text("utf-8"), re.MULTILINE
    )
    assert found is not None, "the broker says its version"
    return found[1]


if __name__ == "__main__":
    setup(version=version(), cmdclass={"build_py": BuildWithFormats})
