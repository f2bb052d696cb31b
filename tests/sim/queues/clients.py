"""Clients of the simulated queues: publishers that want confirms, consumers that settle, and who declares and deletes.

They talk to whichever node leads, or believes so, and tell the ledger what they are told. What is asked of a node that
dies is never answered.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.sim.queues.host import Host
from tests.sim.queues.ledger import number_in
from tests.sim.queues.parts import (
    DEAD,
    TEMPORARY,
    Attached,
    AttachRequest,
    Batch,
    ConsumerHandle,
    Identity,
    Overflow,
    QueueConfig,
    QueueStats,
    QueueType,
    Verb,
    build_message,
    dead_letter_config,
)

if TYPE_CHECKING:
    from tests.sim.queues.world import World

UNLIMITED: dict[str, Any] = {"message_ttl": 0, "max_depth": 0}
RETRIES: dict[str, Any] = {"initial_backoff": 20_000, "max_backoff": 100_000, "max_retries": 3}
QUEUES = (
    QueueConfig(
        "work",
        dead_letter=True,
        dead_letter_queue=DEAD,
        visibility_timeout=400_000,
        **UNLIMITED,
        **RETRIES,
    ),
    QueueConfig(
        "limited",
        QueueType.QUORUM,
        dead_letter=True,
        dead_letter_queue=DEAD,
        delivery_limit=4,
        max_length=30,
        overflow=Overflow.REJECT_PUBLISH,
        **UNLIMITED,
        **RETRIES,
    ),
    QueueConfig("short", max_length=5, **UNLIMITED),
    QueueConfig("ranked", max_priority=3, **UNLIMITED, **RETRIES),
    QueueConfig("stream", QueueType.STREAM, message_ttl=0),
    dead_letter_config(DEAD),
)
TARGETS = ("work", "work", "limited", "short", "ranked", "stream")
READERS = (
    ("work", "a"),
    ("work", "a"),
    ("work", "b"),
    ("limited", "a"),
    ("short", "a"),
    ("ranked", "a"),
    ("stream", "a"),
    (DEAD, "a"),
)
"""Queue and consumer group of each consumer."""
TEMPORARY_QUEUES = 3
AGAIN_US = 200_000
"""A publisher sends again what it has no answer to."""
REFUSED = 0x80


class Publisher:
    """Publishes numbered messages. `origin`: its number among those that send again."""

    def __init__(self, world: World, origin: int) -> None:
        self._world = world
        self._origin = origin
        self._number = 0
        self._pending: dict[int, tuple[str, int, int]] = {}
        """By its own number: queue, message and when it was sent last."""

    @property
    def waits(self) -> bool:
        """Whether it still wants an answer."""
        return bool(self._pending)

    def publish(self, host: Host, queue: str, *, identified: bool) -> None:
        """Publish the next message."""
        world = self._world
        message = world.next_message()
        if identified:
            self._number += 1
            self._pending[self._number] = (queue, message, 0)
            self._send(host, self._number)
            return
        self._note_session(host, message)
        self._append(host, queue, message, None)

    def send_again(self, host: Host, after_us: int = AGAIN_US) -> None:
        """Send what was not answered for a while, in order."""
        now = self._world.now_us
        for number, (_, message, sent) in list(self._pending.items()):
            if now - sent >= after_us:
                self._world.seen["sent again"] += 1
                self._world.ledger.sessions.pop(message, None)
                self._send(host, number)

    def _send(self, host: Host, number: int) -> None:
        queue, message, sent = self._pending[number]
        self._pending[number] = (queue, message, self._world.now_us)
        if not sent:
            self._note_session(host, message)
        identity = Identity(self._origin, number, min(self._pending))
        self._append(host, queue, message, identity)

    def _note_session(self, host: Host, message: int) -> None:
        hosted = host.hosted
        assert hosted is not None, "clients reach who leads"
        session = (host.number, host.opening, hosted.driver.node.term)
        self._world.ledger.sessions[message] = session

    def _append(self, host: Host, queue: str, message: int, identity: Identity | None) -> None:
        world = self._world
        payload = b"%d %s" % (message, bytes(world.swarm.payload))
        life = host.life

        def answered(reason: int) -> None:
            if host.life != life or host.files.dead:
                return
            if not reason:
                world.ledger.confirmed[message] = (queue, host.group.applied_index)
                world.seen["confirmed"] += 1
            elif reason < 1 << 8:
                world.seen["refused"] += 1
            if identity is not None and reason < 1 << 8:
                self._pending.pop(identity.number, None)

        batch = build_message(b"key", b"", payload, host.clock())
        host.group.append(queue, batch, answered, identity)


class Consumer:
    """One consumer of one group of a queue; attaches again wherever the leader is."""

    def __init__(self, world: World, queue: str, group: str, number: int) -> None:
        self._world = world
        self.queue = queue
        self.group = group
        self.stream = queue == "stream"
        self._member = f"m{number}"
        self._attachment = 0
        self._held: ConsumerHandle | None = None
        self._host: Host | None = None
        self._place = (0, 0)
        self._queue_id = 0
        self._unsettled: list[int] = []
        self._next = 0
        """Of a stream: no delivery is below it."""
        self._first: int = -1

    @property
    def attached(self) -> bool:
        """Whether it can still settle what it has."""
        host = self._host
        return host is not None and host.up and self._place == (host.life, host.opening)

    @property
    def idle(self) -> bool:
        """Whether it has settled all it was given."""
        return not self._unsettled

    def attach(self, host: Host) -> None:
        """Attach to the queue on a node that leads."""
        state = host.group.machine.queue(self.queue)
        if state is None:
            return
        self._attachment += 1
        attachment = self._attachment
        self._host, self._place, self._queue_id = host, (host.life, host.opening), state.id
        self._held = None
        self._unsettled = []
        self._next, self._first = 0, -1

        def attached(_answer: Attached, held: ConsumerHandle | None) -> None:
            if attachment != self._attachment:
                if held is not None:
                    held.detach()
            elif held is None:
                self._host = None
            else:
                self._held = held

        limit = self._world.pick((1, 3, 50))
        wanted = AttachRequest(
            *(self.queue, self.group, self._member, b"", None, limit, 1),
            explicit=self.stream,
        )
        host.group.attach(wanted, Port(self, attachment), attached)

    def deliver(self, batch: Batch, first: int, count: int, attempts: int) -> None:
        """Messages have come."""
        host, world = self._host, self._world
        assert host is not None, "only who is attached is given any"
        if host.files.dead:
            return
        hosted = host.hosted
        if hosted is None:
            return
        term = hosted.driver.node.term
        world.seen["delivered"] += count
        for index in range(first, first + count):
            offset = batch.base_offset + index
            number = number_in(batch.payload(index))
            world.ledger.delivered(self._queue_id, self.group, term, offset, number)
            if self.stream and offset < self._next:
                world.violated("order of a stream", f"{offset} after {self._next}")
            if attempts == 1 and self.queue != "ranked" and not self.stream:
                if offset <= self._first:
                    world.violated("order of a queue", f"{self.queue} {offset} after {self._first}")
                self._first = offset
            elif attempts > 1:
                world.seen["delivered again"] += 1
            self._next = offset + 1
            self._unsettled.append(offset)

    def cancelled(self) -> None:
        """The queue or its host is gone."""
        self._host = self._held = None
        self._unsettled = []

    def leave(self) -> None:
        """Detach, with whatever it holds."""
        held, self._held = self._held, None
        if held is not None and self.attached:
            self._world.seen["detached"] += 1
            held.detach()
        self._attachment += 1
        self._host = None
        self._unsettled = []

    def settle(self, *, everything: bool = False) -> None:
        """Settle some of what it holds, mostly the oldest."""
        world, held = self._world, self._held
        if held is None or not self.attached or not self._unsettled:
            return
        pending = self._unsettled
        count = len(pending) if everything else 1 + int(world.chance() * len(pending))
        if self.stream:
            self._commit(held, count)
            return
        start = 0 if everything else int(world.chance() * (len(pending) - count + 1))
        chosen = pending[start : start + count]
        self._unsettled = pending[:start] + pending[start + count :]
        verb = Verb.ACK
        if not everything and world.chance() < world.swarm.refuse:
            verb = world.pick((Verb.REJECT, Verb.NACK, Verb.RELEASE))
        if verb is not Verb.RELEASE:
            refused = verb is Verb.NACK
            world.ledger.asked(self._queue_id, self.group, chosen, refused=refused)
        ranges = [(offset, offset) for offset in sorted(chosen)]
        host, queue_id, place = self._host, self._queue_id, self._place
        assert host is not None, "it is attached"
        assert host.hosted is not None, "it is attached"
        term = host.hosted.driver.node.term
        world.seen[f"{verb.name.lower()} asked"] += 1

        def answered(reason: int) -> None:
            if reason or host.files.dead or (host.life, host.opening) != place:
                return
            if verb in (Verb.ACK, Verb.REJECT):
                world.seen["settled"] += len(chosen)
                world.ledger.settled(
                    queue_id, self.group, term, chosen, rejected=verb is Verb.REJECT
                )

        held.settle(verb, ranges, -1, b"", answered)

    def _commit(self, held: ConsumerHandle, count: int) -> None:
        offset = self._unsettled[count - 1] + 1
        del self._unsettled[:count]
        host, queue_id, place, world = self._host, self._queue_id, self._place, self._world
        assert host is not None, "it is attached"
        assert host.hosted is not None, "it is attached"
        term = host.hosted.driver.node.term

        def answered(reason: int) -> None:
            if not reason and not host.files.dead and (host.life, host.opening) == place:
                world.ledger.committed(queue_id, self.group, term, offset)

        held.commit(offset, answered)


class Port:
    """Where one attachment's messages come in."""

    def __init__(self, consumer: Consumer, attachment: int) -> None:
        self._consumer = consumer
        self._attachment = attachment

    @property
    def _is_current(self) -> bool:
        return self._consumer._attachment == self._attachment

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Messages come."""
        if self._is_current:
            self._consumer.deliver(batch, first, count, attempts)

    def cancelled(self) -> None:
        """No more will come."""
        if self._is_current:
            self._consumer.cancelled()


class Clients:
    """All clients of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._publishers = [Publisher(world, 1 + number) for number in range(2)]
        self._consumers = [
            Consumer(world, queue, group, number) for number, (queue, group) in enumerate(READERS)
        ]
        self._statuses: dict[str, QueueStats] = {}

    def declare(self, host: Host) -> None:
        """Declare what a new leader has to have, as the program does for the queues of its settings."""
        for config in QUEUES:
            state = host.group.machine.queue(config.name)
            if state is None or state.config != config:
                host.group.declare(config)

    def act(self, host: Host) -> None:
        """One client does one thing."""
        world = self._world
        swarm, chance = world.swarm, world.chance
        for publisher in self._publishers:
            if publisher.waits:
                publisher.send_again(host)
        if chance() < swarm.administer:
            self._administer(host)
        elif chance() < swarm.consume:
            consumer = world.pick(self._consumers)
            if not consumer.attached:
                consumer.attach(host)
            elif chance() < 0.05:
                consumer.leave()
            else:
                consumer.settle()
        else:
            queue = world.pick(TARGETS)
            if swarm.administer and chance() < 0.2:
                queue = self._temporary()
            publisher = world.pick(self._publishers)
            for _ in range(1 + int(chance() * swarm.batch)):
                publisher.publish(host, queue, identified=chance() < swarm.identified)

    def _temporary(self) -> str:
        return f"{TEMPORARY}{int(self._world.chance() * TEMPORARY_QUEUES)}"

    def _administer(self, host: Host) -> None:
        world = self._world
        name = self._temporary()
        if world.chance() < 0.5:
            world.seen["declared"] += 1
            host.group.declare(QueueConfig(name, **UNLIMITED))
        else:
            world.seen["deleted"] += 1
            host.group.delete(name, False, world.chance() < 0.3, lambda _status: None)

    # The end

    def drain(self, host: Host) -> None:
        """Consume everything, and send again whatever has no answer."""
        for publisher in self._publishers:
            if publisher.waits:
                publisher.send_again(host)
        for consumer in self._consumers:
            if not consumer.attached:
                consumer.attach(host)
            else:
                consumer.settle(everything=True)
        for name in dict.fromkeys(queue for queue, _ in READERS):
            host.group.status(name, partial(self._statuses.__setitem__, name))

    def done(self) -> bool:
        """Whether everybody has an answer and nothing is left in the queues with consumers."""
        if any(publisher.waits for publisher in self._publishers):
            return False
        if not all(each.attached and each.idle for each in self._consumers):
            return False
        names = {queue for queue, _ in READERS if queue != "stream"}
        empty = all(
            name in self._statuses
            and not self._statuses[name].ready + self._statuses[name].unsettled
            for name in names
        )
        self._statuses.clear()
        return empty
