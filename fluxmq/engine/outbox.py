"""Appends that publishers gave to this node while it does not lead: kept here, and carried to the
leader (`write_policy: local`).

Each queue has an outbox: a durable queue in one of this shard's own groups, which clients cannot
name. It keeps envelopes: one message with a whole batch in it, and the name (`queues.origins`)
under which the batch is appended to the queue. So a batch takes effect there once, however often
and by whomever it is sent; and it does not expire, wait or come apart before it is where its
queue's rules apply. An envelope is settled once its queue has acknowledged the batch as durably as
any; only when the settlement is on disk may the queue forget the name.

No name is used twice. The leader remembers names for the whole group, longer than a queue or an
outbox lives, so every outbox has its own origin: one made again (its queue was deleted and declared
again, or its group went to another shard and came back) begins with a new one. Envelopes on disk
keep the origin they were written with.
"""

from __future__ import annotations

import itertools
import logging
import struct
from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import NamedTuple

from fluxmq.engine.answers import reason_of
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.group_client import NUMBERS_APART
from fluxmq.engine.names import OUTBOX_PREFIX
from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    GroupTarget,
    QueueStats,
)
from fluxmq.logs import RateLimited, get_logger
from fluxmq.model.batch_format import Batch
from fluxmq.model.message_batch import build_message
from fluxmq.model.outcomes import Outcome
from fluxmq.model.properties import encode
from fluxmq.queues.commands import Verb
from fluxmq.queues.config import DAY, Overflow, QueueConfig
from fluxmq.queues.origins import Identity
from fluxmq.queues.results import Result

ENVELOPES_MAX = 64
"""Maximum number of envelopes of one outbox that are in flight to the leader, or settled but not
yet confirmed: each may be as large as an append, and a leader answers many in one round trip.
"""
WAITING_MAX = 4096
"""Maximum number of appends that wait for their outbox to be made, which takes a sync of the disk.
"""
RETRY_SECONDS = 1.0
"""Time before an append that its queue has refused is retried."""
NEVER = 36_500 * DAY
"""Visibility timeout in µs after which an envelope would be taken from its carrier."""

_HEAD = struct.Struct("<QQ")
"""Header of an envelope's batch: origin and number of its append."""
_NO_PROPERTIES = encode([])

_log = get_logger("fluxmq.cluster")


def name_of(group: str, queue: str) -> str:
    """Return the name of a queue's outbox in one of this node's own groups."""
    return f"{OUTBOX_PREFIX}{group}/{queue}"


def config_of(name: str, bytes_max: int) -> QueueConfig:
    """Return an outbox's configuration: at most ``bytes_max``, consumed by its carrier only."""
    return QueueConfig(
        name=name,
        max_message_size=1 << 30,
        max_depth=0,
        message_ttl=0,
        max_length_bytes=bytes_max,
        overflow=Overflow.REJECT_PUBLISH,
        visibility_timeout=NEVER,
        deduplication_window=0,
        deduplication_producers=0,
    )


class OutboxCounts:
    """A shard's counters of its outboxes."""

    def __init__(self) -> None:
        self.kept = 0
        """Batches kept here and acknowledged."""
        self.carried = 0
        """Batches accepted by their queue's leader."""
        self.refused = 0
        """Number of times the leader refused a batch, which is then retried."""


class _Envelope:
    """An envelope delivered to the carrier. ``sent``: in flight; ``taken``: its queue has it."""

    __slots__ = ("batch", "number", "origin", "sent", "taken")

    def __init__(self, origin: int, number: int, batch: bytes) -> None:
        self.origin = origin
        self.number = number
        self.batch = batch
        self.sent = False
        self.taken = False


class Carrying(NamedTuple):
    """The services of a shard that its outboxes use.

    ``target`` returns the client that takes a queue's appends to its leader, None while there is
    none; ``is_clear`` returns whether clients of this shard have no earlier appends in flight to
    the queue's leader; ``withdraw`` stops sending those of some origins.
    """

    target: Callable[[str], GroupTarget | None]
    is_clear: Callable[[str], bool]
    withdraw: Callable[[str, AbstractSet[int]], None]
    now: Callable[[], float]


class Outbox:
    """The outbox of one queue in ``group``. ``new_origin`` returns an origin that no other outbox
    has; ``ended`` is called when the queue and its outbox have been deleted and nothing was
    published to another queue of that name meanwhile.
    """

    def __init__(
        self,
        queue: str,
        group: ReplicationGroup,
        bytes_max: int,
        counts: OutboxCounts,
        carrying: Carrying,
        new_origin: Callable[[str], int],
        ended: Callable[[Outbox], None],
    ) -> None:
        self.queue = queue
        self.group = group
        self.name = name_of(group.name, queue)
        self._bytes_max = bytes_max
        self._new_origin = new_origin
        self._origin = new_origin(self.name)
        self._numbers = itertools.count(NUMBERS_APART, NUMBERS_APART)
        self._counts = counts
        self._target = carrying.target
        self._is_clear = carrying.is_clear
        self._withdraw = carrying.withdraw
        self._now = carrying.now
        self._ended = ended
        self._waiting: deque[tuple[bytes, AppendCallback | None]] = deque()
        self._ready = group.machine.queue(self.name) is not None
        """True while the outbox's queue exists and belongs to the present queue of this name."""
        self._making = False
        self._ending = False
        """True while batches kept for a deleted queue are being deleted; appends wait for that."""
        self._appending = 0
        self._envelopes: dict[int, _Envelope] = {}
        """By offset, in order: delivered to the carrier, and not known to be settled."""
        self._held: ConsumerHandle | None = None
        self._attaching = False
        self._settling = False
        self._again = 0.0
        """Time at which refused appends are retried; nothing overtakes them meanwhile."""

    @property
    def is_empty(self) -> bool:
        """True when its queue has everything that was kept."""
        if self._envelopes or self._waiting or self._appending:
            return False
        state = self.group.machine.queue(self.name)
        return state is None or not state.depth

    @property
    def depth(self) -> int:
        """Number of batches kept."""
        state = self.group.machine.queue(self.name)
        return 0 if state is None else state.depth

    # Keeping

    def append(self, batch: bytes, done: AppendCallback | None) -> bool:
        """Keep a batch; ``done`` gets 0 once it is on this node's disk."""
        if self._ready:
            return self._keep(batch, done)
        if len(self._waiting) >= WAITING_MAX:
            if done is not None:
                done(Outcome.OVER_LIMIT)
            return False
        self._waiting.append((batch, done))
        if not self._making and not self._ending:
            self._make()
        return True

    def _make(self) -> None:
        self._making = True
        self.group.declare(config_of(self.name, self._bytes_max), self._made)

    def _made(self, result: Result) -> None:
        self._making = False
        if self._ending:
            self._delete()
            return
        reason = reason_of(result)
        self._ready = not reason
        waiting, self._waiting = self._waiting, deque()
        for batch, done in waiting:
            if not reason:
                self._keep(batch, done)
            elif done is not None:
                done(reason)

    def _keep(self, batch: bytes, done: AppendCallback | None) -> bool:
        head = _HEAD.pack(self._origin, next(self._numbers))
        envelope = build_message(b"", _NO_PROPERTIES, head + batch, self.group.clock())
        self._appending += 1

        def answered(reason: int) -> None:
            self._appending -= 1
            self._counts.kept += not reason
            if done is not None:
                done(reason)

        room = self.group.append(self.name, envelope, answered)
        if self._held is None:
            self.attach()
        return room

    # Carrying

    def attach(self) -> None:
        """Consume the kept envelopes."""
        if self._attaching or self._held is not None or not self._ready:
            return
        self._attaching = True
        wanted = AttachRequest(self.name, "carrier", "carrier", b"", ("first", 0), ENVELOPES_MAX, 1)
        self.group.attach(wanted, self, self._attached)

    def _attached(self, _answer: Attached, held: ConsumerHandle | None) -> None:
        self._attaching = False
        if self._ready:
            self._held = held  # None: it is tried again
        elif held is not None:
            held.detach()  # the queue has been deleted meanwhile

    def cancelled(self) -> None:
        """Forget the envelopes of a group that failed or moved: its next shard alone sends them."""
        self._held = None
        asked = {each.origin for each in self._envelopes.values() if each.sent and not each.taken}
        self._envelopes.clear()
        if asked:
            self._withdraw(self.queue, asked)

    def deliver(
        self, batch: Batch, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Take envelopes to be carried."""
        if not self._ready:
            return  # they are being deleted
        for index in range(first, first + count):
            payload = batch.payload(index)
            origin, number = _HEAD.unpack_from(payload)
            envelope = _Envelope(origin, number, payload[_HEAD.size :])
            self._envelopes[batch.base_offset + index] = envelope
        self.carry()

    def carry(self) -> None:
        """Send the unsent envelopes to the queue's leader, in order."""
        if self._again or not self._is_clear(self.queue):
            return
        for offset, envelope in list(self._envelopes.items()):
            if envelope.sent:
                continue
            target = self._target(self.queue)
            if target is None or self._again:
                return
            envelope.sent = True
            if not self._send(target, offset, envelope):
                return

    def _send(self, target: GroupTarget, offset: int, envelope: _Envelope) -> bool:
        origin = envelope.origin
        floor = min(each.number for each in self._envelopes.values() if each.origin == origin)

        def answered(reason: int) -> None:
            if self._envelopes.get(offset) is envelope:
                self._answered(envelope, reason)

        identity = Identity(origin, envelope.number, floor)
        return target.append(self.queue, envelope.batch, answered, identity)

    def _answered(self, envelope: _Envelope, reason: int) -> None:
        if not reason:
            self._counts.carried += 1
            envelope.taken = True
            envelope.batch = b""
            self._settle()
            return
        self._counts.refused += 1
        envelope.sent = False
        self._again = self._now() + RETRY_SECONDS

    def _settle(self) -> None:
        """Settle the envelopes that the queue has, in one settlement at a time to batch them."""
        if self._settling or self._held is None:
            return
        taken = [offset for offset, each in self._envelopes.items() if each.taken]
        if not taken:
            return
        self._settling = True

        def settled(reason: int) -> None:
            self._settling = False
            if reason:
                return  # the group has failed: the envelope is redelivered with the same name
            for offset in taken:
                self._envelopes.pop(offset, None)
            self._settle()
            self.carry()

        self._held.settle(Verb.ACK, [(offset, offset) for offset in taken], 0, b"", settled)

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        if self._again and self._again <= self._now():
            self._again = 0.0
        self.attach()
        self._settle()
        self.carry()

    # Ending

    def end(self) -> None:
        """Delete what is kept for a queue that was deleted. Later appends are for another queue of
        its name, and are kept once nothing of this one is left.
        """
        if self._held is not None:
            self._held.detach()
        self.cancelled()
        # The group answers in order: pending appends are answered before the next queue is made.
        self._origin = self._new_origin(self.name)
        self._ready = False
        self._again = 0.0
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            if done is not None:
                done(Outcome.FAILED)
        if self._ending:
            return
        if self.depth:
            _log.warning(
                "a queue was deleted while appends to it were kept here",
                extra={"queue": self.queue, "batches": self.depth},
            )
        self._ending = True
        if not self._making:
            self._delete()

    def _delete(self) -> None:
        self.group.delete(self.name, False, False, self._deleted)

    def _deleted(self, _status: QueueStats) -> None:
        self._ending = False
        if self._waiting:
            self._make()
        else:
            self._ended(self)

    def leave(self) -> None:
        """Let go of an outbox whose group is hosted elsewhere now, with everything it keeps."""
        self._ready = False
        self.cancelled()


class Outboxes:
    """The outboxes of one shard. ``life``: bytes unique to its life, for unique append names."""

    def __init__(self, life: bytes, bytes_max: int, carrying: Carrying) -> None:
        self.counts = OutboxCounts()
        self._life = life
        self._made = itertools.count(1)
        """Numbers the outboxes of this life, for an origin each."""
        self._bytes_max = bytes_max
        self._carrying = carrying
        self._groups: dict[str, ReplicationGroup] = {}
        """This shard's own groups that lead."""
        self._boxes: dict[str, dict[str, Outbox]] = {}
        """By queue and group: a queue may have two after groups moved between shards."""
        self._homeless = RateLimited(_log, per_second=0.1, burst=1)

    def leads(self, group: ReplicationGroup) -> None:
        """Use a group of this node alone that leads here."""
        self._groups[group.name] = group
        beginning = name_of(group.name, "")
        for state in list(group.machine.queues.values()):
            if state.name.startswith(beginning):
                self._make(state.name.removeprefix(beginning), group).attach()

    def closed(self, name: str) -> None:
        """Forget a group that is no longer hosted here."""
        if self._groups.pop(name, None) is None:
            return
        for boxes in list(self._boxes.values()):
            if name in boxes:
                boxes[name].leave()
                self._forget(boxes[name])

    def is_empty(self, queue: str) -> bool:
        """Return whether nothing is kept for a queue here."""
        boxes = self._boxes.get(queue)
        return not boxes or all(box.is_empty for box in boxes.values())

    def append(self, queue: str, batch: bytes, done: AppendCallback | None) -> bool | None:
        """Keep a batch; return whether there is room for more, None if no group could hold it."""
        for name in sorted(self._groups):
            group = self._groups[name]
            if not (group.failed or group.leaving):
                box = self._boxes.get(queue, {}).get(name)
                return (box or self._make(queue, group)).append(batch, done)
        self._homeless.event(
            logging.WARNING,
            queue,
            "this shard has no group of its own that could keep an append: it is forwarded",
            queue=queue,
        )
        return None

    def _make(self, queue: str, group: ReplicationGroup) -> Outbox:
        box = Outbox(
            queue,
            group,
            self._bytes_max,
            self.counts,
            self._carrying,
            self._new_origin,
            self._forget,
        )
        self._boxes.setdefault(queue, {})[group.name] = box
        return box

    def _new_origin(self, name: str) -> int:
        salt = next(self._made).to_bytes(blake2b.SALT_SIZE, "little")
        digest = blake2b(name.encode(), digest_size=8, key=self._life, salt=salt).digest()
        return int.from_bytes(digest)

    def _forget(self, box: Outbox) -> None:
        boxes = self._boxes.get(box.queue, {})
        if boxes.get(box.group.name) is box:
            del boxes[box.group.name]
            if not boxes:
                del self._boxes[box.queue]

    def deleted(self, queue: str) -> None:
        """End the outboxes of a queue that has been deleted."""
        for box in list(self._boxes.get(queue, {}).values()):
            box.end()

    def depths(self) -> list[int]:
        """Return the number of batches in each outbox."""
        return [box.depth for boxes in self._boxes.values() for box in boxes.values()]

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        for boxes in list(self._boxes.values()):
            for box in list(boxes.values()):
                box.housekeeping()
