"""Error conditions of AMQP 1.0, and the errors that carry them, by the scope that they end.

Source: OASIS AMQP 1.0 part 2, sections 2.8.15 to 2.8.18, and part 4, section 4.5.8.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.amqp10.types import Symbol

INTERNAL_ERROR: Final = Symbol("amqp:internal-error")
NOT_FOUND: Final = Symbol("amqp:not-found")
UNAUTHORIZED_ACCESS: Final = Symbol("amqp:unauthorized-access")
DECODE_ERROR: Final = Symbol("amqp:decode-error")
RESOURCE_LIMIT_EXCEEDED: Final = Symbol("amqp:resource-limit-exceeded")
NOT_ALLOWED: Final = Symbol("amqp:not-allowed")
INVALID_FIELD: Final = Symbol("amqp:invalid-field")
NOT_IMPLEMENTED: Final = Symbol("amqp:not-implemented")
RESOURCE_LOCKED: Final = Symbol("amqp:resource-locked")
PRECONDITION_FAILED: Final = Symbol("amqp:precondition-failed")
RESOURCE_DELETED: Final = Symbol("amqp:resource-deleted")
ILLEGAL_STATE: Final = Symbol("amqp:illegal-state")
CONNECTION_FORCED: Final = Symbol("amqp:connection:forced")
FRAMING_ERROR: Final = Symbol("amqp:connection:framing-error")
WINDOW_VIOLATION: Final = Symbol("amqp:session:window-violation")
ERRANT_LINK: Final = Symbol("amqp:session:errant-link")
HANDLE_IN_USE: Final = Symbol("amqp:session:handle-in-use")
UNATTACHED_HANDLE: Final = Symbol("amqp:session:unattached-handle")
TRANSFER_LIMIT_EXCEEDED: Final = Symbol("amqp:link:transfer-limit-exceeded")
MESSAGE_SIZE_EXCEEDED: Final = Symbol("amqp:link:message-size-exceeded")
UNKNOWN_TRANSACTION: Final = Symbol("amqp:transaction:unknown-id")
TRANSACTION_ROLLBACK: Final = Symbol("amqp:transaction:rollback")


class ConditionError(Exception):
    """The peer violated the protocol, or its request is refused: ``condition`` and why."""

    def __init__(self, condition: Symbol, text: str) -> None:
        super().__init__(condition, text)
        self.condition = condition
        self.text = text

    def __str__(self) -> str:
        return f"{self.condition}: {self.text}"


class ConnectionConditionError(ConditionError):
    """An error that ends the connection."""


class SessionConditionError(ConditionError):
    """An error that ends the session."""


class LinkConditionError(ConditionError):
    """An error that ends the link."""


def malformed(text: str) -> ConnectionConditionError:
    """Return the error for bytes that cannot be decoded."""
    return ConnectionConditionError(DECODE_ERROR, text)
