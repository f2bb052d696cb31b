"""What is not done, and why: AMQP reply codes with the texts that RabbitMQ 3.10 gives.

Texts come without the code's name in front (``PRECONDITION_FAILED - ``); the session puts it there.
"""

from __future__ import annotations

from typing import Final

from fluxmq.model.errors import FluxmqError

ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
COMMAND_INVALID: Final = 503


class Refusal(FluxmqError):  # noqa: N818 - an answer to whoever asked, not a fault of the broker
    """A change is not made, or what is asked for is not there.

    ``code``: 403, 404, 405 or 406, which end the channel; 503, which ends the connection. Equal when both agree.
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
    """How texts call something: ``queue 'orders' in vhost '/'``."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def not_found(kind: str, name: str, vhost: str) -> Refusal:
    """There is no such exchange or queue."""
    return Refusal(NOT_FOUND, f"no {named(kind, name, vhost)}")


def no_vhost(vhost: str) -> Refusal:
    """There is no such vhost."""
    return Refusal(NOT_FOUND, f"no vhost '{vhost}'")


def locked(name: str, vhost: str) -> Refusal:
    """The queue is another connection's, or is declared with another ``exclusive``."""
    return Refusal(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {named('queue', name, vhost)}. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration.",
    )


def default_exchange() -> Refusal:
    """The default exchange is neither declared nor deleted nor bound."""
    return Refusal(ACCESS_REFUSED, "operation not permitted on the default exchange")


def reserved(kind: str, name: str) -> Refusal:
    """The name begins with ``amq.``."""
    return Refusal(ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def precondition(text: str) -> Refusal:
    """Something about the request does not hold."""
    return Refusal(PRECONDITION_FAILED, text)
