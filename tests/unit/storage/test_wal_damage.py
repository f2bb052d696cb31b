"""Torn tails at every byte, a flipped bit in every byte, missing files: the records before the damage, or its place.

What must be told apart: damage to the last write, of which nobody was told that it was done, ends the log; damage to
anything older is reported.
"""

import os
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.wal_files import KEY_FILE, file_name
from fluxmq.storage.wal_records import FILE, HEADER_BYTES, Found, record_bytes
from fluxmq.storage.wal_recovery import read_log
from tests.unit.storage.wal_harness import Bench, body

pytestmark = pytest.mark.usefixtures("direct")

SIZE = 1536


class Stored(NamedTuple):
    """A record with the number of its file and its bytes."""

    sequence: int
    found: Found
    content: bytes


def read(folder: Path) -> list[Stored]:
    """All records of a log, in order. Raises Corruption."""
    records: list[Stored] = []
    read_log(
        Files(),
        str(folder),
        lambda file, found, data: records.append(
            Stored(file.sequence, found, bytes(data[found.position : found.end]))
        ),
    )
    return records


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Stored]]:
    """A log of several files and groups, the last write of several records; recycled space behind it."""
    made = Bench(tmp_path_factory.mktemp("damage"), file_bytes=SIZE)
    log = made.log
    one, two = log.number("one"), log.number("2")
    for index in range(1, 33):
        log.append_entry(one, 1, index, 1, body(index, index * 7 % 90))
        log.append_hard_state(two, index, 1, index)
        made.commit()
        log.release(one, min(index, 20) - 2)
    log.append_truncation(one, 32)
    made.commit()
    assert log.stats.files_recycled >= 2
    while made.log._row.used[-1].end > SIZE // 2:
        log.append_entry(two, 9, log.last_index(two) + 1, 1, b"fill")
        made.commit()
    while made.log._row.used[-1].end < SIZE // 2:
        log.append_entry(two, 9, log.last_index(two) + 1, 1, b"fill")
        made.commit()
    for size in (0, 3, 70, 8, 41):
        log.append_entry(two, 9, log.last_index(two) + 1, 1, body(7, size))
    made.commit()
    made.kill()
    folder = made.folder / "wal"
    records = read(folder)
    assert len({record.sequence for record in records}) >= 2
    assert len([r for r in records if r.found.start == records[-1].found.start]) >= 5
    return folder, records


def with_contents(folder: Path, sequence: int, data: bytes | bytearray) -> list[Stored]:
    """What the log holds when one of its files has other contents. Raises Corruption."""
    # In place: a file that is truncated and written anew is flushed by the file system, which takes its time.
    fd = os.open(folder / file_name(sequence), os.O_RDWR)
    good = os.pread(fd, 1 << 20, 0)
    try:
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
        return read(folder)
    finally:
        os.pwrite(fd, good, 0)
        os.close(fd)


def damaged_at(records: list[Stored], sequence: int, at: int) -> Stored | None:
    """The record that a byte of a file counts for; None for padding and space not in use."""
    for record in records:
        found = record.found
        end = found.position + HEADER_BYTES + found.length
        if record.sequence == sequence and found.position <= at < end:
            return record
    return None


def was_synced(records: list[Stored], bad: Stored) -> bool:
    """Whether the log itself shows that a record was durable: something was written after it was synced."""
    return any(
        record.sequence > bad.sequence
        or (record.sequence == bad.sequence and record.found.start > bad.found.position)
        for record in records
    )


def files_of(records: list[Stored]) -> list[int]:
    return sorted({record.sequence for record in records})


def test_a_flipped_bit_in_every_byte(clean: tuple[Path, list[Stored]]) -> None:
    folder, records = clean
    random = Random(3)
    refused = cut = 0
    for sequence in files_of(records):
        good = (folder / file_name(sequence)).read_bytes()
        for at in range(SIZE):
            data = bytearray(good)
            data[at] ^= 1 << random.randrange(8)
            bad = damaged_at(records, sequence, at)
            if bad is None:
                assert len(with_contents(folder, sequence, data)) == len(records)
            elif was_synced(records, bad):
                with pytest.raises(Corruption) as caught:
                    with_contents(folder, sequence, data)
                assert caught.value.path == str(folder / file_name(sequence))
                assert caught.value.position == bad.found.position
                refused += 1
            else:
                assert with_contents(folder, sequence, data) == records[: records.index(bad)]
                cut += 1
    assert refused > 1000
    assert cut > 300


@pytest.mark.parametrize("tail", ["missing", "zeroes", "noise"])
def test_the_last_file_torn_at_every_byte(clean: tuple[Path, list[Stored]], tail: str) -> None:
    folder, records = clean
    random = Random(5)
    sequence = records[-1].sequence
    good = (folder / file_name(sequence)).read_bytes()
    for at in range(records[-1].found.end):
        length = SIZE - at
        rest = {"missing": b"", "zeroes": bytes(length), "noise": random.randbytes(length)}[tail]
        data = good[:at] + rest
        expected = [r for r in records if r.sequence < sequence]
        for record in records[len(expected) :]:
            start = record.found.position
            end = start + HEADER_BYTES + record.found.length
            if data[start:end] != good[start:end]:
                break
            expected.append(record)
        found = with_contents(folder, sequence, data)
        assert [record.found for record in found] == [record.found for record in expected]


def test_an_earlier_file_torn_at_every_byte_is_refused(clean: tuple[Path, list[Stored]]) -> None:
    folder, records = clean
    for sequence in files_of(records)[:-1]:
        good = (folder / file_name(sequence)).read_bytes()
        last = [r.found for r in records if r.sequence == sequence][-1]
        end = last.position + HEADER_BYTES + last.length
        for at in range(end):
            with pytest.raises(Corruption) as caught:
                with_contents(folder, sequence, good[:at])
            assert caught.value.path == str(folder / file_name(sequence))
            assert caught.value.position <= (at + 7) // 8 * 8  # what only lacks padding is whole
        found = with_contents(folder, sequence, good[:end])
        assert [record.found for record in found] == [record.found for record in records]


def test_records_of_one_write_may_be_lost_in_any_combination(
    clean: tuple[Path, list[Stored]],
) -> None:
    """A power cut keeps any of the sectors that were under way: a later record may be whole, an earlier one not."""
    folder, records = clean
    sequence = records[-1].sequence
    good = (folder / file_name(sequence)).read_bytes()
    last_write = [
        r for r in records if (r.sequence, r.found.start) == (sequence, records[-1].found.start)
    ]
    for kept in range(1 << len(last_write)):
        data = bytearray(good)
        for number, record in enumerate(last_write):
            if not kept >> number & 1:
                data[record.found.position : record.found.end] = bytes(len(record.content))
        whole = 0
        while kept >> whole & 1:
            whole += 1
        expected = records[: len(records) - len(last_write) + whole]
        assert with_contents(folder, sequence, data) == expected


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_missing_file_is_damage(tmp_path: Path, which: str) -> None:
    made = Bench(tmp_path, file_bytes=SIZE)
    group = made.log.number("one")
    for index in range(1, 60):
        made.log.append_entry(group, 1, index, 0, body(index))
        made.commit()
    made.log.append_hard_state(group, 1, 1, 59)
    made.commit()
    made.kill()
    names = sorted(path.name for path in (tmp_path / "wal").glob("*.wal"))
    used = names[:-1]
    assert len(used) >= 4
    gone = {"first": used[0], "middle": used[2], "last": used[-1]}[which]
    (tmp_path / "wal" / gone).unlink()
    with pytest.raises(Corruption, match="missing"):
        made.start()


def test_a_first_file_that_is_gone_is_noticed_by_what_the_next_one_says(tmp_path: Path) -> None:
    """Nothing of the group stands behind the lost entries; the next file's first records tell that there were some."""
    made = Bench(tmp_path, file_bytes=SIZE)
    one, two = made.log.number("one"), made.log.number("two")
    for index in range(1, 4):
        made.log.append_entry(one, 1, index, 0, body(index))
    made.commit()
    for index in range(1, 30):
        made.log.append_entry(two, 1, index, 0, body(index))
        made.commit()
    made.log.release(two, 29)
    made.commit()
    made.kill()
    (tmp_path / "wal" / file_name(1)).unlink()
    with pytest.raises(Corruption, match="entries 1 to 3 of group one are missing"):
        made.start()


def test_the_key_stands_twice(tmp_path: Path) -> None:
    made = Bench(tmp_path)
    group = made.log.number("one")
    made.log.append_entry(group, 1, 1, 0, b"kept")
    made.commit()
    made.kill()
    path = tmp_path / "wal" / KEY_FILE
    good = path.read_bytes()
    for at in range(len(good)):
        if at % 64 in (0, 9, 17):
            path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
            made.start()
            assert made.contents() == {"one": [(1, 1, b"kept")]}
            made.kill()
    path.write_bytes(good[:10] + b"?" + good[11:520] + b"?" + good[521:])
    with pytest.raises(Corruption, match="both copies of the key") as caught:
        made.start()
    assert caught.value.path == str(path)
    path.unlink()
    with pytest.raises(Corruption, match="the key is missing"):
        made.start()


def test_another_files_contents_are_refused(clean: tuple[Path, list[Stored]]) -> None:
    """Records say which file they are in: contents under a wrong name are no records."""
    folder, records = clean
    first, second = files_of(records)[-2:]
    copy = (folder / file_name(first)).read_bytes()
    found = with_contents(folder, second, copy)
    assert found == [record for record in records if record.sequence <= first]


def test_a_first_record_that_is_bad_while_others_are_whole(tmp_path: Path) -> None:
    made = Bench(tmp_path, file_bytes=SIZE)
    group = made.log.number("one")
    for index in range(1, 13):
        made.log.append_entry(group, 1, index, 0, body(index))
        made.commit()
    made.kill()
    last = made.names[-2]
    path = tmp_path / "wal" / file_name(int(last))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corruption, match="a bad first record") as caught:
        made.start()
    assert (caught.value.path, caught.value.position) == (str(path), 0)


def test_what_a_torn_write_left_never_becomes_valid_again(tmp_path: Path) -> None:
    """The second record of a torn write stands whole behind the first; a new one as long as the first must not join
    up with it."""
    made = Bench(tmp_path)
    group = made.log.number("one")
    made.log.append_entry(group, 1, 1, 0, body(1))
    made.commit()
    for index in (2, 3, 4):
        made.log.append_entry(group, 1, index, 0, body(index))
    made.commit()
    made.kill()
    path = tmp_path / "wal" / file_name(1)
    data = path.read_bytes()
    path.write_bytes(data.replace(body(2), bytes(100)))
    made.start()
    assert made.contents() == {"one": [(1, 1, body(1))]}
    made.log.append_entry(group, 2, 2, 0, b"new".ljust(100))
    made.commit()
    made.again()
    assert made.contents() == {"one": [(1, 1, body(1)), (2, 2, b"new".ljust(100))]}
    made.kill()


def test_what_a_torn_first_write_of_a_file_left_never_becomes_valid_again(tmp_path: Path) -> None:
    made = Bench(tmp_path)
    group = made.log.number("one")
    for index in range(1, 27):
        made.log.append_entry(group, 1, index, 0, body(index))
        made.commit()
    assert made.names[-1] == "2"
    for index in range(27, 40):
        made.log.append_entry(group, 1, index, 0, body(index))
    made.commit()
    made.kill()
    second = tmp_path / "wal" / file_name(2)
    data = bytearray(second.read_bytes())
    data[:64] = bytes(64)
    second.write_bytes(data)
    made.start()
    kept = len(made.contents()["one"])
    assert 26 <= kept < 39
    assert not any(second.read_bytes())
    made.log.append_entry(group, 2, kept + 1, 0, b"new")
    made.commit()
    made.again()
    assert made.contents()["one"][kept:] == [(kept + 1, 2, b"new")]
    made.kill()


def test_a_bad_record_before_an_orderly_end_is_damage(tmp_path: Path) -> None:
    """Closing in order leaves a mark, so that even the last write cannot be lost unnoticed."""
    made = Bench(tmp_path)
    group = made.log.number("one")
    made.log.append_entry(group, 1, 1, 0, body(1))
    made.close()
    path = tmp_path / "wal" / file_name(1)
    data = path.read_bytes()
    path.write_bytes(data.replace(body(1), bytes(100)))
    with pytest.raises(Corruption, match="was written after it was synced") as caught:
        made.start()
    assert caught.value.position == data.index(body(1)) - HEADER_BYTES


def test_bodies_that_look_like_records_are_bodies(tmp_path: Path) -> None:
    """A client may send whatever bytes it likes, those of a log's file too."""
    made = Bench(tmp_path / "a", file_bytes=8192)
    group = made.log.number("one")
    made.log.append_entry(group, 1, 1, 0, body(1))
    made.commit()
    made.kill()
    forged = (tmp_path / "a" / "wal" / file_name(1)).read_bytes()[:1024]
    other = Bench(tmp_path / "b", file_bytes=8192)
    group = other.log.number("one")
    for index in (1, 2):
        other.log.append_entry(group, 1, index, 0, forged)
    other.commit()
    other.kill()
    path = tmp_path / "b" / "wal" / file_name(1)
    data = bytearray(path.read_bytes())
    data[data.index(forged) - 1] ^= 1
    path.write_bytes(data)
    other.start()
    assert other.contents() == {"one": []}
    other.kill()


def test_records_of_another_log_are_no_records(tmp_path: Path) -> None:
    """The key is the log's own: a file from elsewhere, or a body that copies one, says nothing."""
    for name in ("a", "b"):
        made = Bench(tmp_path / name)
        group = made.log.number("one")
        made.log.append_entry(group, 1, 1, 0, name.encode())
        made.commit()
        made.kill()
    foreign = (tmp_path / "a" / "wal" / file_name(1)).read_bytes()
    (tmp_path / "b" / "wal" / file_name(1)).write_bytes(foreign)
    made.start()
    assert made.contents() == {}
    made.kill()


def test_first_records_and_sizes_are_checked(clean: tuple[Path, list[Stored]]) -> None:
    _, records = clean
    assert all(r.found.position == 0 for r in records if r.found.type == FILE)
    assert [record_bytes(n) for n in (0, 1, 8, 9)] == [40, 48, 48, 56]
