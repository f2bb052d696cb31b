"""Counts of messages that are not delivered."""

from __future__ import annotations

from collections import Counter


class Drops:
    """Messages not delivered. ``denied``: requests that permissions forbade, by operation."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()

    def __getitem__(self, reason: str) -> int:
        return self.by_reason[reason]

    def count(self, reason: str, count: int) -> None:
        """Count messages not delivered."""
        self.by_reason[reason] += count
        if reason == "no_permission":
            self.denied["publish"] += 1
