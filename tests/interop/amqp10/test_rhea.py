"""rhea, the client of AMQP 1.0 for Node.js: publishing, browsing, consuming, and requests.

The package is installed with npm into pytest's cache directory, once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pika  # type: ignore[import-untyped]
import pytest

from tests.interop.amqp10.conftest import AmqpBroker

SCRIPT = Path(__file__).with_name("rhea_exchange.mjs")
PACKAGE = "rhea@3"
COUNT = 10


@pytest.fixture(scope="session")
def rhea(pytestconfig: pytest.Config) -> Path:
    """The installed package's entry file; skips where it cannot be had."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    assert pytestconfig.cache is not None
    directory = pytestconfig.cache.mkdir("rhea")
    entry = directory / "node_modules" / "rhea" / "lib" / "container.js"
    if not entry.exists():
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(directory), PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=100)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip("npm cannot install rhea: the registry is not reachable")
    return entry


def test_rhea_publishes_browses_consumes_and_asks(
    amqp: AmqpBroker, rhea: Path, name: Callable[[], str]
) -> None:
    queue = name()
    connection = pika.BlockingConnection(pika.URLParameters(amqp.url))
    connection.channel().queue_declare(queue, durable=True)
    connection.close()
    done = subprocess.run(
        ["node", str(SCRIPT), str(rhea), amqp.host, str(amqp.port), queue],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "accepted": COUNT,
        "released": 1,
        "browsed": [7, 8, 9],
        "consumed": [[number, f"id-{number}", "subject", True] for number in range(COUNT)],
        "answers": [["ask", "ANSWER"]],
    }
