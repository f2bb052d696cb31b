"""Serial numbers of 32 bits: delivery ids, transfer ids, delivery counts.

Source: RFC 1982; OASIS AMQP 1.0 part 2, section 2.8.8 (sequence-no).
"""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000


def ahead(number: int, base: int) -> int:
    """Return how far a serial number is ahead of another; negative: behind."""
    difference = (number - base) & MASK
    return difference - (MASK + 1) if difference >= _HALF else difference


def widened(number: int, near: int) -> int:
    """Return the unbounded number, of those with this serial, that is closest to ``near``."""
    return near + ahead(number, near & MASK)
