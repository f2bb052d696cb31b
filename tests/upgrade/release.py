"""The last release, out of the history of this repository.

`last_release.txt` names its commit: the last release candidate, until there is a release. Whoever releases writes the new
commit there.
"""

from __future__ import annotations

import io
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.broker import REPOSITORY

COMMIT = (Path(__file__).parent / "last_release.txt").read_text("ascii").strip()
MARK = "+last"
"""Added to the release's version, so that a node that runs it can be told from one of the tree."""


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, check=False)


def export(folder: Path) -> Path:
    """Write the release's program to a folder, and return the folder. Skips without the history that has it."""
    try:
        known = _git("cat-file", "-e", f"{COMMIT}^{{commit}}")
        shallow = _git("rev-parse", "--is-shallow-repository").stdout.strip()
    except FileNotFoundError:
        pytest.skip("there is no git to take the last release from the history with")
    if known.returncode:
        if shallow == b"false":
            pytest.fail(f"last_release.txt names {COMMIT}, which is not in this repository")
        pytest.skip(
            f"the last release, {COMMIT}, is not in this copy: its history is shallow, or it has none"
        )
    packed = _git("archive", "--format=zip", COMMIT, "fluxmq")
    assert packed.returncode == 0, packed.stderr
    with zipfile.ZipFile(io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder)
    init = folder / "fluxmq" / "__init__.py"
    marked, count = re.subn(r'(__version__ = "[^"]*)', rf"\1{MARK}", init.read_text("utf-8"))
    assert count == 1
    init.write_text(marked, "utf-8")
    return folder


def number_in(folder: Path, module: str, name: str) -> int:
    """The number that a module of the release gives to a name."""
    found = re.search(
        rf"^{name}: Final = (\d+)$", (folder / module).read_text("utf-8"), re.MULTILINE
    )
    assert found is not None, f"{module} of the last release has no {name}"
    return int(found[1])
