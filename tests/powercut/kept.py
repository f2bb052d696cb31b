"""What persistent sessions and retained messages promise, next to the queues: nothing confirmed for them is lost.

Some clients subscribe and leave; a publisher sends to them, and retained messages to a few topics, until the node dies.
Afterwards the clients come back and have to be given what was confirmed, and each topic's retained message has to be
the last one that was, or a later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import not_

from tests.powercut.client import FAILURE, Connection, Message

SESSIONS = 3
TOPICS = 8
WINDOW = 8
RETAINED_EVERY = 4
"""One message in so many is a retained one."""
EXPIRY_S = 3600
READ_TIMEOUT_S = 10.0
POLL_S = 0.02
PUBLISHER = 1000
"""Stands for this publisher where lost messages of queues are named by publisher and sequence."""
IDENTIFIERS = 65_535


class Kept:
    """What was sent on one image, and what the broker has said about it."""

    def __init__(self) -> None:
        self.attempted = 0
        self.confirmed = 0
        self._owed: list[set[int]] = [set() for _ in range(SESSIONS)]
        """Confirmed and not yet delivered, by session."""
        self._taken: set[int] = set()
        self._retained: dict[int, int] = {}
        """By topic, the last that was confirmed."""
        self._under_way: dict[int, int] = {}
        self._connection: Connection | None = None

    async def load(self, port: int) -> Connection:
        """Let the clients subscribe and leave, and begin to publish. Raises ``OSError``."""
        for each in range(SESSIONS):
            await self._session(port, each)
        self._connection = await Connection.open(port, "cut-kept")
        self._connection.on_confirm = self._answered
        self._under_way.clear()
        for _ in range(WINDOW):
            self._send()
        return self._connection

    async def _session(self, port: int, each: int) -> None:
        connection = await Connection.open(port, f"cut-absent-{each}", EXPIRY_S, self._take)
        await connection.subscribe(f"absent/{each}", ())
        connection.close()

    def _send(self) -> None:
        assert self._connection is not None
        number = self.attempted
        self.attempted += 1
        identifier = number % IDENTIFIERS + 1
        self._under_way[identifier] = number
        place = number // RETAINED_EVERY
        retained = number % RETAINED_EVERY == 0
        topic = f"held/{place % TOPICS}" if retained else f"absent/{number % SESSIONS}"
        self._connection.publish(topic, identifier, b"%d" % number, retain=retained)

    def _answered(self, identifier: int, reason: int) -> None:
        """PUBACK."""
        number = self._under_way.pop(identifier)
        if reason < FAILURE:
            self.confirmed += 1
            if number % RETAINED_EVERY == 0:
                self._retained[number // RETAINED_EVERY % TOPICS] = number
            elif number not in self._taken:
                self._owed[number % SESSIONS].add(number)
        self._send()

    def _take(self, connection: Connection, message: Message) -> None:
        number = int(message.body)
        self._taken.add(number)
        self._owed[number % SESSIONS].discard(number)
        connection.acknowledge(message.identifier)

    async def lost(self, port: int) -> set[tuple[int, int]]:
        """What was confirmed and is not there, told once. Raises ``OSError``."""
        gone: set[int] = set()
        for each, owed in enumerate(self._owed):
            connection = await Connection.open(port, f"cut-absent-{each}", EXPIRY_S, self._take)
            # Answers the subscription that is there; where the session is lost, so are its messages.
            await connection.subscribe(f"absent/{each}", ())
            await _until(partial(not_, owed))
            connection.close()
            gone |= owed
            owed.clear()
        found: dict[int, int] = {}

        def held(message: Message) -> None:
            found[int(message.topic.removeprefix("held/"))] = int(message.body)
            connection.acknowledge(message.identifier)

        def missing() -> set[int]:
            return {last for at, last in self._retained.items() if found.get(at, -1) < last}

        connection = await Connection.open(port, "cut-held")
        connection.on_message = held
        await connection.subscribe("held/+", ())
        await _until(lambda: not missing())
        connection.close()
        gone |= missing()
        self._retained = dict(found)
        return {(PUBLISHER, number) for number in gone}


async def _until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, for a bounded time."""
    give_up = asyncio.get_running_loop().time() + READ_TIMEOUT_S
    while not holds():
        if asyncio.get_running_loop().time() > give_up:
            return
        await asyncio.sleep(POLL_S)
