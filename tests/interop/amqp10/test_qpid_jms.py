"""Qpid JMS, the client of Java programs: queues, browsers, transactions, topics, temporary destinations.

Its jars are fetched with Maven into pytest's cache directory, once.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.amqp10.conftest import AmqpBroker

PROGRAM = Path(__file__).with_name("JmsExchange.java")
VERSION = "2.7.0"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>jms</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.qpid</groupId><artifactId>qpid-jms-client</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
TEXTS = "text 0, text 1"


@pytest.fixture(scope="session")
def jars(pytestconfig: pytest.Config) -> Path:
    """The directory of the client's jars; skips where they cannot be had."""
    maven, java = shutil.which("mvn"), shutil.which("javac")
    if maven is None or java is None:
        pytest.skip("Maven and a JDK are not installed")
    assert pytestconfig.cache is not None
    directory = pytestconfig.cache.mkdir("qpid-jms")
    library = directory / "lib"
    if not (library / f"qpid-jms-client-{VERSION}.jar").exists():
        (directory / "pom.xml").write_text(POM)
        command = [
            maven,
            "-q",
            "-B",
            "dependency:copy-dependencies",
            f"-DoutputDirectory={library}",
        ]
        try:
            subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=200)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            pytest.skip("Maven cannot fetch qpid-jms-client: the repository is not reachable")
    return library


@pytest.mark.timeout(400)
def test_a_jms_program_runs(amqp: AmqpBroker, jars: Path, name: Callable[[], str]) -> None:
    queue = name()
    url = f"amqp://{amqp.host}:{amqp.port}"
    done = subprocess.run(
        ["java", "-cp", f"{jars}/*", str(PROGRAM), url, queue],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["queue"] == f"{TEXTS}, text 2"
    assert said["browser"] == "[text 7, text 8, text 9] of 10"
    assert said["transacted"] == f"{TEXTS}, nothing"
    assert said["topic"] == f"{TEXTS}; text 1"
    assert said["temporary"] == "answer true; text 0, text 0"
    refused = said["refused"].split("; ")
    assert "a filter of messages on queue" in refused[0]
    assert "a shared subscription is not supported" in refused[1]
