"""The compiled core: what runs once per packet, run or tick.

Every module here is Cython in pure-Python mode: the same ``.py`` file is compiled (types come from the
``.pxd`` beside it) or run as it is, and must give the same bytes either way. Nothing outside knows which
it got. ``FLUXMQ_PURE=1`` makes the import system take the ``.py`` files even where compiled ones lie
beside them, so that both can be tested from one installation.

``_native`` is the exception: a small extension (shared-memory ring with atomics) that has no uncompiled
twin; its users fall back to sockets without it.
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

PURE: bool = os.environ.get("FLUXMQ_PURE", "") == "1"
"""True when the environment asks for the uncompiled modules."""

_FOLDER = Path(__file__).parent


class _SourceOnly(importlib.abc.MetaPathFinder):
    """Finds this package's modules by their ``.py`` file and hides compiled ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(__name__ + "."):
            return None
        name = fullname[len(__name__) + 1 :]
        source = _FOLDER / f"{name}.py"
        if not source.exists():
            raise ModuleNotFoundError(f"{fullname} has no uncompiled form", name=fullname)
        return importlib.util.spec_from_file_location(fullname, source)


if PURE:
    sys.meta_path.insert(0, _SourceOnly())

from fluxmq._hot import scan as _scan  # noqa: E402  (the finder above must be in place first)

COMPILED: bool = not str(_scan.__file__).endswith(".py")
"""True when the modules of this package run compiled."""
