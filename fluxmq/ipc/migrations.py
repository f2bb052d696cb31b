"""Moves of a queue to another replication group: fluxmqctl's requests to control, and the
answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from fluxmq.ipc.messages import Body, Fields

MIGRATE_QUEUE: Final = "migrate_queue"
MIGRATION: Final = "migration"
NAME_CHARACTERS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Migrate:
    """Command to move a queue to ``group``, or with ``abort`` to leave it where it is. A request of
    kind `MIGRATION` is a mere query."""

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
    """Location of a queue: in ``group``, and moving to ``moving_to``, empty when it is not.
    ``progress``: in words, if known."""

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
