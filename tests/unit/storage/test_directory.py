"""The data directory: names, version, lock, placement, removal."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.control import schema
from fluxmq.model import batch_format, group_states, segments
from fluxmq.queues import commands, machine
from fluxmq.storage import snapshots, state_store, wal_records
from fluxmq.storage.directory import (
    DIRECTORY_NAME_BYTES_MAX,
    FORMAT_VERSION,
    DataPaths,
    DirectoryError,
    Placement,
    check_version,
    delete_directory,
    directory_name,
    locked,
    name_of,
    place_group,
    read_placement,
    remove_group,
    remove_unknown,
    write_placement,
)
from fluxmq.storage.errors import Corruption, StorageError, WriteFailed
from fluxmq.storage.files import Files
from fluxmq.supervisor.directory import open_directory


def paths(root: Path) -> DataPaths:
    return DataPaths(str(root))


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "orders"),
        ("a/b c", "a%2Fb%20c"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("100%", "100%25"),
        ("é~", "%C3%A9%7E"),
        ("A.b_c-9", "A.b_c-9"),
    ],
)
def test_names_become_directories(name: str, expected: str) -> None:
    assert directory_name(name) == expected
    assert name_of(expected) == name


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_names_do_not_meet(one: str, two: str) -> None:
    names = {directory_name(one), directory_name(two)}
    assert len(names) == len({one, two})
    for name in names:
        assert name.isascii()
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name) <= DIRECTORY_NAME_BYTES_MAX
        assert name_of(name) in {one, two, None}


def test_a_long_name_is_cut_and_told_apart() -> None:
    one, two = directory_name("x" * 300), directory_name("x" * 301)
    assert len(one) == len(two) == DIRECTORY_NAME_BYTES_MAX
    assert one != two
    assert name_of(one) is None


@pytest.mark.parametrize("directory", [".deleted-0-orders", "%ff", "a b", "%2f", ""])
def test_directories_that_no_name_has(directory: str) -> None:
    assert name_of(directory) is None


def test_places(tmp_path: Path) -> None:
    data = DataPaths("data")
    assert data.wal(3) == "data/shards/3/wal"
    assert data.snapshots("local-3") == "data/groups/local-3/snapshots"
    assert data.queue("default", "a/b") == "data/groups/default/queues/a%2Fb"
    assert (data.lock, data.placement) == ("data/LOCK", "data/placement.json")


# --- version and lock ------------------------------------------------------------------------------------------------


def test_the_version_is_the_supervisors(tmp_path: Path) -> None:
    open_directory(tmp_path).close()
    check_version(Files(), paths(tmp_path))
    (tmp_path / "VERSION").unlink()
    check_version(Files(), paths(tmp_path), create=True)
    assert (tmp_path / "VERSION").read_text() == f"fluxmq data {FORMAT_VERSION}\n"
    open_directory(tmp_path).close()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("fluxmq data 4\n", "newer FluxMQ .format 4; this one reads 3"),
        ("fluxmq data 0\n", "format 0, which this FluxMQ does not read"),
        ("fluxmq data x\n", "not a version"),
        ("", "not a version"),
    ],
)
def test_other_versions_are_refused(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "VERSION").write_text(content)
    with pytest.raises(DirectoryError, match=complaint):
        check_version(Files(), paths(tmp_path), create=True)


def test_an_older_directory_is_read_and_belongs_to_this_version_once_a_broker_opens_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "VERSION").write_text("fluxmq data 1\n")
    check_version(Files(), paths(tmp_path))
    assert (tmp_path / "VERSION").read_text() == "fluxmq data 1\n"
    check_version(Files(), paths(tmp_path), create=True)
    assert (tmp_path / "VERSION").read_text() == f"fluxmq data {FORMAT_VERSION}\n"


def test_the_version_counts_every_format_in_the_directory() -> None:
    """Change the number of any format, and FORMAT_VERSION has to grow unless no release has it yet."""
    formats = {
        "log": wal_records.FORMAT,
        "batches": batch_format.VERSION,
        "segments": segments.FORMAT_VERSION,
        "consumer groups": group_states.FORMAT_VERSION,
        "snapshot files": snapshots.VERSION,
        "snapshots of machines": machine.SNAPSHOT_VERSION,
        "machines": machine.VERSION,
        "commands": commands.COMMAND_VERSION_MAX,
        "tables of shards": state_store.FORMAT,
        "tables of control": schema.VERSION,
    }
    assert (FORMAT_VERSION, formats) == (
        3,
        {
            "log": b"FluxMQ write-ahead log 1",
            "batches": 1,
            "segments": 1,
            "consumer groups": 1,
            "snapshot files": 1,
            "snapshots of machines": 4,
            "machines": 4,
            "commands": 2,
            "tables of shards": 3,
            "tables of control": 4,
        },
    )


def test_no_version(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match="no VERSION"):
        check_version(Files(), paths(tmp_path))
    (tmp_path / "groups").mkdir()
    with pytest.raises(DirectoryError, match="holds logs but no VERSION"):
        check_version(Files(), paths(tmp_path), create=True)


def test_the_lock_names_who_has_it(tmp_path: Path) -> None:
    with locked(Files(), paths(tmp_path)):
        pass
    held = open_directory(tmp_path)
    try:
        with (
            pytest.raises(DirectoryError, match=f"in use by process {os.getpid()}"),
            locked(Files(), paths(tmp_path)),
        ):
            pass
    finally:
        held.close()
    with locked(Files(), paths(tmp_path)):
        pass


# --- placement -------------------------------------------------------------------------------------------------------


def test_the_placement_is_kept(tmp_path: Path) -> None:
    assert read_placement(Files(), paths(tmp_path)) is None
    placement = Placement(4, 16, {"default": 2}, {"default": 2, "local-3": 0})
    write_placement(Files(), paths(tmp_path), placement)
    assert read_placement(Files(), paths(tmp_path)) == placement


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"workers": 0, "local_groups": 1, "pins": {}, "groups": {}}',
        '{"workers": 1, "local_groups": 1, "pins": {}}',
        '{"workers": 1, "local_groups": 1, "pins": {}, "groups": {"a": -1}}',
        '{"workers": 1, "local_groups": 1, "pins": {"a": "b"}, "groups": {}}',
        '{"workers": 1, "local_groups": 1, "pins": {"a": true}, "groups": {}}',
    ],
)
def test_a_placement_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "placement.json").write_text(content)
    with pytest.raises(Corruption, match=r"placement\.json"):
        read_placement(Files(), paths(tmp_path))


def test_a_placement_larger_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxmq.storage.directory.PLACEMENT_BYTES_MAX", 10)
    write_placement(Files(), paths(tmp_path), Placement(1, 1))
    with pytest.raises(Corruption, match="too large"):
        read_placement(Files(), paths(tmp_path))


# --- removal ---------------------------------------------------------------------------------------------------------


def test_directories_are_removed(tmp_path: Path) -> None:
    for name in ("orders", "audit"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "head").write_text("x")
    delete_directory(Files(), str(tmp_path / "orders"))
    assert os.listdir(tmp_path) == ["audit"]
    delete_directory(Files(), str(tmp_path / "orders"))
    assert os.listdir(tmp_path) == ["audit"]


def test_what_is_left_of_removed_ones_goes_at_the_next_start(tmp_path: Path) -> None:
    for name in (".deleted-0-orders", "orders", "a%2Fb", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "head").write_text("x")
    assert remove_unknown(Files(), str(tmp_path), ["orders", "a/b"]) == [
        ".deleted-0-orders",
        "gone",
    ]
    assert sorted(os.listdir(tmp_path)) == ["a%2Fb", "orders"]
    assert remove_unknown(Files(), str(tmp_path / "none"), []) == []


def test_a_removal_that_ended_half_way_does_not_hinder_the_next(tmp_path: Path) -> None:
    (tmp_path / ".deleted-0-orders").mkdir()
    (tmp_path / ".deleted-0-orders" / "head").write_text("x")
    (tmp_path / "orders").mkdir()
    delete_directory(Files(), str(tmp_path / "orders"))
    assert os.listdir(tmp_path) == [".deleted-0-orders"]


# --- groups elsewhere ------------------------------------------------------------------------------------------------


def test_a_group_without_a_directory_of_its_own_stays(tmp_path: Path) -> None:
    place_group(Files(), paths(tmp_path), "hot", None)
    assert os.listdir(tmp_path) == []


def test_a_group_lives_where_its_data_dir_is(tmp_path: Path) -> None:
    data, disk = paths(tmp_path / "node1"), tmp_path / "disk"
    (disk / "lost+found").mkdir(parents=True)
    for _ in range(2):  # the second start finds it as the first left it
        place_group(Files(), data, "default", str(disk))
        place_group(Files(), data, "a/b", f"{disk}/groups/a_b")
        (disk / "queues").mkdir(exist_ok=True)
        (disk / "groups" / "a_b" / "snapshots").mkdir(exist_ok=True)
    Files().make_directory(data.queue("default", "orders"))
    assert os.listdir(disk / "queues") == ["orders"]
    assert os.readlink(data.group("a/b")) == f"{disk}/groups/a_b"
    assert Files().listdir(data.groups) == ["a%2Fb", "default"]
    with pytest.raises(DirectoryError, match=f"group default is in {disk}, where .* leads"):
        place_group(Files(), data, "default", f"{tmp_path}/other")
    os.rename(disk, tmp_path / "away")
    with pytest.raises(DirectoryError, match="is its disk mounted"):
        place_group(Files(), data, "default", str(disk))


def test_a_relative_data_dir_is_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        place_group(Files(), paths(Path("data")), "hot", "raft/hot")
    assert os.readlink("data/groups/hot") == f"{tmp_path}/raft/hot"


def test_a_group_that_is_there_is_not_moved(tmp_path: Path) -> None:
    data, disk = paths(tmp_path / "node1"), tmp_path / "disk"
    Files().make_directory(data.queue("hot", "orders"))
    with pytest.raises(DirectoryError) as caught:
        place_group(Files(), data, "hot", str(disk))
    assert os.path.isdir(data.group("hot"))
    # What the error says is what helps.
    commands = str(caught.value).rpartition("link it: ")[2]
    assert os.system(commands) == 0
    place_group(Files(), data, "hot", str(disk))
    assert os.listdir(disk / "queues") == ["orders"]


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    disk = str(tmp_path / "disk")
    place_group(Files(), paths(tmp_path / "node1"), "hot", disk)
    for node, group in (("node2", "hot"), ("node1", "cold")):
        with pytest.raises(DirectoryError, match=r"belongs to .*/node1/groups/hot: every group"):
            place_group(Files(), paths(tmp_path / node), group, disk)
        assert not os.path.lexists(paths(tmp_path / node).group(group))


def test_a_directory_with_something_in_it_is_not_taken(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (disk / "queues").mkdir(parents=True)
    with pytest.raises(DirectoryError, match=r"is not empty \(queues\)"):
        place_group(Files(), paths(tmp_path / "node1"), "hot", str(disk))


def test_placing_a_group_goes_on_wherever_it_failed(tmp_path: Path) -> None:
    class Failing(Files):
        left = 0

        def call(self, operation, path, function, *args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise WriteFailed(f"{operation} of {path}: made to fail")
            return super().call(operation, path, function, *args, **kwargs)

    files, attempts = Failing(), 0
    data, disk = paths(tmp_path / "node1"), str(tmp_path / "disk")
    while not os.path.lexists(data.group("hot")) or files.left < 0:
        attempts += 1
        files.left = attempts
        with contextlib.suppress(StorageError):
            place_group(files, data, "hot", disk)
    assert attempts > 5
    place_group(Files(), data, "hot", disk)
    assert os.readlink(data.group("hot")) == disk


@pytest.mark.parametrize("linked", [False, True])
def test_all_of_a_group_is_removed_wherever_it_is(tmp_path: Path, *, linked: bool) -> None:
    """Other groups' directories stay, also those on the same disk."""
    data, disk = paths(tmp_path / "data"), tmp_path / "disk"
    (tmp_path / "data" / "groups").mkdir(parents=True)
    for group in ("ended", "kept"):
        place_group(Files(), data, group, f"{disk}/groups/{group}" if linked else None)
        (Path(data.queues(group)) / "queue").mkdir(parents=True)
        (Path(data.queue(group, "queue")) / "head").write_bytes(b"x")
        (Path(data.group(group)) / "member").write_bytes(b"{}")
    remove_group(Files(), data, "ended")
    remove_group(Files(), data, "ended")
    found = [each.name for each in tmp_path.rglob("*")]
    assert "ended" not in found
    assert (Path(data.queue("kept", "queue")) / "head").exists()
