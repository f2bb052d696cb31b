"""No history of an appointed group loses what was committed."""

from __future__ import annotations

import os

from tests.unit.raft.appointed import Histories

SEEDS = int(os.environ.get("FLUXMQ_MIRROR_SEEDS", "300"))
EVENTS = 300


def test_nothing_committed_is_lost_and_no_read_is_late() -> None:
    """S4-37: and all logs have the same entries in the same order."""
    committed = appointed = 0
    for seed in range(SEEDS):
        history = Histories(seed)
        try:
            history.run(EVENTS)
        except Exception as problem:
            problem.add_note(f"seed {seed}")
            raise
        committed += len(history.reported) - 1
        appointed += len(history.led)
    assert committed > 10 * SEEDS
    assert appointed > 3 * SEEDS


def test_what_is_lost_was_committed_alone_and_is_counted() -> None:
    """S3-09: leaders go on alone, are replaced meanwhile or not, crash, and hear late of what the record says."""
    discarded = kept = appointed = 0
    for seed in range(SEEDS):
        history = Histories(seed, divided=True)
        try:
            history.run(EVENTS)
        except Exception as problem:
            problem.add_note(f"seed {seed}")
            raise
        discarded += history.discarded
        kept += history.kept
        appointed += len(history.led)
    assert discarded > SEEDS
    assert kept > SEEDS
    assert appointed > 3 * SEEDS
