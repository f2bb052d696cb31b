"""Backup of a node: fluxmqctl asks control, and control asks every shard for its groups.

Both requests are `BACKUP`, answered with `BackedUp`. Control creates the directory, on this
machine.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fluxmq.ipc.messages import MessageBody, Natural

BACKUP: Final = "backup"
DIRECTORY_CHARACTERS_MAX: Final = 4096
"""Maximum bytes of a path on Linux."""
RATE_MAX: Final = 1 << 40


class Backup(MessageBody, frozen=True):
    """Request to write a backup into `directory`. `rate`: maximum bytes per second of each shard's
    segments; 0: unlimited."""

    directory: Annotated[str, Meta(max_length=DIRECTORY_CHARACTERS_MAX)]
    rate: Annotated[int, Meta(ge=0, le=RATE_MAX)]


class BackedUp(MessageBody, frozen=True):
    """Contents of a backup. `bytes`: of segments."""

    groups: Natural
    queues: Natural
    bytes: Natural

    def __add__(self, other: BackedUp) -> BackedUp:
        return BackedUp(
            self.groups + other.groups, self.queues + other.queues, self.bytes + other.bytes
        )
