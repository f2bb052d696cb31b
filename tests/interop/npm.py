"""Packages of npm, installed into pytest's cache directory, once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def installed(config: pytest.Config, package: str, main: str) -> Path:
    """Install a package, ``NAME@VERSION``, and return its entry file, ``main`` in the package's directory; skip the test
    where it cannot be had."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    assert config.cache is not None
    name = package.partition("@")[0]
    directory = config.cache.mkdir(f"npm-{name}")
    entry = directory / "node_modules" / name / main
    if not entry.exists():
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(directory), package]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=100)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip(f"npm cannot install {name}: the registry is not reachable")
    return entry
