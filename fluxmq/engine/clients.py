"""Clients' use of queues on this shard: publishes by topic or address, subscriptions, settlements.

The queue's group determines where requests go: to this shard's own service, or to a client of the
group.
Consumers are attached while their session is connected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from fluxmq.engine.consumers import QueueConsumer
from fluxmq.engine.names import QueueNames
from fluxmq.engine.ports import (
    AttachCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    GroupTarget,
)
from fluxmq.engine.queue_targets import Blocks, QueueTarget
from fluxmq.model.outcomes import Outcome
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.connection import Connection
from fluxmq.queues.commands import Verb
from fluxmq.routing.queue_addresses import MalformedAddressError, parse_publish
from fluxmq.routing.subscriptions import SubscriptionTree
from fluxmq.sessions.mqtt.queue_subscriptions import QueueSubscription
from fluxmq.sessions.mqtt.session import MqttClient, Session
from fluxmq.sessions.mqtt.settlement import SettlementCommand
from fluxmq.settings.schema import Settings

TARGETS_MAX = 65_536
"""Maximum number of cached targets; one without publishes in flight can be recreated at any time."""

DEFAULT_UNSETTLED = 1000
"""Default prefetch limit of a consumer of a queue that is not configured."""

RETRY_US = 1_000_000
"""Delay before a consumer that its queue refused attaches again."""

VERBS = {"ack": Verb.ACK, "nack": Verb.NACK, "reject": Verb.REJECT}


class GroupLookup(Protocol):
    """Lookup of groups' clients."""

    @property
    def attach(self) -> AttachCallback:
        """Attaches a client's consumer to a group."""

    def client(self, group: str, following: bool = False) -> GroupTarget:
        """Return the client of a group; for consumers that follow their queue if ``following``."""

    def hold(self, connection: Connection) -> bool:
        """Pause a connection until there is room for appends; return False if there is."""


class QueueClients:
    """The client side of queues on one shard."""

    def __init__(
        self,
        settings: Settings,
        names: QueueNames,
        groups: GroupLookup,
        reactor: Reactor,
        clock: Callable[[], int],
        wake: Callable[[], None],
        dropped: Callable[[str, int], None],
    ) -> None:
        self.names = names
        self._groups = groups
        self._reactor = reactor
        self._clock = clock
        self._wake = wake
        self._dropped = dropped
        self._blocks = Blocks()
        self._targets: dict[tuple[str, bool], QueueTarget] = {}
        self._captures: SubscriptionTree[str, None] = SubscriptionTree()
        self._captured: dict[str, tuple[bytes, ...]] = {}
        self._consumers: dict[Session, dict[bytes, QueueConsumer]] = {}
        self._marked: dict[QueueConsumer, None] = {}
        self.bound: Callable[[bytes], list[QueueTarget]] = lambda _topic: []
        """Returns the queues that bindings route a topic to."""
        self._orphans: dict[tuple[Session, bytes], int] = {}
        """Subscriptions whose consumer was cancelled, with the time of the next retry (µs)."""
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Apply settings, at start and on change."""
        manager = settings.queue_manager
        self._waiting_max = manager.capture_workers * manager.capture_queue_depth
        storage = settings.storage
        self._run_max = min(storage.wal_file_bytes // 2, storage.segment_bytes) // 4
        self._ephemeral = manager.max_ephemeral_queues > 0
        self._unsettled = {queue.name: queue.consumer.max_unsettled for queue in settings.queues}

    # Publishing

    def targets(self, topic: bytes) -> list[QueueTarget] | None:
        """Return the queues that store a topic's messages; None if it addresses a queue that cannot
        exist."""
        if self.names.changed:
            self._learn()
        names = dict.fromkeys(name for _, name, _ in self._captures.match(topic))
        found = [self.target(name) for name in names]
        found += [target for target in self.bound(topic) if target not in found]
        try:
            address = parse_publish(topic)
        except MalformedAddressError:
            return None
        if address is not None:
            name = address.queue.decode()
            known = self.names.find(name) is not None
            if known or (not found and self._ephemeral):
                if all(target.info.name != name for target in found):
                    found.append(self.target(name, by_address=True))
            elif not found:
                return None
        return found

    def _learn(self) -> None:
        """Update the topic filters of all known queues."""
        self.names.changed = False
        wanted = self.names.capturing
        if wanted != self._captured:
            for name, topics in self._captured.items():
                for topic_filter in topics:
                    self._captures.remove(topic_filter, name)
            for name, topics in wanted.items():
                for topic_filter in topics:
                    self._captures.add(topic_filter, name, None)
            self._captured = dict(wanted)
        self._targets.clear()
        self._reactor.routes.clear()

    def target(self, name: str, by_address: bool = False) -> QueueTarget:
        """Return the target for a queue that publishers name, or whose topics they name."""
        target = self._targets.get((name, by_address))
        if target is None:
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            target = QueueTarget(
                self.names.info(name),
                self._groups.client,
                self._reactor,
                self._blocks,
                self._clock,
                self._waiting_max,
                self._run_max,
                self._dropped,
                by_address,
            )
            self._targets[name, by_address] = target
        return target

    # Consuming

    def subscribe(
        self,
        session: Session,
        written: bytes,
        wanted: QueueSubscription,
        done: Callable[[int], None],
    ) -> None:
        """Make a connected session a consumer; ``done`` gets the outcome."""
        self.unsubscribe(session, written)
        name = wanted.queue.decode()
        if self.names.find(name) is None and not self._ephemeral:
            done(Outcome.OVER_LIMIT)
            return
        limit = self._limit(session, wanted)
        consumer = QueueConsumer(
            session, wanted, limit, self._clock, self._mark, partial(self._cancelled, written)
        )
        self._consumers.setdefault(session, {})[written] = consumer
        info = self.names.info(name)
        pattern = wanted.pattern
        group = wanted.group.decode()
        asked = AttachRequest(
            name,
            group[: -len(pattern.decode()) - 1] if pattern else group,
            session.client_id,
            pattern,
            wanted.start,
            limit,
            wanted.qos,
            wanted.explicit,
        )

        def attached(answer: Attached, handle: ConsumerHandle | None) -> None:
            if answer.reason or handle is None:
                self._forget(session, written, consumer)
                done(answer.reason or Outcome.FAILED)
            elif consumer.ended:
                handle.detach()
                done(Outcome.CANCELLED)
            else:
                consumer.handle = handle
                consumer.stream = answer.stream
                consumer.primary = answer.primary.encode()
                done(Outcome.OK)

        self._groups.attach(
            self._groups.client(info.group, following=True), asked, consumer, attached
        )

    def _limit(self, session: Session, wanted: QueueSubscription) -> int:
        """Return a consumer's prefetch limit.

        With settlement by PUBACK it does not exceed the client's receive window: messages that wait
        here for the window would be better with another member, and their visibility timeout runs
        meanwhile.
        """
        limit = self._unsettled.get(wanted.queue.decode(), DEFAULT_UNSETTLED)
        if wanted.prefetch:
            limit = min(limit, wanted.prefetch)
        if wanted.qos and not wanted.explicit:
            limit = min(limit, session.delivery.window)
        return limit

    def unsubscribe(self, session: Session, written: bytes) -> None:
        """End the session's consumer for this filter."""
        consumer = self._consumers.get(session, {}).get(written)
        if consumer is not None:
            self._forget(session, written, consumer)
            consumer.end()

    def connected(self, session: Session) -> None:
        """Attach the consumers of a session whose client has reconnected."""
        for written, grant in session.subscriptions.items():
            if grant.queue is not None:
                self._resume(session, written, grant.queue)

    def left(self, session: Session) -> None:
        """End the consumers of a session whose client has left; unacked messages are requeued."""
        for consumer in self._consumers.pop(session, {}).values():
            consumer.end()

    def settle(
        self, client: MqttClient, settlement: SettlementCommand, done: Callable[[int], object]
    ) -> None:
        """Carry out a client's command about messages delivered to it."""
        for consumer in self._consumers.get(client.session, {}).values():  # type: ignore[arg-type]
            wanted = consumer.wanted
            meant = wanted.queue == settlement.queue and wanted.group == settlement.group
            if meant and self._order(consumer, settlement, done):
                return
        done(Outcome.NOT_PENDING)

    def _order(
        self, consumer: QueueConsumer, settlement: SettlementCommand, done: Callable[[int], object]
    ) -> bool:
        def answered(reason: int) -> None:
            done(reason)

        if settlement.verb == "commit":
            if consumer.handle is None or not consumer.stream:
                return False
            consumer.handle.commit(settlement.ranges[0][0] + 1, answered)
            return True
        delay = -1 if settlement.delay_ms is None else settlement.delay_ms * 1000
        return consumer.order(
            VERBS[settlement.verb],
            list(settlement.ranges),
            delay,
            settlement.reason.encode(),
            answered,
        )

    def _forget(self, session: Session, written: bytes, consumer: QueueConsumer) -> None:
        of_session = self._consumers.get(session)
        if of_session is not None and of_session.get(written) is consumer:
            del of_session[written]
            if not of_session:
                del self._consumers[session]

    def _cancelled(self, written: bytes, consumer: QueueConsumer) -> None:
        """Schedule a new attach, wherever the queue is now, after the group cancelled the
        consumer."""
        session = consumer.session
        self._forget(session, written, consumer)
        consumer.end()
        self._orphans[session, written] = 0

    @property
    def idle(self) -> bool:
        """True if no consumer waits to be attached again."""
        return not self._orphans

    def housekeeping(self) -> None:
        """Reattach consumers that their group has cancelled."""
        now = self._clock()
        due = [key for key, at in self._orphans.items() if not now < at <= now + RETRY_US]
        for session, written in due:
            del self._orphans[session, written]
            grant = session.subscriptions.get(written)
            if grant is None or grant.queue is None or session.client is None:
                continue
            if written not in self._consumers.get(session, {}):  # not resubscribed meanwhile
                self._resume(session, written, grant.queue)

    def _resume(self, session: Session, written: bytes, wanted: QueueSubscription) -> None:
        """Attach again; the group continues at its position, whatever start the subscription
        gave."""
        again = partial(self._attached_again, session, written)
        self.subscribe(session, written, wanted._replace(start=None), again)

    def _attached_again(self, session: Session, written: bytes, reason: int) -> None:
        if reason and session.client is not None:
            self._orphans[session, written] = self._clock() + RETRY_US

    # The tick

    def _mark(self, consumer: QueueConsumer) -> None:
        self._marked[consumer] = None
        self._wake()

    def flush(self) -> None:
        """Settle what clients answered in this tick; refresh the topic filters first."""
        if self.names.changed:
            self._learn()
        marked, self._marked = self._marked, {}
        for consumer in marked:
            consumer.flush()
