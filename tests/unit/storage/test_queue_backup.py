"""The backup of one queue: which messages are in it, and the batches that a restore appends."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxmq.model.batch_format import ATTRIBUTE_REDELIVERED, MESSAGES_MAX, PAYLOAD_BYTES_MAX
from fluxmq.model.batches import BatchMessage, columns
from fluxmq.model.group_states import (
    GROUPS_NAME,
    STREAM,
    WORK,
    ConsumerGroupState,
    QueueGroups,
    Range,
    encode,
)
from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.queue_backup import (
    MANIFEST_NAME,
    NotABackupError,
    OffsetRange,
    QueueBackup,
    QueueManifest,
    wanted_ranges,
)
from fluxmq.storage.queue_copy import copy_queue
from tests.spark_queues import QueueOnDisk

FILES = Files()


def group(
    cursor: int,
    pending: tuple[Range, ...] = (),
    dead: tuple[Range, ...] = (),
    *,
    mode: str = WORK,
    whole: bool = True,
    floor: int = 0,
) -> ConsumerGroupState:
    """A consumer group of which only that matters."""
    return ConsumerGroupState("g", mode, "", cursor, 0, pending, dead, floor, 0, 0, whole)


def state(*groups: ConsumerGroupState, start: int = 0, after: int = 100) -> QueueGroups:
    return QueueGroups(0, start, after, groups)


def manifest(kind: str, messages: int, after: int) -> QueueManifest:
    queue = {"name": "orders", "vhost": "/", "type": kind, "durable": True, "arguments": {}}
    definition = {"queues": [queue], "bindings": []}
    return QueueManifest(
        definition, "local-1", "orders", after, messages, "2026-11-28T00:00:00Z", "0.2"
    )


def backup_of(folder: Path, queue: QueueOnDisk, at: QueueGroups, kind: str) -> QueueBackup:
    """Write a backup as fluxmqctl does."""
    target = folder / "backup" / "groups" / "local-1" / "queues" / "orders"
    copy_queue(FILES, str(queue.directory), str(target))
    (target / GROUPS_NAME).write_bytes(encode(at))
    (folder / "backup" / MANIFEST_NAME).write_bytes(manifest(kind, 0, at.next_offset).encode())
    return QueueBackup(FILES, str(folder / "backup"))


def test_what_no_consumer_group_has_settled_is_wanted() -> None:
    found = wanted_ranges(
        state(group(50, pending=((10, 12, 1), (20, 20, 0)), dead=((30, 31, 1),)), start=5),
        stream=False,
    )
    assert found == [
        OffsetRange(10, 12, True),
        OffsetRange(20, 20, False),
        OffsetRange(30, 31, False),
        OffsetRange(50, 99, False),
    ]


def test_what_any_consumer_group_has_not_settled_is_wanted() -> None:
    both = state(group(60, pending=((10, 19, 2),)), group(15, pending=((3, 4, 1), (14, 14, 1))))
    assert wanted_ranges(both, stream=False) == [
        OffsetRange(3, 4, True),
        OffsetRange(10, 19, True),
        OffsetRange(20, 99, False),
    ]
    cut = state(group(90, pending=((10, 19, 1), (30, 39, 1))), group(15))
    assert wanted_ranges(cut, stream=False) == [
        OffsetRange(10, 19, True),
        OffsetRange(20, 29, False),
        OffsetRange(30, 39, True),
        OffsetRange(40, 99, False),
    ]


def test_everything_kept_is_wanted_of_a_stream_and_of_a_queue_that_nobody_has_read() -> None:
    everything = [OffsetRange(7, 99, False)]
    assert wanted_ranges(state(start=7), stream=False) == everything
    assert wanted_ranges(state(group(80, mode=STREAM), start=7), stream=True) == everything
    assert wanted_ranges(state(start=100), stream=True) == []


def test_what_may_be_unsettled_is_wanted_where_ranges_are_unknown() -> None:
    unknown = state(group(80, whole=False, floor=40))
    assert wanted_ranges(unknown, stream=False) == [OffsetRange(40, 99, False)]


def test_messages_are_appended_without_what_belongs_to_the_old_queue(tmp_path: Path) -> None:
    queue = QueueOnDisk(tmp_path / "data", "orders", group="local-1")
    messages = [
        BatchMessage(b"k%d" % n, b"", b"m%d" % n, 1_000 + n, 5, 6, 7, n, 0x201) for n in range(20)
    ]
    queue.append(messages)
    at = state(group(12, pending=((3, 4, 1),)), after=18)
    backup = backup_of(tmp_path, queue, at, "classic")
    queue.append(messages)  # later than the backup
    queue.close()
    found = list(backup.messages())
    assert [each.payload for each in found] == [b"m%d" % n for n in (3, 4, *range(12, 18))]
    assert found[0] == BatchMessage(
        b"k3", b"", b"m3", 0, 5, 6, attributes=0x201 | ATTRIBUTE_REDELIVERED
    )
    assert found[2] == BatchMessage(b"k12", b"", b"m12", 0, 5, 6, attributes=0x201)


def test_batches_are_full_and_always_the_same(tmp_path: Path) -> None:
    queue = QueueOnDisk(tmp_path / "data", "orders", group="local-1")
    queue.fill(MESSAGES_MAX + 10, size=10)
    queue.fill(MESSAGES_MAX, size=400)
    after = 2 * MESSAGES_MAX + 10
    assert len(queue.segments()) > 1
    backup = backup_of(tmp_path, queue, state(after=after), "stream")
    queue.close()
    batches = list(backup.batches())
    assert batches == list(backup.batches())
    assert batches[0][0] == MESSAGES_MAX
    assert len(batches) == 3  # the second is full by its bytes
    assert sum(count for count, _ in batches) == after
    for count, batch in batches:
        header = columns(batch).header
        assert (header.count, header.base_offset, header.last_delta) == (count, 0, 0)
        assert header.payload_bytes <= PAYLOAD_BYTES_MAX


def test_damage_ends_a_restore(tmp_path: Path) -> None:
    queue = QueueOnDisk(tmp_path / "data", "orders", group="local-1")
    queue.fill(500)
    backup = backup_of(tmp_path, queue, state(after=500), "classic")
    queue.close()
    (copied,) = (tmp_path / "backup").glob("groups/*/queues/orders/*0.seg")
    data = bytearray(copied.read_bytes())
    data[-100] ^= 1
    copied.unlink()  # it is a link
    copied.write_bytes(data)
    with pytest.raises(Corruption):
        list(backup.batches())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": 2}',
        manifest("classic", 0, 0).encode().replace(b'"/"', b"1x"),
    ],
)
def test_another_directory_is_no_backup(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotABackupError, match="no backup of a queue"):
        QueueBackup(FILES, str(tmp_path))
    (tmp_path / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(NotABackupError):
        QueueBackup(FILES, str(tmp_path))


def test_a_manifest_says_what_it_was_told() -> None:
    written = manifest("stream", 12, 34)
    assert QueueManifest.decode(written.encode()) == written
    assert written.is_stream
    assert written.queue["name"] == "orders"
    assert written.bindings == []
