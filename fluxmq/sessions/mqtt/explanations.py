"""Reasons with a text: the answer to a publish is a number, which leads to the text.

An answer passes the hot path as a plain number. Its lowest byte is MQTT's reason code; the upper
bits select a text sent with it (Reason String, MQTT 5 section 3.4.2.2.2).
"""

from __future__ import annotations

from fluxmq.protocols.mqtt.reasons import Reason

EXPLANATIONS_MAX = 4096
"""Maximum number of texts; further codes are sent without. Texts name groups and nodes, which are
few."""
_FIRST = 2
"""Lower numbers are internal and not sent to clients (`fluxmq.engine.ports.MOVED`)."""


class Explanations:
    """Texts by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def reason(self, code: int, text: str) -> int:
        """Return a reason with a text."""
        number = self._numbers.get(text)
        if number is None:
            if len(self._texts) >= EXPLANATIONS_MAX:
                return code
            number = self._numbers[text] = len(self._texts) + _FIRST
            self._texts.append(text)
        return number << 8 | code

    def text(self, reason: int) -> str:
        """Return the text of a reason; empty for none."""
        at = (reason >> 8) - _FIRST
        return self._texts[at] if 0 <= at < len(self._texts) else ""


def code_of(reason: int) -> int:
    """Return MQTT's reason code; 0x83 for an internal one that no client should see."""
    return (
        reason & 0xFF if reason <= 0xFF or reason & 0x80 else Reason.IMPLEMENTATION_SPECIFIC_ERROR
    )
