"""The queues' part of the sessions' port and of the reactor's host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import MqttClient, Session
from fluxmq.sessions.mqtt.settlement import SettlementCommand

if TYPE_CHECKING:
    from fluxmq.engine.wiring import Queues
    from fluxmq.shards.durable.sessions import DurableSessions


class QueuePort:
    """Requests that a shard's broker passes to its queues. ``schedule_tick`` asks for another
    tick."""

    reactor: Reactor
    queues: Queues
    durable: DurableSessions
    schedule_tick: Callable[[], None]

    def finish_tick(self) -> None:
        """Finish a tick's work of queues, and of answers that wait for the disk."""
        self.queues.service.finish()
        self.durable.commit_waiter.finish()

    def hold(self) -> PendingAck:
        """Hold the answer to the current publish run until the ticket's ``done``."""
        return self.reactor.hold()

    def queue_subscribe(
        self,
        session: Session,
        written: bytes,
        wanted: QueueSubscription,
        done: Callable[[int], None],
    ) -> None:
        """Make the session a consumer of a queue."""

        def finished(reason: int) -> None:
            done(reason)
            self.schedule_tick()

        self.queues.clients.subscribe(session, written, wanted, finished)

    def queue_unsubscribe(self, session: Session, written: bytes) -> None:
        """Remove the session as a consumer."""
        self.queues.clients.unsubscribe(session, written)

    def queue_settle(
        self, client: MqttClient, settlement: SettlementCommand, done: Callable[[int], object]
    ) -> None:
        """Settle messages that were delivered to the client's session."""
        self.queues.clients.settle(client, settlement, done)
