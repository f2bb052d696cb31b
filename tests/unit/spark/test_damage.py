"""Damaged segments: never a wrong row, an error that names file and byte, and the rest where that is wanted."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from fluxmq.model.batch_format import BatchError
from fluxmq.model.batches import BatchMessage, encode
from fluxmq.model.properties import Item, PropertyError, PropertyKind, text
from fluxmq.model.properties import encode as encode_block
from fluxmq.model.segments import PAGE_BYTES
from fluxmq_spark import scan as scan_module
from fluxmq_spark.errors import Damage
from fluxmq_spark.scan import DAMAGES_MAX, Statistics
from fluxmq_spark.storage import LocalStorage, OpenFile
from tests.unit.spark.segment_files import (
    ALL,
    Row,
    SegmentOnDisk,
    only,
    read,
    rows_of,
    write_segment,
)

EPOCH_US = 1_790_000_000_000_000
HEADER = 64


def _batches(count: int, *, per_batch: int = 10, payload: bytes = b".") -> list[list[BatchMessage]]:
    """Batches that differ in what columns they have."""
    found = []
    for first in range(0, count, per_batch):
        kind = first // per_batch % 4
        found.append(
            [
                BatchMessage(
                    b"key %d" % (offset if kind & 1 else 0),
                    encode_block(
                        [Item(PropertyKind.HEADER, text(b"%d" % (offset if kind & 2 else 0)), b"n")]
                    ),
                    b"%d " % offset + payload * 60,
                    EPOCH_US + (offset if kind == 3 else first),
                )
                for offset in range(first, min(count, first + per_batch))
            ]
        )
    return found


def _right(rows: Sequence[Row], segment: SegmentOnDisk, names: Sequence[str] = ALL) -> bool:
    """Whether rows are such of the segment, none twice and in order."""
    base = segment.segment_range.base_offset
    numbers = [int(str(row["offset"])) - base for row in rows]
    assert numbers == sorted(set(numbers))
    return list(rows) == only([segment.rows[number] for number in numbers], names)


def _survivors(segment: SegmentOnDisk, lost: set[int]) -> list[Row]:
    """The rows of all but some batches."""
    bounds = [*segment.bases, segment.segment_range.segment_next]
    base = segment.segment_range.base_offset
    return [
        row
        for number in range(len(segment.bases))
        if number not in lost
        for row in segment.rows[bounds[number] - base : bounds[number + 1] - base]
    ]


def _read_the_rest(
    segment: SegmentOnDisk, names: Sequence[str] = ALL
) -> tuple[list[Row], Statistics]:
    """What is read when damage is skipped; every row is right, and the others are counted."""
    statistics = Statistics()
    rows = read(segment, names, fail=False, statistics=statistics)
    assert _right(rows, segment, names)
    wanted = segment.segment_range.stop - segment.segment_range.first
    assert (statistics.rows, statistics.skipped_rows) == (len(rows), wanted - len(rows))
    assert bool(statistics.damage) == bool(statistics.skipped_rows)
    return rows, statistics


@given(st.data())
def test_flipped_bits_never_give_a_wrong_row(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        segment = write_segment(
            Path(directory), _batches(60, per_batch=4), base=100, every=data.draw(st.integers(1, 6))
        )
        flips = data.draw(
            st.lists(
                st.tuples(st.integers(0, len(segment.data) - 1), st.integers(0, 7)),
                min_size=1,
                max_size=4,
            )
        )
        segment.damage({at: segment.data[at] ^ 1 << bit for at, bit in flips})
        if data.draw(st.booleans()):
            index = bytearray(segment.index)
            index[data.draw(st.integers(0, len(index) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            Path(segment.segment_range.index_path).write_bytes(index)
        _read_the_rest(segment)
        damage = None
        found: list[Row] = []
        try:
            found = read(segment)
        except Damage as error:
            damage = error
        if damage is None:
            # Only the index or the footer was damaged, which nothing here rests on.
            assert found == segment.rows
        else:
            assert damage.path == str(segment.path)
            assert str(damage).startswith(f"{damage.path}, byte {damage.position}: ")


@pytest.mark.parametrize("field", range(HEADER), ids=lambda field: f"byte {field} of a header")
def test_a_flip_in_a_header_loses_that_batch_only(field: int, tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(200), every=100)
    position = segment.positions[7] + field
    segment.damage({position: segment.data[position] ^ 0x10})
    with pytest.raises(Damage) as refused:
        read(segment)
    assert (refused.value.path, refused.value.position) == (str(segment.path), segment.positions[7])
    rows, statistics = _read_the_rest(segment)
    assert rows == _survivors(segment, {7})
    assert len(statistics.damage) == 1
    assert statistics.damage[0].startswith(f"{segment.path}, byte {segment.positions[7]}: ")


def test_a_flip_in_contents_loses_that_batch_only_and_only_if_it_is_used(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(200))
    position = segment.positions[8] - 20
    segment.damage({position: segment.data[position] ^ 1})
    with pytest.raises(Damage, match="the messages do not match their checksum") as refused:
        read(segment)
    assert refused.value.position == segment.positions[7]
    assert _read_the_rest(segment)[0] == _survivors(segment, {7})
    # What stands in headers does not need what stands behind them.
    assert read(segment, ("offset", "queue")) == only(segment.rows, ("offset", "queue"))
    # What was asked for before the damage, or behind it, has nothing to do with it.
    assert read(segment, stop=70) == segment.rows[:70]
    assert read(segment, first=80) == segment.rows[80:]


def test_rows_before_the_damage_are_yielded_before_the_error(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(200))
    segment.damage({segment.positions[8] - 20: 0})
    found: list[Row] = []
    statistics = Statistics()
    with pytest.raises(Damage):
        found += read(segment, statistics=statistics)
    assert statistics.rows == 70


@pytest.mark.parametrize("flag", ["keys", "properties", "payloads"])
def test_ends_that_go_back_are_found_without_the_check(flag: str, tmp_path: Path) -> None:
    """Batch 3 has keys, blocks and times of each message's own."""
    segment = write_segment(tmp_path, _batches(200))
    column = {"keys": 40, "properties": 84, "payloads": 128}[flag]
    at = segment.positions[3] + HEADER + column + 4 * 5
    segment.damage({at + 2: 1})
    with pytest.raises(Damage, match=f"{flag} whose ends are not ascending") as refused:
        read(segment, verify=False)
    assert refused.value.position == segment.positions[3]
    rows = read(segment, verify=False, fail=False)
    assert rows == _survivors(segment, {3})


def test_a_last_time_that_is_another_is_found_without_the_check(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(200))
    at = segment.positions[3] + HEADER + 4 * 9
    segment.damage({at: 77})
    with pytest.raises(Damage, match="a last time that differs from the last message's"):
        read(segment, ("timestamp",), verify=False)
    # The time is behind the header there, and so is looked at with it.
    with pytest.raises(Damage, match="the messages do not match their checksum"):
        read(segment, ("timestamp",))


@pytest.mark.parametrize("every", [3, 1000], ids=["with an index", "without an index"])
@pytest.mark.parametrize("size", [8, 100, 5000, 40_000])
def test_a_zeroed_region_loses_what_it_touches(size: int, every: int, tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(1000), every=every)
    start = segment.positions[20] + 24
    segment.damage(dict.fromkeys(range(start, start + size), 0))
    touched = set(range(20, segment.batch_at(start + size - 1) + 1))
    rows, _ = _read_the_rest(segment)
    assert rows == _survivors(segment, touched)


@pytest.mark.parametrize("window", [4096, 4 << 20])
def test_far_damage_is_passed_in_windows_of_any_size(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "WINDOW_BYTES", window)
    monkeypatch.setattr(scan_module, "SEARCH_BYTES", 512)
    segment = write_segment(tmp_path, _batches(1000), every=1000)
    start, end = segment.positions[20] + 8, segment.positions[60] + 100
    segment.damage(dict.fromkeys(range(start, end), 0x5A))
    rows, _ = _read_the_rest(segment)
    assert rows == _survivors(segment, set(range(20, 61)))


def test_several_damaged_places_with_an_index_lose_what_is_between_two_entries(
    tmp_path: Path,
) -> None:
    segment = write_segment(tmp_path, _batches(1000), every=5)
    # Batches 32 and 33 are next to each other. Of 50 and 52, nothing leads from the one between to what is known.
    segment.damage({segment.positions[number] + 3: 0 for number in (11, 32, 33, 50, 52, 70)})
    rows, statistics = _read_the_rest(segment)
    assert rows == _survivors(segment, {11, 32, 33, 50, 51, 52, 70})
    assert len(statistics.damage) == 4


FALSE = [BatchMessage(b"false", b"", b"never a row", EPOCH_US)] * 3


def _holding(offsets: Sequence[int]) -> list[list[BatchMessage]]:
    """Batches of which the third holds others in its payloads, at every distance from where a batch may begin."""
    inner = b"".join(encode(FALSE, offset) for offset in offsets)
    batches = _batches(400)
    batches[2] = [BatchMessage(b"orders/eu", b"", b"." * pad + inner, EPOCH_US) for pad in range(8)]
    return batches


@pytest.mark.parametrize("every", [4, 1000], ids=["with an index", "without an index"])
def test_a_message_that_holds_batches_is_not_taken_for_them(every: int, tmp_path: Path) -> None:
    """Their offsets fit as well: nothing but where they stand tells that they are none."""
    segment = write_segment(tmp_path, _holding((21, 24, 27)), every=every)
    for at in range(0, HEADER, 3):
        position = segment.positions[2] + at
        segment.damage({position: segment.data[position] ^ 0x21})
        rows, _ = _read_the_rest(segment)
        assert rows == _survivors(segment, {2})
    changes = dict.fromkeys(range(segment.positions[2], segment.positions[2] + HEADER), 0)
    segment.damage(changes)
    assert _read_the_rest(segment)[0] == _survivors(segment, {2})
    # Damage behind it as well: only of the batch before the next one that is known nothing can be told.
    segment.damage({**changes, segment.positions[30]: 0})
    rows, _ = _read_the_rest(segment)
    assert not any(row["key"] == "false" for row in rows)


def test_with_an_index_nothing_is_taken_for_a_batch_that_leads_to_none(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _holding((21, 24, 27)), every=4)
    inside = range(segment.positions[2], segment.positions[2] + HEADER)
    segment.damage({**dict.fromkeys(inside, 0), segment.positions[3]: 0})
    rows, _ = _read_the_rest(segment)
    assert rows == _survivors(segment, {2, 3})


@pytest.mark.parametrize("offset", [3, 40, 100_000], ids=["earlier", "fitting", "later than any"])
def test_without_an_index_what_leads_nowhere_is_lost_and_not_guessed(
    offset: int, tmp_path: Path
) -> None:
    """A copy of a segment as a message, and no index, and damage twice: nothing tells the copy's batches from others."""
    segment = write_segment(tmp_path, _holding((offset, offset + 3)), every=1000)
    inside = range(segment.positions[2], segment.positions[2] + HEADER)
    segment.damage(
        {**dict.fromkeys(inside, 0), len(segment.data) - 100: 0, segment.positions[-1]: 0}
    )
    rows, _ = _read_the_rest(segment)
    assert rows == _survivors(segment, set(range(2, len(segment.positions))))


# --- what is right in form and wrong in itself ---


def _restamped(batch: bytearray) -> bytes:
    """A batch whose checks are right whatever it says."""
    struct.pack_into("<Q", batch, 32, xxh3_64_intdigest(bytes(batch[HEADER:])))
    batch[4:8] = bytes(4)
    struct.pack_into("<I", batch, 4, xxh3_64_intdigest(bytes(batch[:HEADER])) & 0xFFFF_FFFF)
    return bytes(batch)


@given(st.integers(0, 3), st.data())
def test_what_the_model_refuses_is_refused_for_the_same_reason(
    number: int, data: st.DataObject
) -> None:
    """Whatever fields and ends say, with checks that fit: all columns of the batch, or its error."""
    with tempfile.TemporaryDirectory() as directory:
        segment = write_segment(Path(directory), _batches(50))
        position, end = segment.positions[number], segment.positions[number + 1]
        batch = bytearray(segment.data[position:end])
        fields = st.sampled_from([*range(8, 16), *range(24, 32), *range(40, HEADER)])
        columns_end = HEADER + 172
        at = data.draw(st.one_of(fields, st.integers(HEADER, columns_end)))
        batch[at] = data.draw(st.integers(0, 255))
        changed = _restamped(batch)
        why, expected = "", []
        try:
            expected = rows_of(changed + bytes(1 << 16), segment.segment_range.queue)
        except (BatchError, PropertyError) as error:
            why = str(error)
        segment.path.write_bytes(segment.data[:position] + changed + segment.data[end:])
        first, stop = segment.bases[number], segment.bases[number + 1]
        right = not why and len(expected) == stop - first
        # Any other length or count has the next batch in the wrong place; only the batch itself is asked for.
        for verify in (True, False):
            if right and struct.unpack_from("<I", changed, 8)[0] == len(changed):
                assert read(segment, first=first, stop=stop, verify=verify) == expected
            elif why:
                with pytest.raises(Damage) as refused:
                    read(segment, first=first, stop=stop, verify=verify)
                assert refused.value.position == position
                assert why in refused.value.what


def test_a_file_that_is_cut_while_it_is_read_ends_with_an_error(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(200), sealed=False)
    size = segment.positions[12] + 100

    class Cutting(LocalStorage):
        """Cuts a segment when it was opened and its size was told."""

        def open(self, path: str) -> OpenFile:
            file = super().open(path)
            told = file.size()
            os.truncate(segment.path, size)
            monkeypatch.setattr(file, "size", lambda: told)
            return file

    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(Damage) as refused:
        read(segment, storage=Cutting())
    assert refused.value.position == segment.positions[12]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_file_that_was_cut_ends_with_an_error(sealed: bool, tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(200), sealed=sealed)
    for size in (segment.positions[12] + 100, segment.positions[12], segment.positions[12] + 40):
        segment.path.write_bytes(segment.data[:size] + bytes(64 if sealed else 0))
        with pytest.raises(Damage) as refused:
            read(segment)
        assert refused.value.position == segment.positions[12]
        rows, _ = _read_the_rest(segment)
        assert rows == _survivors(segment, set(range(12, 20)))
        assert read(segment, stop=120) == segment.rows[:120]
    for size in (0, 100, PAGE_BYTES - 1, PAGE_BYTES):
        segment.path.write_bytes(segment.data[:size])
        with pytest.raises(Damage):
            read(segment)
        assert _read_the_rest(segment)[0] == []


def test_a_head_that_promises_more_than_is_there_is_damage(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(200), sealed=False)
    promised = replace(
        segment.segment_range, segment_next=230, stop=230, end=segment.segment_range.end + 3000
    )
    segment.segment_range = promised
    with pytest.raises(Damage, match="ends with offset 199; its last should be 229") as refused:
        read(segment)
    assert refused.value.position == len(segment.data)
    statistics = Statistics()
    assert read(segment, fail=False, statistics=statistics) == segment.rows
    assert statistics.skipped_rows == 30


def test_what_stands_behind_the_end_is_not_read(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(200), sealed=False)
    segment.segment_range = replace(
        segment.segment_range, segment_next=150, stop=150, end=segment.positions[15]
    )
    segment.path.write_bytes(segment.data[: segment.positions[15]] + b"torn" * 100)
    assert read(segment) == segment.rows[:150]


@pytest.mark.parametrize(
    "foreign", ["another queue's", "another offset's", "text", "zeros", "page"]
)
def test_a_file_that_is_no_segment_of_that_queue_gives_no_rows(
    foreign: str, tmp_path: Path
) -> None:
    segment = write_segment(tmp_path / "right", _batches(200), base=1000)
    if foreign == "another queue's":
        data = write_segment(tmp_path / "x", _batches(200), base=1000, queue="other").data
    elif foreign == "another offset's":
        data = write_segment(tmp_path / "x", _batches(200), base=2000).data
    elif foreign == "text":
        data = b"no segment at all\n" * 1000
    elif foreign == "zeros":
        data = bytes(len(segment.data))
    else:
        data = segment.data[:50] + b"\1" + segment.data[51:]
    segment.path.write_bytes(data)
    with pytest.raises(Damage) as refused:
        read(segment)
    assert (refused.value.path, refused.value.position) == (str(segment.path), 0)
    rows, statistics = _read_the_rest(segment)
    assert rows == []
    assert statistics.skipped_rows == 200


def test_batches_of_another_segment_are_not_taken_for_its_own(tmp_path: Path) -> None:
    """Right in themselves, and of this queue; but what they say of offsets is not what is due."""
    segment = write_segment(tmp_path / "one", _batches(200), every=1000)
    other = write_segment(tmp_path / "other", _batches(200), base=5000, every=1000)
    half = segment.positions[10]
    for data in (segment.data[:half] + other.data[half:], other.data[:half] + segment.data[half:]):
        segment.path.write_bytes(segment.data[:PAGE_BYTES] + data[PAGE_BYTES:])
        with pytest.raises(Damage, match=r"where (0|100) should follow"):
            read(segment)
        rows, _ = _read_the_rest(segment)
        assert rows in (segment.rows[:100], segment.rows[100:])


def test_a_file_that_is_damaged_everywhere_does_not_fill_the_log(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _batches(3000, per_batch=2))
    segment.damage({end - 9: 0x77 for end in [*segment.positions[1:], segment.positions[-1] + 200]})
    rows, statistics = _read_the_rest(segment)
    assert len(rows) < 10
    assert len(statistics.damage) == DAMAGES_MAX + 1


def test_random_bytes_anywhere_never_give_a_wrong_row(tmp_path: Path) -> None:
    """Wider damage than single flips, with and without an index."""
    chance = random.Random(20)
    segment = write_segment(tmp_path, _batches(600, per_batch=6), base=7, every=9)
    index = Path(segment.segment_range.index_path)
    for turn in range(60):
        changes = {}
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(PAGE_BYTES, len(segment.data) - 1)
            size = min(chance.choice((1, 8, 64, 700, 9000)), len(segment.data) - at)
            changes.update({at + step: chance.randrange(256) for step in range(size)})
        segment.damage(changes)
        index.write_bytes(segment.index if turn % 2 else chance.randbytes(len(segment.index)))
        rows, _ = _read_the_rest(segment, ("offset", "payload", "headers"))
        assert len(rows) > 0
