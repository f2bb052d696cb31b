"""What can happen in a simulated world; the names are those of the trace."""

from __future__ import annotations

DELIVER, TICK, SYNCED, APPLIED, COMMAND, FAULT, START, HEAL, SNAPSHOT, STOP, PROBE = range(11)
PIECE, CARRIED, OPERATE, FAILED, LOST, REPLACED = range(11, 17)
NAMES = (
    "deliver",
    "tick",
    "synced",
    "applied",
    "command",
    "fault",
    "start",
    "heal",
    "snapshot",
    "stop",
    "probe",
    "piece",
    "carried",
    "operate",
    "failed",
    "lost",
    "replaced",
)
