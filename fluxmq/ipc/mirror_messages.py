"""Synchronisation of mirrored queues: fluxmqctl's requests to control, and the answers.

    fluxmqctl -> control  sync_queue, cancel_sync_queue

A queue that does not exist is refused with the code ``not_found``; one that is not mirrored with
``invalid``, unless the request is to cancel. Pure, like `messages`.
"""

from __future__ import annotations

from typing import Final

from fluxmq.ipc.messages import MessageBody, Name, Text

SYNC_QUEUE: Final = "sync_queue"
CANCEL_SYNC_QUEUE: Final = "cancel_sync_queue"
KINDS: Final = frozenset({SYNC_QUEUE, CANCEL_SYNC_QUEUE})


class MirroredQueue(MessageBody, frozen=True):
    """A mirrored queue whose mirrors are to be synchronised, or no longer. ``begin``: false for a mere
    query of how far that is."""

    vhost: Name
    name: Name
    begin: bool = True


class SyncState(MessageBody, frozen=True):
    """Whether mirrors are being synchronised; the answer to a cancellation says whether they were.
    ``progress``: in words, if known."""

    syncing: bool
    progress: Text = ""
