"""The groups of a shard that its periodic work looks at: all but those that rest with nothing left to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from fluxmq.replication.open_group import OpenGroup
from fluxmq.replication.ports import Made


class AttendedGroups(Generic[Made]):
    """``groups`` by name. ``is_inactive`` returns whether a group has no timers, and nothing to write
    or to answer."""

    def __init__(self) -> None:
        self.groups: dict[str, OpenGroup[Made]] = {}
        self.is_inactive: Callable[[Made], bool] = lambda _group: False

    def add(self, hosted: OpenGroup[Made]) -> None:
        """Look at a group that was opened, or has woken."""
        self.groups[hosted.group.name] = hosted

    def remove(self, name: str) -> None:
        """Forget a group that is no longer here."""
        self.groups.pop(name, None)

    def dismiss(self, name: str) -> None:
        """Leave out a group that rests, unless something is left to do."""
        hosted = self.groups[name]
        busy = hosted.entries_behind or hosted.checkpointing or hosted.keep_behind or hosted.mending
        if not busy and self.is_inactive(hosted.group):
            del self.groups[name]
