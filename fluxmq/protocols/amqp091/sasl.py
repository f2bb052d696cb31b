"""Identity in a SASL response: PLAIN, AMQPLAIN, EXTERNAL and, of AMQP 1.0 only, ANONYMOUS.

Checks only the form. Codes and texts are RabbitMQ's and never repeat the response.

Source: RFC 4616 section 2 (PLAIN), RFC 4422 appendix A (EXTERNAL), RFC 4505 (ANONYMOUS), RabbitMQ
(AMQPLAIN: a field table without its length, with LOGIN and PASSWORD).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.tables import FieldTableError, decode_entries

PLAIN: Final = "PLAIN"
AMQPLAIN: Final = "AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"
ANONYMOUS: Final = "ANONYMOUS"

RESPONSE_BYTES_MAX: Final = 64 << 10
"""Maximum bytes of a response: passwords are short, tokens in their place a few thousand bytes;
bounds the hashing."""

_CLASS: Final = 10
_METHOD: Final = 11


class Credentials(NamedTuple):
    """Content of a response. `authorization_id`: the identity to act as, empty for the user's own.

    `user` is empty for EXTERNAL, which means the identity in the TLS certificate.
    """

    authorization_id: str
    user: str
    password: bytes


def parse(mechanism: str, response: bytes) -> Credentials:
    """Return the credentials in a connection.start-ok.

    Raises `HardError`: 503 for an unknown mechanism, 502 for a malformed response, 403 for names
    that are not text and for acting as another user.
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
    """Return the error for a refused login, for clients that announced
    ``authentication_failure_close``."""
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
        raise refused(PLAIN)  # acting as another user is not supported
    return Credentials(authorization_id.decode(), user.decode(), password)


def _amqplain(response: bytes) -> Credentials:
    try:
        table = decode_entries(response)
    except FieldTableError:
        raise _invalid("AMQPLAIN auth info is not a field table") from None
    if "LOGIN" not in table or "PASSWORD" not in table:
        raise _invalid("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    user, password = table["LOGIN"], table["PASSWORD"]
    if not isinstance(user, str) or not isinstance(password, str | bytes):
        raise refused(AMQPLAIN)
    return Credentials("", user, password.encode() if isinstance(password, str) else password)


def _invalid(text: str) -> HardError:
    return HardError(ReplyCode.SYNTAX_ERROR, text, _CLASS, _METHOD)
