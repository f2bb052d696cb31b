"""Queues in memory: lists of messages, with who holds them.

A settlement of something that its consumer does not hold is an assertion here, so that every test also shows that nothing is
settled twice.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fluxmq.model.batch_format import Batch, parse
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.changes import QueueUnused
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.sessions.amqp091.ports import AmqpConsumerPort, ConfirmCallback, ConsumeRequest, Range

if TYPE_CHECKING:
    from tests.unit.sessions.amqp091.memory import MemoryBroker


class MemoryHeld:
    """A consumer of a queue, as its side of the port."""

    def __init__(self, queue: MemoryQueue, wanted: ConsumeRequest, port: AmqpConsumerPort) -> None:
        self.queue = queue
        self.wanted = wanted
        self.port: AmqpConsumerPort | None = port
        self.limit = wanted.limit
        self.stopped = wanted.taking
        self.handle: set[int] = set()
        self.seen = 0
        """Of a browser: the offset behind the last that it was shown."""

    def settle(
        self,
        verb: Verb,
        ranges: Sequence[Range],
        delay: int,
        reason: bytes,
        done: ConfirmCallback | None,
    ) -> None:
        assert ranges == sorted(ranges), "ranges ascend"
        for first, last in ranges:
            for offset in range(first, last + 1):
                assert offset in self.handle, f"{verb.name} of {offset}, which is not held"
                self.handle.discard(offset)
                if self.wanted.browsing:
                    continue
                self.queue.settled.append((verb, offset))
                if delay:
                    self.queue.delays.append(delay)
                if verb in (Verb.NACK, Verb.RELEASE):
                    insort(self.queue.ready, offset)
                    if verb is Verb.RELEASE:
                        self.queue.attempts[offset] -= 1
                else:
                    self.queue.messages.pop(offset)
        if done is not None:
            self.queue.broker.later.append(partial(done, 0))

    def set_limit(self, limit: int) -> None:
        self.limit = limit

    def take(self, done: Callable[[bool, int], None]) -> None:
        def answer() -> None:
            queue = self.queue
            if self.wanted.browsing:
                queue.dispatch()
                done(self.port is not None, sum(offset >= self.seen for offset in queue.ready))
                return
            if not queue.ready or self.port is None:
                done(False, 0)
                return
            queue.hand_out(self, 1)
            done(True, len(queue.ready))

        self.queue.broker.answer(answer)

    def stop(self) -> None:
        self.stopped = True
        self.queue.left(self)

    def detach(self) -> None:
        self.port = None
        self.queue.attached.remove(self)
        if self.wanted.browsing:
            return
        for offset in self.handle:
            insort(self.queue.ready, offset)
        self.handle.clear()
        self.queue.left(self)


class MemoryQueue:
    """Messages by offset, which of them are ready, how often each was handed out, what became of them."""

    def __init__(self, broker: MemoryBroker, record: QueueRecord) -> None:
        self.broker = broker
        self.record = record
        self.messages: dict[int, tuple[Batch, int]] = {}
        self.ready: list[int] = []
        self.attempts: dict[int, int] = {}
        self.settled: list[tuple[Verb, int]] = []
        self.delays: list[int] = []
        self.consumers: list[MemoryHeld] = []
        self.attached: list[MemoryHeld] = []
        self.next_offset = 0

    def full(self, count: int) -> bool:
        arguments = self.record.arguments
        return arguments.get("x-overflow") == "reject-publish" and len(
            self.ready
        ) + count > arguments.get("x-max-length", 1 << 30)

    def append(self, data: bytes) -> None:
        batch = parse(data)
        batch.stamp(self.next_offset, 0, 1)
        for index in range(batch.count):
            offset = self.next_offset + index
            self.messages[offset] = (batch, index)
            self.attempts[offset] = 0
            self.ready.append(offset)
        self.next_offset += batch.count

    def hand_out(self, handle: MemoryHeld, most: int) -> None:
        """Give the next messages that lie together in a batch."""
        first = self.ready[0]
        batch, index = self.messages[first]
        attempts = self.attempts[first] + 1
        count = 0
        for offset in self.ready[:most]:
            if (
                self.messages[offset] != (batch, index + count)
                or self.attempts[offset] + 1 != attempts
            ):
                break
            count += 1
        for offset in range(first, first + count):
            self.ready.remove(offset)
            self.attempts[offset] += 1
            if handle.wanted.automatic:
                del self.messages[offset]
            else:
                handle.handle.add(offset)
        assert handle.port is not None
        handle.port.deliver(batch, index, count, attempts)

    def show(self, browser: MemoryHeld) -> bool:
        """Show a browser what is ready, one by one; whether anything was."""
        before = browser.seen
        for offset in [each for each in self.ready if each >= browser.seen]:
            if browser.limit < 0 or (browser.limit and len(browser.handle) >= browser.limit):
                break
            browser.seen = offset + 1
            browser.handle.add(offset)
            batch, index = self.messages[offset]
            assert browser.port is not None
            browser.port.deliver(batch, index, 1, self.attempts[offset] + 1)
        return browser.seen > before

    def dispatch(self) -> bool:
        """Give out what there is room for; whether anything was."""
        browsers = [each for each in self.attached if each.wanted.browsing]
        gave = sum(self.show(browser) for browser in browsers) > 0
        while self.ready:
            able = [
                handle
                for handle in self.consumers
                if not handle.stopped and (not handle.limit or len(handle.handle) < handle.limit)
            ]
            if not able:
                return gave
            handle = max(able, key=lambda each: each.wanted.priority)
            self.hand_out(
                handle, handle.limit - len(handle.handle) if handle.limit else len(self.ready)
            )
            if handle in self.consumers:
                self.consumers.remove(handle)
                self.consumers.append(handle)
            gave = True
        return gave

    def left(self, handle: MemoryHeld) -> None:
        if handle in self.consumers:
            self.consumers.remove(handle)
            if not self.consumers and self.record.auto_delete:
                self.broker.apply([QueueUnused(self.record.vhost, self.record.name)])
