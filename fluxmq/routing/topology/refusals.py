"""Refusals and their reasons: AMQP reply codes with RabbitMQ 3.10's texts.

Texts come without the code's name in front (``PRECONDITION_FAILED - ``), which the session adds.
"""

from __future__ import annotations

from typing import Final

from fluxmq.model.errors import FluxmqError

ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
COMMAND_INVALID: Final = 503

NO_PARAMETER: Final = "Parameter does not exist"
"""Text for a parameter, global or of a component, that is to be removed."""


class Refusal(FluxmqError):  # noqa: N818 - an answer to whoever asked, not a fault of the broker
    """A change is refused, or the requested record is missing.

    ``code``: 403, 404, 405 or 406, which end the channel; 503, which ends the connection. Equal
    when both agree.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Refusal) and (self.code, self.text) == (other.code, other.text)

    def __hash__(self) -> int:
        return hash((self.code, self.text))


def named(kind: str, name: str, vhost: str) -> str:
    """Return a record's name for texts: ``queue 'orders' in vhost '/'``."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def not_found(kind: str, name: str, vhost: str) -> Refusal:
    """Return the refusal for a missing exchange or queue."""
    return Refusal(NOT_FOUND, f"no {named(kind, name, vhost)}")


def no_vhost(vhost: str) -> Refusal:
    """Return the refusal for a missing vhost."""
    return Refusal(NOT_FOUND, f"no vhost '{vhost}'")


def locked(name: str, vhost: str) -> Refusal:
    """Return the refusal for another connection's queue, or one declared with another
    ``exclusive``."""
    return Refusal(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {named('queue', name, vhost)}. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration.",
    )


def default_exchange() -> Refusal:
    """Return the refusal to declare, delete or bind the default exchange."""
    return Refusal(ACCESS_REFUSED, "operation not permitted on the default exchange")


def reserved(kind: str, name: str) -> Refusal:
    """Return the refusal of a name that begins with ``amq.``."""
    return Refusal(ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def precondition(text: str) -> Refusal:
    """Return the refusal of a request whose precondition fails."""
    return Refusal(PRECONDITION_FAILED, text)
