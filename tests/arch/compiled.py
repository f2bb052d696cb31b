"""The modules that setup.py compiles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load_setup() -> ModuleType:
    """The project's setup.py as a module; it builds nothing when imported."""
    spec = importlib.util.spec_from_file_location("fluxmq_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


setup = load_setup()
CYTHON_SOURCES: dict[str, Path] = setup.cython_sources()
MYPYC_SOURCES: dict[str, Path] = setup.mypyc_sources()
