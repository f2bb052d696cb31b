"""What an earlier version wrote is read, and means the same: entries and a snapshot recorded with it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.queues.machine import (
    SNAPSHOT_VERSION,
    Machine,
    NewerSnapshotError,
    SnapshotError,
)

RECORDED = json.loads(
    (Path(__file__).parents[2] / "data" / "queues" / "machine-1.json").read_text()
)
"""A group with a work queue (two consumers, dead, refused and given back messages) and a stream."""


def test_recorded_entries_make_the_state_they_made() -> None:
    machine = Machine()
    for index, entry in enumerate(RECORDED["entries"], 1):
        machine.apply(index, RECORDED["term"], base64.b64decode(entry))
    assert machine.state_hash() == RECORDED["hash"]


def test_a_recorded_snapshot_is_the_state_of_its_entries() -> None:
    applied = Machine()
    for index, entry in enumerate(RECORDED["entries"], 1):
        applied.apply(index, RECORDED["term"], base64.b64decode(entry))
    restored = Machine()
    restored.restore(base64.b64decode(RECORDED["snapshot"]))
    assert restored.snapshot() == applied.snapshot()
    assert restored.queues[1].group("g") is not None
    assert msgpack.unpackb(base64.b64decode(RECORDED["snapshot"]))[0] == 1


@pytest.mark.parametrize(("version", "newer"), [(0, False), (SNAPSHOT_VERSION + 1, True)])
def test_a_snapshot_of_another_version_is_refused(version: int, newer: bool) -> None:
    fields = msgpack.unpackb(Machine().snapshot())
    fields[0] = version
    with pytest.raises(SnapshotError, match="version") as raised:
        Machine().restore(msgpack.packb(fields))
    assert isinstance(raised.value, NewerSnapshotError) == newer
