"""A broker for other people's clients of AMQP 1.0, and programs in Java.

Their jars are fetched with Maven into pytest's cache directory, once.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.amqp091.conftest import AmqpBroker, amqp, name

__all__ = ["AmqpBroker", "Jars", "amqp", "jars", "name", "run_java"]

Jars = Callable[[str, str, str], Path]
"""Returns the directory with an artifact of a group, in a version, and all that it needs."""

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>clients</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  </dependency></dependencies>
</project>
"""


@pytest.fixture(scope="session")
def jars(pytestconfig: pytest.Config) -> Jars:
    """Fetch jars; skip the test where they cannot be had."""
    maven, java = shutil.which("mvn"), shutil.which("javac")
    if maven is None or java is None:
        pytest.skip("Maven and a JDK are not installed")
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache

    def fetched(group: str, artifact: str, version: str) -> Path:
        directory = cache.mkdir(f"jars-{artifact}-{version}")
        library = directory / "lib"
        if not (library / f"{artifact}-{version}.jar").exists():
            (directory / "pom.xml").write_text(POM.format(group, artifact, version))
            copy = ["-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={library}"]
            try:
                subprocess.run(
                    [maven, *copy], cwd=directory, check=True, capture_output=True, timeout=200
                )
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
                pytest.skip(f"Maven cannot fetch {artifact}: the repository is not reachable")
        return library

    return fetched


def run_java(program: Path, library: Path, *arguments: str) -> dict[str, str]:
    """Run a program, and return the lines that it prints by their first words."""
    done = subprocess.run(
        ["java", "-cp", f"{library}/*", str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())
