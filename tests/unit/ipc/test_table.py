"""The shared process table."""

import os
from collections.abc import Iterator

import pytest

from fluxmq.ipc.table import (
    LISTENERS_MAX,
    NOT_PINNED,
    REASON_BYTES_MAX,
    ProcessState,
    ProcessTable,
    ProcessTableError,
)


@pytest.fixture
def table() -> Iterator[ProcessTable]:
    created = ProcessTable.create(3)
    yield created
    created.close()
    os.close(created.fd)


def test_empty_rows(table: ProcessTable) -> None:
    rows = table.rows()
    assert [row.slot for row in rows] == [0, 1, 2]
    assert all(row.pid == 0 and not row.ready and row.last_exit is None for row in rows)
    assert all(row.state is ProcessState.STOPPED and row.reason == "" for row in rows)


def test_what_one_process_writes_another_reads(table: ProcessTable) -> None:
    other = ProcessTable(os.dup(table.fd))
    table.assign(1, "shard", 0, core=5)
    table.assign(2, "acceptor", 0)
    table.set_started(1, pid=4711, started_at_ns=1_700_000_000_500_000_000, restarts=2)
    table.set_state(1, ProcessState.READY)
    other.beat(1, 123_456_789)
    other.set_ready(1)
    other.set_connections(1, 2, 17)
    other.set_connections(1, 7, 0, received=40)
    row = table.row(1)
    assert (row.role, row.index, row.core, row.pid, row.restarts) == ("shard", 0, 5, 4711, 2)
    assert (row.state, row.started_at, row.heartbeat) == (
        ProcessState.READY,
        1_700_000_000.5,
        123_456_789,
    )
    assert row.ready
    assert table.ready(1)
    assert table.row(1).heartbeat == 123_456_789
    assert row.connections == (0, 0, 17, 0, 0, 0, 0, 0)
    assert row.received == (0, 0, 0, 0, 0, 0, 0, 40)
    table.clear_readings(1)
    assert table.row(1).received[7] == 40, "in all lives"
    assert (table.row(2).role, table.row(2).core) == ("acceptor", NOT_PINNED)
    assert table.row(0).heartbeat == 0
    other.close()
    os.close(other.fd)


def test_an_end_is_recorded_and_vitals_are_forgotten(table: ProcessTable) -> None:
    table.set_started(0, pid=1, started_at_ns=1, restarts=0)
    table.beat(0, 9)
    table.set_ready(0)
    table.set_connections(0, 0, 3)
    table.set_reason(0, "no")
    table.set_exited(0, -9)
    assert (table.row(0).pid, table.row(0).last_exit) == (0, -9)
    table.clear_readings(0)
    row = table.row(0)
    assert (row.heartbeat, row.ready, row.connections, row.reason) == (
        0,
        False,
        (0,) * LISTENERS_MAX,
        "",
    )
    assert row.last_exit == -9


def test_connections_are_summed_over_all_rows(table: ProcessTable) -> None:
    for slot in range(3):
        table.set_connections(slot, 1, 10 + slot)
    assert table.connections(1) == 33
    assert table.connections(0) == 0


def test_a_reason_is_cut_to_the_row(table: ProcessTable) -> None:
    table.set_reason(1, "ü" * 300)
    reason = table.row(1).reason
    assert reason.startswith("üü")
    assert len(reason.encode()) <= REASON_BYTES_MAX + 3
    assert table.row(2).role == ""  # the next row is untouched
    table.set_reason(1, "short")
    assert table.row(1).reason == "short"


def test_something_else_is_refused() -> None:
    fd = os.memfd_create("other")
    with pytest.raises(ProcessTableError, match="too small"):
        ProcessTable(fd)
    os.ftruncate(fd, 4096)
    with pytest.raises(ProcessTableError, match="does not hold"):
        ProcessTable(fd)
    os.close(fd)


def test_the_table_cannot_be_cut_short(table: ProcessTable) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(table.fd, 100)


def test_memory_and_alarms_of_all_rows_count_together(table: ProcessTable) -> None:
    """Review finding 14."""
    assert (table.memory(), table.alarms()) == (0, ())
    table.set_memory(0, 100)
    table.set_memory(2, 20)
    table.set_alarms(2, ["disk"])
    table.set_alarms(1, {"memory"})
    assert (table.memory(), table.alarms()) == (120, ("memory", "disk"))
    table.set_alarms(2, [])
    table.clear_readings(0)
    assert (table.memory(), table.alarms()) == (20, ("memory",))
    table.clear_readings(1)
    assert table.alarms() == ()
