"""One term of a node as the leader of ``_meta``, and the nodes that it has seen end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

ENDED_SECONDS: Final = 10.0
"""Silence after which a node counts as ended, and queues in its memory are deleted: as long as it
keeps its client identifiers and wills, and far longer than its control process needs to restart."""


class LeaderTerm:
    """The term. ``since``: the monotonic time of its beginning."""

    def __init__(self, since: float) -> None:
        self.since = since
        self._ended: set[int] = set()

    def newly_ended(
        self, numbers: Iterable[int], heard: Mapping[int, float], now: float
    ) -> list[int]:
        """Return those of the other nodes that have ended, each once until it is heard again.

        ``heard``: time of the last contact with each; the leader gives all of them time from the
        beginning of its term.
        """
        ended = {
            number
            for number in numbers
            if now - max(heard.get(number, self.since), self.since) > ENDED_SECONDS
        }
        found = sorted(ended - self._ended)
        self._ended = ended
        return found
