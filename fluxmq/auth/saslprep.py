"""SASLprep (RFC 4013): one spelling for each name and password before they are compared or hashed.

The profile of stringprep (RFC 3454) that SCRAM prescribes: some characters are mapped away, the
rest is normalised (NFKC), then prohibited characters and mixed writing directions are refused.
Pure.
"""

from __future__ import annotations

import stringprep
import unicodedata

_PROHIBITED = (
    stringprep.in_table_c12,  # non-ASCII spaces (already mapped to a space; kept as in RFC 4013)
    stringprep.in_table_c21_c22,  # control characters
    stringprep.in_table_c3,  # private use
    stringprep.in_table_c4,  # non-characters
    stringprep.in_table_c5,  # surrogates
    stringprep.in_table_c6,  # inappropriate for plain text
    stringprep.in_table_c7,  # inappropriate for canonical representation
    stringprep.in_table_c8,  # change display or deprecated
    stringprep.in_table_c9,  # tagging
)


def saslprep(text: str) -> str:
    """Return the prepared form of a *stored* string (unassigned code points are refused, RFC 4013
    section 2.5).

    Raises ValueError for text that the profile prohibits.
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    for character in prepared:
        if any(prohibited(character) for prohibited in _PROHIBITED):
            raise ValueError(f"character U+{ord(character):04X} is not allowed")
        if stringprep.in_table_a1(character):
            raise ValueError(f"character U+{ord(character):04X} is unassigned")
    _check_direction(prepared)
    return prepared


def _check_direction(text: str) -> None:
    """Check RFC 3454 section 6: right-to-left text begins and ends with right-to-left characters
    and has no others. Raises ValueError."""
    if not any(stringprep.in_table_d1(character) for character in text):
        return
    if any(stringprep.in_table_d2(character) for character in text):
        raise ValueError("left-to-right and right-to-left characters are mixed")
    if not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise ValueError("right-to-left text must begin and end with a right-to-left character")
