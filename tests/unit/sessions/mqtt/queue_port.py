"""The queues' side of the sessions' port, written down instead of carried out.

What sessions ask is kept in order; the test says what the answers are, at once or later. Publishes are taken where
the hot path offers them to queues, by a sink on the route of a topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from fluxmq.net.route import Route
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import MqttClient, Session
from fluxmq.sessions.mqtt.settlement import SettlementCommand
from tests.unit.shards.node import Shard


class Taken(NamedTuple):
    """One run that a queue was offered."""

    payloads: list[bytes]
    properties: bytes
    options: Any
    qos: int
    retain: int


class QueuePort:
    """The queues that one shard's sessions talk to. `later`: answers wait for `answer`."""

    def __init__(self, shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shard = shard
        self.later = False
        self.refusing = 0
        self.reason = 0
        self.subscribed: list[tuple[str, bytes, QueueSubscription]] = []
        self.unsubscribed: list[tuple[str, bytes]] = []
        self.settled: list[tuple[str, SettlementCommand]] = []
        self.taken: list[Taken] = []
        self._waiting: list[Callable[[int], object]] = []
        broker = shard.broker
        self._clients = broker.queues
        monkeypatch.setattr(broker, "queues", self)
        monkeypatch.setattr(broker.subscriptions, "_queues", self)

    def lead(self, *topics: bytes) -> None:
        """Let these topics lead to a queue."""
        for topic in topics:
            self.shard.reactor.routes[topic] = Route([], [], [], [self])

    def offer(self, run: PublishRun) -> None:
        """The hot path offers a run."""
        self.taken.append(
            Taken(run.payloads(), run.properties, run.options, run.qos, int(run.retain))
        )
        if run.qos:
            self._reply(self.shard.reactor.hold().done, self.reason)

    def answer(self, index: int, reason: int) -> None:
        """Answer what was asked as the `index`-th."""
        self._waiting[index](reason)

    def _reply(self, done: Callable[[int], object], reason: int) -> None:
        self._waiting.append(done)
        if not self.later:
            done(reason)

    def subscribe(
        self,
        session: Session,
        written: bytes,
        wanted: QueueSubscription,
        done: Callable[[int], object],
    ) -> None:
        """A session wants to be a consumer."""
        self.subscribed.append((session.client_id, written, wanted))
        self._reply(done, self.refusing)

    def unsubscribe(self, session: Session, written: bytes) -> None:
        """A session is a consumer no longer."""
        self.unsubscribed.append((session.client_id, written))

    def settle(
        self, client: MqttClient, settlement: SettlementCommand, done: Callable[[int], object]
    ) -> None:
        """A client settles messages."""
        assert client.session is not None
        self.settled.append((client.session.client_id, settlement))
        self._reply(done, self.reason)

    def connected(self, session: Session) -> None:
        """A session's client is here again."""
        self._clients.connected(session)

    def left(self, session: Session) -> None:
        """A session's client has gone."""
        self._clients.left(session)
