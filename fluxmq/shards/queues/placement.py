"""Which shard hosts which group, as this shard knows it.

Read from the data directory when the shard starts, told by the control process from then on: it alone writes. What is
told by revision may come twice or late; an older one is not believed.
"""

from __future__ import annotations

from fluxmq.ipc.placements import shard_of
from fluxmq.settings.schema import Settings
from fluxmq.shards.queues.names import EPHEMERAL
from fluxmq.storage.directory import DataPaths, Placement, read_placement
from fluxmq.storage.files import Files


class Places:
    """Which shard hosts a group: where it was pinned, else where it is noted, else by its name."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def shard_of(self, group: str) -> int:
        """The shard of a group; of one that is moving, where it was."""
        if group.startswith(EPHEMERAL + "-"):
            return int(group.rpartition("-")[2])
        return shard_of(self.placement, group)

    def first_of(self, kind: str, shard: int) -> list[str]:
        """The first of a shard's groups whose names begin with this and end with a number; none if it has none."""
        names = (f"{kind}-{number}" for number in range(self.placement.local_groups))
        return [name for name in names if self.shard_of(name) == shard][:1]

    def is_moving(self, group: str) -> bool:
        """Whether it is not decided where the group is: then nobody opens it."""
        return group in self.placement.moving

    def learn(self, placement: Placement) -> dict[str, int] | None:
        """Take a newer placement: the groups it may say something else about, and where they were; None: not newer."""
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
    """Where groups are, as last written; for a new data directory, as it will be. Raises StorageError."""
    found = read_placement(Files(), DataPaths(settings.storage.data_dir))
    if found is None:
        return Placement(workers, settings.queue_manager.local_groups)
    return found
