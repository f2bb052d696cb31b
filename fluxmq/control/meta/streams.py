"""Streams between control processes: one to each other node, dialled by the node with the smaller
name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from fluxmq.cluster.connection import NodeStream, StreamHello
from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.endpoint import Endpoint
from fluxmq.cluster.security import Security
from fluxmq.ipc.messages import MessageError
from fluxmq.logs import RateLimited, get_logger
from fluxmq.raft.errors import MalformedMessage
from fluxmq.settings.plans import GroupPlan

_log = get_logger(__name__)


class Neighbours(Protocol):
    """Receiver of stream events and frames; nodes are known by their number in the group."""

    def met(self, number: int) -> None:
        """Handle a new stream to a node."""

    def said(self, number: int, frame: bytes) -> None:
        """Handle a node's frame. Raises MessageError or MalformedMessage, which ends the stream."""

    def parted(self, number: int) -> None:
        """Handle the end of the stream."""


class Links(Protocol):
    """Interface of the streams, which `Streams` implements."""

    heard: dict[int, float]

    async def start(self) -> None:
        """Listen and dial; this and the others as in `Streams`."""

    async def stop(self) -> None:
        """End every stream."""

    def send(self, number: int, frame: bytes) -> bool:
        """Send a frame to a node."""

    def reaches(self, number: int) -> bool:
        """Return whether there is a stream to a node."""

    def close(self, number: int) -> None:
        """End the stream to a node."""


class Streams:
    """Connects to the other nodes, and listens. Implements
    `fluxmq.cluster.connection.StreamListener`."""

    def __init__(
        self,
        plan: GroupPlan,
        security: Security,
        own: StreamHello,
        neighbours: Neighbours,
        now: Callable[[], float],
    ) -> None:
        self.heard: dict[int, float] = {}
        """Time of the last contact with each node, monotonic seconds."""
        self.names = {member.number: member.node for member in plan.nodes}
        self._numbers = {member.node: member.number for member in plan.nodes}
        self._own = own._replace(purpose=f"group:{plan.name}")
        self._neighbours = neighbours
        self._now = now
        self._open: dict[int, NodeStream] = {}
        self._limited = RateLimited(_log, per_second=1.0, burst=5)
        listeners = {self._own.purpose: self}
        self._endpoint = Endpoint(security, plan.bind_addr, self._own, listeners, self._accept)
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
        """Send a frame to a node; return whether there is a stream that takes it."""
        connection = self._open.get(number)
        return connection is not None and connection.send(frame)

    def reaches(self, number: int) -> bool:
        """Return whether there is a stream to a node."""
        return number in self._open

    def close(self, number: int) -> None:
        """End the stream to a node."""
        connection = self._open.get(number)
        if connection is not None:
            connection.close()

    def _accept(self, hello: StreamHello) -> str:
        if hello.node not in self._numbers:
            return f"{hello.node} is not supported here"
        if hello.node >= self._own.node:
            return f"{self._own.node} dials {hello.node}, not the other way round"
        return ""

    # Events of the connections

    def connected(self, connection: NodeStream) -> None:
        """Handle a new stream."""
        number = self._numbers[connection.hello.node]
        before = self._open.get(number)
        if before is not None:
            # A restarted node may reconnect before its old stream was seen to end.
            del self._open[number]
            before.close()
            self._neighbours.parted(number)
        self._open[number] = connection
        self.heard[number] = self._now()
        self._neighbours.met(number)

    def received(self, connection: NodeStream, frames: Sequence[bytes]) -> None:
        """Handle received frames."""
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
                "closing a stream: a message from another node is malformed",
                node=connection.hello.node,
                problem=str(problem),
            )
            connection.close()

    def lost(self, connection: NodeStream, why: str) -> None:
        """Handle the end of a stream."""
        number = self._numbers[connection.hello.node]
        if self._open.get(number) is connection:
            del self._open[number]
            _log.debug("stream ended", extra={"node": connection.hello.node, "why": why})
            self._neighbours.parted(number)
