"""The Raft messages of one group, on the group's own address: served by the shard that hosts the group.

One stream joins two members, dialled by the one whose name is smaller. A stream that ends loses what was under way, which
Raft allows for; the leader is told, and sends again what was not answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from fluxmq.cluster.connection import Connection, Hello
from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.endpoint import CallHandler, Endpoint
from fluxmq.cluster.raft_messages import decode, encode
from fluxmq.cluster.security import Security
from fluxmq.logs import RateLimited, get_logger
from fluxmq.raft.errors import MalformedMessage
from fluxmq.raft.types import Message
from fluxmq.settings.plans import GroupPlan

_log = get_logger("fluxmq.cluster")


class Carrier:
    """Carries one group's messages. ``step`` takes messages of a member, ``unreachable`` a member whose stream has ended."""

    def __init__(
        self,
        plan: GroupPlan,
        security: Security,
        own: Hello,
        step: Callable[[Sequence[Message]], None],
        unreachable: Callable[[int], None],
        now: Callable[[], float],
        calls: Mapping[str, CallHandler] | None = None,
    ) -> None:
        self.plan = plan
        self.heard: dict[int, float] = {}
        """When each member was last heard of, monotonic seconds."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._step = step
        self._unreachable = unreachable
        self._now = now
        self._numbers = {member.node: member.number for member in plan.nodes}
        self._own = own._replace(purpose=purpose_of(plan.name))
        self._connections: dict[int, Connection] = {}
        self.malformed = RateLimited(_log, per_second=1.0, burst=5)
        self._endpoint = Endpoint(
            security, plan.bind_addr, self._own, self, self._accept, calls or {}
        )
        self.dialers = {
            member.number: Dialer(security, member.address, member.node, self._own, self)
            for member in plan.members
            if own.node < member.node
        }

    async def start(self) -> None:
        """Listen and dial. Raises EndpointError."""
        await self._endpoint.start()
        for dialer in self.dialers.values():
            dialer.start()

    async def stop(self) -> None:
        """End every stream and free the address."""
        for dialer in self.dialers.values():
            await dialer.stop()
        await self._endpoint.stop()

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages to who can be reached."""
        for message in messages:
            connection = self._connections.get(message.target)
            if connection is not None:
                frame = encode(message)
                self.sent_bytes += len(frame)
                connection.send(frame)

    def reaches(self, member: int) -> bool:
        """Whether there is a stream to a member."""
        return member in self._connections

    def _accept(self, hello: Hello) -> str:
        if hello.purpose != self._own.purpose:
            return f"this is the address of {self._own.purpose}, not of {hello.purpose}"
        if hello.node not in self._numbers:
            return f"{hello.node} is no member of group {self.plan.name}"
        if hello.node >= self._own.node:
            return f"{self._own.node} dials {hello.node}, not the other way round"
        return ""

    # The streams

    def connected(self, connection: Connection) -> None:
        """A stream is there."""
        number = self._numbers[connection.hello.node]
        before = self._connections.get(number)
        self._connections[number] = connection
        self.heard[number] = self._now()
        if before is not None:
            before.close()

    def received(self, connection: Connection, records: Sequence[bytes]) -> None:
        """Messages have come."""
        number = self._numbers[connection.hello.node]
        own = self.plan.own
        self.heard[number] = self._now()
        try:
            messages = [decode(frame, number, own) for frame in records]
            for frame in records:
                self.received_bytes += len(frame)
            self._step(messages)
        except MalformedMessage as error:
            self.malformed.event(
                logging.WARNING,
                connection.hello.node,
                "a message was not understood",
                group=self.plan.name,
                node=connection.hello.node,
                problem=str(error),
            )
            connection.close()

    def lost(self, connection: Connection, why: str) -> None:
        """A stream has ended."""
        number = self._numbers[connection.hello.node]
        if self._connections.get(number) is connection:
            del self._connections[number]
            self._unreachable(number)


def purpose_of(group: str) -> str:
    """What a stream for a group's messages says of itself."""
    return f"group:{group}"
