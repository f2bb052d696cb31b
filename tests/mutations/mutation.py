"""What a mutation is, and how one is tried.

A mutation breaks one rule in the source, on purpose and in few characters; some test must notice. It is tried
on a copy of the tree, uncompiled, so that nothing has to be built and nobody else's run is disturbed. A
mutation that no test notices says that a rule is written down and not held.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.symbols import find, pattern

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("fluxmq", "spark", "tests", "config", "setup.cfg", "pyproject.toml", "setup.py")
LEFT_OUT = shutil.ignore_patterns("*.so", "*.c", "__pycache__", ".hypothesis", "data")
EXAMPLES = 1000
"""Of a property test: the first that fails ends it, so that only a rule that nobody holds costs them all."""

SECONDS_MAX = 120
"""A mutation may make a test hang; that is noticed as well. Each further test of a run has three seconds more."""

FAILED = 1
"""pytest's exit code when tests ran and some failed; all others mean that nothing was shown."""


@dataclass(frozen=True)
class Mutation:
    """Breaks `rule` by writing `new` for `old` within the symbol `at` (see `symbols.find`); `test` must fail then.

    `old` occurs once there, however its lines are broken. `slow`: the test starts a broker, or runs many seeds.
    """

    name: str
    rule: str
    at: str
    old: str
    new: str
    test: str
    slow: bool = False

    def complaints(self, root: Path = ROOT) -> list[str]:
        """What is wrong with the mutation itself: the source or the test has moved on."""
        found = []
        try:
            self.broken(root)
        except LookupError as problem:
            found.append(str(problem))
        if self.new == self.old:
            found.append("nothing changes")
        file, _, function = self.test.partition("::")
        function = function.partition("[")[0]
        if f"def {function}(" not in (root / file).read_text("utf-8"):
            found.append(f"{file} has no {function}")
        return found

    def broken(self, root: Path = ROOT) -> tuple[str, str]:
        """Return the file of the symbol and its text with the rule broken. Raises LookupError."""
        place = find(root, self.at)
        lines = (root / place.file).read_text("utf-8").splitlines(keepends=True)
        code = "".join(lines[place.first : place.last])
        hits = list(pattern(self.old).finditer(code))
        if len(hits) != 1:
            raise LookupError(f"{self.at} in {place.file} holds the old code {len(hits)} times")
        code = code[: hits[0].start()] + self.new + code[hits[0].end() :]
        return place.file, "".join([*lines[: place.first], code, *lines[place.last :]])


@dataclass(frozen=True)
class Verdict:
    """What came of trying a mutation. `noticed`: the test ran and failed."""

    mutation: Mutation
    noticed: bool
    output: str


def copy_tree(target: Path) -> None:
    """What is needed to run tests, without anything compiled."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=LEFT_OUT)
        else:
            shutil.copy2(source, target / name)
    etcd = ROOT / "build" / "etcd"
    if etcd.exists():
        (target / "build").mkdir()
        (target / "build" / "etcd").symlink_to(etcd)


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of pytest on uncompiled code."""
    environ = {**os.environ, "FLUXMQ_PURE": "1", "PYTHONPATH": f"{root}:{root}/spark"}
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # A property test draws its examples: what it finds in one run of two is to be found in every one.
    environ["FLUXMQ_EXAMPLES"] = str(EXAMPLES)
    environ.pop("PYTEST_CURRENT_TEST", None)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    command += [f"--timeout={SECONDS_MAX // 2}", *tests]
    seconds = SECONDS_MAX + 3 * (len(tests) - 1)
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environ,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return FAILED, f"no end within {error.timeout} s"
    return done.returncode, done.stdout + done.stderr


def attempt(mutation: Mutation, root: Path) -> Verdict:
    """Try one mutation in a copy of the tree, which is as before afterwards."""
    file, changed = mutation.broken(root)
    path = root / file
    text = path.read_text("utf-8")
    path.write_text(changed, "utf-8")
    try:
        code, output = run_tests(root, [mutation.test])
    finally:
        path.write_text(text, "utf-8")
    return Verdict(mutation, code == FAILED, output)
