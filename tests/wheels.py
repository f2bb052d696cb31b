"""Wheels made for tests, from the files that are under version control.

Both without compiled code, which takes minutes: the broker's, and that of the package for Spark.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.broker import REPOSITORY

LISTED = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
WHAT = ("fluxmq", "spark", "setup.*", "pyproject.toml", "README.md", "LICENSE", "NOTICE")


def copy_sources(target: Path) -> None:
    """Copy what wheels are made of. Skips the test outside of a clone."""
    listed = subprocess.run([*LISTED, *WHAT], cwd=REPOSITORY, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone")
    for name in listed.stdout.decode().split("\0"):
        if name and (REPOSITORY / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((REPOSITORY / name).read_bytes())


def make_wheel(folder: Path, part: str = ".") -> Path:
    """Make a wheel in a folder: the broker's, or with part `spark` the other one."""
    source = folder / "source"
    copy_sources(source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(source / part)],
        env={**os.environ, "FLUXMQ_PURE": "1"},
        check=True,
        timeout=120,
    )
    (found,) = folder.glob("*.whl")
    return found


def install(wheel: Path, target: Path) -> None:
    """Install a wheel's own files into a directory."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, timeout=60)


def link_requirements(target: Path, extra: str = "") -> None:
    """Link the distributions that those in a directory need, with an extra of theirs, and what
    these need, as they are installed here: nothing else of this environment can be imported from
    that directory then."""
    own = metadata.distributions(path=[str(target)])
    wanted = [each for distribution in own for each in _needs(distribution, extra)]
    seen = set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = metadata.distribution(name)
        wanted += _needs(found)
        for top in {Path(each).parts[0] for each in found.files or ()} - {"..", "__pycache__"}:
            if not (target / top).exists():
                (target / top).symlink_to(Path(str(found.locate_file(top))))


def _needs(distribution: metadata.Distribution, extra: str = "") -> list[str]:
    """Names of what a distribution needs, without what is for other machines or other extras."""
    found = []
    for each in distribution.requires or ():
        name, _, marker = each.partition(";")
        asked = re.search("extra *== *[\"']([^\"']+)", marker)
        if (asked and asked[1] == extra) or not re.search("extra|platform|python_", marker):
            found.append(re.split(r"[<>=!~\[( ]", name.strip())[0])
    return found
