"""A group that is left and joined again at once has its address."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from tests.unit.replication.member import GROUP, LoneMember


def free_ports() -> tuple[int, int]:
    """Two ports that nobody has."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


def test_a_group_that_is_left_and_joined_again_is_listened_to(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        member = LoneMember(tmp_path / "node1", runner, ports=free_ports())
        service, cluster = member.queues.service, member.cluster

        async def leave_and_join() -> None:
            await cluster.start()
            for _ in range(3):
                before = member.replica
                service.durable.leave(GROUP)
                service.durable.open(GROUP)
                starting = member.replica.starting
                assert member.replica is not before
                assert starting is not None
                await starting
                assert member.hosted.group.failed == ""
            await cluster.stop()

        runner.run(leave_and_join())
        member.kill()
