"""Leaders of mirrored groups whose processes have ended: their nodes' leases in etcd last for ten seconds more,
and their machines refuse connections.

A refusal comes from a machine that runs and on which nobody listens. One that is off, cut off or held up, and a
process that is stopped or slow, refuse nothing; their leaders are replaced once their leases have ended. A shard that
has crashed is started again within a second or so, and is waited for.

To be wrong about it costs a change of leaders, and no message: see `fluxmq.control.etcd.mirrors`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

ENDED_SECONDS: Final = 2.0
"""Time for which connections to a leader have to be refused."""
PROBE_SECONDS: Final = 0.4
"""Interval between two attempts to connect while they are refused."""
CALM_SECONDS: Final = 1.0
"""The same while they are not: a process that is stopped has to accept them all when it goes on."""
ANSWER_SECONDS: Final = 1.0
"""Time after which an attempt counts as not refused."""


class NamedLeader(NamedTuple):
    """A leader in an epoch, and the address of the group at it."""

    node: str
    epoch: int
    address: str


class _Probed:
    """Attempts to connect to a leader. ``first`` and ``last``: moments of the first and the last of those
    that were refused, without another one between."""

    def __init__(self, leader: NamedLeader) -> None:
        self.leader = leader
        self.first = self.last = 0.0
        self.refused = False
        self.next = 0.0
        """The moment of the next attempt."""
        self.task: asyncio.Task[None] | None = None


class EndedLeaders:
    """Those of one shard's groups. ``now`` returns seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._probed: dict[str, _Probed] = {}

    def forget(self, group: str) -> None:
        """Forget what is known: there is a stream to the leader."""
        self._probed.pop(group, None)

    def has_ended(self, group: str, leader: NamedLeader) -> bool:
        """Return whether the process of a leader has ended to which there is no stream; asked again and
        again meanwhile. A leader has started again if its epoch is another one."""
        probed = self._probed.get(group)
        if probed is None or probed.leader != leader:
            probed = self._probed[group] = _Probed(leader)
        now = self._now()
        idle = probed.task is None or probed.task.done()
        if idle and now >= probed.next:
            probed.next = now + PROBE_SECONDS
            probed.task = asyncio.get_running_loop().create_task(self._probe(probed))
        return probed.refused and probed.last - probed.first >= ENDED_SECONDS

    async def _probe(self, probed: _Probed) -> None:
        """Try to connect; outermost frame of its task."""
        refused = await is_refused(probed.leader.address)
        if refused and not probed.refused:
            probed.first = self._now()
        probed.refused, probed.last = refused, self._now()
        if not refused:
            probed.next = max(probed.next, probed.last + CALM_SECONDS)


async def is_refused(address: str) -> bool:
    """Return whether the machine of an address says that nobody listens there; False if that is unknown."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            bare = host.removeprefix("[").removesuffix("]")
            found = await loop.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)
            for family, kind, protocol, _, at in found:
                with socket.socket(family, kind, protocol) as attempt:
                    attempt.setblocking(False)
                    try:
                        await loop.sock_connect(attempt, at)
                    except ConnectionRefusedError:
                        continue
                    return False
    except (OSError, TimeoutError, ValueError):
        return False
    return bool(found)
