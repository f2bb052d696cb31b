"""Sealed segments are read through, slowly; what is damaged is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluxmq.replication import scrub
from fluxmq.replication.scrub import (
    BYTES_PER_SECOND,
    SHARE,
    TURN_SECONDS,
    Pacer,
    Scrub,
    Sealed,
    sealed_segments,
)
from fluxmq.storage.files import Files
from tests.unit.replication.member import GROUP, LoneMember


@pytest.fixture
def member(tmp_path: Path) -> Iterator[LoneMember]:
    """A member with messages in several segments."""
    with asyncio.Runner() as runner:
        made = LoneMember(tmp_path / "data", runner)
        made.append(60)
        yield made
        made.kill()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests are for other tests."""
    monkeypatch.setattr(scrub, "SHARE", 0)


def looked(member: LoneMember, look: Callable[[Scrub], object]) -> Scrub:
    """Have a look taken, and what came of it."""
    cluster = member.cluster
    made = Scrub(cluster.replicas, cluster.damages.met, Files(), cluster.now)

    async def run() -> None:
        await look(made)  # type: ignore[misc]
        await made.stop()
        member.hosted.driver.log_failed("enough")
        await cluster.snapshots.close()

    member.runner.run(run())
    return made


def flip(path: str, position: int) -> None:
    """Turn a bit."""
    content = bytearray(Path(path).read_bytes())
    content[position] ^= 1
    Path(path).write_bytes(content)


def test_what_is_whole_is_read_once_and_nothing_said(member: LoneMember) -> None:
    segments = list(sealed_segments(member.replica))
    assert len(segments) >= 3
    made = looked(member, lambda each: each._look(GROUP, lambda _segment: True))
    assert made.bytes == sum(each.state.length for each in segments)
    assert member.cluster.damages.found[GROUP] == 0


@pytest.mark.parametrize("at", ["page", "batch", "footer"])
def test_a_bit_that_was_turned_is_found(member: LoneMember, at: str) -> None:
    segment = list(sealed_segments(member.replica))[1]
    position = {"page": 20, "batch": segment.state.length - 300, "footer": segment.state.length + 9}
    flip(f"{segment.directory}/{segment.file}", position[at])
    looked(member, lambda each: each._look(GROUP, lambda _segment: True))
    assert member.cluster.damages.found[GROUP] == 1


def test_a_segment_that_has_gone_is_not_damaged(member: LoneMember) -> None:
    def gone(segment: Sealed) -> bool:
        Path(f"{segment.directory}/{segment.file}").unlink(missing_ok=True)
        return True

    looked(member, lambda each: each._look(GROUP, gone))
    assert member.cluster.damages.found[GROUP] == 0


@pytest.mark.parametrize("damaged", [True, False])
def test_what_another_member_found_damaged_is_looked_at(member: LoneMember, damaged: bool) -> None:
    first, second, *_ = sealed_segments(member.replica)
    flip(f"{first.directory}/{first.file}", 500)
    directory = first.directory.rpartition("/")[2]

    async def look(each: Scrub) -> None:
        tell = each.handlers()["damaged"]
        each._due[GROUP] = 1e9
        tell(None, GROUP, 2, directory, first.file if damaged else second.file)
        tell(None, "nosuch", 2, directory, first.file)
        each.start()
        while each._asked:  # noqa: ASYNC110 (nobody would set an event)
            await asyncio.sleep(0)

    looked(member, look)
    assert member.cluster.damages.found[GROUP] == damaged


def test_a_group_that_failed_is_left_alone(member: LoneMember) -> None:
    member.hosted.driver.log_failed("for another reason")
    made = looked(member, lambda each: each._look(GROUP, lambda _segment: True))
    assert made.bytes == 0


class Watch:
    """A clock, and who rests by it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rests: list[float] = []

    def rest(self, seconds: float) -> None:
        """Time passes."""
        self.rests.append(seconds)
        self.now += seconds


def test_no_more_bytes_are_read_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "SHARE", SHARE)
    watch = Watch()
    pacer = Pacer(lambda: watch.now, watch.rest)
    total = 64 << 20
    pacer.begin()
    for position in range(1 << 20, total + 1, 1 << 20):
        pacer.read(position)
    assert pacer.bytes == total
    assert sum(watch.rests) == pytest.approx(total / BYTES_PER_SECOND)


def test_no_more_of_a_processor_is_used_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "SHARE", SHARE)
    watch = Watch()
    pacer = Pacer(lambda: watch.now, watch.rest)
    pacer.begin()
    worked = 0.0
    for position in range(100, 100_100, 100):
        watch.now += TURN_SECONDS / 4
        worked += TURN_SECONDS / 4
        pacer.read(position)
    assert sum(watch.rests) >= (worked - TURN_SECONDS) * SHARE
    assert max(watch.rests) <= 2 * TURN_SECONDS * SHARE
