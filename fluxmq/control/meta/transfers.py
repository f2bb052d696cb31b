"""Snapshot transfers between two control processes: parts in order, few unacknowledged at a
time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fluxmq.control.meta.frames import Part, PartReceived, SnapshotSent, encode
from fluxmq.control.meta.snapshots import SNAPSHOT_BYTES_MAX, read_part
from fluxmq.ipc.messages import MessageError

WINDOW: Final = 4
"""Unacknowledged parts: enough to keep a connection busy, few enough for heartbeats to get
through."""


@dataclass(slots=True)
class OutgoingSnapshot:
    """A snapshot being sent to one node. `message` is the Raft core's message that ends it."""

    number: int
    parts: list[bytes]
    message: bytes
    send: Callable[[bytes], bool]
    _sent: int = 0
    _ended: bool = False

    def begin(self) -> bool:
        """Send the first parts; False when that fails."""
        return self._send_up_to(WINDOW)

    def taken(self, reply: PartReceived) -> bool:
        """Note an acknowledgement and send more; False when that fails."""
        if reply.snapshot != self.number:
            return True
        return self._send_up_to(reply.place + 1 + WINDOW)

    @property
    def ended(self) -> bool:
        """True when everything has been sent."""
        return self._ended

    def _send_up_to(self, place: int) -> bool:
        while self._sent < min(place, len(self.parts)):
            part = Part(self.number, self._sent, self.parts[self._sent])
            if not self.send(encode(part)):
                return False
            self._sent += 1
        if self._sent == len(self.parts) and not self._ended:
            self._ended = True
            return self.send(encode(SnapshotSent(self.number, len(self.parts), self.message)))
        return True


@dataclass(slots=True)
class Receiving:
    """Parts of the snapshot arriving from one node; a newer snapshot replaces it."""

    send: Callable[[bytes], bool]
    _snapshot: int = 0
    _parts: list[bytes] = field(default_factory=list)
    _bytes: int = 0

    def part(self, part: Part) -> None:
        """Take a part. Raises MessageError when it is not the next one, or too large."""
        if part.snapshot != self._snapshot:
            self._snapshot, self._parts, self._bytes = part.snapshot, [], 0
        if part.place != len(self._parts):
            raise MessageError(f"part {part.place} of a snapshot after {len(self._parts)}")
        self._bytes += len(part.data)
        if self._bytes > SNAPSHOT_BYTES_MAX:
            raise MessageError(f"a snapshot of more than {SNAPSHOT_BYTES_MAX} bytes")
        self._parts.append(part.data)
        self.send(encode(PartReceived(part.snapshot, part.place)))

    def complete(self, sent: SnapshotSent) -> list[bytes]:
        """Return all parts at the end of the transfer. Raises MessageError when some are
        missing."""
        parts, self._parts = self._parts, []
        self._bytes = 0
        if sent.snapshot != self._snapshot or sent.parts != len(parts):
            raise MessageError("a snapshot without some of its parts")
        return parts


def read(parts: list[bytes]) -> tuple[dict[str, Any], ...]:
    """Decode a snapshot. Raises ValueError when it is malformed. Takes time proportional to its
    size."""
    read_parts = tuple(read_part(part) for part in parts)
    if not read_parts or "users" not in read_parts[0]:
        raise ValueError("a snapshot without a beginning")
    return read_parts
