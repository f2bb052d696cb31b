"""The address of a group that is created while the shard runs, when another process holds it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import uvloop

from fluxmq.cluster.connection import StreamHello
from fluxmq.cluster.security import Security
from fluxmq.raft.types import Message
from fluxmq.replication.incarnation import Acquaintances, GroupView
from fluxmq.replication.member_record import MemberRecord
from fluxmq.replication.raft_transport import RaftTransport
from fluxmq.settings.plans import GroupPlans
from fluxmq.settings.schema import Settings
from tests.broker import HOST

SECONDS = 20.0
"""Time that no test takes unless it fails."""


class Nobody:
    """A group that nothing happens to."""

    def stirred(self) -> None: ...

    def step(self, messages: Sequence[Message]) -> None: ...

    def unreachable(self, member: int) -> None: ...

    def failed(self, why: str) -> None: ...

    def heard_of(self, member: int) -> float:
        return 0.0


def transport(port: int) -> RaftTransport:
    """Of a group at a port of this node."""
    address = f"{HOST}:{port}"
    settings = Settings.model_validate(
        {
            "cluster": {
                "enabled": True,
                "node_id": "node1",
                "etcd": {"data_dir": "etcd"},
                "raft": {"enabled": True, "bind_addr": address, "groups": {"default": {}}},
                "transport": {"bind_addr": f"{HOST}:{port - 1}"},
            }
        }
    )
    acquaintances = Acquaintances(
        MemberRecord(1, 1, 1, True, (1,)),
        lambda _record: None,
        lambda: 0,
        lambda: GroupView(0, (1,), (1,)),
        lambda _member: 0,
        lambda _member, _data: None,
        lambda _member: None,
        lambda _member: None,
        lambda _term, _index: None,
    )
    plan = GroupPlans(settings).of("default")
    hello = StreamHello("node1", 0, 1, 1, "")
    return RaftTransport(plan, Security("node1", ()), hello, Nobody(), acquaintances, lambda: 0.0)


def test_an_address_that_is_held_is_tried_again() -> None:
    async def scenario() -> None:
        held = socket.create_server((HOST, 0))
        group = transport(held.getsockname()[1])
        told: list[str] = []
        refused = asyncio.Event()

        def note(problem: str) -> None:
            told.append(problem)
            refused.set()

        async with asyncio.timeout(SECONDS):
            starting = asyncio.get_running_loop().create_task(group.start_when_free(note))
            await refused.wait()
            before = group.started
            held.close()
            await starting
            assert (before, group.started) == (False, True)
            await group.stop()
        assert len(told) == 1
        assert "cannot be bound" in told[0]

    uvloop.run(scenario())


def test_a_group_that_is_closed_tries_no_longer() -> None:
    async def scenario() -> None:
        held = socket.create_server((HOST, 0))
        group = transport(held.getsockname()[1])
        refused = asyncio.Event()
        async with asyncio.timeout(SECONDS):
            starting = asyncio.get_running_loop().create_task(
                group.start_when_free(lambda _problem: refused.set())
            )
            await refused.wait()
            starting.cancel()
            await asyncio.wait([starting])
            assert starting.cancelled()
            await group.stop()
        assert not group.started
        held.close()

    uvloop.run(scenario())
