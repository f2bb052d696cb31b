"""Mirrored groups that have ended: a shard removes its part of them, also if it was away when they did."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxmq.ipc.mirrored_groups import MIRRORS, GroupMirrors, Mirrors
from fluxmq.replication.ended_mirrors import LOOK_SECONDS
from fluxmq.settings.group_names import MIRRORED
from fluxmq.settings.plans import UnknownGroup, derived_offset
from tests.unit.replication.member import LoneMember

NODES = ("node1", "node2")
ENDED = f"{MIRRORED}{0:016x}"
SAME_PORT = next(
    name
    for name in (f"{MIRRORED}{number:016x}" for number in itertools.count(1))
    if derived_offset(name) == derived_offset(ENDED)
)


class MirroringMember:
    """Node1, which has a mirrored group with some entries, a checkpoint and a queue."""

    def __init__(self, directory: Path, runner: asyncio.Runner) -> None:
        self._directory = directory / "node1"
        self._runner = runner
        self.member = LoneMember(self._directory, runner)
        self.told(ENDED)
        self.open(ENDED)
        self.member.append(3, ENDED)
        self.member.checkpoint(ENDED)
        self.member.append(2, ENDED)

    def again(self) -> None:
        """Another life."""
        self.member.kill()
        self.member = LoneMember(self._directory, self._runner)

    def told(self, *groups: str, ended: tuple[str, ...] = ()) -> None:
        """Hear which groups there are, and which have ended; some time passes."""
        record = GroupMirrors(1, "node2", NODES, NODES, NODES, NODES)
        body = Mirrors(dict.fromkeys(groups, record), ended).to_body()
        mirrors = self.member.cluster.members.mirrors
        assert mirrors is not None
        command = mirrors.commands[MIRRORS]
        self.member.within(lambda: command(body, lambda _answer: None))
        self.later()

    def later(self) -> None:
        """Some time passes."""
        self.member.now += LOOK_SECONDS
        self.member.within(self.member.cluster.members.housekeeping)
        self.member.work()

    def open(self, group: str) -> None:
        """Host a group."""
        self.member.within(lambda: self.member.queues.service.durable.open(group))

    @property
    def hosts(self) -> bool:
        """Whether it has the group open."""
        return ENDED in self.member.queues.service.groups

    @property
    def has_log(self) -> bool:
        """Whether its logs have entries of the group that is not open."""
        return ENDED in self.member.queues.service.durable.unhosted()

    @property
    def has_files(self) -> bool:
        """Whether there is a directory of it."""
        return Path(self.member.paths.group(ENDED)).exists()


@pytest.fixture
def mirroring(tmp_path: Path) -> Iterator[MirroringMember]:
    with asyncio.Runner() as runner:
        found = MirroringMember(tmp_path, runner)
        yield found
        found.member.kill()


def test_nothing_is_left_of_a_group_that_has_ended(mirroring: MirroringMember) -> None:
    assert mirroring.hosts
    assert mirroring.has_files
    mirroring.told(ended=(ENDED,))
    assert (mirroring.hosts, mirroring.has_log, mirroring.has_files) == (False, False, False)
    mirroring.again()
    assert not mirroring.has_log, "it was removed from the log's files too"
    mirroring.told(ended=(ENDED,))


def test_a_node_that_was_away_removes_it_later(mirroring: MirroringMember) -> None:
    mirroring.again()
    assert (mirroring.hosts, mirroring.has_log, mirroring.has_files) == (False, True, True)
    mirroring.told(ended=(ENDED,))
    assert (mirroring.hosts, mirroring.has_log, mirroring.has_files) == (False, False, False)


def test_a_group_of_which_nothing_is_heard_has_not_ended(mirroring: MirroringMember) -> None:
    """Records may be lost; what the group has is not."""
    mirroring.told()
    assert mirroring.hosts
    mirroring.again()
    mirroring.told()
    assert (mirroring.has_log, mirroring.has_files) == (True, True)


def test_a_group_is_removed_once_its_checkpoint_is_written(mirroring: MirroringMember) -> None:
    hosted = mirroring.member.queues.service.groups[ENDED]
    hosted.checkpointing = True
    mirroring.told(ended=(ENDED,))
    assert (mirroring.hosts, mirroring.has_files) == (True, True)
    assert mirroring.member.cluster.plans.of(ENDED).bind_addr, "it may need it"
    hosted.checkpointing = False
    mirroring.later()
    assert (mirroring.hosts, mirroring.has_files) == (False, False)


def test_another_group_gets_the_address(mirroring: MirroringMember) -> None:
    mirroring.told(ENDED, SAME_PORT)
    with pytest.raises(UnknownGroup):
        mirroring.member.cluster.plans.of(SAME_PORT)
    mirroring.told(SAME_PORT, ended=(ENDED,))
    assert mirroring.member.cluster.plans.of(SAME_PORT).bind_addr
    with pytest.raises(UnknownGroup):
        mirroring.member.cluster.plans.of(ENDED)
    mirroring.open(SAME_PORT)
