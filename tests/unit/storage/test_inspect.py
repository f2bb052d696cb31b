"""What the tools say of a stopped node's files: all right, torn by a crash, or damaged, and where."""

from __future__ import annotations

import argparse
import select
import shutil
from pathlib import Path
from random import Random

import orjson
import pytest

from fluxmq.cli import log_command
from fluxmq.model.segments import PAGE_BYTES, index_name, segment_name
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import log_batches, scan_log
from fluxmq.storage.log_state import LogState
from fluxmq.storage.queue_log import QueueLog
from fluxmq.storage.snapshots import GroupSnapshotContent, snapshot_name, write_snapshot
from fluxmq.storage.syncer import Syncer
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import WalOptions
from fluxmq.supervisor.directory import open_directory
from tests.unit.storage.logs import SMALL, batch_of, batches, checkpoint, fill, payload

NOTHING = LogState(0, 0, ())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a group of two queues, checkpointed, and messages behind the checkpoint in one."""
    root = tmp_path / "data"
    open_directory(root).close()
    paths = DataPaths(str(root))
    logs = {}
    states = {}
    for queue in ("orders", "a/b"):
        log = QueueLog.open(Files(), paths.queue("default", queue), queue, SMALL)
        fill(log, batches(100))
        logs[queue], states[queue] = log, checkpoint(log)
    content = GroupSnapshotContent(b"machine", (1,), (), states).encode()
    write_snapshot(Files(), paths.snapshots("default"), 7, 1, content)
    fill(logs["orders"], batches(60, first=100))
    for log in logs.values():
        log.close()
    return root


def orders(data: Path) -> Path:
    return data / "groups/default/queues/orders"


def segments(data: Path) -> list[Path]:
    return sorted(orders(data).glob("*.seg"))


def run(data: Path, *words: str, path: Path | None = None) -> tuple[int, str, str]:
    """Exit code, output and complaints of ``fluxmqctl log``."""
    top = argparse.ArgumentParser()
    log_command.add_parser(top.add_subparsers())
    options = top.parse_args(["log", *words, *([] if path is None else [str(path)])])
    out: list[str] = []
    complaints: list[str] = []
    code = log_command.run(options, data, out.append, complaints.append)
    return code, "\n".join(out), "\n".join(complaints)


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


# --- verify ----------------------------------------------------------------------------------------------------------


def test_all_is_right(data: Path) -> None:
    code, out, complaints = run(data, "verify")
    assert (code, complaints) == (0, "")
    assert "group default: snapshot 7, 2 queues" in out
    assert "160 messages from offset 0" in out
    assert out.endswith("0 damaged, 0 to be repaired by the next start")


def test_a_tail_torn_by_a_crash_is_no_damage(data: Path) -> None:
    last = segments(data)[-1]
    last.write_bytes(last.read_bytes()[:-100])
    code, out, complaints = run(data, "verify")
    assert (code, complaints) == (0, "")
    assert f"note: {last}, byte" in out
    assert "is cut short (the next start repairs it)" in out


def test_damage_behind_the_checkpoint_is_mended_before_it_is_not(data: Path) -> None:
    for path, damaged in ((segments(data)[-1], False), (segments(data)[0], True)):
        flip(path, 20_000)
        code, out, complaints = run(data, "verify")
        flip(path, 20_000)
        assert code == damaged
        assert (f"{path}, byte " in complaints) == damaged
        assert (f"note: {path}, byte " in out) == (not damaged)


@pytest.mark.parametrize("part", ["page", "batch", "footer", "cut", "gone", "swapped"])
def test_damage_of_a_sealed_segment_is_named(data: Path, part: str) -> None:
    path = segments(data)[1]
    size = path.stat().st_size
    if part == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif part == "gone":
        path.unlink()
    elif part == "swapped":
        shutil.copy(orders(data).parent / "a%2Fb" / path.name, path)
    else:
        flip(path, {"page": 100, "batch": PAGE_BYTES + 100, "footer": size - 5}[part])
    code, _, complaints = run(data, "verify")
    assert code == 1
    assert f"damaged: {path}, byte" in complaints


def test_every_flipped_bit_of_a_sealed_segment_is_found(data: Path) -> None:
    path = segments(data)[0]
    whole = path.read_bytes()
    random = Random(5)
    for _ in range(150):
        position = random.randrange(len(whole))
        flip(path, position, random.randrange(8))
        report = scan_log(Files(), str(orders(data)))
        assert report.problems[0].path == str(path)
        assert not report.problems[0].mended
        assert report.problems[0].position <= position
        path.write_bytes(whole)
    assert scan_log(Files(), str(orders(data))).problems == []


def test_an_index_that_is_wrong_is_mended(data: Path) -> None:
    path = orders(data) / index_name(0)
    flip(path, 9)
    code, out, _ = run(data, "verify")
    assert code == 0
    assert f"note: {path}, byte 0: the index is missing or wrong" in out


def test_a_head_that_is_torn_is_mended(data: Path) -> None:
    (orders(data) / "head").write_bytes(bytes(128))
    code, out, _ = run(data, "verify")
    assert code == 0
    assert "head, byte 0: no slot" in out


def test_what_retention_removed_is_not_missed(data: Path) -> None:
    state = scan_log(Files(), str(orders(data)))
    log = QueueLog.open(Files(), str(orders(data)), "orders", SMALL, _state(data), recovering=True)
    fill(log, batches(60, first=100))
    log.trim(state.segments[1].base_offset)
    log.cut()
    log.close()
    assert len(segments(data)) == len(state.segments) - 1
    code, out, complaints = run(data, "verify")
    assert (code, complaints) == (0, "")
    assert f"messages from offset {state.segments[1].base_offset}" in out


def _state(data: Path) -> LogState:
    path = data / "groups/default/snapshots" / snapshot_name(7)
    return GroupSnapshotContent.decode(path.read_bytes()[48:]).logs["orders"]


def test_a_damaged_snapshot_is_named(data: Path) -> None:
    path = data / "groups/default/snapshots" / snapshot_name(7)
    flip(path, 60)
    code, _, complaints = run(data, "verify")
    assert code == 1
    assert f"damaged: {path}, byte" in complaints
    code, _, complaints = run(data, "verify", path=path)
    assert (code, complaints) == (1, f"fluxmqctl: {path}, byte 40: the checksum does not match")


def test_one_log_or_file_at_a_time(data: Path) -> None:
    for path in (orders(data), segments(data)[0], orders(data) / "head"):
        code, out, _ = run(data, "verify", path=path)
        assert code == 0
        assert out.startswith(f"{orders(data)}: ")
    code, out, _ = run(data, "verify", path=data / "groups/default/snapshots" / snapshot_name(7))
    assert code == 0
    assert "snapshot 7, term 1" in out


def test_a_copy_of_a_log_has_to_be_whole(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(orders(data), copy)
    assert run(data, "verify", path=copy)[0] == 0
    last = max(copy.glob("*.seg"))
    last.write_bytes(last.read_bytes()[:-100])
    code, _, complaints = run(data, "verify", path=copy)
    assert code == 1
    assert "is cut short" in complaints


def write_ahead(data: Path, first: int, count: int) -> Path:
    """Give shard 0 entries of the group; the path of the log's first file."""
    directory = DataPaths(str(data)).wal(0)
    syncer = Syncer()
    wal = WriteAheadLog.open(Files(), directory, syncer, WalOptions(1 << 20, background=False))
    group = wal.number("default")
    if first > 1:
        wal.append_checkpoint(group, first - 1, 1)
    for index in range(first, first + count):
        wal.append_entry(group, 1, index, 0, b"entry" * 20)
    write = wal.flush()
    while wal.completed() < write:
        select.select([syncer.fileno()], [], [], 10)
    wal.append_entry(group, 1, first + count, 0, b"written after the others were synced")
    wal.close()
    syncer.close()
    return min(Path(directory).glob("*.wal"))


def test_write_ahead_logs_are_read(data: Path) -> None:
    path = write_ahead(data, 1, 20)
    code, out, complaints = run(data, "verify")
    assert (code, complaints) == (0, "")
    assert f"{path.parent}: 1 files, 21 entries" in out
    flip(path, 600)
    code, _, complaints = run(data, "verify")
    assert code == 1
    assert f"damaged: {path}, byte" in complaints


def test_entries_between_snapshot_and_log_are_missed(data: Path) -> None:
    write_ahead(data, 10, 5)
    code, _, complaints = run(data, "verify")
    assert code == 1
    assert "entries 8 to 9 are in no snapshot and in no write-ahead log" in complaints


def test_a_lost_key_is_named(data: Path) -> None:
    path = write_ahead(data, 1, 5)
    (path.parent / "wal.key").unlink()
    code, _, complaints = run(data, "verify")
    assert code == 1
    assert "wal.key, byte 0: the key is missing" in complaints


# --- which directory -------------------------------------------------------------------------------------------------


def test_a_directory_in_use_is_left_alone(data: Path) -> None:
    held = open_directory(data)
    try:
        for path in (None, orders(data), segments(data)[0]):
            code, out, complaints = run(data, "verify", path=path)
            assert (code, out) == (4, "")
            assert "in use by process" in complaints
            assert run(data, "verify", "--force-read-only", path=path)[0] == 0
    finally:
        held.close()
    assert run(data, "verify")[0] == 0


def test_a_newer_version_is_refused(data: Path) -> None:
    (data / "VERSION").write_text("fluxmq data 9\n")
    code, _, complaints = run(data, "verify")
    assert code == 4
    assert "newer FluxMQ" in complaints


def test_no_such_path(data: Path) -> None:
    code, _, complaints = run(data, "stat", path=data / "nothing")
    assert code == 2
    assert "is not there" in complaints


def test_a_path_that_has_nothing_to_verify(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.wal").write_bytes(b"")
    for name in ("empty", "a.wal"):
        code, _, complaints = run(data, "verify", path=tmp_path / name)
        assert code == 2
        assert "is neither a data directory" in complaints
    open_directory(tmp_path / "new").close()
    assert run(data, "verify", path=tmp_path / "new")[0] == 0


# --- stat ------------------------------------------------------------------------------------------------------------


def test_stat(data: Path) -> None:
    code, out, complaints = run(data, "stat")
    assert (code, complaints) == (0, "")
    titles, first, second = out.split("\n")
    assert titles.split()[:7] == [
        "GROUP",
        "QUEUE",
        "SEGMENTS",
        "BYTES",
        "MESSAGES",
        "FIRST",
        "LAST",
    ]
    assert first.split()[:2] == ["default", "a/b"]
    assert second.split()[:2] == ["default", "orders"]
    assert second.split()[4:] == [
        "160",
        "0",
        "159",
        "1970-01-01T00:00:00.000000Z",
        "1970-01-01T00:02:39.000000Z",
    ]
    code, out, _ = run(data, "stat", "--json", path=orders(data))
    row = orjson.loads(out)
    assert (row["queue"], row["group"], row["next_offset"]) == ("orders", "default", 160)
    assert row["bytes"] == sum(path.stat().st_size for path in segments(data))


def test_stat_says_what_it_did_not_count(data: Path) -> None:
    last = segments(data)[-1]
    last.write_bytes(last.read_bytes()[:-100])
    code, out, complaints = run(data, "stat")
    assert code == 1
    assert "159" in out
    assert "is cut short" in complaints


def test_stat_of_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "stat") == (0, f"{tmp_path} holds no queues", "")


# --- dump ------------------------------------------------------------------------------------------------------------


def test_dump(data: Path) -> None:
    code, out, complaints = run(data, "dump", "--queue", "orders")
    assert (code, complaints) == (0, "")
    lines = out.split("\n")
    assert len(lines) == 160
    assert lines[3].startswith(
        "3  1970-01-01T00:00:03.000000Z  key 'key'  600 bytes, 0 of properties"
    )
    code, out, _ = run(data, "dump", "--json", "--from", "42", "--limit", "3", path=orders(data))
    records = [orjson.loads(line) for line in out.split("\n")]
    assert [record["offset"] for record in records] == [42, 43, 44]
    assert records[0]["payload"].encode() == payload(42)
    assert (records[0]["key"], records[0]["size"], records[0]["properties"]) == ("key", 600, [])


def test_dump_begins_within_a_batch_and_shows_any_bytes(tmp_path: Path) -> None:
    log = QueueLog.open(Files(), str(tmp_path / "orders"), "orders", SMALL)
    fill(log, [batch_of(0, [b"a", b"\xff\x00", b"c"]), batch_of(3, [b"d"])])
    log.close()
    _, out, _ = run(tmp_path, "dump", "--from", "1", "--json", path=tmp_path / "orders")
    records = [orjson.loads(line) for line in out.split("\n")]
    assert [(each["offset"], each["payload"]) for each in records] == [
        (1, {"base64": "/wA="}),
        (2, "c"),
        (3, "d"),
    ]
    _, out, _ = run(tmp_path, "dump", path=tmp_path / "orders")
    assert out.split("\n")[1].endswith(r"2 bytes, 0 of properties  '\xff\x00'")


def test_dump_asks_which_queue(data: Path) -> None:
    code, _, complaints = run(data, "dump")
    assert code == 2
    assert "2 such queues; say which: --queue (a/b, orders)" in complaints
    assert run(data, "dump", "--queue", "nothing")[0] == 2


def test_dump_ends_at_damage(data: Path) -> None:
    flip(segments(data)[1], PAGE_BYTES + 3 * 700)
    code, out, complaints = run(data, "dump", "--queue", "orders")
    assert code == 1
    assert 0 < len(out.split("\n")) < 160
    assert f"{segments(data)[1]}, byte" in complaints
    segments(data)[0].unlink()
    segments(data)[0].unlink()
    (orders(data) / segment_name(10**6)).write_bytes(b"")
    found = log_batches(Files(), str(orders(data)))
    assert next(found).base_offset > 0
    with pytest.raises(Corruption, match="are missing before it"):
        list(found)
