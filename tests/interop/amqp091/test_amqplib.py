"""amqplib, what Node.js programs use."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.interop.amqp091.conftest import Names
from tests.interop.npm import installed

SCRIPT = Path(__file__).with_name("tutorials.mjs")
PACKAGE = "amqplib@0.10"


@pytest.fixture(scope="session")
def amqplib(pytestconfig: pytest.Config) -> Path:
    """The installed package's entry file."""
    return installed(pytestconfig, PACKAGE, "channel_api.js")


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
