"""Timeouts of many connections and sessions at little cost.

A wheel of buckets finds silent connections: one is checked when its bucket comes up, and moves to a
later bucket if it was active meanwhile, so that receiving costs nothing. Expiries and wills of
sessions are few and exact to the tick: a heap. Both drop ended items: keep-alives and expiries last
up to days, and connections come and go all the time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from fluxmq.net.reactor import PAUSED_OUTPUT
from fluxmq.sessions.mqtt.session import CONNECTED, MqttClient

Item = TypeVar("Item", bound=Hashable)

HELD = ~PAUSED_OUTPUT
"""Reasons for pausing a connection that are not the client's doing: all but its not reading
answers."""
LONG_SECONDS = 15.0
"""Timeouts from which on a client is looked at in every fourth bucket only, so that many idle
clients do not wake the shard for each of them."""
BUCKETS_OF_LONG = 4
SLACK = 64
"""Stale heap entries tolerated beyond the number of valid ones."""


class SilenceWheel:
    """Finds connections from which nothing was received for too long.

    ``resolution`` is the width of a bucket in seconds: a timeout fires at most that much late, a
    long one (`LONG_SECONDS`) four times as much. A client is in at most one bucket.
    """

    def __init__(self, resolution: float = 0.25) -> None:
        self._resolution = resolution
        self._buckets: dict[int, dict[MqttClient, tuple[float, float]]] = {}
        self._places: dict[MqttClient, int] = {}
        self._next = -1

    def __len__(self) -> int:
        return len(self._places)

    def watch(self, client: MqttClient, seconds: float, now: float) -> None:
        """Check ``client`` when it may have been silent for ``seconds``; replaces any earlier
        watch."""
        self._enter(client, seconds, 0.0, client.connection.active + seconds, now)

    def watch_connect(self, client: MqttClient, seconds: float, now: float) -> None:
        """Check in ``seconds`` that ``client`` is connected, however much it has sent."""
        self._enter(client, 0.0, now + seconds, now + seconds, now)

    @property
    def next_due(self) -> float:
        """Moment at which the first client is due; infinite without any."""
        return min(self._buckets, default=math.inf) * self._resolution

    def forget(self, client: MqttClient) -> None:
        """Stop watching a client whose connection has ended."""
        place = self._places.pop(client, None)
        if place is None:
            return
        bucket = self._buckets[place]
        del bucket[client]
        if not bucket:
            del self._buckets[place]

    def _enter(
        self, client: MqttClient, seconds: float, deadline: float, due: float, now: float
    ) -> None:
        self.forget(client)
        if self._next < 0:
            self._next = int(now / self._resolution)
        place = int(max(due, now) / self._resolution) + 1
        if seconds >= LONG_SECONDS:
            place += -place % BUCKETS_OF_LONG
        self._places[client] = place
        self._buckets.setdefault(place, {})[client] = (seconds, deadline)

    def expired(self, now: float) -> list[MqttClient]:
        """Return the clients whose time is up, and keep watching the others."""
        current = int(now / self._resolution)
        if self._next < 0:
            self._next = current
        due: list[MqttClient] = []
        for place in range(self._next, current + 1):
            for client, (seconds, deadline) in self._buckets.pop(place, {}).items():
                del self._places[client]
                if deadline:
                    if client.stage is not CONNECTED:
                        due.append(client)
                    continue
                if client.connection.paused & HELD:
                    client.connection.active = now  # it may have been active: we are not reading
                if client.connection.active + seconds <= now:
                    due.append(client)
                else:
                    self.watch(client, seconds, now)
        self._next = current + 1
        return due


class DueTimes(Generic[Item]):
    """Times at which to look at items. Stale entries are skipped, and all dropped now and then."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._due: dict[Item, float] = {}
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def next_due(self) -> float:
        """Moment at which the first item is due; infinite without any."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def set(self, item: Item, when: float) -> None:
        """Look at ``item`` then, and at no other time."""
        if self._due.get(item) == when:
            return
        self._due[item] = when
        heapq.heappush(self._heap, (when, next(self._order), item))
        if len(self._heap) > 2 * len(self._due) + SLACK:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def set_earliest(self, item: Item, *times: float) -> None:
        """Look at ``item`` at the earliest of these times, of which 0 is never."""
        given = [when for when in times if when]
        if given:
            self.set(item, min(given))
        else:
            self.cancel(item)

    def cancel(self, item: Item) -> None:
        """Cancel the look at ``item``."""
        self._due.pop(item, None)

    def due(self, now: float, act: Callable[[Item], None]) -> None:
        """Call ``act`` for every item that is due; it sets the next time."""
        while self._heap and self._heap[0][0] <= now:
            when, _, item = heapq.heappop(self._heap)
            if self._due.get(item) == when:
                del self._due[item]
                act(item)
