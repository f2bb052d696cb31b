"""Backup of a node: fluxmqctl asks control, and control asks every shard for its groups.

Both requests are `BACKUP`, answered with `BackedUp`. Control creates the directory, on this
machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from fluxmq.ipc.messages import Body, Fields

BACKUP: Final = "backup"
DIRECTORY_CHARACTERS_MAX: Final = 4096
"""Maximum bytes of a path on Linux."""
RATE_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Backup:
    """Request to write a backup into `directory`. `rate`: maximum bytes per second of each shard's
    segments; 0: unlimited."""

    directory: str
    rate: int

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"directory": self.directory, "rate": self.rate}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, BACKUP)
        return cls(
            fields.text("directory", DIRECTORY_CHARACTERS_MAX), fields.integer("rate", 0, RATE_MAX)
        )


@dataclass(frozen=True, slots=True)
class BackedUp:
    """Contents of a backup. `bytes`: of segments."""

    groups: int
    queues: int
    bytes: int

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, BACKUP)
        return cls(fields.integer("groups"), fields.integer("queues"), fields.integer("bytes"))

    def __add__(self, other: BackedUp) -> BackedUp:
        return BackedUp(
            self.groups + other.groups, self.queues + other.queues, self.bytes + other.bytes
        )
