"""Who a SASL response says somebody is: PLAIN, AMQPLAIN and EXTERNAL.

Nothing is checked here but the form. Codes and texts are RabbitMQ's and never repeat the response.

Source: RFC 4616 section 2 (PLAIN), RFC 4422 appendix A (EXTERNAL), RabbitMQ (AMQPLAIN: a field table without its length, with
LOGIN and PASSWORD).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.tables import TableError, decode_entries

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"

RESPONSE_BYTES_MAX: Final = 64 << 10
"""Bytes of a response: passwords are short, tokens in their place a few thousand bytes; what is hashed is bounded by it."""

_CLASS: Final = 10
_METHOD: Final = 11


class Credentials(NamedTuple):
    """What a response says. `authorization_id`: whom to act as, empty for the user itself.

    `user` is empty for EXTERNAL, which means whom the TLS certificate names.
    """

    authorization_id: str
    user: str
    password: bytes


def parse(mechanism: str, response: bytes) -> Credentials:
    """The credentials in a connection.start-ok.

    Raises `HardError`: 503 for a mechanism that is not known, 502 for a response that is none of its mechanism, 403 for names
    that are not text and for who wants to act as another.
    """
    if len(response) > RESPONSE_BYTES_MAX:
        raise _invalid("SASL response too long")
    try:
        if mechanism == PLAIN:
            return _plain(response)
        if mechanism == AMQPLAIN:
            return _amqplain(response)
        if mechanism == EXTERNAL:
            return Credentials(response.decode(), "", b"")
    except UnicodeDecodeError:
        raise refused(mechanism) from None
    text = f"unknown authentication mechanism '{mechanism}'"
    raise HardError(ReplyCode.COMMAND_INVALID, text, _CLASS, _METHOD)


def refused(mechanism: str) -> HardError:
    """The answer to who may not enter, for clients that announced ``authentication_failure_close``."""
    text = (
        f"Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile."
    )
    return HardError(ReplyCode.ACCESS_REFUSED, text)


def _plain(response: bytes) -> Credentials:
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise _invalid("response of mechanism PLAIN invalid")
    authorization_id, user, password = parts
    if authorization_id not in (b"", user):
        raise refused(PLAIN)  # nobody may act as another
    return Credentials(authorization_id.decode(), user.decode(), password)


def _amqplain(response: bytes) -> Credentials:
    try:
        table = decode_entries(response)
    except TableError:
        raise _invalid("AMQPLAIN auth info is not a field table") from None
    if "LOGIN" not in table or "PASSWORD" not in table:
        raise _invalid("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    user, password = table["LOGIN"], table["PASSWORD"]
    if not isinstance(user, str) or not isinstance(password, str | bytes):
        raise refused(AMQPLAIN)
    return Credentials("", user, password.encode() if isinstance(password, str) else password)


def _invalid(text: str) -> HardError:
    return HardError(ReplyCode.SYNTAX_ERROR, text, _CLASS, _METHOD)
