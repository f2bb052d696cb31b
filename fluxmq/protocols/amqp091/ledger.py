"""Unacked deliveries of one AMQP 0.9.1 channel.

They are kept as ranges, so that memory is per range of messages, not per message. Settling in order
advances a number; out of order it costs a bit in the range's bitmap, created on first use. All work
is proportional to the deliveries, whatever the order of the answers. Knows neither queues nor
connections: a delivery's consumer is an opaque object that is returned as it came.

Source: AMQP 0-9-1 section 1.8.3.13 (basic.ack), RabbitMQ's basic.nack.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import cython

Settled = tuple[Any, int, int]
"""A consumer, and the first and last offset of a range of its messages."""

RANGE_MAX = 4096
"""Messages of one range: its bitmap for answers out of order costs at most 512 bytes."""
SWEEP_MIN = 64
"""Consumers of a channel above which idle ones are swept, each time as many again have come."""


class Unacked:
    """Unacked messages of one consumer: ``count``. ``gone``: the consumer was forgotten."""

    def __init__(self, consumer: object) -> None:
        self.consumer = consumer
        self.count = 0
        self.gone = False


class Given:
    """One range of deliveries with consecutive tags and offsets, to one consumer.

    Tags from ``first`` on, ``count`` of them, ``left`` unsettled. All below ``low`` are settled; of
    the others those whose bit in ``settled`` is set, if there is such a bitmap.
    """

    def __init__(
        self,
        first: cython.ulonglong,
        count: cython.Py_ssize_t,
        unacked: Unacked,
        offset: cython.ulonglong,
    ) -> None:
        self.first = first
        self.count = count
        self.left = count
        self.low = first
        self.unacked = unacked
        self.offset = offset
        self.settled: bytearray | None = None


class ChannelLedger:
    """The unsettled deliveries of one channel, and settled ones that were not yet taken.

    ``mark``: called without arguments on the first acknowledgement after ``take_acknowledged``.
    ``direct``, ``publishing``: for the parser, set by the channel's owner. Unless ``direct``, every
    frame is passed singly; unless ``publishing``, those of publishes are. ``unsettled``: number of
    unsettled messages. ``next_tag``: of the next delivery.
    """

    def __init__(self, channel: cython.int, mark: Callable[[], object] | None = None) -> None:
        self.channel = channel
        self.mark = mark
        self.direct = True
        self.publishing = True
        self.unsettled = 0
        self.next_tag = 1
        self._ranges: list[Any] = []  # a `Given`, None before `_head`
        self._head = 0
        self._empty = 0
        self._consumers: dict[int, Unacked] = {}
        self._sweep_at = SWEEP_MIN
        self._taken: list[Settled] = []
        self._last: Any = None
        self._last_first = 0
        self._last_end = 0

    def given(
        self, consumer: object, count: cython.Py_ssize_t, first_offset: cython.ulonglong
    ) -> cython.ulonglong:
        """Record the delivery of ``count`` messages from ``first_offset`` on; return the first
        delivery tag.

        Without a consumer the tags are used and nothing is recorded (deliveries that need no
        acknowledgement).
        """
        first: cython.ulonglong = self.next_tag
        tag: cython.ulonglong = first
        part: cython.Py_ssize_t
        unacked: Unacked
        last: Given
        if count < 1:
            raise ValueError("a delivery of no message")
        self.next_tag = first + count
        if consumer is None:
            return first
        unacked = self._unacked(consumer)
        unacked.count += count
        self.unsettled += count
        if self._head < len(self._ranges):
            last = self._ranges[len(self._ranges) - 1]
            if (
                last.unacked is unacked
                and last.left
                and last.settled is None
                and last.first + last.count == tag
                and last.offset + last.count == first_offset
                and last.count < RANGE_MAX
            ):
                part = min(count, RANGE_MAX - last.count)
                last.count += part
                last.left += part
                count -= part
                tag += part
                first_offset += part
        while count:
            part = min(count, RANGE_MAX)
            self._ranges.append(Given(tag, part, unacked, first_offset))
            count -= part
            tag += part
            first_offset += part
        return first

    def _unacked(self, consumer: object) -> Unacked:
        """Return the consumer's account."""
        unacked: Unacked | None = self._consumers.get(id(consumer))
        kept: dict[int, Unacked]
        if unacked is None:
            if len(self._consumers) >= self._sweep_at:
                kept = {}
                for key, value in self._consumers.items():
                    unacked = value
                    if unacked.count:
                        kept[key] = unacked
                self._consumers = kept
                self._sweep_at = max(SWEEP_MIN, 2 * len(kept))
            unacked = Unacked(consumer)
            self._consumers[id(consumer)] = unacked
        return unacked

    def acknowledge(self, tag: cython.ulonglong, multiple: cython.bint) -> cython.bint:
        """Settle the messages of a basic.ack; return False, settling nothing, when the tag is not
        outstanding.

        With ``multiple`` all up to the tag, which itself has to be outstanding; tag 0: all.
        """
        found: Given
        place: cython.Py_ssize_t
        if multiple:
            if tag and self._find(tag) < 0:
                return False
            self._settle_through(tag, None)
            return True
        place = self._find(tag)
        if place < 0:
            return False
        found = self._ranges[place]
        self._settle_one(found, tag)
        if not found.unacked.gone:
            self._note(found.unacked.consumer, found.offset + (tag - found.first), 1)
        return True

    def settle(self, tag: cython.ulonglong, multiple: cython.bint) -> list[Settled] | None:
        """Settle in another way: return (consumer, first offset, last offset) of each range; None
        as for False above."""
        found: Given
        place: cython.Py_ssize_t
        ranges: list[Settled] = []
        if multiple:
            if tag and self._find(tag) < 0:
                return None
            self._settle_through(tag, ranges)
            return ranges
        place = self._find(tag)
        if place < 0:
            return None
        found = self._ranges[place]
        self._settle_one(found, tag)
        if not found.unacked.gone:
            offset = found.offset + (tag - found.first)
            ranges.append((found.unacked.consumer, offset, offset))
        return ranges

    def settle_range(self, first: cython.ulonglong, last: cython.ulonglong) -> list[Settled]:
        """Settle what is outstanding of the tags from ``first`` to ``last``; return (consumer, first
        offset, last offset) of each range."""
        found: Given
        tag: cython.ulonglong
        stop: cython.ulonglong
        index: cython.Py_ssize_t
        ranges: list[Settled] = []
        for item in self._ranges[self._head :]:
            found = item
            if found.first > last:
                break
            if not found.left or found.first + found.count <= first:
                continue
            tag = max(first, found.low)
            stop = min(last + 1, found.first + found.count)
            if tag == found.low and tag < stop and found.settled is None:
                self._settle_front(found, stop)
                self._give(found, tag - found.first, stop - tag, ranges)
                continue
            while tag < stop and found.left:
                index = tag - found.first
                if found.settled is None or not found.settled[index >> 3] & (1 << (index & 7)):
                    self._settle_one(found, tag)
                    if not found.unacked.gone:
                        offset = found.offset + index
                        ranges.append((found.unacked.consumer, offset, offset))
                tag += 1
        return ranges

    def _settle_front(self, found: Given, stop: cython.ulonglong) -> cython.int:
        """Settle the tags before ``stop`` of a range in which none was settled out of order."""
        count: cython.Py_ssize_t = stop - found.low
        found.left -= count
        found.low = stop
        if not found.unacked.gone:
            found.unacked.count -= count
            self.unsettled -= count
        if found.left == 0:
            self._emptied()
        return 0

    def _find(self, tag: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the range that holds an outstanding tag; -1 for none."""
        found: Given
        low: cython.Py_ssize_t = self._head
        high: cython.Py_ssize_t = len(self._ranges)
        middle: cython.Py_ssize_t
        index: cython.Py_ssize_t
        if low >= high:
            return -1
        found = self._ranges[low]
        if tag - found.first >= cython.cast(cython.ulonglong, found.count) or tag < found.first:
            # The last range that does not begin after the tag.
            while low < high:
                middle = (low + high) >> 1
                found = self._ranges[middle]
                if found.first <= tag:
                    low = middle + 1
                else:
                    high = middle
            low -= 1
            if low < self._head:
                return -1
            found = self._ranges[low]
        if tag < found.low or tag >= found.first + found.count:
            return -1
        if found.settled is not None:
            index = tag - found.first
            if found.settled[index >> 3] & (1 << (index & 7)):
                return -1
        return low

    def _settle_one(self, found: Given, tag: cython.ulonglong) -> cython.int:
        """Settle an outstanding tag in its range."""
        index: cython.Py_ssize_t = tag - found.first
        settled: bytearray | None = found.settled
        found.left -= 1
        if not found.unacked.gone:
            found.unacked.count -= 1
            self.unsettled -= 1
        if found.left == 0:
            found.settled = None
            found.low = found.first + found.count
            self._emptied()
        elif tag == found.low:
            found.low += 1
            if settled is not None:
                index += 1
                while settled[index >> 3] & (1 << (index & 7)):
                    index += 1
                    found.low += 1
        else:
            if settled is None:
                settled = bytearray((found.count + 7) >> 3)
                found.settled = settled
            settled[index >> 3] |= 1 << (index & 7)
        return 0

    def _emptied(self) -> cython.int:
        """Count one more empty range: drop those at the front, and all when they are the
        majority."""
        found: Given
        place: cython.Py_ssize_t
        ranges: list[Any] = self._ranges
        self._empty += 1
        while self._head < len(ranges):
            found = ranges[self._head]
            if found.left:
                break
            ranges[self._head] = None
            self._head += 1
        if self._head == len(ranges):
            ranges.clear()
            self._head = 0
            self._empty = 0
        elif self._empty > 64 and 2 * self._empty > len(ranges):
            kept: list[Any] = []
            for place in range(self._head, len(ranges)):
                found = ranges[place]
                if found.left:
                    kept.append(found)
            self._ranges = kept
            self._head = 0
            self._empty = 0
        return 0

    def _settle_through(self, tag: cython.ulonglong, ranges: list[Settled] | None) -> cython.int:  # noqa: C901, PLR0915 - one C function
        """Settle everything outstanding up to a tag, 0 for all; into a list of ranges, or as
        acknowledged."""
        found: Given
        stop: cython.ulonglong
        place: cython.Py_ssize_t = self._head
        index: cython.Py_ssize_t
        began: cython.Py_ssize_t
        until: cython.Py_ssize_t
        done: cython.Py_ssize_t
        settled: bytearray | None
        current: list[Any] = self._ranges
        emptied: cython.Py_ssize_t = 0
        while place < len(current):
            found = current[place]
            if tag and found.first > tag:
                break
            place += 1
            if not found.left:
                continue
            stop = found.first + found.count
            if tag and tag < stop:
                stop = tag + 1
            if stop <= found.low:
                continue
            index = found.low - found.first
            until = stop - found.first
            settled = found.settled
            done = 0
            while index < until:
                began = index
                if settled is None:
                    index = until
                else:
                    while index < until and not settled[index >> 3] & (1 << (index & 7)):
                        index += 1
                if index > began:
                    done += index - began
                    self._give(found, began, index - began, ranges)
                if settled is not None:
                    while index < until and settled[index >> 3] & (1 << (index & 7)):
                        index += 1
            found.low = stop
            if settled is not None:
                while index < found.count and settled[index >> 3] & (1 << (index & 7)):
                    index += 1
                    found.low += 1
            found.left -= done
            if not found.unacked.gone:
                found.unacked.count -= done
                self.unsettled -= done
            if found.left == 0:
                found.settled = None
                emptied += 1
        if emptied:
            self._empty += emptied - 1
            self._emptied()
        return 0

    def _give(
        self,
        found: Given,
        index: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        ranges: list[Settled] | None,
    ) -> cython.int:
        """Record messages of a range, from its ``index`` on, as settled."""
        first: cython.ulonglong = found.offset + index
        if found.unacked.gone:
            return 0
        if ranges is None:
            self._note(found.unacked.consumer, first, count)
        else:
            ranges.append((found.unacked.consumer, first, first + count - 1))
        return 0

    def _note(
        self, consumer: object, first: cython.ulonglong, count: cython.Py_ssize_t
    ) -> cython.int:
        """Record messages as acknowledged."""
        if self._last is consumer:
            if first == self._last_end:
                self._last_end += count
                return 0
            if first + count == self._last_first:
                self._last_first = first
                return 0
        if self._last is not None:
            self._taken.append((self._last, self._last_first, self._last_end - 1))
        elif self.mark is not None:
            self._last = consumer  # set first, as ``mark`` may take at once
            self._last_first = first
            self._last_end = first + count
            self.mark()
            return 0
        self._last = consumer
        self._last_first = first
        self._last_end = first + count
        return 0

    def take_acknowledged(self) -> list[Settled]:
        """Return (consumer, first offset, last offset) of acknowledgements since the last call,
        neighbours merged."""
        taken: list[Settled] = self._taken
        merged: list[Settled] = []
        groups: dict[int, list[Settled]] = {}
        if self._last is None:
            return merged
        taken.append((self._last, self._last_first, self._last_end - 1))
        self._last = None
        self._taken = []
        if len(taken) == 1:
            return taken
        for each in taken:
            groups.setdefault(id(each[0]), []).append(each)
        for group in groups.values():
            group.sort(key=_FIRST)
            consumer, first, last = group[0]
            for _, begin, end in group[1:]:
                if begin == last + 1:
                    last = end
                else:
                    merged.append((consumer, first, last))
                    first, last = begin, end
            merged.append((consumer, first, last))
        return merged

    def outstanding(self, consumer: object = None) -> int:
        """Return the number of unsettled messages, of a consumer or of all."""
        unacked: Unacked | None
        if consumer is None:
            return self.unsettled
        unacked = self._consumers.get(id(consumer))
        return unacked.count if unacked is not None else 0

    def forget(self, consumer: object) -> list[Settled]:
        """Forget a consumer; return its unsettled ranges, for the last time.

        Their tags may still be settled, as the client does not know; that has no effect.
        Acknowledgements not yet taken remain to be taken.
        """
        unacked: Unacked | None = self._consumers.pop(id(consumer), None)
        ranges: list[Settled] = []
        if unacked is not None:
            ranges = [each for each in self.all() if each[0] is consumer]
            self.unsettled -= unacked.count
            unacked.count = 0
            unacked.gone = True
            unacked.consumer = None
        return ranges

    def all(self) -> list[Settled]:
        """Return (consumer, first offset, last offset) of everything unsettled, in the order of
        tags."""
        found: Given
        index: cython.Py_ssize_t
        began: cython.Py_ssize_t
        place: cython.Py_ssize_t
        ranges: list[Settled] = []
        for place in range(self._head, len(self._ranges)):
            found = self._ranges[place]
            if not found.left or found.unacked.gone:
                continue
            index = found.low - found.first
            while index < found.count:
                began = index
                while index < found.count and (
                    found.settled is None or not found.settled[index >> 3] & (1 << (index & 7))
                ):
                    index += 1
                if index > began:
                    offset = found.offset + began
                    ranges.append((found.unacked.consumer, offset, offset + (index - began) - 1))
                else:
                    index += 1
        return ranges


_FIRST = itemgetter(1)
