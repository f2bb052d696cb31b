"""Messages of QoS 2 that a session has received, here and at other nodes."""

from __future__ import annotations

from itertools import islice

from fluxmq.protocols.mqtt.run import PublishRun

ORIGINS_MAX = 1024
"""Lives of shards whose messages a session remembers to have received: of a cluster of hundreds, and
of their former lives while it is connected to one node."""


class SeenMessages:
    """Messages of QoS 2 that a session has received, as the number after the last one by origin.

    ``here``: at this node. ``elsewhere``: at others. A node that was away from this one keeps messages
    for sessions that it knew to be here, and sends them when it is back, although they may have had
    them elsewhere.
    """

    def __init__(self) -> None:
        self.elsewhere: dict[int, int] = {}
        self.here: dict[int, int] = {}

    def note(self, run: PublishRun) -> None:
        """Note that a run has come."""
        if run.identity is not None:
            origin, first = run.identity
            self.here[origin] = max(self.here.get(origin, 0), first + run.count)
            if len(self.here) > ORIGINS_MAX:
                del self.here[next(iter(self.here))]

    def rest_of(self, run: PublishRun) -> PublishRun | None:
        """Return the messages of a run that have not been received elsewhere; None if all have."""
        if run.identity is None or not self.elsewhere:
            return run
        origin, first = run.identity
        count = min(self.elsewhere.get(origin, 0) - first, run.count)
        if count <= 0:
            return run
        if count == run.count:
            return None
        rest = run.part(run.skip(run.start, count), run.end, run.count - count)
        rest.identity = origin, first + count
        return rest

    def all(self) -> list[list[int]]:
        """Return what another place of the session should know: origins and numbers."""
        every = self.elsewhere | {
            origin: max(number, self.elsewhere.get(origin, 0))
            for origin, number in self.here.items()
        }
        return [[*each] for each in islice(every.items(), max(len(every) - ORIGINS_MAX, 0), None)]
