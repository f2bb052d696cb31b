"""The placement of groups on shards, as this shard knows it.

Read from the data directory at the shard's start and updated by the control process, the only
writer. Updates carry a revision and may arrive twice or late; older ones are ignored.
"""

from __future__ import annotations

from fluxmq.ipc.placements import shard_of
from fluxmq.settings.clustering import EPHEMERAL
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths, Placement, read_placement
from fluxmq.storage.files import Files


class Places:
    """The shard of each group: where it is pinned, else where it is recorded, else by its name."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def shard_of(self, group: str) -> int:
        """Return the shard of a group; of a moving one, its former shard."""
        if group.startswith(EPHEMERAL + "-"):
            return int(group.rpartition("-")[2])
        return shard_of(self.placement, group)

    def first_of(self, kind: str, shard: int) -> list[str]:
        """Return the first of a shard's groups named ``kind`` and a number; empty if there is
        none."""
        names = (f"{kind}-{number}" for number in range(self.placement.local_groups))
        return [name for name in names if self.shard_of(name) == shard][:1]

    def is_moving(self, group: str) -> bool:
        """Return whether a group's place is undecided, so that no shard opens it."""
        return group in self.placement.moving

    def learn(self, placement: Placement) -> dict[str, int] | None:
        """Accept a newer placement; return the groups it may change with their former shards, else
        None."""
        before = self.placement
        if placement.revision <= before.revision:
            return None
        self.placement = placement
        named: dict[str, None] = {}
        for each in (before, placement):
            for groups in (each.pins, each.groups, each.moving):
                named.update(dict.fromkeys(groups))
        return {name: shard_of(before, name) for name in named}


def placement_of(settings: Settings, workers: int) -> Placement:
    """Return the last written placement of groups, or a new data directory's. Raises
    StorageError."""
    found = read_placement(Files(), DataPaths(settings.storage.data_dir))
    if found is None:
        return Placement(workers, settings.queue_manager.local_groups)
    return found
