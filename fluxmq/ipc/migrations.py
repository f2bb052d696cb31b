"""Moving a queue to another replication group: what fluxmqctl asks control, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from fluxmq.ipc.messages import Body, Fields

MIGRATE_QUEUE: Final = "migrate_queue"
MIGRATION: Final = "migration"
NAME_CHARACTERS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move a queue to ``group``; with ``abort`` leave it where it is. Asked as `MIGRATION`, just say where it is."""

    vhost: str
    name: str
    group: str = ""
    abort: bool = False

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"vhost": self.vhost, "name": self.name, "group": self.group, "abort": self.abort}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, MIGRATE_QUEUE)
        return cls(
            fields.text("vhost", NAME_CHARACTERS_MAX),
            fields.text("name", NAME_CHARACTERS_MAX),
            fields.text("group", NAME_CHARACTERS_MAX),
            fields.boolean("abort"),
        )


@dataclass(frozen=True, slots=True)
class Migrating:
    """Where a queue is: in ``group``, and on its way to ``moving_to``, empty when it is not. ``progress``: in words, where it
    is known."""

    group: str
    moving_to: str
    progress: str = ""

    def to_body(self) -> dict[str, object]:
        """Return the body to send."""
        return {"group": self.group, "moving_to": self.moving_to, "progress": self.progress}

    @classmethod
    def from_body(cls, body: Body) -> Self:
        """Read a body. Raises MessageError."""
        fields = Fields(body, MIGRATION)
        return cls(fields.text("group"), fields.text("moving_to"), fields.text("progress"))
