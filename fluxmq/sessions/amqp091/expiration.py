"""The ``expiration`` of a message: milliseconds as text, with RabbitMQ's error texts.

Source: RabbitMQ's per-message TTL.
"""

from __future__ import annotations

import re
from typing import Final

from fluxmq.protocols.amqp091.errors import SoftError
from fluxmq.sessions.amqp091.channel import precondition

EXPIRY_MS_MAX: Final = 10**15
"""Thirty thousand years: times in microseconds stay far within 64 bits."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


def expiry_of(text: str) -> int:
    """Return milliseconds, clamped to the range of times. Raises SoftError 406."""
    found = _INTEGER.match(text)
    if found is None:
        raise _invalid(text, "no_integer")
    digits, rest = found[0], text[found.end() :]
    if rest:
        raise _invalid(text, f'{{leftover_string,"{rest}"}}')
    if digits[0] == "-" and digits.strip("-0"):
        raise _invalid(text, f"{{value_negative,-{digits[1:].lstrip('0')}}}")
    return min(int(digits), EXPIRY_MS_MAX)


def _invalid(text: str, why: str) -> SoftError:
    return precondition(f"invalid expiration '{text}': {why}")
