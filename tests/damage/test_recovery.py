"""What a start must not take for granted, each of it once found wrong or thought of while reading."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.ports import Attached, AttachRequest, ConsumerHandle
from fluxmq.model.message_batch import build_message
from fluxmq.queues import commands
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.results import Code, Result
from fluxmq.replication.stores import DiskStores
from fluxmq.storage.batch_cache import BatchCache
from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, DiskFull, StorageError
from fluxmq.storage.log_reader import OpenSegments
from fluxmq.storage.open_files import OpenFiles
from tests.damage.conftest import Starts
from tests.damage.shard import Clock, Port, Shard, Tracked, TrackedPowerCut
from tests.unit.storage.logs import SMALL, batch

HOUR = 3_600_000_000


def group_of(shard: Shard, queue: str) -> ReplicationGroup:
    """The replication group of a queue."""
    return shard.hosted[shard.queues.names.info(queue).group].group


def publish(shard: Shard, queue: str, *payloads: bytes) -> list[int]:
    """Store messages; their offsets once they are confirmed."""
    shard.come_to_rest()  # a start declares the configured queues
    group = group_of(shard, queue)
    state = group.machine.queue(queue)
    assert state is not None
    offsets: list[int] = []

    def stored(result: Result) -> None:
        assert result.code == Code.OK
        offsets.append(result.value)

    for payload in payloads:
        data = build_message(b"", b"", payload, shard.clock.now_us)
        group.submit((commands.append_header(state.id, len(data)), data), stored, len(data))
    shard.come_to_rest()
    assert len(offsets) == len(payloads)
    return offsets


def payloads(shard: Shard, queue: str) -> list[bytes]:
    """Everything in a queue."""
    group = group_of(shard, queue)
    state = group.machine.queue(queue)
    assert state is not None
    log = group.logs[state.id]
    return [log.read(offset).payload(0) for offset in range(state.start, state.next_offset)]


def directory_of(shard: Shard, queue: str) -> Path:
    """The directory of a queue's log."""
    return Path(shard.queues.paths.queue(shard.queues.names.info(queue).group, queue))


def stopped(shard: Shard) -> Path:
    """End in order; the data directory."""
    shard.stop()
    return Path(shard.queues.paths.root)


# --- what is missing -------------------------------------------------------------------------------------------------


def test_a_snapshot_that_is_gone_is_missed(start: Starts) -> None:
    shard = start()
    publish(shard, "work", b"one")
    name = group_of(shard, "work").name
    snapshots = sorted((stopped(shard) / "groups" / name / "snapshots").iterdir())
    snapshots[-1].unlink()
    with pytest.raises(Corruption, match="the log begins behind this snapshot") as caught:
        start()
    assert caught.value.path == str(snapshots[-1])


def test_an_older_snapshot_is_not_taken_for_the_newest(start: Starts) -> None:
    shard = start()
    name = group_of(shard, "work").name
    publish(shard, "work", b"one")
    shard.checkpoint(name)
    publish(shard, "work", b"two")
    snapshots = sorted((stopped(shard) / "groups" / name / "snapshots").iterdir())
    assert len(snapshots) == 2
    snapshots[-1].unlink()
    with pytest.raises(Corruption, match="the log begins behind this snapshot"):
        start()


def test_a_log_that_knows_nothing_of_a_group_is_not_its_log(start: Starts) -> None:
    """A log's directory was lost whole: queues must not be taken for deleted, nor go back to their snapshot."""
    shard = start()
    publish(shard, "work", b"one")
    directory = directory_of(shard, "work")
    root = stopped(shard)
    for path in (root / "shards" / "0" / "wal").iterdir():
        path.unlink()
    with pytest.raises(Corruption, match="the log knows nothing of group local-"):
        start()
    assert list(directory.glob("*.seg"))


def test_a_log_that_ends_before_a_head_has_lost_something(start: Starts) -> None:
    """Also when how far it was synced is not known."""
    shard = start()
    publish(shard, "work", b"one")
    publish(shard, "work", b"two")
    for hosted in shard.hosted.values():
        assert hosted.group.write()  # also the head
    shard.kill()
    logs = Path(shard.queues.paths.wal(0))
    (logs / "wal.synced").unlink()
    last = max(logs.glob("*.wal"), key=lambda path: (any(path.read_bytes()), path.name))
    data = last.read_bytes()
    last.write_bytes(data[: data.rindex(b"two")].ljust(len(data), b"\0"))
    again = start()
    assert len(again.failures) == 1
    assert "offsets 1 to 1 were committed, and are nowhere else" in again.failures[0]
    assert str(directory_of(again, "work") / "head") in again.failures[0]
    again.kill()


def test_a_flipped_bit_in_the_placement_is_noticed(start: Starts) -> None:
    shard = start()
    path = stopped(shard) / "placement.json"
    path.write_bytes(path.read_bytes().replace(b'"workers": 1', b'"workers": 3'))
    with pytest.raises(Corruption, match="the checksum does not match") as caught:
        start()
    assert caught.value.path == str(path)


def test_a_placement_that_is_gone_is_missed(start: Starts) -> None:
    """Made anew by other settings it would put queues into other groups, and what they held out of sight."""
    shard = start()
    path = stopped(shard) / "placement.json"
    path.unlink()
    with pytest.raises(Corruption, match="missing") as caught:
        start()
    assert caught.value.path == str(path)


# --- queues that were deleted ----------------------------------------------------------------------------------------


def declare(shard: Shard, queue: str) -> ReplicationGroup:
    """Make a queue besides the configured ones."""
    group = next(iter(shard.hosted.values())).group
    group.declare(QueueConfig(queue))
    shard.come_to_rest()
    return group


def delete(shard: Shard, queue: str) -> None:
    """Delete it."""
    group = group_of(shard, queue)
    state = group.machine.queue(queue)
    assert state is not None
    group.submit((commands.delete(state.id),))
    shard.come_to_rest()


def test_a_deleted_queue_is_gone_when_its_snapshot_is_durable(
    start: Starts, tmp_path: Path
) -> None:
    """Else its directory is there again after a power cut, with a snapshot and a log that know nothing of it."""
    files = TrackedPowerCut(str(tmp_path / "stash"))
    shard = start(files)
    group = declare(shard, "passing")
    publish(shard, "passing", b"one", b"two")
    shard.checkpoint(group.name)
    directory = directory_of(shard, "passing")
    delete(shard, "passing")
    shard.checkpoint(group.name)
    files.cut(Random(0), "nothing")
    shard.kill()
    assert not directory.exists()
    again = start()
    assert again.failures == []
    again.kill()


def test_a_queue_made_again_begins_anew_however_often_it_starts(start: Starts) -> None:
    shard = start()
    declare(shard, "passing")
    assert publish(shard, "passing", b"one", b"two") == [0, 1]
    delete(shard, "passing")
    declare(shard, "passing")
    assert publish(shard, "passing", b"three") == [0]
    for _ in range(3):
        shard.kill()
        shard = start()
        assert shard.failures == []
        assert payloads(shard, "passing") == [b"three"]
    assert publish(shard, "passing", b"four") == [1]
    shard.kill()


@pytest.mark.parametrize("what", ["trim", "delete"])
def test_what_a_buffered_group_removes_is_asked_for_durably(
    start: Starts, tmp_path: Path, what: str
) -> None:
    """Else the entry that asked is lost, the files are gone all the same, and the snapshot misses them."""
    files = TrackedPowerCut(str(tmp_path / "stash"))
    shard = start(files, queue_ack_durability="buffered")
    publish(shard, "work", *(bytes([number]) * 3000 for number in range(40)))
    group = group_of(shard, "work")
    assert group.name.startswith("buffered-")
    shard.checkpoint(group.name)
    directory = directory_of(shard, "work")
    state = group.machine.queue("work")
    assert state is not None
    command = commands.trim(state.id, 35) if what == "trim" else commands.delete(state.id)
    group.submit((command,), lambda _result: None)
    shard.finish()
    shard.sync()
    removed = directory if what == "delete" else directory / f"{0:020}.seg"
    assert not removed.exists()
    files.fsync_directory(str(directory.parent if what == "delete" else directory))
    files.cut(Random(0), "nothing")
    shard.kill()
    again = start(queue_ack_durability="buffered")
    assert again.failures == []
    again.kill()


# --- starts under other circumstances --------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True])
def test_starts_in_a_row_without_writes_change_nothing(start: Starts, orderly: bool) -> None:
    shard = start()
    sent = [f"message {number}".encode() * 60 for number in range(90)]
    publish(shard, "work", *sent[:50])
    shard.checkpoint(group_of(shard, "work").name)
    publish(shard, "work", *sent[50:])
    for _ in range(4):
        if orderly:
            shard.stop()
        else:
            shard.kill()
        shard = start()
        assert shard.failures == []
        assert payloads(shard, "work") == sent
    shard.kill()


def test_smaller_segments_take_what_was_acknowledged_in_larger_ones(start: Starts) -> None:
    """The entries behind the snapshot are applied again with other sizes; one batch fits no segment any more."""
    shard = start(segment_bytes=128 << 10)
    sent = [bytes([number]) * 24_000 for number in range(12)]
    publish(shard, "work", *sent[:4])
    shard.checkpoint(group_of(shard, "work").name)
    publish(shard, "work", *sent[4:])
    shard.kill()
    for size in (16 << 10, 16 << 10, 1 << 20):
        shard = start(segment_bytes=size)
        assert shard.failures == []
        assert payloads(shard, "work") == sent
        shard.kill()
    shard = start(segment_bytes=16 << 10)
    stopped(shard)
    shard = start()
    assert payloads(shard, "work") == sent
    shard.kill()


@pytest.mark.parametrize("size", [16 << 10, 256 << 10])
def test_other_files_of_the_log_take_what_is_in_the_old_ones(start: Starts, size: int) -> None:
    shard = start()
    sent = [bytes([number]) * 3000 for number in range(80)]
    publish(shard, "work", *sent[:60])
    shard.kill()
    shard = start(wal_file_bytes=size)
    publish(shard, "work", *sent[60:])
    shard.checkpoint(group_of(shard, "work").name)
    shard.kill()
    shard = start()
    assert shard.failures == []
    assert payloads(shard, "work") == sent
    shard.kill()


def test_a_clock_that_was_set_back_sets_back_no_entry(start: Starts, clock: Clock) -> None:
    shard = start()
    publish(shard, "endless", b"before")
    group = group_of(shard, "endless")
    before = group.machine.time
    shard.kill()
    clock.now_us -= HOUR
    shard = start()
    publish(shard, "endless", b"after")
    group = group_of(shard, "endless")
    assert group.machine.time >= before
    state = group.machine.queue("endless")
    assert state is not None
    times = [group.logs[state.id].read(offset).time(0) for offset in (0, 1)]
    assert times == sorted(times)
    assert group.logs[state.id].offset_at(before + 1) >= 1
    shard.kill()


def test_a_group_that_neither_settings_nor_directories_name_is_hosted(
    start: Starts, clock: Clock
) -> None:
    """Its log has something of it: hosted nowhere, it would hold the log's files for ever."""
    shard = start()
    shard.queues.service.durable.open("formerly " + "x" * 230)
    shard.recover()
    shard.come_to_rest()
    shard.kill()
    again = start()
    assert "formerly " + "x" * 230 in again.hosted
    assert again.failures == []
    again.kill()


def test_a_full_disk_at_the_start_costs_nothing(start: Starts) -> None:
    shard = start()
    publish(shard, "work", *(bytes([number]) * 2000 for number in range(60)))
    shard.kill()
    for operation in ("pwritev", "allocate", "create", "truncate", "overwrite"):
        files = Tracked()
        files.fail_always(operation, errno.ENOSPC)
        try:
            shard = start(files)
        except StorageError:
            files.close_all()
        else:
            shard.kill()
    shard = start()
    assert shard.failures == []
    assert len(payloads(shard, "work")) == 60
    shard.kill()


# --- failures while it runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["endless", "work"])
def test_a_read_that_fails_fails_the_group_and_answers_everybody(start: Starts, queue: str) -> None:
    shard = start()
    sent = [bytes([number]) * 3000 for number in range(40)]
    publish(shard, queue, *sent)
    stopped(shard)
    segment = min(directory_of(shard, queue).glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[5000] ^= 1
    segment.write_bytes(data)
    shard = start()
    group = group_of(shard, queue)
    state = group.machine.queue(queue)
    assert state is not None
    answers: list[int] = []
    port = Port()
    asked: list[bool] = []

    def attached(_answer: Attached, held: ConsumerHandle | None) -> None:
        asked.append(held is not None)

    group.attach(AttachRequest(queue, "readers", "m", b"", None, 10, 1), port, attached)
    shard.finish()
    data_of = build_message(b"", b"", b"late", shard.clock.now_us)
    group.append(queue, data_of, answers.append)
    shard.come_to_rest()
    shard.come_to_rest()
    assert str(segment) in group.failed
    assert len(asked) == 1
    assert port.gone == asked[0]
    group.append(queue, data_of, answers.append)
    assert len(answers) == 2
    assert answers[1] != 0
    shard.kill()


def test_a_checkpoint_that_cannot_be_captured_keeps_no_file_open(tmp_path: Path) -> None:
    files = Tracked()
    stores = DiskStores(
        files,
        DataPaths(str(tmp_path)),
        "local-0",
        SMALL,
        BatchCache(),
        OpenSegments(OpenFiles(files)),
    )
    one, two = stores.open(1, "one"), stores.open(2, "two")
    one.append(batch(0, b"first"))
    one.flush()
    two.append(batch(0, b"first"))
    files.fail_always("pwritev", errno.ENOSPC)
    with pytest.raises(DiskFull):
        stores.unsynced()
    files.work_again()
    stores.close()
    assert files.descriptors == set()
