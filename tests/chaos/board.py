"""What all clients of a run share: the history they write to, where nodes are, and what is confirmed and seen so far."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.chaos import bodies
from tests.chaos.bodies import Identity
from tests.chaos.records import OK, Deliver, History, Join, Key, Lost, Publish
from tests.chaos.settings import ACK_TIMEOUT_S

RETRY_S = 0.2
"""Pause of a client that was not let in anywhere."""


@dataclass(frozen=True)
class Host:
    """Where clients find a node."""

    name: str
    address: str
    mqtt: int
    amqp: int


@dataclass
class Board:
    """One per run. ``run``: the number in every body; ``ack_timeout``: seconds in which a node answers a publish."""

    history: History
    hosts: list[Host]
    random: Random
    run: int
    ack_timeout: float = ACK_TIMEOUT_S
    confirmed: dict[str, set[Key]] = field(default_factory=lambda: defaultdict(set))
    seen: dict[tuple[str, str], set[Key]] = field(default_factory=lambda: defaultdict(set))
    rejected: set[Key] = field(default_factory=set)
    """Messages whose rejection was confirmed."""
    news: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each group was last given something it had not seen."""
    groups: set[tuple[str, str]] = field(default_factory=set)
    """Queues and groups that have had a consumer."""
    stopping: bool = False
    """Publishers begin nothing new."""
    ending: bool = False
    """Nobody connects again."""

    def now(self) -> float:
        """Seconds since the run began."""
        return self.history.now()

    def body(self, publisher: int, sequence: int) -> bytes:
        """The body of a message."""
        return bodies.build(Identity(self.run, publisher, sequence))

    def published(self, record: Publish) -> None:
        """An attempt has come to its end."""
        self.history.write(record)
        if record.outcome == OK:
            for queue in record.queues:
                self.confirmed[queue].add((record.publisher, record.sequence))

    def delivered(
        self, reader: Roamer, queue: str, group: str, offset: int, body: bytes, repeat: bool
    ) -> Key:
        """A message came; its key."""
        identity = bodies.parse(body)
        mine = identity is not None and identity.run == self.run
        key = identity[1:] if identity is not None and mine else (-1, -1)
        record = Deliver(
            client=reader.name,
            protocol=reader.protocol,
            node=reader.host.name,
            connection=reader.connection_name,
            queue=queue,
            group=group,
            offset=offset,
            publisher=key[0],
            sequence=key[1],
            digest=bodies.digest(body),
            repeat=repeat,
            audit=reader.audit,
            time=self.now(),
        )
        self.history.write(record)
        seen = self.seen[queue, group]
        if key not in seen:
            seen.add(key)
            self.news[queue, group] = record.time
        return key

    def missing(self, queue: str, group: str) -> set[Key]:
        """Confirmed messages of a queue that a group was not given yet."""
        return self.confirmed[queue] - self.seen[queue, group]


class Roamer(ABC):
    """A client that goes to another node when its own is away. ``serve`` is one connection's life.

    Subclasses connect and talk; ``ended`` is what they are told when a connection is over.
    """

    protocol = ""
    audit = False

    def __init__(self, board: Board, name: str, home: int) -> None:
        self.board = board
        self.name = name
        self.at = home % len(board.hosts)
        self.connections = 0
        self.task: asyncio.Task[None] | None = None

    @property
    def host(self) -> Host:
        """The node it is at, or tries next."""
        return self.board.hosts[self.at]

    @property
    def connection_name(self) -> str:
        """The name of this connection in the history."""
        return f"{self.name}#{self.connections}"

    @abstractmethod
    async def connect(self) -> asyncio.Future[None]:
        """Connect and begin; what is resolved when the connection ends. Raises ``OSError``, ``ValueError``."""

    async def talk(self, closed: asyncio.Future[None]) -> str:
        """Use the connection until it ends or should; why it ended, nothing when that was wanted."""
        await closed
        return "closed by the node"

    @abstractmethod
    def abandon(self) -> None:
        """Give the connection up at once."""

    def ended(self, why: str) -> None:  # noqa: B027 (not all have something to do)
        """The connection is over: what was under way is unknown."""

    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.board.ending

    async def run(self) -> None:
        """Live from connection to connection."""
        failures = 0
        while not self.finished():
            self.connections += 1
            try:
                closed = await self.connect()
            except (OSError, ValueError) as error:
                self.abandon()
                self.ended(f"not let in: {error}")
                failures += 1
                self.at = (self.at + 1) % len(self.board.hosts)
                if failures % len(self.board.hosts) == 0:
                    await asyncio.sleep(RETRY_S)
                continue
            failures = 0
            try:
                why = await self.talk(closed)
            finally:
                self.abandon()
            self.ended(why)
            if why:
                names = (self.name, self.connection_name, self.host.name)
                self.board.history.write(Lost(*names, self.board.now(), why))
                self.at = (self.at + 1) % len(self.board.hosts)

    def joined(self, queue: str, group: str, asked: float) -> None:
        """This connection is a consumer of a queue."""
        self.board.groups.add((queue, group))
        names = (self.name, self.connection_name, self.host.name)
        self.board.history.write(Join(*names, queue, group, asked))

    def start(self) -> None:
        """Begin, in a task."""
        self.task = asyncio.get_running_loop().create_task(self.run(), name=self.name)

    async def stop(self) -> None:
        """End at once."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.abandon()
            self.ended("")


async def until(holds: Callable[[], bool], seconds: float, poll: float = 0.02) -> bool:
    """Whether something came to hold in time."""
    give_up = asyncio.get_running_loop().time() + seconds
    while not holds():
        if asyncio.get_running_loop().time() > give_up:
            return False
        await asyncio.sleep(poll)
    return True
