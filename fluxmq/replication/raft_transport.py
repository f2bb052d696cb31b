"""Transport of one group's Raft messages, at the group's own address, in the shard that hosts it.

One stream joins two members, dialled by the one whose name is smaller. A stream that ends loses
what was in flight, which Raft tolerates; the leader is notified and resends what was not
acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from fluxmq.cluster.connection import NodeStream, StreamHello
from fluxmq.cluster.dialer import Dialer
from fluxmq.cluster.endpoint import CallHandler, Endpoint
from fluxmq.cluster.errors import EndpointError
from fluxmq.cluster.raft_messages import decode, encode
from fluxmq.cluster.security import Security
from fluxmq.logs import RateLimited, get_logger
from fluxmq.raft.errors import MalformedMessage
from fluxmq.raft.types import Message, MessageKind
from fluxmq.replication.incarnation import Acquaintances, is_control
from fluxmq.settings.plans import GroupPlan, member_number
from fluxmq.storage.errors import StorageError

_log = get_logger("fluxmq.cluster")

_VOTES = frozenset(
    (
        MessageKind.VOTE,
        MessageKind.VOTE_ANSWER,
        MessageKind.PRE_VOTE,
        MessageKind.PRE_VOTE_ANSWER,
    )
)


class TransportListener(Protocol):
    """Receives what the streams of a group bring."""

    def stirred(self) -> None:
        """Note that a stream begins or ends, that a control record goes or has come, or that
        messages are about to be sent that are more than an answer to a heartbeat."""

    def step(self, messages: Sequence[Message]) -> None:
        """Take messages of a member. Raises MalformedMessage."""

    def unreachable(self, member: int) -> None:
        """Note that the stream to a member has ended."""

    def failed(self, why: str) -> None:
        """Note the error that kept ``acquaintances`` from saving the members it met."""

    def heard_of(self, member: int) -> float:
        """Return when a member was last heard in another way than by its stream, in seconds; 0.0
        if it was not."""


ADDRESS_RETRY_SECONDS: Final = 1.0
"""Pause before the address of a group that was created while the shard runs is tried again: any
process may hold it for a moment, as the end of an outgoing connection."""


class RaftTransport:
    """Transports one group's messages. Messages to and from members that ``acquaintances`` does not
    believe are dropped.
    """

    def __init__(
        self,
        plan: GroupPlan,
        security: Security,
        own: StreamHello,
        listener: TransportListener,
        acquaintances: Acquaintances,
        now: Callable[[], float],
        calls: Mapping[str, CallHandler] | None = None,
    ) -> None:
        self.plan = plan
        self.heard: dict[int, float] = {}
        """Time each member was last heard from, monotonic seconds."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._listener = listener
        self._acquaintances = acquaintances
        self._now = now
        self._numbers = {member.node: member.number for member in plan.nodes}
        self.number = member_number(own.node)
        self._own = own._replace(purpose=purpose_of(plan.name))
        self._connections: dict[int, NodeStream] = {}
        self.malformed = RateLimited(_log, per_second=1.0, burst=5)
        self._endpoint = Endpoint(
            security,
            plan.bind_addr,
            self._own,
            {self._own.purpose: self},
            self._accept,
            calls or {},
        )
        self._security = security
        self._started = False
        self.dialers: dict[int, Dialer] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def hello(self) -> StreamHello:
        """The greeting of this side."""
        return self._own

    async def start(self) -> None:
        """Listen and dial. Raises EndpointError."""
        await self._endpoint.start()
        self._started = True
        for dialer in self.dialers.values():
            dialer.start()

    @property
    def started(self) -> bool:
        """True while it listens."""
        return self._started

    async def start_when_free(self, refused: Callable[[str], None]) -> None:
        """Do the same; as long as another process holds the address, try again. ``refused`` is told the
        reason of the first failure."""
        told = False
        while not self._started:
            try:
                await self.start()
            except EndpointError as error:
                if not told:
                    refused(str(error))
                told = True
                await asyncio.sleep(ADDRESS_RETRY_SECONDS)

    def learn(self, plan: GroupPlan) -> None:
        """Know the nodes of a plan: nodes have joined the cluster or have left, or have another
        address. `follow` connects with those that are members."""
        self.plan = plan
        self._numbers |= {member.node: member.number for member in plan.nodes}
        self._endpoint.follow()
        at = {member.number: member.address for member in plan.nodes}
        for number in [n for n, each in self.dialers.items() if at.get(n) != each.address]:
            self._drop(number)

    def _drop(self, number: int) -> None:
        """Dial a member no longer."""
        dialer = self.dialers.pop(number)
        if self._started:
            task = asyncio.get_running_loop().create_task(dialer.stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def follow(self, members: Collection[int]) -> None:
        """Maintain streams to these members, dialling those that this member has to dial."""
        for member in self.plan.nodes:
            wanted = member.number in members and self._own.node < member.node
            if wanted and member.number not in self.dialers:
                dialer = Dialer(self._security, member.address, member.node, self._own, self)
                self.dialers[member.number] = dialer
                if self._started:
                    dialer.start()
            elif not wanted and member.number in self.dialers:
                self._drop(member.number)

    async def stop(self) -> None:
        """End every stream and free the address."""
        if not self._started:
            return
        self._started = False
        dialers = (dialer.stop() for dialer in self.dialers.values())
        await asyncio.gather(self._endpoint.stop(), *dialers, *self._ending)

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages to the members that can be reached, and drop the others."""
        if len(messages) > 1 or messages[0].kind is not MessageKind.HEARTBEAT_ANSWER:
            self._listener.stirred()
        met = self._acquaintances
        abstains = met.abstains
        reached: list[NodeStream] = []
        for message in messages:
            connection = self._connections.get(message.target)
            if connection is None or (abstains and message.kind in _VOTES):
                continue
            if met.believed(message.target):
                frame = encode(message)
                self.sent_bytes += len(frame)
                connection.put(frame)
                if connection not in reached:
                    reached.append(connection)
        for connection in reached:
            connection.flush()

    def say(self, member: int, frame: bytes) -> None:
        """Send a control record to a member."""
        self._listener.stirred()
        connection = self._connections.get(member)
        if connection is not None:
            connection.send(frame)

    def reaches(self, member: int) -> bool:
        """Return whether there is a stream to a member."""
        return member in self._connections

    def rest(self, on: bool) -> None:
        """Look seldom whether the members are there, or as often as usual again."""
        for stream in self._connections.values():
            stream.rest(on)

    def stream(self, member: int) -> NodeStream | None:
        """Return the stream to a member."""
        return self._connections.get(member)

    def heard_at(self, member: int) -> float | None:
        """Return when a member was last heard from, in monotonic seconds; None if it never was."""
        heard = self.heard.get(member)
        return None if heard is None else max(heard, self._listener.heard_of(member))

    def _accept(self, hello: StreamHello) -> str:
        if hello.node not in self._numbers:
            return f"{hello.node} is not a member of group {self.plan.name}"
        if hello.node >= self._own.node:
            return f"{self._own.node} dials {hello.node}, not the other way round"
        return ""

    # Streams

    def connected(self, connection: NodeStream) -> None:
        """Register a new stream and greet the member."""
        if self._acquaintances.closed:
            connection.close()
            return
        self._listener.stirred()
        number = self._numbers[connection.hello.node]
        before = self._connections.get(number)
        self._connections[number] = connection
        self.heard[number] = self._now()
        if before is not None:
            before.close()
            self._gone(number)
        connection.send(self._acquaintances.greeting())

    def _gone(self, number: int) -> None:
        self._listener.stirred()
        self._listener.unreachable(number)
        try:
            self._acquaintances.gone(number)
        except StorageError as problem:
            self._listener.failed(str(problem))

    def received(self, connection: NodeStream, records: Sequence[bytes]) -> None:
        """Handle records that a stream has delivered."""
        number = self._numbers[connection.hello.node]
        if self._connections.get(number) is not connection:
            return  # late records of an earlier stream may be of the member's earlier life
        self.heard[number] = self._now()
        try:
            self._take(number, records)
        except StorageError as problem:
            self._listener.failed(str(problem))
            connection.close()
        except MalformedMessage as error:
            self.malformed.event(
                logging.WARNING,
                connection.hello.node,
                "closing a stream: a message from another member is malformed",
                group=self.plan.name,
                node=connection.hello.node,
                problem=str(error),
            )
            connection.close()

    def _take(self, number: int, records: Sequence[bytes]) -> None:
        messages = []
        for frame in records:
            self.received_bytes += len(frame)
            if is_control(frame):
                self._listener.stirred()
                self._acquaintances.take(number, frame)
            elif self._acquaintances.believed(number):
                messages.append(decode(frame, number, self.number))
        if messages:
            self._listener.step(messages)

    def lost(self, connection: NodeStream, why: str) -> None:
        """Unregister a stream that has ended."""
        number = self._numbers[connection.hello.node]
        if self._connections.get(number) is connection:
            del self._connections[number]
            self._gone(number)


def purpose_of(group: str) -> str:
    """Return the purpose that a stream for a group's messages states in its greeting."""
    return f"group:{group}"
