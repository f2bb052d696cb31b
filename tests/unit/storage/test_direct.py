"""Writes past the page cache: the file holds what was written, each answer means that it is durable, and no other way
of reading or writing it is disturbed."""

import errno
import os
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import pytest

from fluxmq.storage.direct import direct_writer
from fluxmq.storage.errors import StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.storage.syncer import Syncer
from fluxmq.storage.wal import WriteAheadLog
from fluxmq.storage.wal_options import MarkWrite, WalOptions
from tests.powercut.image import Image, NotPermittedError

SECONDS_MAX = 10.0
BLOCK = 4096
BYTES_MAX = 1 << 20
"""Of one write with what stands around it in its first and last block."""
FILE_BYTES = 4 << 20
FLUSHES = 15
"""Place in a block device's `stat` of how often its cache was flushed (Documentation/block/stat.rst)."""


def make_file(folder: Path, size: int = FILE_BYTES) -> int:
    """A file that was written once, as those of logs; its descriptor."""
    fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, b"\xee" * size, 0)
    os.fdatasync(fd)
    return fd


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = make_file(tmp_path)
    yield fd
    os.close(fd)


@pytest.fixture
def syncer(tmp_path: Path, file: int) -> Iterator[Syncer]:
    made = Syncer(directory=str(tmp_path))
    if not made.writes:
        made.close()
        pytest.skip("not compiled, or the file system does not write past the page cache")
    made.begin(file)
    yield made
    made.close()


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    (tmp_path / "image").mkdir()
    try:
        made = Image(tmp_path / "image", 64 << 20)
    except NotPermittedError as error:
        pytest.skip(str(error))
    with made:
        yield made


def answer(syncer: Syncer) -> tuple[int, int]:
    """Number and errno of the next answer."""
    end = time.monotonic() + SECONDS_MAX
    while not (found := syncer.completed()):
        assert time.monotonic() < end
        select.select([syncer], [], [], 1.0)
    ((number, error, seconds),) = found
    assert 0.0 <= seconds < SECONDS_MAX
    return number, error


def see_through(log: WriteAheadLog, syncer: Syncer) -> int:
    """Have a log write what it has; the number of that write."""
    number = log.flush()
    end = time.monotonic() + SECONDS_MAX
    while log.completed() < number:
        assert time.monotonic() < end
        select.select([syncer], [], [], 1.0)
    return number


def is_quiet(syncer: Syncer) -> bool:
    """Whether nothing is readable any more; what is about to be is waited for."""
    for _ in range(100):
        if not select.select([syncer], [], [], 0.01)[0]:
            return True
        assert syncer.completed() == []
    return False


@pytest.mark.parametrize("seed", range(4))
def test_the_file_holds_what_was_written_in_whichever_way(
    syncer: Syncer, file: int, seed: int
) -> None:
    random = Random(seed)
    content = bytearray()
    for number in range(150):
        size = random.choice([1, 40, 300, BLOCK - 1, BLOCK, BLOCK + 1, random.randint(1, 30_000)])
        data = random.randbytes(size)
        cut = random.randint(0, size)
        parts, position = [data[:cut], b"", data[cut:]], len(content)
        if random.random() < 0.2:  # too long for it, say
            os.pwrite(file, data, position)
            syncer.submit(file, number)
        else:
            assert syncer.write(parts, position, number)
        assert answer(syncer) == (number, 0)
        content += data
        if random.random() < 0.1:
            first = random.randrange(len(content))  # which puts it into the page cache
            assert os.pread(file, len(content) - first, first) == content[first:]
    assert os.pread(file, len(content), 0) == content
    behind = os.pread(file, FILE_BYTES, len(content))
    zeroes = -len(content) % BLOCK
    assert behind[zeroes:] == b"\xee" * (FILE_BYTES - len(content) - zeroes)


def test_writing_goes_on_in_another_file(syncer: Syncer, file: int, tmp_path: Path) -> None:
    assert syncer.write([b"one"], 0, 1)
    assert answer(syncer) == (1, 0)
    (tmp_path / "other").mkdir()
    other = make_file(tmp_path / "other")
    syncer.begin(other)
    assert syncer.write([b"two"], 3, 2)  # where the other one ended
    assert answer(syncer) == (2, 0)
    assert os.pread(file, 7, 0) == b"one\0\0\0\0"
    assert os.pread(other, 7, 0) == b"\xee\xee\xeetwo\0"
    os.close(other)


def test_nothing_stays_readable(syncer: Syncer) -> None:
    assert is_quiet(syncer)
    for number in range(200):
        assert syncer.write([b"x" * 100], number * 100, number)
        if number % 2:
            assert answer(syncer) == (number, 0)
        else:  # seen before the kernel has told it, or about then
            end = time.monotonic() + SECONDS_MAX
            while not syncer.completed():
                assert time.monotonic() < end
        if number % 20 == 0:
            syncer.wake()
            assert select.select([syncer], [], [], SECONDS_MAX)[0]
            assert is_quiet(syncer)
    assert is_quiet(syncer)


def test_what_it_does_not_write_is_left_to_who_asks(syncer: Syncer, file: int) -> None:
    before = os.pread(file, FILE_BYTES, 0)
    assert not syncer.write([bytes(BYTES_MAX)], 1, 1)  # two blocks, each in part, and all between
    assert not syncer.write([b"end"], FILE_BYTES - 2, 2)
    assert not syncer.write([], 0, 3)
    assert os.pread(file, FILE_BYTES, 0) == before
    assert syncer.write([b"y" * BYTES_MAX], BLOCK, 4)
    assert not syncer.write([b"z"], BLOCK, 5)  # one at a time
    assert answer(syncer) == (4, 0)
    assert os.pread(file, FILE_BYTES, 0) == (
        before[:BLOCK] + b"y" * BYTES_MAX + before[BLOCK + BYTES_MAX :]
    )


def test_a_file_that_cannot_be_opened_so_is_left_to_who_asks(syncer: Syncer) -> None:
    read, write = os.pipe()
    syncer.begin(read)
    assert not syncer.write([b"x"], 0, 1)
    os.close(read)
    syncer.begin(read)
    assert not syncer.write([b"x"], 0, 1)
    os.close(write)


def test_the_mark_is_written_when_the_write_has_worked(syncer: Syncer, tmp_path: Path) -> None:
    mark = os.open(tmp_path / "mark", os.O_RDWR | os.O_CREAT)
    assert syncer.write([b"x"], 0, 1, MarkWrite(mark, 512, b"so far"))
    assert answer(syncer) == (1, 0)
    assert os.pread(mark, 100, 512) == b"so far"
    readable = os.open(tmp_path / "mark", os.O_RDONLY)
    assert syncer.write([b"x"], 1, 2, MarkWrite(readable, 0, b"so far"))
    assert answer(syncer) == (2, -errno.EBADF)
    full = os.open("/dev/full", os.O_RDWR)
    assert syncer.write([b"x"], 2, 3, MarkWrite(full, 0, b"so far"))
    assert answer(syncer) == (3, 0)
    with pytest.raises(ValueError, match="few bytes"):
        syncer.write([b"x"], 3, 4, MarkWrite(mark, 0, bytes(65)))
    for fd in (mark, readable, full):
        os.close(fd)


def test_closing_waits_for_what_is_under_way(tmp_path: Path, file: int) -> None:
    for number in range(20):
        syncer = Syncer(directory=str(tmp_path))
        if not syncer.writes:
            pytest.skip("not compiled, or the file system does not write past the page cache")
        syncer.begin(file)
        assert syncer.write([b"%03d" % number * 3000], 0, number)
        syncer.close()
        syncer.close()
        assert os.pread(file, 9000, 0) == b"%03d" % number * 3000


def test_every_write_flushes_the_disks_cache(image: Image) -> None:
    device = os.stat(image.place).st_dev
    counts = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")

    def flushes() -> int:
        return int(counts.read_text().split()[FLUSHES])

    with ExitStack() as stack:  # what stays open keeps the image mounted
        file = make_file(image.place)
        stack.callback(os.close, file)
        syncer = stack.enter_context(closing(Syncer(directory=str(image.place))))
        if not syncer.writes:
            pytest.skip("not compiled")
        syncer.begin(file)
        for number in range(50):
            before = flushes()
            assert syncer.write([b"x" * 100], number * 100, number)
            assert answer(syncer) == (number, 0)
            assert flushes() > before


def test_a_write_that_fails_is_answered_so_and_ends_the_log(image: Image) -> None:
    with ExitStack() as stack:
        syncer = stack.enter_context(closing(Syncer(directory=str(image.place))))
        options = WalOptions(1 << 16, background=False)
        log = WriteAheadLog.open(Files(), str(image.place / "wal"), syncer, options)
        stack.enter_context(closing(log))
        group = log.number("default")
        see_through(log, syncer)
        image.cut()
        log.append_entry(group, 1, 1, 0, b"never written")
        with pytest.raises(WriteFailed):
            see_through(log, syncer)
        with pytest.raises(WriteFailed):
            log.flush()


def test_it_is_not_done_where_it_cannot_be(tmp_path: Path) -> None:
    for syncer in (
        Syncer(),
        Syncer(native=False, directory=str(tmp_path)),
        Syncer(0.001, directory=str(tmp_path)),
        Syncer(directory="/proc/self"),
        Syncer(directory="/dev/shm/not/there"),
    ):
        assert not syncer.writes
        fd = make_file(tmp_path)
        syncer.begin(fd)
        assert not syncer.write([b"x"], 0, 1)
        os.pwrite(fd, b"x", 0)
        syncer.submit(fd, 1)
        assert answer(syncer) == (1, 0)
        syncer.close()
        os.close(fd)


def test_a_directory_that_is_not_there_yet_is_like_the_one_it_will_be_in(tmp_path: Path) -> None:
    """On a busy machine a trial write may have ended before it is looked at, as one that blocks its caller has: such a
    directory is tried again."""
    event = os.eventfd(0, os.EFD_NONBLOCK)
    kinds: list[set[type]] = []
    for name in ("", "a", "b/c/d"):
        found = [direct_writer(event, str(tmp_path / name)) for _ in range(5)]
        kinds.append({type(writer) for writer in found})
        for writer in found:
            if writer is not None:
                writer.close()
                with pytest.raises(ValueError, match="closed"):
                    writer.write([b"x"], 0, 1)
    assert set.intersection(*kinds)
    assert sorted(tmp_path.iterdir()) == []  # nothing is left of the trial
    os.close(event)


def test_entries_are_read_back_from_files_written_so(tmp_path: Path) -> None:
    syncer = Syncer(directory=str(tmp_path))
    options = WalOptions(file_bytes=1 << 16, spare_files=2, cache_bytes=0)
    log = WriteAheadLog.open(Files(), str(tmp_path / "wal"), syncer, options)
    group = log.number("default")
    random = Random(7)
    bodies = {index: random.randbytes(random.randint(0, 9000)) for index in range(1, 120)}
    end = time.monotonic() + 30
    for index, body in bodies.items():
        log.append_entry(group, 1, index, 0, body)
        written = 0
        while not written or log.completed() < written:
            assert time.monotonic() < end
            written = written or log.flush()
            for known in range(max(1, index - 5), index + 1):  # also while it is written
                assert log.entry(group, known).body == bodies[known]
    assert [log.entry(group, index).body for index in bodies] == list(bodies.values())
    with pytest.raises(StorageError):
        log.append_entry(group, 1, 120, 0, bytes(1 << 16))
    log.close()
    syncer.close()
