"""amqplib, what Node.js programs use.

The package is installed with npm into pytest's cache directory, once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.amqp091.conftest import Names

SCRIPT = Path(__file__).with_name("tutorials.mjs")
PACKAGE = "amqplib@0.10"


@pytest.fixture(scope="session")
def amqplib(pytestconfig: pytest.Config) -> Path:
    """The installed package's entry file; skips where it cannot be had."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    assert pytestconfig.cache is not None
    directory = pytestconfig.cache.mkdir("amqplib")
    entry = directory / "node_modules" / "amqplib" / "channel_api.js"
    if not entry.exists():
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(directory), PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=100)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip("npm cannot install amqplib: the registry is not reachable")
    return entry


def test_the_examples(amqplib: Path, url: str, name: Names) -> None:
    done = subprocess.run(
        ["node", str(SCRIPT), str(amqplib), url, name()],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "product": True,
        "hello": "Hello World!",
        "work": ["0", "1", "2", "3", "4"],
        "log": "log",
        "topics": ["kern.info", "cron.critical"],
        "rpc": ["42", "c"],
        "direct": "8",
        "confirmed": 100,
        "again": [True, True],
        "returned": [312, "NO_ROUTE", {"a": 1, "b": ["x", {"c": True}]}],
        "error": 404,
        "cancelled": True,
    }
