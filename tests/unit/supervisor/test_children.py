"""What the supervisor reads of its children's processes."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import fluxmq
from fluxmq.supervisor.children import Children

SPIN = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)\nwhile True: pass"


def test_time_without_a_processor_is_told() -> None:
    """Two that want the same processor: each waits while the other runs, as long as that is watched."""
    children = Children()
    assert children.waited_ns(0) == 0
    command = [sys.executable, "-c", SPIN]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for slot, process in enumerate(spinning):
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            children._running[slot] = process.pid
        before = [children.waited_ns(slot) for slot in range(2)]
        while any(children.waited_ns(slot) - before[slot] < 20_000_000 for slot in range(2)):
            os.sched_yield()  # the test's own time limit ends this when nothing is told
    finally:
        for process in spinning:
            process.kill()
            process.communicate()


LOADED = """
import sys
from fluxmq.supervisor.programs import PROGRAMS
for program in PROGRAMS.values():
    program.load(True)
print(*sys.modules, sep="\\n")
"""
PACKAGES = Path(fluxmq.__file__).parent
FORKED = (
    "auth",
    "cluster",
    "engine",
    "net",
    "queues",
    "raft",
    "replication",
    "routing",
    "sessions",
    "shards",
    "storage",
)
"""Packages that shards run."""


def late_imports(package: str) -> set[str]:
    """Modules of ours that the functions of a package import, but for extensions without a source."""
    found = set()
    for path in (PACKAGES / package).rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.ImportFrom) and node.module:
                        found.add(node.module)
    return {
        name
        for name in found
        if name.startswith("fluxmq.") and not name.rpartition(".")[2].startswith("_")
    }


def test_shards_import_nothing_after_their_fork() -> None:
    """A module that each shard imports for itself takes memory in each, and time at each start."""
    command = [sys.executable, "-c", LOADED]
    image = set(
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    )
    late = set().union(*map(late_imports, FORKED))
    assert "fluxmq.engine.group_clients" in late
    assert late - image == set()


def test_the_image_starts_no_threads() -> None:
    """A library that does, as numpy's, would not survive the fork whole."""
    threads = LOADED + "import os; print(len(os.listdir('/proc/self/task')))"
    command = [sys.executable, "-c", threads]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.split()[-1] == "1"
