"""Mirrored groups that have ended, since no queue was in them any more: what this shard has of them is
removed.

The control process says which these are, by keys in etcd; that a record is not there means nothing. A
node that was away is told as well. No other group ever has such a name, so a log that is still somewhere is
never taken for another one's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from fluxmq.logs import get_logger
from fluxmq.replication.hosted_groups import AnyHostedGroups
from fluxmq.replication.placement import Places
from fluxmq.storage.directory import DataPaths, remove_group
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

LOOK_SECONDS: Final = 1.0
"""Interval between two attempts to remove groups."""

_log = get_logger("fluxmq.cluster")


class EndedMirrors:
    """Those of one shard. ``removed`` is called with those of which nothing is left here."""

    def __init__(
        self,
        hosting: AnyHostedGroups,
        shard: int,
        places: Places,
        files: Files,
        paths: DataPaths,
        removed: Callable[[Collection[str]], None],
        now: Callable[[], float],
    ) -> None:
        self._hosting = hosting
        self._shard = shard
        self._places = places
        self._files = files
        self._paths = paths
        self._removed = removed
        self._now = now
        self._told: set[str] = set()
        self._left: set[str] = set()
        """Those of which something may be left."""
        self._next_look = 0.0

    def __contains__(self, group: str) -> bool:
        """Return whether a group is known to have ended."""
        return group in self._told

    def told(self, groups: Iterable[str]) -> set[str]:
        """Take note of groups that have ended; they are removed by `housekeeping`. Return those that were
        not known to have."""
        new = {*groups} - self._told
        self._told |= new
        self._left |= new
        return new

    def needed(self) -> list[str]:
        """Return those that are still open, or about to be, and so need their addresses."""
        hosting = self._hosting
        return [each for each in self._left if each in hosting.groups or each in hosting.replacing]

    def housekeeping(self) -> None:
        """Remove what is left of groups; called by the shard's timer."""
        if not self._left or self._now() < self._next_look:
            return
        self._next_look = self._now() + LOOK_SECONDS
        in_logs = {*self._hosting.unhosted()}
        done = [each for each in sorted(self._left) if self._is_removed(each, in_logs)]
        self._left.difference_update(done)
        if done:
            self._removed(done)

    def _is_removed(self, group: str, in_logs: Collection[str]) -> bool:
        """Remove a group; return whether that is done, or tried again at the next start."""
        hosting = self._hosting
        if self._places.is_moving(group) or group in hosting.replacing:
            return False
        hosted = hosting.groups.get(group)
        try:
            if hosted is not None:
                if hosted.checkpointing:
                    return False
                hosting.leave(group)
                _log.info("a mirrored group has ended", extra={"group": group})
            elif group in in_logs:
                hosting.forget(group)
            hosting.broken.pop(group, None)
            if self._places.shard_of(group) == self._shard:
                remove_group(self._files, self._paths, group)
        except StorageError as problem:
            extra = {"group": group, "problem": str(problem)}
            _log.error("a group that has ended cannot be removed", extra=extra)
        return True
