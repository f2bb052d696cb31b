"""Identities of messages in the cluster: of those of QoS 1 and 2 that may wait for a session."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from fluxmq.protocols.mqtt.run import PublishRun


class RunOrigin(NamedTuple):
    """Origin of a run: its link (sender and receiver), the sender's life, the run's number."""

    link: int
    epoch: int
    number: int


class RunNumbers:
    """Numbers the messages that are published to this shard; knows where others' came from."""

    def __init__(self) -> None:
        self._origin = secrets.randbits(63)
        """This life of the shard."""
        self._last = 0
        self.source: RunOrigin | None = None
        """Origin of the run being delivered, if another shard would resend it."""

    def identify(self, run: PublishRun) -> None:
        """Give a whole run an identity, unless it has one: it was published here."""
        if run.identity is None:
            run.identity = self._origin, self._last + 1
            self._last += run.count
