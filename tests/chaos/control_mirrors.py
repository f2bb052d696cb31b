"""``python -m tests.chaos.control_mirrors --seconds 75``: the positive control of the runs with mirrored queues. Exit 0: every
broken rule was found; 1: not; 77: not permitted here.

Each trial breaks one rule in a copy of the source, uncompiled, on which the safety of mirrored queues rests, and has a
configuration run there in which that matters. The checker of that run must find a confirmed message that is lost.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutations.mutation import LEFT_OUT, ROOT, Mutation, copy_tree
from tests.powercut.__main__ import SKIPPED

BEYOND_S = 600.0
"""Time that a run may take beside that of its load."""
TALLY = re.compile(r"confirmed (\d+), ok \d+, (\d+) confirmed lost")
COMMITS = "tests/unit/raft/test_appointed.py::test_an_entry_is_committed_when_every_voter_has_it"
ASKS = (
    "tests/unit/replication/test_mirror_leaders.py"
    "::test_a_voter_out_of_contact_leaves_the_record_and_is_demoted"
)
"""Tests that notice the same, of one part alone."""

MUTATIONS = (
    Mutation(
        "mirrors_majority",
        "A message is confirmed when all synchronised mirrors have it, not a majority of them.",
        "EveryVoter.committed",
        "return min(held)",
        "return sorted(held)[(len(held) - 1) // 2]",
        COMMITS,
    ),
    Mutation(
        "mirrors_leader_alone",
        "A message is confirmed when all synchronised mirrors have it, not the leader alone.",
        "EveryVoter.committed",
        "return min(held)",
        "return max(held)",
        COMMITS,
    ),
    Mutation(
        "mirrors_record_not_asked",
        "A leader does without a mirror only after the record no longer names that as synchronised.",
        "MirrorLeaders._request",
        "if not self._ask((group, node), MIRROR_CHANGE, body, changed):",
        "if state == LOST:\n            answered(True)\n        elif not self._ask((group, node), MIRROR_CHANGE, body, changed):",
        ASKS,
    ),
)


class Trial(NamedTuple):
    """A run on broken code. ``code``: its exit code."""

    name: str
    code: int
    confirmed: int
    lost: int
    output: str


CONFIGURATIONS = {
    "mirrors_majority": "mirrors-held",
    "mirrors_leader_alone": "mirrors-held-pair",
    "mirrors_record_not_asked": "mirrors-silent",
}
"""The configuration that runs on each."""


def attempt(mutation: Mutation, seconds: float, seed: int, histories: Path) -> Trial:
    """Run the configuration on a copy in which one rule is broken."""
    with tempfile.TemporaryDirectory(prefix="fx-control-mirrors-") as folder:
        root = Path(folder)
        copy_tree(root)
        shutil.copytree(ROOT / "perf", root / "perf", ignore=LEFT_OUT)
        file, changed = mutation.broken(root)
        (root / file).write_text(changed, "utf-8")
        command = [sys.executable, "-m", "tests.chaos", "--config"]
        command += [CONFIGURATIONS[mutation.name]]
        command += ["--seconds", f"{seconds:g}", "--seed", str(seed)]
        command += ["--histories", str(histories / mutation.name)]
        environment = {**os.environ, "FLUXMQ_PURE": "1", "PYTHONPATH": f"{root}:{root}/spark"}
        done = subprocess.run(
            command,
            cwd=root,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=seconds + BEYOND_S,
            check=False,
        )
    output = done.stdout + done.stderr
    tally = TALLY.search(output)
    confirmed, lost = (int(tally[1]), int(tally[2])) if tally else (0, 0)
    return Trial(mutation.name, done.returncode, confirmed, lost, output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try every mutation; the last line says how many were found."""
    options = argparse.ArgumentParser(prog="python -m tests.chaos.control_mirrors")
    names = [each.name for each in MUTATIONS]
    options.add_argument("--seconds", type=float, default=75.0, help="of load and faults")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", choices=names, help="one of the broken rules")
    options.add_argument(
        "--histories",
        type=Path,
        default=Path(tempfile.gettempdir()) / "chaos-histories",
        help="directory of the recorded histories",
    )
    chosen = options.parse_args(arguments)
    tried = [each for each in MUTATIONS if chosen.only in (None, each.name)]
    found = 0
    for mutation in tried:
        trial = attempt(mutation, chosen.seconds, chosen.seed, chosen.histories)
        print(trial.output, flush=True)
        if trial.code == SKIPPED:
            return SKIPPED
        found += trial.lost > 0
        print(f"{trial.name}: confirmed {trial.confirmed}, {trial.lost} confirmed lost", flush=True)
    print(f"{found} of {len(tried)} broken rules found")
    return 0 if found == len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
