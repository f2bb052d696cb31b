"""Segment ranges of segments as record batches: what numpy makes of many batches is what each of them says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.batches import BatchMessage
from fluxmq.model.properties import Item, PropertyKind, encode, text
from fluxmq_spark import scan as scan_module
from fluxmq_spark.columns import WEIGHT_MAX
from fluxmq_spark.decode import Batches, Window, batch_starts
from fluxmq_spark.errors import Damage, DataLoss
from fluxmq_spark.scan import Selection, Statistics
from fluxmq_spark.storage import LocalStorage
from tests.unit.spark.segment_files import (
    ALL,
    SCHEMA,
    SegmentOnDisk,
    only,
    read,
    write_segment,
)

EPOCH_US = 1_790_000_000_000_000
BLOCKS = [
    b"",
    encode([Item(PropertyKind.PUBLISHER, b"meter-7"), Item(PropertyKind.PROTOCOL, 1)]),
    encode(
        [Item(PropertyKind.HEADER, text(b"eu"), b"region"), Item(PropertyKind.MESSAGE_ID, b"17")]
    ),
    encode(
        [
            Item(PropertyKind.PROTOCOL, 2),
            Item(PropertyKind.EXCHANGE, b"sales"),
            Item(PropertyKind.PUBLISHER, b"shop"),
        ]
    ),
    encode([Item(PropertyKind.PROTOCOL, 2), Item(PropertyKind.EXCHANGE, b"")]),
]
KEYS = [b"", b"orders/eu", "größe".encode(), b"\xff", b"a/b"]


@st.composite
def batches(draw: st.DrawFn) -> list[list[BatchMessage]]:
    """Batches with every combination of columns."""
    found = []
    for number in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 5))
        drawn = {
            name: draw(st.booleans())
            for name in ("keys", "blocks", "times", "expiry", "delay", "producer", "attributes")
        }
        key, block = draw(st.sampled_from(KEYS)), draw(st.sampled_from(BLOCKS))
        found.append(
            [
                BatchMessage(
                    draw(st.sampled_from(KEYS)) if drawn["keys"] else key,
                    draw(st.sampled_from(BLOCKS)) if drawn["blocks"] else block,
                    draw(st.binary(max_size=12)),
                    EPOCH_US + number * 1000 + (draw(st.integers(-9, 9)) if drawn["times"] else 0),
                    index + 1 if drawn["expiry"] else 0,
                    index + 1 if drawn["delay"] else 0,
                    7 if drawn["producer"] else 0,
                    index if drawn["producer"] else 0,
                    index + 1 if drawn["attributes"] else 0,
                )
                for index in range(count)
            ]
        )
    return found


@pytest.fixture(params=[64, 256, 4096, 4 << 20], ids=lambda size: f"windows of {size} bytes")
def window_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Windows from ones that hold no batch whole to ones that hold the segment."""
    monkeypatch.setattr(scan_module, "WINDOW_BYTES", request.param)
    size: int = request.param
    return size


def _plain(count: int, *, per_batch: int = 10, size: int = 100) -> list[list[BatchMessage]]:
    messages = [
        BatchMessage(b"orders/eu", BLOCKS[2], b"%d " % number + b"." * size, EPOCH_US + number)
        for number in range(count)
    ]
    return [messages[at : at + per_batch] for at in range(0, count, per_batch)]


@given(batches(), st.data())
def test_rows_are_what_the_model_reads(
    batches: list[list[BatchMessage]], data: st.DataObject
) -> None:
    base = data.draw(st.sampled_from((0, 5, 1 << 40)))
    with tempfile.TemporaryDirectory() as directory:
        segment = write_segment(
            Path(directory),
            batches,
            base=base,
            every=data.draw(st.integers(1, 3)),
            sealed=data.draw(st.booleans()),
        )
        stop = data.draw(st.integers(base, base + len(segment.rows)))
        first = data.draw(st.integers(base, stop))
        names = data.draw(st.permutations(ALL))[: data.draw(st.integers(1, len(ALL)))]
        statistics = Statistics()
        rows = read(
            segment,
            names,
            first=first,
            stop=stop,
            verify=data.draw(st.booleans()),
            statistics=statistics,
        )
        assert rows == only(segment.rows[first - base : stop - base], names)
        assert (statistics.rows, statistics.skipped_rows) == (stop - first, 0)
        assert statistics.damage == []


@pytest.mark.usefixtures("window_bytes")
def test_batches_of_any_size_fit_windows_of_any_size(tmp_path: Path) -> None:
    sizes = [1, 5000, 1, 1, 300, 70_000, 2]
    batches = [[BatchMessage(b"k", b"", b"x" * size, EPOCH_US)] * 2 for size in sizes]
    segment = write_segment(tmp_path, batches, every=2)
    assert read(segment) == segment.rows
    for first in range(len(segment.rows)):
        assert read(segment, first=first) == segment.rows[first:]
        assert read(segment, first=first, stop=first + 1) == segment.rows[first : first + 1]


def _torn(segment: SegmentOnDisk) -> bytes:
    return segment.index[:-21]


def _shifted(segment: SegmentOnDisk) -> bytes:
    """Positions of the right form at which no batch begins."""
    entries = numpy.frombuffer(segment.index, "<u4").copy()
    entries[1::4] += 64
    return entries.tobytes()


def _exchanged(segment: SegmentOnDisk) -> bytes:
    """Batches are where it says, but not of those offsets."""
    entries = numpy.frombuffer(segment.index, "<u4").copy()
    entries[0::4] += 10
    return entries.tobytes()


def _backwards(segment: SegmentOnDisk) -> bytes:
    return numpy.frombuffer(segment.index, "V16")[::-1].tobytes()


def _one_early(segment: SegmentOnDisk) -> bytes:
    """The entry behind which nothing of a segment range is comes a little too soon."""
    entries = numpy.frombuffer(segment.index, "<u4").copy()
    entries[1 + 4 * 10] -= 8
    return entries.tobytes()


def _one_wrong(segment: SegmentOnDisk) -> bytes:
    entries = numpy.frombuffer(segment.index, "<u4").copy()
    entries[1 + 4 * 10] += 8
    return entries.tobytes()


@pytest.mark.parametrize(
    "index",
    [
        None,
        lambda _: b"",
        lambda _: bytes(16 * 40),
        lambda _: bytes(range(256)) * 3,
        _torn,
        _shifted,
        _exchanged,
        _backwards,
        _one_early,
        _one_wrong,
    ],
)
def test_an_index_that_is_wrong_costs_time_and_nothing_else(
    index: Callable[[SegmentOnDisk], bytes] | None, tmp_path: Path
) -> None:
    segment = write_segment(tmp_path, _plain(500), base=1000)
    path = Path(segment.segment_range.index_path)
    if index is None:
        path.unlink()
    else:
        path.write_bytes(index(segment))
    for first, stop in ((1000, 1500), (1000, 1110), (1234, 1236), (1499, 1500), (1009, 1491)):
        assert read(segment, first=first, stop=stop) == segment.rows[first - 1000 : stop - 1000]


def test_only_what_is_needed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "WINDOW_BYTES", 1 << 16)
    segment = write_segment(tmp_path, _plain(20_000, per_batch=100), every=5)
    statistics = Statistics()
    assert len(read(segment, first=10_000, stop=10_100, statistics=statistics)) == 100
    assert statistics.batches == 1
    assert statistics.bytes < len(segment.data) // 10
    assert statistics.segments == 1


def test_the_lengths_of_batches_are_followed_from_all_index_entries_at_once(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _plain(2000), every=7)
    page = segment.positions[0]
    data = segment.data[page:]
    window = Window(len(data))
    window.target[:] = data
    window.fill(page, len(data))
    starts = numpy.array(segment.positions) - page
    for anchors in (starts[::7], starts[:0], starts[1::50]):
        assert batch_starts(window, anchors).tolist() == starts.tolist()
    batches = Batches(window, starts, 0)
    assert batches.fault is None
    assert batches.base_offsets.tolist() == segment.bases


# --- states and selections ---


@given(st.sets(st.integers(0, 119)), st.integers(0, 60), st.integers(0, 60))
def test_only_the_selected_offsets_are_yielded(wanted: set[int], first: int, size: int) -> None:
    ranges = _ranges(wanted)
    selection = Selection(ranges)
    with tempfile.TemporaryDirectory() as directory:
        segment = write_segment(Path(directory), _plain(120, per_batch=7), every=2)
        rows = read(segment, first=first, stop=first + size, selection=selection)
    assert rows == [row for row in segment.rows[first : first + size] if row["offset"] in wanted]


def test_what_is_not_selected_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "WINDOW_BYTES", 1 << 14)
    segment = write_segment(tmp_path, _plain(20_000, per_batch=50), every=4)
    statistics = Statistics()
    selection = Selection(((3, 4), (9_990, 10_010), (19_999, 30_000)))
    rows = read(segment, ("offset",), selection=selection, statistics=statistics)
    assert [row["offset"] for row in rows] == [3, 4, *range(9_990, 10_011), 19_999]
    assert statistics.batches == 4
    assert statistics.bytes < len(segment.data) // 8


def test_states_are_those_of_the_group(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _plain(40))
    labels = ((3, 4, "pending"), (5, 5, "dead"), (18, 22, "pending"))
    selection = Selection(None, labels, cursor=20)
    states = [row["state"] for row in read(segment, ("state",), selection=selection)]
    expected = ["acknowledged"] * 20 + ["ready"] * 20
    for first, last, state in labels:
        expected[first : last + 1] = [state] * (last - first + 1)
    assert states == expected
    nothing_given = read(segment, ("state",), selection=Selection(None))
    assert {row["state"] for row in nothing_given} == {"ready"}


def _ranges(wanted: set[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for offset in sorted(wanted):
        if found and found[-1][1] == offset - 1:
            found[-1] = found[-1][0], offset
        else:
            found.append((offset, offset))
    return tuple(found)


# --- sizes ---


def test_a_key_of_many_messages_makes_no_column_too_large(tmp_path: Path) -> None:
    """4096 messages share a key of 60 KB: 250 MB in a column, for 60 KB in the file."""
    messages = [BatchMessage(b"k" * 60_000, b"", b"", EPOCH_US)] * 4096
    segment = write_segment(tmp_path, [messages, messages[:1]], rows=False)
    found = scan_module.scan(
        LocalStorage(),
        segment.segment_range,
        ("key",),
        SCHEMA,
        verify=True,
        fail_on_data_loss=True,
        statistics=Statistics(),
    )
    sizes = [(batch.num_rows, batch.nbytes) for batch in found]
    assert sum(rows for rows, _ in sizes) == 4097
    assert max(size for _, size in sizes) <= WEIGHT_MAX + (1 << 20)


def test_rows_of_many_small_batches_share_record_batches(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _plain(20_000, per_batch=1, size=10), every=200)
    found = scan_module.scan(
        LocalStorage(),
        segment.segment_range,
        ("offset", "key"),
        SCHEMA,
        verify=True,
        fail_on_data_loss=True,
        statistics=Statistics(),
    )
    assert [batch.num_rows for batch in found] == [8192, 8192, 3616]


# --- what is not there ---


def test_a_file_that_is_gone_is_loss_of_data(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _plain(100))
    segment.path.unlink()
    with pytest.raises(
        DataLoss, match=r"queue 'orders'.*offsets 20 to 59.*40 are gone.*failOnDataLoss=false"
    ):
        read(segment, first=20, stop=60)
    statistics = Statistics()
    assert read(segment, first=20, stop=60, fail=False, statistics=statistics) == []
    assert (statistics.rows, statistics.skipped_rows) == (0, 40)


def test_a_portion_of_nothing_opens_nothing(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, _plain(100))
    segment.path.unlink()
    assert read(segment, first=50, stop=50) == []
    assert read(segment, selection=Selection(((200, 300),))) == []


def test_a_property_block_that_is_none_is_damage(tmp_path: Path) -> None:
    batches = _plain(60)
    batches[2] = [message._replace(properties=b"\x63") for message in batches[2]]
    batches[4][3] = batches[4][3]._replace(properties=b"\x63")
    segment = write_segment(tmp_path, batches, rows=False)
    with pytest.raises(Damage) as refused:
        read(segment)
    assert "a property block that cannot be read: an item of kind 99" in str(refused.value)
    assert refused.value.position == segment.positions[2]
    statistics = Statistics()
    rows = read(segment, fail=False, statistics=statistics)
    assert [row["offset"] for row in rows] == [*range(20), *range(30, 40), *range(50, 60)]
    assert statistics.skipped_rows == 20
    assert len(statistics.damage) == 2
    assert len(read(segment, ("offset", "payload"))) == 60
