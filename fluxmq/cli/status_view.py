"""Output of `fluxmqctl status`: one line per process, totals, and problems.

Pure: turns one answer of the control process, and the previous one in watch mode, into lines or
JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fluxmq.cli.tables import TextTable, columns, duration, grouped
from fluxmq.control.overview import HEARTBEAT_SECONDS_MAX, alarm_of
from fluxmq.ipc.launch import process_name
from fluxmq.ipc.messages import NodeStatus, ProcessStatus, Resources
from fluxmq.ipc.table import DISK, MEMORY, NOT_PINNED

_COLUMNS: Final = columns(
    "PROCESS, STATE, #PID, #CORE, #UPTIME, #RESTARTS, #CONNECTIONS, #SESSIONS, #SUBSCRIPTIONS, "
    "#MESSAGES IN, #MESSAGES OUT"
)
_RATE_COLUMNS: Final = columns("#IN/S, #OUT/S")
_NONE: Final = "-"


def state_of(process: ProcessStatus) -> tuple[str, str]:
    """Return a process's state in one word, and its colour."""
    if not process.pid:
        return process.state.replace("_", " "), "red"
    age = process.heartbeat_age
    if age is not None and age >= HEARTBEAT_SECONDS_MAX:
        return "hangs", "red"
    if process.ready and process.state == "ready":
        return "ready", "green"
    return process.state.replace("_", " "), "yellow"


def lines(
    status: NodeStatus, *, colour: bool, before: NodeStatus | None = None, elapsed: float = 0.0
) -> list[str]:
    """Return the lines to print.

    With `before`, an earlier answer, and the seconds `elapsed` since, message rates are included.
    """
    with_rates = before is not None and elapsed > 0
    table = TextTable([*_COLUMNS, *(_RATE_COLUMNS if with_rates else ())])
    earlier = {} if before is None else {_name(each): each for each in before.processes}
    rate_sums = [0, 0]
    for number, process in enumerate(status.processes):
        text, paint = state_of(process)
        table.colours[number, 1] = paint
        row = [_name(process), text, *_process_cells(process), *_number_cells(process)]
        if with_rates:
            rates = None
            if process.role == "shard":
                rates = _rates(process, earlier.get(_name(process)), elapsed)
            row += [_NONE, _NONE] if rates is None else [grouped(rate) for rate in rates]
            rate_sums = [
                total + rate for total, rate in zip(rate_sums, rates or (0, 0), strict=True)
            ]
        table.rows.append(row)
    table.totals = _totals(status, rate_sums if with_rates else [])
    title = f"FluxMQ {status.version}, users at revision {status.users_revision}"
    return [title, "", *table.lines(colour=colour), *_remarks(status)]


def to_json(status: NodeStatus) -> dict[str, object]:
    """Return the control process's answer as a JSON object, with totals."""
    body = status.to_body()
    body["processes"] = [
        {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in each.items()
        }
        for each in (process.to_body() for process in status.processes)
    ]
    body |= status.resources.to_body()
    del body["resources"]
    body["totals"] = {
        "connections": sum(sum(process.connections) for process in status.processes),
        **_sums(status),
    }
    return body


def _name(process: ProcessStatus) -> str:
    return process_name(process.role, process.index)


def _process_cells(process: ProcessStatus) -> list[str]:
    running = process.pid > 0
    return [
        str(process.pid) if running else _NONE,
        _NONE if process.core == NOT_PINNED else str(process.core),
        duration(process.uptime) if running else _NONE,
        str(process.restarts),
    ]


def _number_cells(process: ProcessStatus) -> list[str]:
    """Return the cells only a shard has. Connections come from the shared table, so they show even
    when the shard did not answer; the rest is the shard's own report."""
    if process.role != "shard":
        return [_NONE] * 5
    connections = grouped(sum(process.connections))
    numbers = process.numbers
    if numbers is None:
        return [connections, *["?"] * 4]
    return [
        connections,
        grouped(numbers.sessions),
        grouped(numbers.subscriptions),
        grouped(numbers.messages_received),
        grouped(numbers.messages_sent),
    ]


def _rates(
    process: ProcessStatus, before: ProcessStatus | None, elapsed: float
) -> tuple[int, int] | None:
    """Return messages in and out per second, or None when the two answers are not comparable."""
    now, then = process.numbers, None if before is None else before.numbers
    # A restarted shard counts from zero again; its first difference is meaningless.
    if now is None or then is None or before is None or before.pid != process.pid:
        return None
    return (
        round((now.messages_received - then.messages_received) / elapsed),
        round((now.messages_sent - then.messages_sent) / elapsed),
    )


def _sums(status: NodeStatus) -> dict[str, int]:
    answered = [
        process.numbers
        for process in status.processes
        if process.role == "shard" and process.numbers is not None
    ]
    names = ("sessions", "subscriptions", "messages_received", "messages_sent")
    return {name: sum(getattr(numbers, name) for numbers in answered) for name in names}


def _totals(status: NodeStatus, rates: list[int]) -> list[str]:
    connections = sum(sum(process.connections) for process in status.processes)
    restarts = sum(process.restarts for process in status.processes)
    counts = [connections, *_sums(status).values(), *rates]
    return ["total", "", "", "", "", str(restarts), *(grouped(count) for count in counts)]


def _remarks(status: NodeStatus) -> list[str]:
    """Return remarks that do not fit the columns: why a process is missing or does not answer."""
    remarks = list(_alarms(status.resources))
    for process in status.processes:
        name = _name(process)
        if not process.pid and process.reason:
            remarks.append(f"{name}: {process.reason}")
        elif process.restarts and process.last_exit is not None:
            remarks.append(
                f"{name}: restarted {process.restarts} times, {_exit(process.last_exit)}"
            )
        if process.pid and process.role == "shard" and process.numbers is None:
            remarks.append(f"{name}: did not answer in time")
        elif process.numbers is not None and process.numbers.groups_leaderless:
            count, groups = process.numbers.groups_leaderless, process.numbers.groups
            remarks.append(f"{name}: {count} of {groups} groups have no leader")
        if process.numbers is not None and process.numbers.outbox_batches:
            count = process.numbers.outbox_batches
            remarks.append(
                f"{name}: {count} batches are on this node only and wait for their leader"
            )
        if process.numbers is not None and process.numbers.clocks_apart:
            remarks.append(f"{name}: {alarm_of(process.numbers)}")
    return ["", *remarks] if remarks else []


def _alarms(resources: Resources) -> Iterator[str]:
    """Yield the node's resource alarms and their effect on clients."""
    held, mark = resources.memory_held >> 20, resources.memory_high_watermark >> 20
    if MEMORY in resources.alarms:
        yield f"alarm: memory is low: {held} MiB in use, high watermark {mark} MiB; publishers are paused"
    if DISK in resources.alarms:
        yield "alarm: disk space is low: publishes to durable queues are refused, AMQP publishers are paused"


def _exit(code: int) -> str:
    return f"last ended by signal {-code}" if code < 0 else f"last ended with code {code}"
