"""Readiness of the node and the state of every process at one moment.

Pure: rows of the process table, the time and what is known of control connections go in. A node is
ready when every shard and the acceptor say so, their heartbeats are fresh, every shard has its
control connection and leads all its replication groups, and the control socket itself answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fluxmq.ipc.launch import process_name
from fluxmq.ipc.messages import ProcessNumbers, ProcessStatus
from fluxmq.ipc.table import ProcessRow, ProcessState

# A loop that has not come round for this long does not serve; it beats several times a second.
HEARTBEAT_SECONDS_MAX: Final = 3.0


def heartbeat_age(row: ProcessRow, now_ns: int) -> float | None:
    """Return the age of the process's last heartbeat in seconds, None before the first."""
    if row.heartbeat == 0:
        return None
    return max(0.0, (now_ns - row.heartbeat) / 1e9)


def statuses(
    rows: Sequence[ProcessRow], now_ns: int, now: float, numbers: Mapping[str, ProcessNumbers]
) -> tuple[ProcessStatus, ...]:
    """Return every process's status.

    `now_ns` is CLOCK_MONOTONIC in nanoseconds, `now` seconds since the epoch; `numbers` has each
    process's own report, by name.
    """
    return tuple(
        ProcessStatus(
            role=row.role,
            index=row.index,
            pid=row.pid,
            core=row.core,
            state=row.state.name.lower(),
            ready=row.ready,
            uptime=max(0.0, now - row.started_at) if row.pid else 0.0,
            restarts=row.restarts,
            last_exit=row.last_exit,
            reason=row.reason,
            heartbeat_age=heartbeat_age(row, now_ns),
            connections=row.connections,
            numbers=numbers.get(process_name(row.role, row.index)),
        )
        for row in rows
    )


def live_shards(rows: Sequence[ProcessRow]) -> list[str]:
    """Return the names of the shards that serve clients now."""
    return [
        process_name(row.role, row.index)
        for row in rows
        if row.role == "shard" and row.pid and row.ready
    ]


@dataclass(frozen=True, slots=True)
class ProcessReadiness:
    """Readiness of one process: whether it serves, and if not, why (`problem`); and alarms raised
    although it serves."""

    process: str
    heartbeat_age: float | None
    problem: str | None
    alarm: str | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of the node. `control_problem` is why the control socket does not serve, or None.
    `alarms` names exhausted resources; the node still serves consumers."""

    processes: tuple[ProcessReadiness, ...]
    control_problem: str | None
    alarms: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """True when every part of the node serves."""
        return self.control_problem is None and all(
            process.problem is None for process in self.processes
        )

    def to_json(self) -> dict[str, object]:
        """Return the body of /ready."""
        return {
            "status": "ready" if self.ready else "not_ready",
            "control_socket": self.control_problem or "ok",
            "alarms": list(self.alarms),
            "processes": [
                {
                    "process": process.process,
                    "ready": process.problem is None,
                    "heartbeat_age": process.heartbeat_age
                    if process.heartbeat_age is None
                    else round(process.heartbeat_age, 3),
                    **({} if process.problem is None else {"problem": process.problem}),
                    **({} if process.alarm is None else {"alarm": process.alarm}),
                }
                for process in self.processes
            ],
        }


def readiness(
    rows: Sequence[ProcessRow],
    now_ns: int,
    numbers: Mapping[str, ProcessNumbers | None],
    control_problem: str | None,
    alarms: tuple[str, ...] = (),
) -> Readiness:
    """Judge the node. `numbers` has the shards with a control connection, by name: each one's own
    report, None when it did not answer in time."""
    processes = []
    for row in rows:
        name = process_name(row.role, row.index)
        age = heartbeat_age(row, now_ns)
        told = numbers.get(name)
        alarm = None if told is None else alarm_of(told)
        processes.append(ProcessReadiness(name, age, _problem(row, name, age, numbers), alarm))
    if not any(row.role == "shard" for row in rows):
        processes.append(ProcessReadiness("shard-0", None, "not in the process table"))
    return Readiness(tuple(processes), control_problem, alarms)


def alarm_of(numbers: ProcessNumbers) -> str | None:
    """Return the alarm of a process that serves; None if there is none."""
    if numbers.clocks_apart:
        return f"clocks of {numbers.clocks_apart} other nodes differ from this node's: check NTP"
    return None


def _problem(
    row: ProcessRow, name: str, age: float | None, numbers: Mapping[str, ProcessNumbers | None]
) -> str | None:
    """Return why this process does not serve, the most telling reason first."""
    if not row.pid:
        reason = f": {row.reason}" if row.reason else ""
        return f"not running ({row.state.name.lower()}){reason}"
    if age is None:
        return "no heartbeat yet"
    if age >= HEARTBEAT_SECONDS_MAX:
        return f"no heartbeat for {age:.1f} s"
    if not row.ready:
        return "stopping" if row.state is ProcessState.STOPPING else "not ready yet"
    if row.role != "shard":
        return None
    if name not in numbers:
        return "no control connection"
    told = numbers[name]
    if told is None:
        return "no answer in time"
    if told.groups_failed:
        return f"{told.groups_failed} of {told.groups} groups have failed"
    if told.state_failed:
        return "sessions and retained messages are no longer persisted"
    if told.groups_leaderless:
        return f"{told.groups_leaderless} of {told.groups} groups have no leader"
    if told.groups_starting:
        return f"{told.groups_starting} of {told.groups} groups have no leader yet"
    return None
