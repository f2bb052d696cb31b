"""What can happen in a simulated world, and how the trace says it."""

from __future__ import annotations

from zlib import crc32

from fluxmq.raft.types import Message

DELIVER, TICK, SYNCED, APPLIED, COMMAND, FAULT, START, HEAL, SNAPSHOT, STOP, PROBE = range(11)
PIECE, CARRIED, OPERATE, FAILED, LOST, REPLACED, FRAME = range(11, 18)
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
    "frame",
)


def described(message: Message) -> str:
    """A message as a line of the trace."""
    parts = [f"{message.kind.name.lower()} {message.source}>{message.target} t{message.term}"]
    parts.append(f"i{message.index} l{message.log_term} c{message.commit}")
    if message.entries:
        text = b"".join(entry.data for entry in message.entries)
        last = message.entries[-1]
        parts.append(f"{len(message.entries)} to {last.index}/{last.term} {crc32(text):08x}")
    if message.reject:
        parts.append(f"reject {message.hint}/{message.hint_term}")
    if message.context:
        parts.append(f"x{message.context}")
    if message.snapshot is not None:
        parts.append(f"snapshot {message.snapshot.mark.index}")
    return " ".join(parts)
