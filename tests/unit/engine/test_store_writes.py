"""When a queue's files are written: soon, not with every entry; and what a full disk does to it."""

from fluxmq.engine.store_writes import WAITING_BYTES_MAX, WAITING_US_MAX, StoreWrites
from fluxmq.model.batch_format import Batch, parse
from fluxmq.storage.errors import DiskFull
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import fill
from tests.unit.queues.support import batch_of


class Disk:
    """A store that notes what was written."""

    def __init__(self) -> None:
        self.taken = 0
        self.written = 0
        self.full = False

    def append(self, batch: Batch) -> None:
        self.taken += batch.count

    def flush(self) -> None:
        if self.full:
            raise DiskFull("no space")
        self.written = self.taken


def parsed(payload: bytes) -> Batch:
    return parse(batch_of([payload]))


def test_a_little_waits_for_more_or_for_time() -> None:
    disk = Disk()
    writes = StoreWrites({1: disk})  # type: ignore[dict-item]
    writes.append(1, parsed(b"x"))
    writes.applied(5_000_000)
    assert (disk.written, writes.waiting) == (0, True)
    writes.append(1, parsed(b"x"))
    writes.applied(5_000_000 + WAITING_US_MAX - 1)
    assert disk.written == 0
    writes.applied(5_000_000 + WAITING_US_MAX)
    assert (disk.written, writes.waiting) == (2, False)
    writes.append(1, parsed(b"x"))  # its time begins now
    writes.applied(5_000_000 + 2 * WAITING_US_MAX)
    assert disk.written == 2


def test_much_is_written_at_once() -> None:
    many, few = Disk(), Disk()
    writes = StoreWrites({1: many, 2: few})  # type: ignore[dict-item]
    writes.append(2, parsed(b"x"))
    writes.append(1, parsed(b"x" * WAITING_BYTES_MAX))
    writes.applied(1)
    assert (many.written, few.written) == (1, 0)


def test_what_the_disk_has_no_room_for_waits() -> None:
    disk = Disk()
    disk.full = True
    writes = StoreWrites({1: disk})  # type: ignore[dict-item]
    writes.append(1, parsed(b"x"))
    writes.write()
    assert (list(writes.refused), writes.waiting) == ([1], False)
    disk.full = False
    writes.write()
    assert (list(writes.refused), disk.written) == ([], 1)


def test_a_queue_that_is_gone_is_not_written() -> None:
    writes = StoreWrites({})
    writes._waiting[1] = 5
    writes.forget(1)
    writes.write()
    assert not writes.waiting


def test_a_confirmed_message_is_in_the_files_with_the_next_housekeeping(
    make_queues: MakeQueues,
) -> None:
    node = make_queues({"name": "work"})
    fill(node.connect(0, "publisher"), "work", 3)
    log = node.group("work").logs[node.machine("work").id]
    assert log.pending_bytes
    node.advance(0.1)
    assert not log.pending_bytes
