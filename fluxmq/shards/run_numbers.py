"""Identities of messages in the cluster: of those of QoS 1 and 2 that may wait for a session."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple, Protocol

from fluxmq.protocols.mqtt.run import PublishRun

RECEIVER_BITS: Final = (1 << 16) - 1
"""Of a link's number: the shard that receives."""
VIA_SHIFT: Final = 48
"""Place of the shard that a run was passed on to in a receipt, above the link's number."""


class NumberedLink(Protocol):
    """A link to another shard, of this node or another."""

    @property
    def peer(self) -> int:
        """The number of the shard at its other end."""

    @property
    def epoch(self) -> int:
        """The life of that shard."""


class RunOrigin(NamedTuple):
    """Origin of a run: its link (sender and receiver), the sender's life, the run's number.

    A run that another node has sent keeps that origin when a shard passes it on to another: the node
    sends it again if the one that passed it on dies, and that one would number it anew.
    """

    link: int
    epoch: int
    number: int

    @classmethod
    def over(cls, link: NumberedLink, receiver: int, number: int) -> RunOrigin:
        """Return the origin of a numbered run that has come over a link to the shard ``receiver``."""
        return cls(link.peer << 16 | receiver, link.epoch, number)

    def receipt(self, shard: int) -> int:
        """Return the link as a session's receipts at a shard name it: one that the run was passed on to
        has receipts of its own, for which runs come in order, too."""
        return (
            self.link if receiver_of(self.link) == shard else (shard + 1) << VIA_SHIFT | self.link
        )


def receiver_of(link: int) -> int:
    """Return the shard that receives over a link, or over that of a receipt."""
    return link & RECEIVER_BITS


class RunNumbers:
    """Numbers the messages that are published to this shard; knows where others' came from."""

    def __init__(self) -> None:
        self._origin = secrets.randbits(63)
        """This life of the shard."""
        self._last = 0
        self.source: RunOrigin | None = None
        """Origin of the run being delivered, if another shard would resend it."""
        self.losses = 0
        """Number of times that another shard of this node has died: the runs that it passed on come
        again."""

    def identify(self, run: PublishRun) -> None:
        """Give a whole run an identity, unless it has one: it was published here."""
        if run.identity is None:
            run.identity = self._origin, self._last + 1
            self._last += run.count
