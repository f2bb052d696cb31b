"""The bytes of segments, indexes and heads: written down once more, and never believed when one bit is wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model import batch_format, segments
from fluxmq.model.message_batch import build_message
from fluxmq.model.segments import (
    FOOTER_BYTES,
    INDEX_CHAIN_START,
    PAGE_BYTES,
    SLOT_BYTES,
    TIME_NONE,
    Footer,
    HeaderPage,
    IndexEntries,
    QueueHead,
    SegmentError,
    base_of,
    batch_span,
    chain,
    chain_start,
    index_chain,
    index_entry,
    index_name,
    index_trailer,
    newest_head,
    sealed_index,
    segment_name,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
PAGE = HeaderPage("orders/é", 1234, -5)
FOOTER = Footer(10, 1243, -5, 99, bytes(range(16)), 5000)
HEAD = QueueHead(7, 1, 2, 3, 4, -5)


def test_names() -> None:
    assert segment_name(123) == "00000000000000000123.seg"
    assert index_name(2**64 - 1) == "18446744073709551615.idx"
    assert base_of("00000000000000000123.seg") == 123
    assert base_of("00000000000000000123.idx", ".idx") == 123
    for name in ("123.seg", "00000000000000000123.idx", "head", "0000000000000000012x.seg", ""):
        assert base_of(name) is None
    assert base_of("²" * 20 + ".seg") is None


def test_the_page_is_as_the_format_says() -> None:
    data = PAGE.encode()
    name = "orders/é".encode()
    assert len(data) == PAGE_BYTES
    assert data[:8] == b"FLUXSEG\n"
    assert struct.unpack_from("<HHQqII", data, 12) == (1, 0, 1234, -5, len(name), 0)
    assert data[40:] == name.ljust(PAGE_BYTES - 40, b"\0")
    check = xxhash.xxh3_64_intdigest(data[:8] + bytes(4) + data[12:]) & 0xFFFF_FFFF
    assert struct.unpack_from("<I", data, 8) == (check,)


def test_the_footer_and_the_head_are_as_the_format_says() -> None:
    data = FOOTER.encode()
    assert data[:4] == b"FXSF"
    assert struct.unpack_from("<QQqq16sQ", data, 8) == tuple(FOOTER)
    data = HEAD.encode()
    assert data[:4] == b"FXHD"
    assert struct.unpack_from("<QQQQQqQ", data, 8) == (*HEAD, 0)
    assert len(data) == SLOT_BYTES == HEAD.slot_position


@given(st.text(max_size=300), U64, I64)
def test_pages_are_read_as_written(name: str, base: int, created: int) -> None:
    page = HeaderPage(name, base, created)
    assert HeaderPage.decode(page.encode() + b"more") == page


@given(U64, U64, I64, I64, st.binary(min_size=16, max_size=16), U64)
def test_footers_are_read_as_written(
    messages: int, last: int, first_time: int, last_time: int, digest: bytes, length: int
) -> None:
    footer = Footer(messages, last, first_time, last_time, digest, length)
    assert Footer.decode(footer.encode()) == footer


@pytest.mark.parametrize(
    ("data", "decode"),
    [(PAGE.encode(), HeaderPage.decode), (FOOTER.encode(), Footer.decode)],
    ids=["page", "footer"],
)
def test_every_flipped_bit_and_every_cut_is_noticed(
    data: bytes, decode: Callable[[bytes], object]
) -> None:
    random = Random(4)
    bits = range(8 * len(data)) if len(data) == FOOTER_BYTES else random.sample(range(2048), 400)
    for bit in bits:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SegmentError):
            decode(bytes(damaged))
    for length in {0, 1, len(data) // 2, len(data) - 1}:
        with pytest.raises(SegmentError):
            decode(data[:length])


def test_a_page_of_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FORMAT_VERSION", 2)
    data = PAGE.encode()
    monkeypatch.undo()
    with pytest.raises(SegmentError, match="format version 2; this program reads 1"):
        HeaderPage.decode(data)


# --- batches ---------------------------------------------------------------------------------------------------------


def stamped(offset: int = 77, time: int = 123) -> bytes:
    batch = batch_format.parse(build_message(b"key", b"", b"payload", 0))
    batch.stamp(offset, time, 3)
    return batch.header() + bytes(batch.body())


def test_a_batch_is_seen_as_the_batch_module_sees_it() -> None:
    data = stamped()
    batch = batch_format.parse(data)
    span = batch_span(b"12345678" + data, 8)
    assert span == (batch.length, batch.base_offset, batch.count, batch.base_time, 123)
    assert span.next_offset == 78
    assert segments.BATCH_MAGIC == batch_format.MAGIC
    assert segments.BATCH_HEADER_BYTES == batch_format.HEADER_BYTES


def test_every_flipped_bit_of_a_batchs_header_is_noticed() -> None:
    data = stamped()
    for bit in range(8 * batch_format.HEADER_BYTES):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SegmentError):
            batch_span(bytes(damaged))
    for length in range(batch_format.HEADER_BYTES):
        with pytest.raises(SegmentError):
            batch_span(data[:length])


@pytest.mark.parametrize(("length", "count"), [(0, 1), (63, 1), (65, 1), (72, 0)])
def test_lengths_that_cannot_be(length: int, count: int) -> None:
    header = bytearray(stamped()[:64])
    struct.pack_into("<I", header, 8, length)
    struct.pack_into("<I", header, 40, count)
    struct.pack_into("<I", header, 4, 0)
    check = xxhash.xxh3_64_intdigest(bytes(header)) & 0xFFFF_FFFF
    struct.pack_into("<I", header, 4, check)
    with pytest.raises(SegmentError, match="cannot be"):
        batch_span(bytes(header))


def test_the_chain_depends_on_every_batch_and_their_order() -> None:
    page = PAGE.encode()
    one, two = stamped(1)[:64], stamped(2)[:64]
    start = chain_start(page)
    assert start == xxhash.xxh3_128_digest(page)
    assert chain(start, one) == xxhash.xxh3_128_digest(start + one)
    assert (
        len(
            {start, chain(start, one), chain(chain(start, one), two), chain(chain(start, two), one)}
        )
        == 4
    )


# --- the index -------------------------------------------------------------------------------------------------------


def index(count: int, digest: bytes) -> bytes:
    check, data = INDEX_CHAIN_START, b""
    for number in range(1, count + 1):
        entry = index_entry(number * 10, PAGE_BYTES + number * 1000, number * 100)
        data, check = data + entry, index_chain(check, entry)
    return data + index_trailer(count, check, digest)


def test_an_index_is_searched() -> None:
    entries = sealed_index(index(3, bytes(16)), bytes(16))
    assert entries is not None
    assert len(entries) == 3
    found = [entries.by_offset(offset) for offset in (0, 9, 10, 29, 30, 10**6)]
    first = (0, PAGE_BYTES)
    assert found == [first, first, (10, 5096), (20, 6096), (30, 7096), (30, 7096)]
    found = [entries.by_time(time) for time in (TIME_NONE, 100, 101, 200, 201, 10**9)]
    assert found == [first, first, (10, 5096), (10, 5096), (20, 6096), (30, 7096)]


def test_an_index_grows() -> None:
    data = index(5, bytes(16))
    entries = IndexEntries()
    for at in range(0, 5 * 16, 16):
        entries.extend(data[at : at + 16])
    whole = sealed_index(data, bytes(16))
    assert whole is not None
    assert (entries.check, entries.times) == (whole.check, whole.times)
    assert entries.by_time(450) == whole.by_time(450)


def test_an_index_without_entries() -> None:
    entries = sealed_index(index(0, bytes(16)), bytes(16))
    assert entries is not None
    assert entries.by_offset(5) == entries.by_time(5) == (0, PAGE_BYTES)


def test_every_flipped_bit_and_every_cut_of_an_index_is_noticed() -> None:
    data = index(4, bytes(16))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert sealed_index(bytes(damaged), bytes(16)) is None
    for length in range(len(data)):
        assert sealed_index(data[:length], bytes(16)) is None
    assert sealed_index(data + bytes(16), bytes(16)) is None
    assert sealed_index(data, bytes(15) + b"\1") is None


# --- the head --------------------------------------------------------------------------------------------------------


@given(U64, U64, U64, U64, U64, I64)
def test_the_newest_slot_counts(
    sequence: int, start: int, committed: int, segment: int, position: int, time: int
) -> None:
    sequence = min(sequence, 2**64 - 2)
    older = QueueHead(sequence, start, committed, segment, position, time)
    newer = older._replace(sequence=sequence + 1)
    slots = {older.slot_position: older.encode(), newer.slot_position: newer.encode()}
    assert newest_head(slots[0] + slots[SLOT_BYTES]) == newer


def test_a_torn_slot_leaves_the_other() -> None:
    older, newer = HEAD._replace(sequence=6), HEAD
    whole = older.encode() + newer.encode()
    assert newest_head(whole) == newer
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        assert newest_head(bytes(damaged)) == (newer if bit < 8 * SLOT_BYTES else older)
    for length in range(len(whole)):
        assert newest_head(whole[:length]) == (older if length >= SLOT_BYTES else None)
