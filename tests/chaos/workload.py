"""Who publishes to which queue and who consumes: the same in every run, but for what a configuration adds."""

from __future__ import annotations

from tests.chaos.board import Board, Roamer
from tests.chaos.configurations import Configuration
from tests.chaos.consumers import (
    PREFETCH,
    Amqp10Consumer,
    AmqpConsumer,
    Auditor,
    LateConsumer,
    MqttConsumer,
)
from tests.chaos.publishers import (
    Amqp10Publisher,
    AmqpPublisher,
    MqttPublisher,
    Publisher,
    Route,
)
from tests.chaos.records import Key
from tests.chaos.settings import (
    AMQP_GROUP,
    DECLARED,
    KEPT,
    MIRRORED,
    QUORUM,
    STREAM,
    TAIL,
    UNDERTAKERS,
    WORK,
    WORKERS,
)

RATE = 60.0
"""Messages a second of each publisher."""
WINDOWS = (1, 5, 20)
TIME_TO_LIVE_S = 3600
"""That of some publishers' messages: no run is so long, and a clock that is believed when it jumps by hours ends it."""
REJECTED = 10, 3
"""Of ten messages the one numbered three is rejected, where some are."""


def rejected(key: Key) -> bool:
    """Whether a message is one of those that consumers reject."""
    return key[1] % REJECTED[0] == REJECTED[1]


class Workload:
    """The clients of a run."""

    def __init__(self, board: Board, configuration: Configuration) -> None:
        self.board = board
        self.configuration = configuration
        self.publishers = self._publishers()
        self.consumers = self._consumers()

    @property
    def window(self) -> int:
        """Messages that all clients together may have under way."""
        published = sum(publisher.route.window for publisher in self.publishers)
        return published + self.share * len(self.consumers)

    @property
    def share(self) -> int:
        """The most that one connection may: what it was given, and what it has settled without knowing."""
        return 2 * PREFETCH

    def _route(self, number: int, *queues: str, time_to_live: int = 0) -> Route:
        window = self.board.random.choice(WINDOWS)
        return Route(number, queues, window, RATE, time_to_live=time_to_live)

    def _publishers(self) -> list[Publisher]:
        if self.configuration.mirrors:
            return self._publishers_of_mirrored()
        board = self.board
        found: list[Publisher] = []
        for place, queue in enumerate((WORK, QUORUM, STREAM)):
            over_mqtt = self._route(place + 1, queue)
            lives = 0 if queue == STREAM else TIME_TO_LIVE_S
            over_amqp = self._route(place + 11, queue, time_to_live=lives)
            found.append(MqttPublisher(board, f"pm-{queue}", place, over_mqtt))
            found.append(AmqpPublisher(board, f"pa-{queue}", place + 1, over_amqp))
            over_amqp10 = self._route(place + 41, queue, time_to_live=lives)
            found.append(Amqp10Publisher(board, f"p1-{queue}", place + 2, over_amqp10))
        both = self._route(21, WORK, QUORUM, time_to_live=TIME_TO_LIVE_S)
        found.append(MqttPublisher(board, "pm-both", 0, both))
        if self.configuration.declared:
            route = self._route(31, DECLARED)
            found.append(AmqpPublisher(board, "pa-declared", 2, route, declare=True))
        return found

    def _publishers_of_mirrored(self) -> list[Publisher]:
        board = self.board
        found: list[Publisher] = []
        for place, queue in enumerate((MIRRORED, KEPT)):
            over_amqp = self._route(place + 11, queue, time_to_live=TIME_TO_LIVE_S)
            found.append(MqttPublisher(board, f"pm-{queue}", place, self._route(place + 1, queue)))
            found.append(AmqpPublisher(board, f"pa-{queue}", place + 1, over_amqp))
            found.append(
                Amqp10Publisher(board, f"p1-{queue}", place + 2, self._route(place + 41, queue))
            )
        return found

    def _consumers_of_mirrored(self) -> list[Roamer]:
        board = self.board
        found: list[Roamer] = [
            AmqpConsumer(board, "ca-mirrored", 1, MIRRORED, AMQP_GROUP),
            Amqp10Consumer(board, "c1-mirrored", 2, MIRRORED, AMQP_GROUP),
            LateConsumer(board, "ca-kept", 0, KEPT, AMQP_GROUP),
        ]
        if self.configuration.mirrors == "when-synced":
            found.append(MqttConsumer(board, "cm-mirrored", 0, MIRRORED, WORKERS))
        return found

    def _consumers(self) -> list[Roamer]:
        if self.configuration.mirrors:
            return self._consumers_of_mirrored()
        board = self.board
        reject = rejected if self.configuration.dead_letters else lambda key: False
        found: list[Roamer] = [
            MqttConsumer(board, "cm-work-orders", 1, WORK, WORKERS, reject=reject),
            MqttConsumer(board, "cm-work-plain", 2, WORK, WORKERS, verb=""),
            AmqpConsumer(board, "ca-work-1", 0, WORK, AMQP_GROUP),
            Amqp10Consumer(board, "c1-work", 2, WORK, AMQP_GROUP),
            MqttConsumer(board, "cm-hot", 0, QUORUM, WORKERS),
            AmqpConsumer(board, "ca-hot", 1, QUORUM, AMQP_GROUP),
            Amqp10Consumer(board, "c1-hot", 2, QUORUM, AMQP_GROUP),
            MqttConsumer(board, "cm-stream", 2, STREAM, TAIL, verb="commit"),
        ]
        if self.configuration.dead_letters:
            dead = f"$dlq/{WORK}"
            found.append(MqttConsumer(board, "cm-dead", 0, dead, UNDERTAKERS, verb=""))
        if self.configuration.declared:
            for place in (0, 1):
                name = f"ca-declared-{place + 1}"
                found.append(AmqpConsumer(board, name, place, DECLARED, AMQP_GROUP, declare=True))
        return found

    def auditors(self) -> list[Auditor]:
        """A reader of the stream over each node, if there is one."""
        if self.configuration.mirrors:
            return []
        return [
            Auditor(self.board, f"audit-{host.name}", place, STREAM)
            for place, host in enumerate(self.board.hosts)
        ]

    def probes(self) -> list[Publisher]:
        """One publisher per node and queue, to see whether it is served there."""
        found: list[Publisher] = []
        probed = (MIRRORED, KEPT) if self.configuration.mirrors else (WORK, QUORUM, STREAM)
        for place, host in enumerate(self.board.hosts):
            for at, queue in enumerate(probed):
                route = Route(900 + 10 * place + at, (queue,), 1, 20.0, count=1)
                found.append(MqttPublisher(self.board, f"probe-{host.name}-{queue}", place, route))
        return found
