"""The streams between the control processes of a cluster: one to each other node, dialled by whoever's name is smaller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from fluxmq.cluster.connection import Connection, Hello
from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.endpoint import Endpoint
from fluxmq.cluster.security import Security
from fluxmq.ipc.messages import MessageError
from fluxmq.logs import RateLimited, get_logger
from fluxmq.raft.errors import MalformedMessage
from fluxmq.settings.plans import GroupPlan

_log = get_logger(__name__)


class Neighbours(Protocol):
    """Who is told of streams and what comes over them; nodes are known by their number in the group."""

    def met(self, number: int) -> None:
        """There is a stream to a node."""

    def said(self, number: int, frame: bytes) -> None:
        """A frame of it has come. Raises MessageError or MalformedMessage, which ends the stream."""

    def parted(self, number: int) -> None:
        """The stream has ended."""


class Links(Protocol):
    """What is needed of the streams: `Streams` are these."""

    heard: dict[int, float]

    async def start(self) -> None:
        """See `Streams`, as with the others."""

    async def stop(self) -> None:
        """End every stream."""

    def send(self, number: int, frame: bytes) -> bool:
        """Send a frame to a node."""

    def reaches(self, number: int) -> bool:
        """Whether there is a stream to a node."""

    def close(self, number: int) -> None:
        """End the stream to a node."""


class Streams:
    """Connects to the other nodes, and listens. Implements `fluxmq.cluster.connection.Listener`."""

    def __init__(
        self,
        plan: GroupPlan,
        security: Security,
        own: Hello,
        neighbours: Neighbours,
        now: Callable[[], float],
    ) -> None:
        self.heard: dict[int, float] = {}
        """When each node was last heard of, monotonic seconds."""
        self.names = {member.number: member.node for member in plan.nodes}
        self._numbers = {member.node: member.number for member in plan.nodes}
        self._own = own._replace(purpose=f"group:{plan.name}")
        self._neighbours = neighbours
        self._now = now
        self._open: dict[int, Connection] = {}
        self._limited = RateLimited(_log, per_second=1.0, burst=5)
        self._endpoint = Endpoint(security, plan.bind_addr, self._own, self, self._accept)
        self._dialers = [
            Dialer(security, member.address, member.node, self._own, self)
            for member in plan.nodes
            if own.node < member.node
        ]

    async def start(self) -> None:
        """Listen and dial. Raises EndpointError."""
        await self._endpoint.start()
        for dialer in self._dialers:
            dialer.start()

    async def stop(self) -> None:
        """End every stream."""
        for dialer in self._dialers:
            await dialer.stop()
        await self._endpoint.stop()

    def send(self, number: int, frame: bytes) -> bool:
        """Send a frame to a node; whether there is a stream that takes it."""
        connection = self._open.get(number)
        return connection is not None and connection.send(frame)

    def reaches(self, number: int) -> bool:
        """Whether there is a stream to a node."""
        return number in self._open

    def close(self, number: int) -> None:
        """End the stream to a node."""
        connection = self._open.get(number)
        if connection is not None:
            connection.close()

    def _accept(self, hello: Hello) -> str:
        if hello.purpose != self._own.purpose:
            return f"this is the address of {self._own.purpose}, not of {hello.purpose}"
        if hello.node not in self._numbers:
            return f"{hello.node} is not known here"
        if hello.node >= self._own.node:
            return f"{self._own.node} dials {hello.node}, not the other way round"
        return ""

    # From the connections

    def connected(self, connection: Connection) -> None:
        """A stream is there."""
        number = self._numbers[connection.hello.node]
        before = self._open.get(number)
        if before is not None:
            # A node that restarted may be back before its old stream was seen to end.
            del self._open[number]
            before.close()
            self._neighbours.parted(number)
        self._open[number] = connection
        self.heard[number] = self._now()
        self._neighbours.met(number)

    def received(self, connection: Connection, frames: Sequence[bytes]) -> None:
        """Frames have come."""
        number = self._numbers[connection.hello.node]
        if self._open.get(number) is not connection:
            return
        self.heard[number] = self._now()
        try:
            for frame in frames:
                self._neighbours.said(number, frame)
        except (MessageError, MalformedMessage) as problem:
            self._limited.event(
                logging.WARNING,
                connection.hello.node,
                "a message was not understood",
                node=connection.hello.node,
                problem=str(problem),
            )
            connection.close()

    def lost(self, connection: Connection, why: str) -> None:
        """A stream has ended."""
        number = self._numbers[connection.hello.node]
        if self._open.get(number) is connection:
            del self._open[number]
            _log.debug("stream ended", extra={"node": connection.hello.node, "why": why})
            self._neighbours.parted(number)
