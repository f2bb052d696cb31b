"""Detection of leaders whose processes have ended: their machines have refused connections for long enough."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from fluxmq.replication.ended_leaders import (
    CALM_SECONDS,
    ENDED_SECONDS,
    PROBE_SECONDS,
    EndedLeaders,
    NamedLeader,
    is_refused,
)
from tests.broker import HOST, free_ports

GROUP = "mirrors-0"
EPOCH = 7


class Mirror:
    """A shard that cannot reach the leader of its group, at a time of its own."""

    def __init__(self, runner: asyncio.Runner) -> None:
        (self.port,) = free_ports(1)
        self.now = 100.0
        self.epoch = EPOCH
        self.leaders = EndedLeaders(lambda: self.now)
        self._runner = runner

    def look(self) -> bool:
        """Look, and let an attempt to connect end; return whether the leader had ended."""
        return self._runner.run(self._look())

    async def _look(self) -> bool:
        leader = NamedLeader("node1", self.epoch, f"{HOST}:{self.port}")
        ended = self.leaders.has_ended(GROUP, leader)
        task = self.leaders._probed[GROUP].task
        assert task is not None
        await task
        return ended

    def look_for(self, seconds: float) -> bool:
        """Look now and again; return whether the leader had ended at the end."""
        until, ended = self.now + seconds, self.look()
        while self.now < until:
            self.now += PROBE_SECONDS
            ended = self.look()
        return ended


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with asyncio.Runner() as runner:
        yield Mirror(runner)


def listening(mirror: Mirror) -> socket.socket:
    """The leader's process, whose kernel takes connections even if it does not."""
    return socket.create_server((HOST, mirror.port))


def test_a_leader_has_ended_when_its_machine_has_refused_connections_for_a_while(
    mirror: Mirror,
) -> None:
    assert not mirror.look_for(ENDED_SECONDS)
    assert mirror.look_for(PROBE_SECONDS)


def test_a_process_that_is_stopped_has_not_ended(mirror: Mirror) -> None:
    with listening(mirror):
        assert not mirror.look_for(3 * ENDED_SECONDS)


def test_a_process_that_was_started_again_meanwhile_has_not_ended(mirror: Mirror) -> None:
    mirror.look_for(ENDED_SECONDS / 2)
    with listening(mirror):
        mirror.look_for(PROBE_SECONDS)
    assert not mirror.look_for(ENDED_SECONDS)
    assert mirror.look_for(CALM_SECONDS + PROBE_SECONDS)


def test_a_leader_of_another_epoch_has_as_long_to_listen(mirror: Mirror) -> None:
    assert mirror.look_for(2 * ENDED_SECONDS)
    mirror.epoch += 1
    assert not mirror.look_for(ENDED_SECONDS)


def test_a_leader_that_was_reached_has_as_long_to_listen(mirror: Mirror) -> None:
    assert mirror.look_for(2 * ENDED_SECONDS)
    mirror.leaders.forget(GROUP)
    assert not mirror.look_for(ENDED_SECONDS)


@pytest.mark.parametrize("address", ["", "nothing", f"{HOST}:nowhere", "no.such.invalid:1"])
def test_an_address_that_cannot_be_used_refuses_nothing(address: str) -> None:
    assert not asyncio.run(is_refused(address))


def test_every_address_of_a_host_has_to_refuse() -> None:
    (port,) = free_ports(1)
    assert asyncio.run(is_refused(f"[::1]:{port}")) or not socket.has_dualstack_ipv6()
    with socket.create_server((HOST, port)):
        assert not asyncio.run(is_refused(f"localhost:{port}"))
