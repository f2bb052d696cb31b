"""Files of a log that are torn or flipped: the records are exactly those that were written, or the place is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from fluxmq.model.segments import HEAD_BYTES, PAGE_BYTES, HeaderPage, newest_head
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import SegmentScan, log_batches
from fluxmq.storage.log_state import LogState
from fluxmq.storage.open_files import OpenFile, OpenFiles
from fluxmq.storage.queue_log import QueueLog, SegmentOptions
from fluxmq.storage.segments import SegmentWriter
from tests.unit.storage.logs import SECOND, batch, batches, checkpoint, fill, opened, payload

TINY = SegmentOptions(segment_bytes=8 << 10, segment_age=0, index_bytes=512)
COUNT = 48
SIZE = 150


def made(directory: Path) -> LogState:
    """A log of several segments, closed; its state."""
    log = opened(directory, options=TINY)
    fill(log, batches(COUNT, size=SIZE))
    state = checkpoint(log)
    log.close()
    return state


def read_all(log: QueueLog, refused: list[Corruption] | None = None) -> None:
    """Read every offset in a wild order; what is read is what was written. `refused` takes what was not."""
    for offset in [*range(0, COUNT, 3), *range(COUNT - 1, -1, -1)]:
        try:
            found = log.read(offset)
        except Corruption as error:
            if refused is None:
                raise
            refused.append(error)
        else:
            assert found.payload(offset - found.base_offset) == payload(offset, SIZE)
            assert found.time(offset - found.base_offset) == offset * SECOND


def assert_never_wrong(directory: Path, state: LogState, damaged: Path) -> bool:
    """Open and read; whether the damage was noticed, by its place."""
    refused: list[Corruption] = []
    try:
        log = opened(directory, state, options=TINY)
    except Corruption as error:
        refused.append(error)
    else:
        read_all(log, refused)
        for time in range(0, COUNT, 7):
            try:
                assert log.offset_at(time * SECOND) == time
            except Corruption as error:
                refused.append(error)
        log.close()
    assert {error.path for error in refused} <= {str(damaged)}
    return bool(refused)


def test_every_flipped_bit_of_a_segment_is_noticed_or_does_not_matter(tmp_path: Path) -> None:
    state = made(tmp_path / "orders")
    random = Random(11)
    for number, segment in enumerate(state.segments):
        path = Path(tmp_path / "orders" / f"{segment.base_offset:020d}.seg")
        whole = path.read_bytes()
        positions = random.sample(range(len(whole)), 40 if number in (0, 1) else 10)
        for position in positions:
            damaged = bytearray(whole)
            damaged[position] ^= 1 << random.randrange(8)
            path.write_bytes(damaged)
            assert assert_never_wrong(tmp_path / "orders", state, path), position
            path.write_bytes(whole)


def test_a_synced_segment_cut_anywhere_is_refused(tmp_path: Path) -> None:
    state = made(tmp_path / "orders")
    for segment in (state.segments[0], state.segments[-1]):
        path = Path(tmp_path / "orders" / f"{segment.base_offset:020d}.seg")
        whole = path.read_bytes()
        for length in range(0, len(whole), 37):
            path.write_bytes(whole[:length])
            with pytest.raises(Corruption) as refused:
                opened(tmp_path / "orders", state, options=TINY)
            assert refused.value.path == str(path)
        path.write_bytes(whole)
    assert not assert_never_wrong(tmp_path / "orders", state, path)


def test_damage_while_it_is_open_is_noticed_too(tmp_path: Path) -> None:
    """Checks are made at every read from the disk, not once."""
    state = made(tmp_path / "orders")
    log = opened(tmp_path / "orders", state, options=TINY)
    read_all(log)
    path = tmp_path / "orders" / f"{state.segments[1].base_offset:020d}.seg"
    whole = bytearray(path.read_bytes())
    whole[PAGE_BYTES + 150] ^= 1
    path.write_bytes(whole)
    log._reader.forget_windows()
    with pytest.raises(Corruption, match=f"{path}, byte {PAGE_BYTES}: "):
        log.read(state.segments[1].base_offset)


def test_a_torn_tail_gives_exactly_the_whole_records_before_it(tmp_path: Path) -> None:
    """As a reader of the bare files sees them: nothing that was cut, and everything before."""
    log = opened(tmp_path, options=TINY)
    fill(log, batches(5, size=SIZE))
    path = tmp_path / "00000000000000000000.seg"
    whole = path.read_bytes()
    ends = {PAGE_BYTES: 0}
    scan = SegmentScan(Files(), str(path))
    for _ in scan:
        ends[scan.position] = scan.next_offset
    assert list(ends.values()) == list(range(6))
    for length in range(PAGE_BYTES, len(whole) + 1):
        path.write_bytes(whole[:length])
        records, torn_at = [], length
        try:
            for found in log_batches(Files(), str(tmp_path)):
                assert found.payload(0) == payload(found.base_offset, SIZE)
                records.append(found.base_offset)
        except Corruption as error:
            torn_at = error.position
        assert torn_at == max(end for end in ends if end <= length)
        assert records == list(range(ends[torn_at]))


def test_replay_mends_whatever_is_behind_the_checkpoint(tmp_path: Path) -> None:
    """Torn at any byte, flipped, filled with zeroes: the bytes are written again."""
    directory = tmp_path / "orders"
    log = opened(directory, options=TINY)
    fill(log, batches(10, size=SIZE))
    state = checkpoint(log)
    fill(log, batches(COUNT - 10, first=10, size=SIZE))
    end = log.state()
    log.close()
    names = sorted(path for path in directory.iterdir() if path.name != "head")
    whole = {path: path.read_bytes() for path in names}
    growing = f"{state.segments[-1].base_offset:020d}.seg"
    random = Random(7)
    for _ in range(150):
        path = random.choice(names)
        kept = state.segments[-1].length if path.name == growing else 0
        if path.stem < growing[:20] or kept >= len(whole[path]):
            continue
        position = random.randrange(kept, len(whole[path]) + 1)
        tail = random.choice([b"", bytes(3000), random.randbytes(400), None])
        if tail is None:
            path.unlink()
            if kept:
                path.write_bytes(whole[path][:kept])
        else:
            path.write_bytes(whole[path][:position] + tail)
        again = opened(directory, state, options=TINY, recovering=True)
        fill(again, batches(COUNT - 10, first=10, size=SIZE))
        again.cut()
        assert again.state() == end
        read_all(again)
        again.close()
        segments = [path for path in names if path.suffix == ".seg"]
        assert {path: path.read_bytes() for path in segments} == {
            path: whole[path] for path in segments
        }


# --- indexes ---------------------------------------------------------------------------------------------------------


def damages(whole: bytes) -> list[bytes]:
    """The index cut and flipped in many places, gone over with zeroes, another one's."""
    random = Random(2)
    flipped = []
    for _ in range(40):
        position = random.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[position] ^= 1 << random.randrange(8)
        flipped.append(bytes(damaged))
    cut = [whole[:length] for length in range(0, len(whole), 7)]
    return [*flipped, *cut, bytes(len(whole)), whole * 2, b"\xff" * len(whole)]


@pytest.mark.parametrize("which", [0, 1, -1])
def test_an_index_that_is_wrong_is_made_again(tmp_path: Path, which: int) -> None:
    state = made(tmp_path / "orders")
    base = state.segments[which].base_offset
    path = tmp_path / "orders" / f"{base:020d}.idx"
    whole = path.read_bytes()
    assert len(whole) >= 16 * 3
    for damaged in damages(whole):
        path.write_bytes(damaged)
        log = opened(tmp_path / "orders", state, options=TINY)
        read_all(log)
        assert [log.offset_at(time * SECOND) for time in range(COUNT)] == list(range(COUNT))
        log.close()
        assert path.read_bytes() == whole
    path.unlink()
    log = opened(tmp_path / "orders", state, options=TINY)
    read_all(log)
    assert path.read_bytes() == whole


def test_an_index_of_another_density_is_read_and_made_again_when_it_must(tmp_path: Path) -> None:
    state = made(tmp_path / "orders")
    dense = SegmentOptions(TINY.segment_bytes, 0, 300)
    log = opened(tmp_path / "orders", state, options=dense)
    read_all(log)
    log.close()
    for path in (tmp_path / "orders").glob("*.idx"):
        path.write_bytes(b"")
    log = opened(tmp_path / "orders", state, options=dense)
    read_all(log)
    fill(log, batches(20, first=COUNT, size=SIZE))
    for offset in range(COUNT, COUNT + 20):
        assert log.offset_at(offset * SECOND) == offset
    read_all(log)


def test_an_index_that_cannot_be_mended_is_done_without(tmp_path: Path) -> None:
    class Unwritable(Files):
        def open_(self, path: str, create: bool = False, *, readonly: bool = False) -> int:
            if path.endswith(".idx") and create:
                raise Corruption(path, 0, "as good as any error")
            return super().open_(path, create, readonly=readonly)

    state = made(tmp_path / "orders")
    for path in (tmp_path / "orders").glob("*.idx"):
        path.unlink()
    log = opened(tmp_path / "orders", state, options=TINY, files=Unwritable())
    read_all(log)


# --- the head --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:64],
        lambda whole: bytes(HEAD_BYTES),
        lambda whole: whole[:100] + b"\xff" + whole[101:],
        lambda whole: whole[:20] + b"\xff" + whole[21:],
        lambda whole: whole + b"more",
    ],
)
def test_the_head_is_set_anew(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    state = made(tmp_path / "orders")
    path = tmp_path / "orders" / "head"
    whole = path.read_bytes()
    before = newest_head(whole)
    path.write_bytes(damage(whole))
    log = opened(tmp_path / "orders", state, options=TINY)
    after = newest_head(path.read_bytes())
    assert before is not None
    assert after is not None
    assert after[1:] == before[1:]
    read_all(log)


# --- one segment -----------------------------------------------------------------------------------------------------


def test_a_segment_is_the_same_whatever_flushes_there_were(tmp_path: Path) -> None:
    first = batch(5, b"x")
    writers = []
    for name, every in (("one", 1), ("two", 3)):
        (tmp_path / name).mkdir()
        writer = SegmentWriter.begin(OpenFiles(Files()), str(tmp_path / name), "orders", first, 512)
        for offset in range(5, 25):
            writer.append(batch(offset, payload(offset)))
            if offset % every == 0:
                writer.flush()
                assert writer.pending_bytes == 0
        writer.seal()
        writer.flush()
        writers.append(writer)
    one, two = (Path(writer.file.path).read_bytes() for writer in writers)
    assert one == two
    assert HeaderPage.decode(one) == HeaderPage("orders", 5, 5 * SECOND)
    assert writers[0].state() == writers[1].state()
    with pytest.raises(AssertionError):
        writers[0].append(batch(25, b"x"))


def test_a_shared_file_is_closed_by_its_last_user(tmp_path: Path) -> None:
    table = OpenFiles(Files())
    file = OpenFile(table, str(tmp_path / "a"))
    file.release()
    file = OpenFile(table, str(tmp_path / "a"))
    file.write([b"abc"], 2)
    assert file.dirty
    again = file.shared()
    file.release()
    assert again.fd >= 0
    again.give_back()
    assert again.fd < 0
    assert (tmp_path / "a").read_bytes() == b"\0\0abc"
