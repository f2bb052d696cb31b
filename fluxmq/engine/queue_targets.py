"""A queue as the target of a topic: turns publish runs into appends to the queue's group.

A run of QoS 1 or 2 is acknowledged once the group reports its batches durable. A QoS 0 copy for a
queue that merely captures the topic is best effort: it is dropped and counted when too many wait.
"""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.names import QueueInfo
from fluxmq.engine.ports import GroupTarget
from fluxmq.model.batch_format import PROTOCOL_MQTT
from fluxmq.model.message_batch import build_message
from fluxmq.model.outcomes import Outcome
from fluxmq.model.properties import Item, PropertyKind, encode
from fluxmq.model.trace_context import TRACEPARENT
from fluxmq.net.reactor import WATCH_SPANS, Reactor
from fluxmq.protocols.mqtt.batches import build_batches
from fluxmq.protocols.mqtt.message_properties import to_items
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt.queue_properties import QueueOptions

BLOCK_BYTES_MAX = 1024
"""Maximum size of cached publisher names and properties."""
BLOCKS_MAX = 1024
"""Maximum number of property blocks cached per shard: usually one per publisher and property
set."""


class Blocks:
    """Property blocks of publishes, shared by all runs with equal properties."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], bytes] = {}

    def of(self, publisher: str, forward: bytes) -> bytes:
        """Return the block for the properties that ``publisher`` sent with a message."""
        block = self._known.get((publisher, forward))
        if block is None:
            items = to_items(forward)
            if publisher:
                items.append(Item(PropertyKind.PUBLISHER, publisher.encode()))
            items.append(Item(PropertyKind.PROTOCOL, PROTOCOL_MQTT >> 8))
            block = encode(items)
            if len(self._known) >= BLOCKS_MAX:
                self._known.clear()
            if len(forward) + len(publisher) <= BLOCK_BYTES_MAX:
                self._known[publisher, forward] = block
        return block


class QueueTarget:
    """A queue as this shard's publishers see it. ``by_address``: publishers name the queue, not a
    topic."""

    def __init__(
        self,
        info: QueueInfo,
        client: Callable[[str], GroupTarget],
        reactor: Reactor,
        blocks: Blocks,
        clock: Callable[[], int],
        waiting_max: int,
        run_max: int,
        dropped: Callable[[str, int], None],
        by_address: bool = False,
    ) -> None:
        self.info = info
        self._by_address = by_address
        self._run_max = run_max
        self._client = client
        self._reactor = reactor
        self._blocks = blocks
        self._clock = clock
        self._waiting_max = waiting_max
        self._dropped = dropped
        self._waiting = 0

    def offer(self, run: PublishRun) -> None:
        """Append a run's messages."""
        if run.end - run.start > self._run_max and run.count > 1:
            # One batch could exceed the files of a small log although every message fits.
            half = run.count // 2
            middle = run.skip(run.start, half)
            self.offer(run.part(run.start, middle, half))
            self.offer(run.part(middle, run.end, run.count - half))
            return
        now = self._clock()
        if run.qos == 0 and self._waiting >= self._waiting_max:
            self._dropped("capture_full", run.count)
            return
        publisher = ""
        if run.publisher is not None and run.publisher.session is not None:
            publisher = run.publisher.session.client_id
        block = self._blocks.of(publisher, run.properties)
        expiry = 0
        if run.deadline:
            expiry = now + max(round((run.deadline - self._reactor.tally.now) * 1_000_000), 1)
        options: QueueOptions | None = run.options
        if options is None:
            batches = build_batches(run, run.topic, block, now, expiry)
        elif options.producer:
            delay = now + options.delay_ms * 1000 if options.delay_ms else 0
            batches = [
                build_message(
                    run.topic,
                    block,
                    payload,
                    now,
                    expiry,
                    delay,
                    producer=options.producer,
                    sequence=options.sequence,
                )
                for payload in run.payloads()
            ]
        else:
            batches = build_batches(
                run, run.topic, block, now, expiry, now + options.delay_ms * 1000
            )
        client = self._client(self.info.group)
        room = True
        tracing = self._reactor.watching & WATCH_SPANS != 0 and TRACEPARENT in block
        for batch in batches:
            done: Callable[[int], object] | None = self._unanswered
            if run.qos:
                done = self._reactor.hold().done
            else:
                self._waiting += 1
            if tracing:
                done = self._reactor.host.spans.appended(self.info.name, block, batch, done)
            room &= client.append(self.info.name, batch, done, None, self._by_address)
        if not room:
            self._reactor.link_full = True

    def _unanswered(self, reason: int) -> None:
        self._waiting -= 1
        if reason:
            denied = reason == Outcome.DENIED
            self._dropped("no_permission" if denied else "queue_refused", 1)
