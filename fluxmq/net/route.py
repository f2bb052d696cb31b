"""Destinations of a topic: looked up once per topic and cached."""

from __future__ import annotations

from typing import Any

from fluxmq.protocols.mqtt.delivery import Target


class Route:
    """``targets`` of this shard, ``links`` (`RunLink`) to other shards, shared ``groups`` and
    durable ``queues`` (`RunSink`)."""

    def __init__(
        self,
        targets: list[Target],
        links: list[Any],
        groups: list[Any],
        queues: list[Any],
    ) -> None:
        self.targets = targets
        self.links = links
        self.groups = groups
        self.queues = queues
