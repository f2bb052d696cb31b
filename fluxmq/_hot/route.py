"""Where a topic leads: what is looked up once per topic and kept."""

from __future__ import annotations


class Route:
    """``targets`` of this shard, ``links`` to other shards, shared ``groups``, durable ``queues``."""

    def __init__(self, targets: list, links: list, groups: list, queues: list) -> None:
        self.targets = targets
        self.links = links
        self.groups = groups
        self.queues = queues
