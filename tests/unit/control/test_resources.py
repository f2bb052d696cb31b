"""What the control process measures and tells of the node's resources."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fluxmq.control.resources import NodeResources
from fluxmq.ipc.memory import ProcessMemory, available
from fluxmq.ipc.messages import Resources
from fluxmq.ipc.table import ProcessTable
from fluxmq.settings import Settings

MIB = 1 << 20
MARKED = Settings.model_validate({"memory": {"high_watermark_bytes": 300 * MIB}})


@pytest.fixture
def table() -> Iterator[ProcessTable]:
    """A shard, an acceptor, and control in row 2."""
    created = ProcessTable.create(3)
    for slot, role in enumerate(("shard", "acceptor", "control")):
        created.assign(slot, role, 0)
    yield created
    created.close()
    os.close(created.fd)


def test_control_measures_for_who_does_not(table: ProcessTable) -> None:
    """Review finding 14: this process plays all three that control measures."""
    own = ProcessMemory()
    resources = NodeResources(table, 2, os.getpid(), MARKED)
    table.set_memory(0, 1_000 * MIB)
    resources.measure()
    alone = own.read()
    assert abs(table.memory() - 1_000 * MIB - 2 * alone) < alone // 2, "itself and the supervisor"
    table.set_started(1, os.getpid(), 1, 0)
    resources.measure()
    assert abs(table.memory() - 1_000 * MIB - 3 * alone) < alone // 2, "the acceptor as well"
    table.set_started(1, 2**22 + 1, 1, 0)  # more than the kernel gives: it has just ended
    resources.measure()
    assert abs(table.memory() - 1_000 * MIB - 2 * alone) < alone // 2
    own.close()


def test_what_is_told(table: ProcessTable) -> None:
    """Review finding 14."""
    resources = NodeResources(table, 2, os.getpid(), MARKED)
    table.set_memory(0, 301 * MIB)
    table.set_alarms(0, ["memory"])
    assert resources.read() == Resources(("memory",), 301 * MIB, 300 * MIB, available())
    told = {(name, *labels.values()): value for name, labels, value in resources.samples()}
    assert told["fluxmq_alarm", "memory"] == 1
    assert told["fluxmq_alarm", "disk"] == 0
    assert told["fluxmq_memory_held_bytes",] == 301 * MIB
    assert told["fluxmq_memory_high_watermark_bytes",] == 300 * MIB
    assert told["fluxmq_memory_available_bytes",] == available()
    resources.configure(Settings())
    assert resources.read().memory_high_watermark == int(0.6 * available())
