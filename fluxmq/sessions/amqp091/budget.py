"""A connection's budget for incomplete messages and uncommitted transactions.

All channels of a connection share one budget: a limit per channel would be multiplied by the number
of channels, which the client chooses. A channel that exceeds it is closed with 406, which releases
all that it held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import SoftError

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.ports import AmqpBrokerPort

HELD_BYTES: Final = 512
"""Approximate size of the objects that keep one publish or settlement until commit, besides its
bytes."""


class Budget:
    """Bytes that a connection's channels hold."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0

    def share(self, broker: AmqpBrokerPort) -> Share:
        """Return a share for one message or transaction."""
        return Share(self, broker)


class Share:
    """Bytes that one message or transaction has taken from a budget."""

    __slots__ = ("_broker", "_budget", "bytes")

    def __init__(self, budget: Budget, broker: AmqpBrokerPort) -> None:
        self._budget = budget
        self._broker = broker
        self.bytes = 0

    def take(self, size: int) -> None:
        """Take ``size`` more bytes. Raises SoftError 406, and takes nothing, if that exceeds the
        budget."""
        most = self._broker.limits.max_incomplete_bytes
        if self._budget.used + size > most:
            self._broker.refused_for_memory("budget")
            text = f"connection holds more than {most} bytes of incomplete messages and uncommitted transactions"
            raise SoftError(ReplyCode.PRECONDITION_FAILED, text)
        self._budget.used += size
        self.bytes += size

    def release(self) -> None:
        """Return everything to the budget."""
        self._budget.used -= self.bytes
        self.bytes = 0
