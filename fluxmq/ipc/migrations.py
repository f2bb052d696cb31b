"""Moves of a queue to another replication group: fluxmqctl's requests to control, and the
answers."""

from __future__ import annotations

from typing import Final

from fluxmq.ipc.messages import MessageBody, Name, Text, Word

MIGRATE_QUEUE: Final = "migrate_queue"
MIGRATION: Final = "migration"


class Migrate(MessageBody, frozen=True):
    """Command to move a queue to ``group``, or with ``abort`` to leave it where it is. ``type``: the type
    that it has once it is there, empty if that stays; without ``group``, it goes to that of a new queue
    of this type. A request of kind `MIGRATION` is a mere query."""

    vhost: Name
    name: Name
    group: Name = ""
    abort: bool = False
    type: Word = ""


class Migrating(MessageBody, frozen=True):
    """Location of a queue: in ``group``, and moving to ``moving_to``, empty when it is not.
    ``progress``: in words, if known; ``type``: the queue's; ``becomes``: the one that it has once it has moved,
    empty if that stays."""

    group: Text
    moving_to: Text
    progress: Text = ""
    type: Word = ""
    becomes: Word = ""
