"""How far a log is known to be synced: what tells damage to the last write from a write that was torn."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fluxmq.storage.errors import Corruption
from fluxmq.storage.files import Files
from fluxmq.storage.wal_files import file_name, open_key
from fluxmq.storage.wal_mark import MARK_FILE, MarkFile, SyncMark, read_mark
from tests.unit.storage.wal_harness import Bench, body

pytestmark = pytest.mark.usefixtures("direct")


def written(folder: Path) -> tuple[Bench, bytes]:
    """A log with three synced writes, its process killed; and its mark, which the harness takes away."""
    made = Bench(folder)
    group = made.log.number("one")
    for index in (1, 2, 3):
        made.log.append_entry(group, 1, index, 0, body(index))
        made.commit()
    mark = (folder / "wal" / MARK_FILE).read_bytes()
    made.kill()
    return made, mark


def test_a_log_that_ends_before_its_mark_has_lost_something(tmp_path: Path) -> None:
    made, mark = written(tmp_path)
    path = tmp_path / "wal" / file_name(1)
    data = path.read_bytes()
    at = data.index(body(3))
    path.write_bytes(data[: at + 5] + bytes([data[at + 5] ^ 1]) + data[at + 6 :])
    (tmp_path / "wal" / MARK_FILE).write_bytes(mark)
    with pytest.raises(Corruption, match="was synced") as caught:
        made.start()
    assert caught.value.path == str(path)
    assert caught.value.position == at - 40
    # Without the mark it is a write that nobody was told of.
    (tmp_path / "wal" / MARK_FILE).unlink()
    made.start()
    assert [index for index, _, _ in made.contents()["one"]] == [1, 2]
    made.kill()


def test_the_last_file_missing_is_noticed(tmp_path: Path) -> None:
    made = Bench(tmp_path, file_bytes=1536)
    group = made.log.number("one")
    for index in range(1, 30):
        made.log.append_entry(group, 1, index, 0, body(index))
        made.commit()
    mark = (tmp_path / "wal" / MARK_FILE).read_bytes()
    last = read_mark(
        Files(), str(tmp_path / "wal"), open_key(Files(), str(tmp_path / "wal"), create=False)
    )
    assert last is not None
    made.kill()
    (tmp_path / "wal" / MARK_FILE).write_bytes(mark)
    for path in (tmp_path / "wal").glob("*.wal"):
        if int(path.stem) >= last.sequence:
            path.unlink()
    with pytest.raises(Corruption) as caught:
        made.start()
    assert caught.value.path == str(tmp_path / "wal" / file_name(last.sequence))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: bytes(len(data)),
        lambda data: data[:8] + b"\xff" * 8 + data[16:],
    ],
)
def test_a_mark_that_is_not_valid_says_nothing(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    files = Files()
    made = MarkFile(files, str(tmp_path), 5)
    made.write(SyncMark(3, 4096))
    made.close()
    path = tmp_path / MARK_FILE
    assert read_mark(files, str(tmp_path), 5) == SyncMark(3, 4096)
    assert read_mark(files, str(tmp_path), 6) is None
    path.write_bytes(spoil(path.read_bytes()))
    assert read_mark(files, str(tmp_path), 5) is None


def test_one_slot_torn_leaves_the_other(tmp_path: Path) -> None:
    files = Files()
    made = MarkFile(files, str(tmp_path), 5)
    made.write(SyncMark(3, 4096))
    made.write(SyncMark(3, 4200))
    path = tmp_path / MARK_FILE
    data = path.read_bytes()
    path.write_bytes(data[:512] + bytes([data[512] ^ 1]) + data[513:])
    assert read_mark(files, str(tmp_path), 5) == SyncMark(3, 4096)
    made.close()
