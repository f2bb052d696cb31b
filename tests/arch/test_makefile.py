"""The interpreter that `make` takes, and `make cluster` when a node is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 30.0

INTERPRETER = """#!{python}
import sys
from unittest import mock
version, prefix, options, headers = {version}, {prefix!r}, {options!r}, {headers}
code = sys.argv[2]
with (
    mock.patch("sys.version_info", version),
    mock.patch("sys.base_prefix", prefix),
    mock.patch("sysconfig.get_config_var", lambda _name: options),
    mock.patch("os.path.exists", lambda _path: headers),
):
    exec(code)
"""
NODE = """#!{bash}
echo "$2 started as $$"
exec sleep 1000
"""


def interpreter(
    folder: Path,
    name: str,
    version: tuple[int, int],
    *,
    prefix: str = "/opt/python",
    options: str = "",
    headers: bool = True,
) -> None:
    """Put a program on the path that answers as an interpreter of this version and build would."""
    program = folder / name
    text = INTERPRETER.format(
        python=sys.executable, version=version, prefix=prefix, options=options, headers=headers
    )
    program.write_text(text)
    program.chmod(0o755)


def chosen(folder: Path) -> str:
    """Return the name of the interpreter that is taken when the path has those of ``folder``."""
    environ = {"PATH": str(folder)}
    command = ["/bin/bash", str(ROOT / ".ci" / "find-python")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    return Path(done.stdout.strip()).name


def test_an_interpreter_built_with_optimisation_is_preferred_to_a_newer_one(tmp_path: Path) -> None:
    interpreter(tmp_path, "python3.13", (3, 13))
    interpreter(tmp_path, "python3.12", (3, 12), options="'--enable-optimizations'")
    interpreter(tmp_path, "python3.11", (3, 11), options="'--enable-optimizations'")
    assert chosen(tmp_path) == "python3.12"


def test_a_distribution_s_interpreter_counts_as_optimised(tmp_path: Path) -> None:
    interpreter(tmp_path, "python3.13", (3, 13))
    interpreter(tmp_path, "python3.11", (3, 11), prefix="/usr")
    assert chosen(tmp_path) == "python3.11"


def test_headers_count_for_more_than_optimisation(tmp_path: Path) -> None:
    interpreter(tmp_path, "python3.13", (3, 13), prefix="/usr", headers=False)
    interpreter(tmp_path, "python3.12", (3, 12))
    interpreter(tmp_path, "python3.11", (3, 11))
    assert chosen(tmp_path) == "python3.12"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`make cluster` in a copy of its rules, with programs that do nothing as nodes."""
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text("utf-8"))
    supervisor = binaries / "fluxmq-supervisor"
    supervisor.write_text(NODE.format(bash="/bin/bash"))
    supervisor.chmod(0o755)
    # The environment and etcd are taken as there: only the recipe of the cluster runs.
    command = ["make", "--old-file=install", "--old-file=etcd-program", "cluster"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Return the first match in the output from here on."""
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(pattern, line)
        if found:
            return found
    raise AssertionError(f"the output ended without {pattern}")


def test_make_cluster_goes_on_when_a_node_is_killed(cluster: subprocess.Popen[str]) -> None:
    started: dict[str, int] = {}
    while len(started) < 3:
        name, pid = read_until(cluster, r"(node\d)\.yaml started as (\d+)").groups()
        started[name] = int(pid)
    os.kill(started["node2"], signal.SIGKILL)
    assert read_until(cluster, r"(node\d) has ended with code (\d+)").groups() == ("node2", "137")
    read_until(cluster, r"config/cluster/node2\.yaml --bind never")
    assert cluster.poll() is None
    for name in ("node1", "node3"):
        os.kill(started[name], 0)
    os.kill(started["node3"], signal.SIGKILL)
    read_until(cluster, "node3 has ended")
    os.kill(started["node1"], signal.SIGTERM)
    read_until(cluster, "all nodes have ended")
    assert cluster.wait(DEADLINE) != 0


def test_make_cluster_stops_its_nodes_at_ctrl_c(cluster: subprocess.Popen[str]) -> None:
    started = [int(read_until(cluster, r"started as (\d+)").group(1)) for _ in range(3)]
    os.killpg(cluster.pid, signal.SIGINT)
    cluster.wait(DEADLINE)
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
