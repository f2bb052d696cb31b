"""The shared-memory ring between two processes: order, wrap, full, sleep, a reader that starts anew."""

from __future__ import annotations

import mmap
import os
import random
import select
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from fluxmq.protocols.mqtt.scan import COMPILED

if not COMPILED:
    pytest.skip("the ring exists compiled only; sockets stand in for it", allow_module_level=True)

from fluxmq.net._ring import HEADER_BYTES, Ring, RingInbox

ROOT = Path(__file__).resolve().parents[3]


def ring(size: int = 256) -> Ring:
    """A ring of `size` bytes, both ends in one hand."""
    return Ring(mmap.mmap(-1, HEADER_BYTES + size))


def need(length: int) -> int:
    """Bytes that a record takes."""
    return (length + 4 + 7) // 8 * 8


def test_records_come_out_as_they_went_in() -> None:
    one = ring()
    assert one.pop() is None
    assert one.push(b"head")
    assert one.push(b"", b"..body..", 2, 6)
    assert one.push(b"head", bytearray(b"..body.."), 2, 6)
    assert one.push(b"")
    assert one.used == need(4) + need(4) + need(8) + need(0)
    assert [one.pop() for _ in range(5)] == [b"head", b"body", b"headbody", b"", None]
    assert one.used == 0


def test_a_full_ring_refuses_and_goes_on_when_read() -> None:
    one = ring(256)
    count = 0
    while one.push(count.to_bytes(4, "big")):
        count += 1
    assert count == 256 // 8
    assert one.used == 256
    assert not one.push(b"")
    assert one.pop() == bytes(4)
    assert one.push(b"last")
    assert [one.pop() for _ in range(count)][-1] == b"last"
    assert one.pop() is None


def test_a_record_that_does_not_fit_before_the_end_begins_at_the_start() -> None:
    one = ring(256)
    assert one.push(b"a" * 100)
    assert one.push(b"b" * 100)
    assert one.pop() == b"a" * 100
    # 48 bytes are left before the end, 104 after it.
    assert one.push(b"c" * 90)
    assert not one.push(b"d" * 20)
    assert one.pop() == b"b" * 100
    assert one.push(b"d" * 20)
    assert [one.pop() for _ in range(3)] == [b"c" * 90, b"d" * 20, None]


def test_the_longest_record_fits_into_an_empty_ring_wherever_it_stands() -> None:
    one = ring(1024)
    longest = one.record_max
    assert longest == 1024 // 2 - 16
    for offset in range(0, 1024, 8):
        assert one.push(b"x" * longest), offset
        assert one.pop() == b"x" * longest
        assert one.push(b"1234")
        assert one.pop() == b"1234"


def test_a_longer_record_is_an_error() -> None:
    one = ring(1024)
    with pytest.raises(ValueError, match="longer"):
        one.push(b"x" * (one.record_max + 1))
    with pytest.raises(ValueError, match="longer"):
        one.push(b"x", bytes(1024), 0, one.record_max)
    assert one.used == 0


@pytest.mark.parametrize("size", [0, 4, 1001])
def test_the_size_is_checked(size: int) -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        Ring(mmap.mmap(-1, HEADER_BYTES + size) if size else bytearray(HEADER_BYTES))


def test_random_records_against_a_queue() -> None:
    chance = random.Random(1)
    one = ring(2048)
    model: deque[bytes] = deque()
    refused = 0
    for _ in range(20_000):
        if chance.random() < 0.55:
            record = chance.randbytes(chance.choice((0, 1, 3, 4, 5, 60, 400, one.record_max)))
            if (
                one.push(record[:2], record, 2, len(record))
                if len(record) > 2
                else one.push(record)
            ):
                model.append(record)
            else:
                refused += 1
                assert one.used + 2 * need(len(record)) > 2048
        else:
            assert one.pop() == (model.popleft() if model else None)
    assert refused
    assert list(iter(one.pop, None)) == list(model)


def test_a_reader_that_starts_anew_forgets_what_was_not_read() -> None:
    one = ring()
    one.push(b"old")
    one.push(b"old too")
    one.reset_reader()
    assert one.pop() is None
    one.push(b"new")
    assert one.pop() == b"new"


class Reader:
    """Reads a ring."""

    def receive(self) -> int:
        return 0


def test_a_sleeper_is_woken_once() -> None:
    one = ring()
    inbox = RingInbox([one], [Reader()])
    assert not one.take_sleeper()
    assert inbox.sleep()
    assert inbox.sleep(), "it may sleep again without having been woken"
    one.push(b"x")
    assert one.take_sleeper()
    assert not one.take_sleeper()
    assert not inbox.sleep(), "a record has come: there is nothing to wait for"
    assert not one.take_sleeper()
    one.pop()
    assert inbox.sleep()
    assert one.take_sleeper()


def test_an_inbox_knows_which_rings_have_records() -> None:
    rings = [ring() for _ in range(5)]
    links = [Reader() for _ in rings]
    inbox = RingInbox(rings, [*links])
    assert [*inbox.ready()] == []
    rings[1].push(b"a")
    rings[4].push(b"b")
    assert [*inbox.ready()] == [links[1], links[4]]
    assert not inbox.sleep()
    assert [each.take_sleeper() for each in rings] == [True, False, True, True, False]
    rings[1].pop()
    assert [*inbox.ready()] == [links[4]], "until all of a ring is read"
    with pytest.raises(ValueError, match="one link"):
        RingInbox(rings, [Reader()])


def test_what_is_no_record_is_refused() -> None:
    memory = mmap.mmap(-1, HEADER_BYTES + 256)
    one = Ring(memory)
    one.push(b"record")
    for length in (253, 1 << 20, 0xFFFFFFFE, 0xFFFFFFFC):
        memory[HEADER_BYTES : HEADER_BYTES + 4] = length.to_bytes(4, "little")
        with pytest.raises(ValueError, match="corrupt"):
            one.pop()


WRITER = """
import mmap, os, sys
from fluxmq.net._ring import HEADER_BYTES, Ring, RingInbox
ring_fd, wake_fd, room_fd, count = map(int, sys.argv[1:])
ring = Ring(mmap.mmap(ring_fd, os.fstat(ring_fd).st_size))
for number in range(count):
    body = number.to_bytes(4, "big") * (1 + number * 7 % 60)
    while not ring.push(b"\\x01", body, 0, len(body)):
        os.eventfd_read(room_fd)
    if ring.take_sleeper():
        os.eventfd_write(wake_fd, 1)
"""


def test_two_processes() -> None:
    """Every record arrives once, whole and in order; a wake-up that got lost would end in the time limit."""
    count = 200_000
    ring_fd = os.memfd_create("ring")
    os.ftruncate(ring_fd, HEADER_BYTES + 4096)
    wake_fd, room_fd = os.eventfd(0), os.eventfd(0)
    one = Ring(mmap.mmap(ring_fd, HEADER_BYTES + 4096))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, *map(str, (ring_fd, wake_fd, room_fd, count))],
        pass_fds=(ring_fd, wake_fd, room_fd),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        number = 0
        slept = 0
        inbox = RingInbox([one], [Reader()])
        while number < count:
            record = one.pop()
            if record is not None:
                assert record == b"\x01" + number.to_bytes(4, "big") * (1 + number * 7 % 60)
                number += 1
                if one.used < 2048:
                    os.eventfd_write(room_fd, 1)
                continue
            if inbox.sleep():
                slept += 1
                ready, _, _ = select.select([wake_fd], [], [], 30)
                assert ready, f"no wake-up after {number} records"
                os.eventfd_read(wake_fd)
        assert slept
        assert one.pop() is None
        assert writer.wait(10) == 0
    finally:
        if writer.poll() is None:
            writer.kill()
            writer.wait()
        for fd in (ring_fd, wake_fd, room_fd):
            os.close(fd)
