"""Whatever both members did before, and wherever transfers broke off: in the end the member has the leader's files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxmq.storage import transfer_target
from fluxmq.storage.errors import FileMissing
from fluxmq.storage.files import Files
from fluxmq.storage.inspect import scan_log
from fluxmq.storage.snapshots import GroupSnapshotContent, latest_snapshot
from fluxmq.storage.transfer_target import SnapshotTarget
from tests.unit.storage.transfers import GROUP, Replica, gather, segment_files

QUEUES = ("work", "ä/b", "x" * 300)
queue = st.sampled_from(QUEUES)
history = st.lists(
    st.one_of(
        st.tuples(st.just("add"), queue, st.integers(1, 70)),
        st.tuples(st.just("trim"), queue, st.integers(0, 100)),
        st.tuples(st.just("delete"), queue, st.just(0)),
    ),
    max_size=6,
)
damage = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)), max_size=3)


def do(replica: Replica, steps: list[tuple[str, str, int]]) -> None:
    """Carry out a history; what is not there is passed over."""
    for verb, name, number in steps:
        if verb == "add":
            replica.add(name, number, size=200 + 3 * number)
        elif name in replica.logs and verb == "trim":
            log = replica.logs[name]
            log.trim(log.start_offset + (log.next_offset - log.start_offset) * number // 100)
            log.flush()
        elif name in replica.logs:
            replica.delete(name)


def spoil(directory: Path, places: list[tuple[int, int]]) -> None:
    """Change a byte of some of the files that were fetched, or cut them; what has a second name is the group's."""
    files = [path for path in sorted(directory.rglob("*.seg")) if path.stat().st_nlink == 1]
    for number, at in places if files else ():
        path = files[number % len(files)]
        size = path.stat().st_size
        if size and at % 3:
            data = bytearray(path.read_bytes())
            data[at % size] ^= 0x10
            path.write_bytes(data)
        else:
            os.truncate(path, at % (size + 1))


@settings(max_examples=20)
@given(
    before=history,
    leads=history,
    strays=history,
    attempts=st.lists(st.tuples(history, st.integers(0, 12), damage), max_size=3),
    thorough=st.booleans(),
)
def test_the_member_gets_the_leaders_files(
    before: list[tuple[str, str, int]],
    leads: list[tuple[str, str, int]],
    strays: list[tuple[str, str, int]],
    attempts: list[tuple[list[tuple[str, str, int]], int, list[tuple[int, int]]]],
    thorough: bool,
) -> None:
    with tempfile.TemporaryDirectory() as base, pytest.MonkeyPatch.context() as patched:
        patched.setattr(transfer_target, "CHUNK_BYTES", 4096)
        leader, member = Replica(Path(base) / "leader"), Replica(Path(base) / "member")
        for replica in (leader, member):
            do(replica, before)
        do(leader, leads)
        do(member, strays)
        index = 10
        for steps, pieces, places in attempts:
            source = leader.source(index)
            target = member.target(source.manifest(), thorough=thorough)
            left = pieces

            def stop(_piece: object) -> bool:
                nonlocal left
                left -= 1
                return left < 0

            gather(source, target, stop)
            target.close()
            source.close()
            spoil(member.root / "incoming", places)
            do(leader, steps)
            index += len(steps)
        source = leader.source(index)
        own = member.segments
        target = member.target(source.manifest(), thorough=thorough)
        given_bytes = gather(source, target)
        assert given_bytes + target.reused_bytes == target.total_bytes
        assert member.segments == own  # nothing is done to what the group uses
        target.prepare()
        member.close()
        target.install()
        assert_same(leader, member, target)
        source.close()
        leader.close()


def assert_same(leader: Replica, member: Replica, target: SnapshotTarget) -> None:
    """The member's files are those of the leader's snapshot, and a log can be opened on each."""
    assert member.segments == leader.segments
    found = latest_snapshot(Files(), member.paths.snapshots(GROUP))
    assert found == target.manifest.snapshot
    for name, state in GroupSnapshotContent.decode(found.content).logs.items():
        report = scan_log(Files(), member.paths.queue(GROUP, name), state)
        assert [problem for problem in report.problems if not problem.mended] == []


def test_a_source_without_segments_gives_none(tmp_path: Path) -> None:
    leader = Replica(tmp_path)
    source = leader.source(1)
    assert segment_files(source) == {}
    source.close()
    with pytest.raises(FileMissing):
        leader.files.listdir(f"{leader.root}/outgoing/1")
