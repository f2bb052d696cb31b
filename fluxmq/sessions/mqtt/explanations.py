"""Reasons that say more than a code: what answers publishes gives a number, and the number leads to the text.

An answer passes the hot path as a plain number. Its lowest byte is the reason code that MQTT has for it; what stands above
names a text that is told with it (Reason String, MQTT 5 section 3.4.2.2.2).
"""

from __future__ import annotations

from fluxmq.protocols.mqtt.reasons import Reason

EXPLANATIONS_MAX = 4096
"""Texts that are known at once. Of more, codes are told without; texts are of groups and nodes, of which there are few."""
_FIRST = 2
"""Below are numbers that are not told to clients (`fluxmq.shards.queues.ports.MOVED`)."""


class Explanations:
    """Texts by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def reason(self, code: int, text: str) -> int:
        """A reason with a text."""
        number = self._numbers.get(text)
        if number is None:
            if len(self._texts) >= EXPLANATIONS_MAX:
                return code
            number = self._numbers[text] = len(self._texts) + _FIRST
            self._texts.append(text)
        return number << 8 | code

    def text(self, reason: int) -> str:
        """What is to be said with a reason; empty for nothing."""
        at = (reason >> 8) - _FIRST
        return self._texts[at] if 0 <= at < len(self._texts) else ""


def code_of(reason: int) -> int:
    """The reason code of MQTT. Of what no client was to be told it is 0x83."""
    return (
        reason & 0xFF if reason <= 0xFF or reason & 0x80 else Reason.IMPLEMENTATION_SPECIFIC_ERROR
    )
