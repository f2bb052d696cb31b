"""Files of this machine and behind fsspec are read alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.serializers import CPickleSerializer

from fluxmq_spark.errors import Damage, DataLoss, OptionError
from fluxmq_spark.storage import LocalStorage, RemoteStorage, Storage, storage_of

SPARKS = CPickleSerializer()
"""What Spark sends to executors with."""

PROTOCOLS = ("", "file://", "local://")


def opened(path: Path, protocol: str) -> tuple[Storage, str]:
    """A storage as an executor has it: pickled on its way there."""
    storage, root = storage_of(f"{protocol}{path}")
    return SPARKS.loads(SPARKS.dumps(storage)), root


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_file_is_read_by_position(tmp_path: Path, protocol: str) -> None:
    """Less than asked comes at the end only; nothing behind it."""
    (tmp_path / "file").write_bytes(b"0123456789")
    storage, root = opened(tmp_path, protocol)
    target = bytearray(b"....")
    with storage.open(f"{root}/file") as file:
        assert file.size() == 10
        assert (file.read_into(memoryview(target), 3), bytes(target)) == (4, b"3456")
        assert (file.read_into(memoryview(target), 8), bytes(target)) == (2, b"8956")
        assert file.read_into(memoryview(target), 10) == 0
        assert file.read_into(memoryview(target), 99) == 0
    assert storage.read(f"{root}/file") == b"0123456789"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_directory_is_listed(tmp_path: Path, protocol: str) -> None:
    """Names in order, sizes by name; a directory that is not there has none, and a file is not one."""
    (tmp_path / "b").write_bytes(b"12")
    (tmp_path / "a").write_bytes(b"1")
    storage, root = opened(tmp_path, protocol)
    assert storage.list(root) == ["a", "b"]
    assert storage.sizes(root) == {"a": 1, "b": 2}
    assert storage.list(f"{root}/none") == []
    assert storage.sizes(f"{root}/none") == {}
    assert storage.exists(f"{root}/a")
    assert not storage.exists(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        storage.open(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        storage.read(f"{root}/none")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_listed_and_how_large_it_is_is_asked_anew(tmp_path: Path, protocol: str) -> None:
    """A live broker makes files, and lets them grow."""
    storage, root = opened(tmp_path, protocol)
    assert storage.list(root) == []
    (tmp_path / "a").write_bytes(b"1")
    assert storage.list(root) == ["a"]
    (tmp_path / "a").write_bytes(b"123")
    with storage.open(f"{root}/a") as file:
        assert file.size() == 3


def test_an_open_file_stays_readable_when_it_is_removed(tmp_path: Path) -> None:
    """Retention unlinks what a task reads."""
    (tmp_path / "file").write_bytes(b"0123")
    with storage_of(str(tmp_path))[0].open(str(tmp_path / "file")) as file:
        os.unlink(tmp_path / "file")
        target = bytearray(4)
        assert file.read_into(memoryview(target), 0) == 4
    assert target == b"0123"


def test_closing_twice_closes_once(tmp_path: Path) -> None:
    """A number that was closed may be another file's by then."""
    (tmp_path / "file").write_bytes(b"0123")
    file = LocalStorage().open(str(tmp_path / "file"))
    file.close()
    with open(tmp_path / "file", "rb") as other:
        file.close()
        assert other.read() == b"0123"


def test_what_a_path_is(tmp_path: Path) -> None:
    """Local paths are not fsspec's, whatever is in them; URLs are."""
    assert isinstance(storage_of("data")[0], LocalStorage)
    assert storage_of("data")[1] == os.path.abspath("data")
    assert storage_of("file:///a%20b/c")[1] == "/a b/c"
    assert storage_of("/a%20b")[1] == "/a%20b"
    assert isinstance(storage_of(f"local://{tmp_path}")[0], RemoteStorage)
    chained, root = storage_of(
        f"simplecache::file://{tmp_path}", {"simplecache": {"cache_storage": str(tmp_path / "c")}}
    )
    (tmp_path / "x").write_bytes(b"1")
    assert chained.read(f"{root}/x") == b"1"


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    """Unknown protocols, and options that nothing would look at."""
    with pytest.raises(OptionError, match="nosuch"):
        storage_of("nosuch://bucket/x")
    with pytest.raises(OptionError, match="storageOptions are for URLs"):
        storage_of(str(tmp_path), {"key": "x"})


@pytest.mark.parametrize(
    "error", [OptionError("a"), DataLoss("b"), Damage("/x/y.seg", 4096, "there is no batch")]
)
def test_errors_come_from_executors(error: Exception) -> None:
    """They are pickled there."""
    copy = SPARKS.loads(SPARKS.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))


def test_damage_says_where() -> None:
    """File, byte and what is wrong."""
    damage = Damage("/x/y.seg", 4096, "there is no batch")
    assert str(damage) == "/x/y.seg, byte 4096: there is no batch"
    assert (damage.path, damage.position, damage.what) == ("/x/y.seg", 4096, "there is no batch")
