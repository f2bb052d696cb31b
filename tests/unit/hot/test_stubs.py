"""The type stubs say what the modules have: every name and every parameter, and nothing else.

The sources are compared by ``stubtest``, uncompiled; what is compiled then has at least the stubs' names.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fluxmq._hot

FOLDER = Path(fluxmq._hot.__file__).parent
ROOT = FOLDER.parents[1]
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
STUBS = sorted(path.stem for path in FOLDER.glob("*.pyi"))


UNCOMPILED_ONLY = {
    "scan.Scanner.whole_identifiers",
    "delivery.Delivery.acknowledge_in_order",
}
"""Shortcuts of the uncompiled form, called by nothing else."""


def of_no_use_outside(complaint: str) -> bool:
    """Whether a name is missing from a stub for the reason that compiled modules do not show it either."""
    match = re.fullmatch(r"fluxmq\._hot\.(\w+)\.([\w.]+) is not present in stub", complaint)
    if match is None:
        return False
    module, name = match.groups()
    if f"{module}.{name}" in UNCOMPILED_ONLY or not fluxmq._hot.COMPILED:
        return True
    found: object = importlib.import_module(f"fluxmq._hot.{module}")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is None


def test_every_module_has_a_stub() -> None:
    assert set(STUBS) == {*MODULES, "_native", "_direct"}


def test_the_stubs_agree_with_the_sources() -> None:
    names = [f"fluxmq._hot.{module}" for module in MODULES]
    command = [sys.executable, "-m", "mypy.stubtest", "--concise"]
    command += ["--mypy-config-file", "setup.cfg", *names]
    environ = {**os.environ, "FLUXMQ_PURE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stdout.splitlines() if not of_no_use_outside(line)]
    assert complaints == [], done.stderr
    assert done.returncode in (0, 1)


@pytest.mark.skipif(not fluxmq._hot.COMPILED, reason="the hot path runs uncompiled")
@pytest.mark.parametrize("module", STUBS)
def test_what_is_compiled_has_the_names_of_the_stub(module: str) -> None:
    compiled = importlib.import_module(f"fluxmq._hot.{module}")
    tree = ast.parse((FOLDER / f"{module}.pyi").read_text())
    for node in tree.body:
        for name in defined(node):
            assert hasattr(compiled, name), name
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            kind = getattr(compiled, node.name)
            for member in node.body:
                for name in defined(member):
                    assert hasattr(kind, name), f"{node.name}.{name}"


def defined(node: ast.stmt) -> list[str]:
    """Public names that a statement of a stub defines."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        names = [node.target.id]
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        names = [node.name]
    else:
        names = []
    return [name for name in names if not name.startswith("_") or name == "__init__"]
