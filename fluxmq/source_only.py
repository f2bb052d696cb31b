"""``FLUXMQ_PURE=1``: the ``.py`` files are taken even where compiled modules lie beside them.

So both forms of the program can be tested from one installation.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

PURE: Final = os.environ.get("FLUXMQ_PURE", "") == "1"
"""True when the environment requests the uncompiled modules."""

PACKAGE = "fluxmq."
SUFFIXES = tuple(importlib.machinery.EXTENSION_SUFFIXES)


class SourceOnly(importlib.abc.MetaPathFinder):
    """Finds this package's modules by their ``.py`` file and hides compiled ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's source; ModuleNotFoundError for one that has none. Packages are found as
        usual."""
        if not fullname.startswith(PACKAGE) or path is None:
            return None
        name = fullname.rpartition(".")[2]
        for folder in map(Path, path):
            source = folder / f"{name}.py"
            if source.exists():
                return importlib.util.spec_from_file_location(fullname, source)
            if any((folder / f"{name}{suffix}").exists() for suffix in SUFFIXES):
                raise ModuleNotFoundError(f"{fullname} has no uncompiled form", name=fullname)
        return None


def install() -> None:
    """From now on only sources are imported."""
    sys.meta_path.insert(0, SourceOnly())
