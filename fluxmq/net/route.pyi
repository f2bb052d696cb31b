# Types of ``route``, for the checker: the source's annotations are C types.

from typing import Any

from fluxmq.protocols.mqtt.portion import Target

class Route:
    targets: list[Target]
    links: list[Any]
    groups: list[Any]
    queues: list[Any]

    def __init__(
        self,
        targets: list[Target],
        links: list[Any],
        groups: list[Any],
        queues: list[Any],
    ) -> None: ...
