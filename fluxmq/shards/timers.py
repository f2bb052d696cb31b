"""Timeouts of many connections and sessions at little cost.

Connections are watched for silence by a wheel of buckets: a connection is looked at when its
bucket comes up, and put into a later one if it has spoken meanwhile, so receiving costs nothing. Sessions'
expiries and wills are few and exact to the tick: a heap.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable

from fluxmq.sessions.mqtt.session import Client, Session, Stage


class SilenceWheel:
    """Finds connections from which nothing was received for too long.

    ``resolution`` is the width of a bucket in seconds: a timeout fires at most that much late.
    """

    def __init__(self, resolution: float = 0.25) -> None:
        self._resolution = resolution
        self._buckets: defaultdict[int, list[tuple[Client, float, float]]] = defaultdict(list)
        self._next = -1

    def watch(self, client: Client, seconds: float, now: float) -> None:
        """Look at ``client`` when it may have been silent for ``seconds``."""
        self._enter(client, seconds, 0.0, client.connection.active + seconds, now)

    def watch_connect(self, client: Client, seconds: float, now: float) -> None:
        """Look at ``client`` in ``seconds``: then it must be connected, however much it has sent."""
        self._enter(client, 0.0, now + seconds, now + seconds, now)

    def _enter(
        self, client: Client, seconds: float, deadline: float, due: float, now: float
    ) -> None:
        bucket = int(max(due, now) / self._resolution) + 1
        self._buckets[bucket].append((client, seconds, deadline))

    def expired(self, now: float) -> list[Client]:
        """Clients whose time is up; the others are watched on."""
        current = int(now / self._resolution)
        if self._next < 0:
            self._next = current
        due: list[Client] = []
        for bucket in range(self._next, current + 1):
            for client, seconds, deadline in self._buckets.pop(bucket, ()):
                if client.stage is Stage.CLOSED:
                    continue
                if deadline:
                    if client.stage is not Stage.CONNECTED:
                        due.append(client)
                elif client.connection.active + seconds <= now:
                    due.append(client)
                else:
                    self.watch(client, seconds, now)
        self._next = current + 1
        return due


class SessionTimers:
    """Expiry and wills of sessions whose client is away. An entry that no longer holds is skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Session]] = []
        self._order = itertools.count()

    def schedule(self, session: Session) -> None:
        """Wake the session at the earlier of its times."""
        times = [when for when in (session.will_at, session.expires_at) if when]
        if times:
            heapq.heappush(self._heap, (min(times), next(self._order), session))

    def due(self, now: float, act: Callable[[Session], None]) -> None:
        """Call ``act`` for every session with a time that has passed."""
        while self._heap and self._heap[0][0] <= now:
            session = heapq.heappop(self._heap)[2]
            if session.client is None and (session.will_at or session.expires_at):
                act(session)
                if session.expires_at and session.expires_at > now and not session.will_at:
                    self.schedule(session)
