"""Destinations of a topic: looked up once per topic and cached."""

from __future__ import annotations


class Route:
    """``targets`` of this shard, ``links`` to other shards, shared ``groups``, durable
    ``queues``."""

    def __init__(self, targets: list, links: list, groups: list, queues: list) -> None:
        self.targets = targets
        self.links = links
        self.groups = groups
        self.queues = queues
