"""Moves of a queue to another replication group: fluxmqctl's requests to control, and the
answers."""

from __future__ import annotations

from typing import Final

from fluxmq.ipc.messages import MessageBody, Name, Text

MIGRATE_QUEUE: Final = "migrate_queue"
MIGRATION: Final = "migration"


class Migrate(MessageBody, frozen=True):
    """Command to move a queue to ``group``, or with ``abort`` to leave it where it is. A request of
    kind `MIGRATION` is a mere query."""

    vhost: Name
    name: Name
    group: Name = ""
    abort: bool = False


class Migrating(MessageBody, frozen=True):
    """Location of a queue: in ``group``, and moving to ``moving_to``, empty when it is not.
    ``progress``: in words, if known."""

    group: Text
    moving_to: Text
    progress: Text = ""
