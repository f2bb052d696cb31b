"""Publishers' message identities, for detecting duplicates: a producer and a sequence.

A queue stores the producer's name as a number, its hash. As text, both are
``<producer>:<sequence>``: in MQTT's user property and in AMQP's header ``x-deduplication-id``. A
producer's name may contain colons.
"""

from __future__ import annotations

from typing import Final

import xxhash

NUMBER_DIGITS_MAX: Final = 19
"""Digits of an offset or sequence: both are below 2^63."""
SEQUENCE_MAX: Final = (1 << 63) - 1
PRODUCER_BYTES_MAX: Final = 1024
"""Bytes of a producer's name, usually a client id, which is no longer."""


def producer_number(name: bytes) -> int:
    """Return the number for a producer's name in a batch: its hash, never 0. Raises ValueError for
    an empty name."""
    if not 0 < len(name) <= PRODUCER_BYTES_MAX:
        raise ValueError("the producer's name is empty or too long")
    return xxhash.xxh3_64_intdigest(name) or 1


def whole_number(text: bytes, what: str, most: int) -> int:
    """Parse a number in decimal digits. Raises ValueError naming ``what`` when it is invalid or
    above ``most``."""
    if not (text.isdigit() and len(text) <= NUMBER_DIGITS_MAX) or (number := int(text)) > most:
        raise ValueError(f"{what} is not a whole number from 0 to {most}")
    return number


def identity(producer: bytes, sequence: bytes) -> tuple[int, int]:
    """Return a producer's number and the sequence. Raises ValueError."""
    return producer_number(producer), whole_number(sequence, "sequence", SEQUENCE_MAX)


def identity_of(text: bytes) -> tuple[int, int]:
    """Return the same for a text ``<producer>:<sequence>``. Raises ValueError."""
    producer, _, sequence = text.rpartition(b":")
    return identity(producer, sequence)
