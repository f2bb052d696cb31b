"""Client ids that this node becomes the owner of, and the sessions that come with them.

The home of an id claims it in etcd. If another node owns it, that node's home is asked for the
session, as `fluxmq.shards.session_departures` has it. Only when the whole session is on this node's
disk is the id claimed, on the condition that its key has not changed since: this is the moment when
the session changes hands. A node that does not answer is asked again until its lease has ended; then
there is no session.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from fluxmq.ipc.owner_messages import FoundOwner
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.barriers import PassedCallback
from fluxmq.shards.durable.session_journal import SessionJournal
from fluxmq.shards.home_relay import HomeHandler, HomeRelay
from fluxmq.shards.node_transfer import session_of
from fluxmq.shards.owned_ids import OwnedIds
from fluxmq.shards.session_departures import FOUND_FOREIGN, FOUND_NONE, FOUND_SESSION
from fluxmq.shards.session_ownership import FOREIGN, UNAVAILABLE
from fluxmq.shards.session_table import SessionTable

PATIENCE_SECONDS = 9.0
"""Time for which a client waits: shorter than a listener lets it wait for CONNACK by default. The lease
of a node that has ended lasts a second longer at most: then the client's next attempt succeeds."""
ANSWER_SECONDS = 3.0
"""Time for the other node to take a step."""
RETRY_SECONDS = 0.1
"""Pause before another attempt."""
PROBES_MAX = 20
"""Attempts in a tenth of a second for clients of nodes that cannot be reached: of a node that has
ended with many clients, all of them wait for the same moment, and every attempt is a read of etcd."""
ENDED_SECONDS = 0.5
"""Pause between two attempts for all clients of a node whose leases end: it has several of them."""


class _Stage(Enum):
    """State of an attempt: waiting for etcd, for the other node, or to begin again; or only for
    etcd, since everything is here."""

    CLAIMING = "claiming"
    ASKING = "asking"
    PAUSING = "pausing"
    COMMITTING = "committing"


class _Arrival:
    """An id that is being obtained."""

    def __init__(
        self,
        client_id: str,
        clean: bool,
        principal: str | None,
        done: Callable[[str], None],
        deadline: float,
    ) -> None:
        self.client_id = client_id
        self.clean = clean
        self.principal = principal
        self.done = done
        self.deadline = deadline
        self.stage = _Stage.CLAIMING
        self.until = 0.0
        """Monotonic time at which the stage times out."""
        self.node = ""
        self.number = 0
        """The attempt's, as the other node knows it."""
        self.fence = 0
        self.waits_for = ""
        """The node that could not be reached at the last attempt."""
        self.others: list[str] = []
        """Other nodes that may send messages for the session."""
        self.messages: list[list[Any]] = []
        self.seen: list[list[int]] = []
        self.session: Session | None = None


class SessionArrivals:
    """The arriving sessions whose home this shard is."""

    def __init__(
        self,
        ids: OwnedIds,
        relay: HomeRelay,
        sessions: SessionTable,
        flush: Callable[[Sequence[str], PassedCallback], None],
        now: Callable[[], float],
        wake: Callable[[], None],
        stale: Callable[[str], None],
    ) -> None:
        """``flush`` begins a barrier of all shards and nodes, of which some are required; ``wake`` schedules a tick, after work outside of one; ``stale`` deletes a session that is
        here, of an id that another node owns."""
        self._ids = ids
        self._relay = relay
        self._sessions = sessions
        self._flush = flush
        self._now = now
        self._wake = wake
        self._stale = stale
        self._arriving: dict[str, _Arrival] = {}
        self._numbers = itertools.count(1)
        self._ended: dict[str, float] = {}
        """Nodes that cannot be reached and whose keys vanish, and the moment of the next attempt for
        all of their clients."""
        self.count = 0
        """Number of sessions that have come from other nodes."""

    def receivers(self) -> dict[str, HomeHandler]:
        """Return the handlers of other nodes' messages by name."""
        return {
            "found": self._on_found,
            "part": self._on_part,
            "seen": self._on_seen,
            "state": self._on_state,
        }

    def obtain(
        self, client_id: str, clean: bool, principal: str | None, done: Callable[[str], None]
    ) -> None:
        """Make this node the owner of an id; see `session_ownership.NodeIds`."""
        deadline = self._now() + PATIENCE_SECONDS
        arrival = _Arrival(client_id, clean, principal, done, deadline)
        self._arriving[client_id] = arrival
        self._claim(arrival, 0)

    def _is_current(self, arrival: _Arrival) -> bool:
        return self._arriving.get(arrival.client_id) is arrival

    def _finish(self, arrival: _Arrival, refusal: str) -> None:
        del self._arriving[arrival.client_id]
        arrival.done(refusal)
        self._wake()

    # Of etcd

    def _claim(self, arrival: _Arrival, fence: int) -> None:
        arrival.fence = fence
        # A client that keeps a session has probably come from another node.
        look = not (arrival.clean or fence)
        self._ids.claim(arrival.client_id, fence, partial(self._claimed, arrival), look=look)

    def _claimed(self, arrival: _Arrival, owner: FoundOwner | None) -> None:
        if not self._is_current(arrival):
            return
        if arrival.waits_for and owner is not None:
            if owner.ours or not owner.node:
                self._ended.setdefault(arrival.waits_for, 0.0)
            arrival.waits_for = ""
        if owner is None:
            self._pause(arrival)
        elif owner.ours:
            self._own(arrival)
        elif self._ids.is_own(owner):
            self._claim(arrival, owner.revision)
        else:
            self._drop(arrival)
            self._stale(arrival.client_id)
            self._ask(arrival, owner)

    def _pause(self, arrival: _Arrival) -> None:
        """Begin again soon; if everything is here, only claim again."""
        if arrival.stage is not _Stage.COMMITTING:
            arrival.stage = _Stage.PAUSING
        arrival.until = self._now() + RETRY_SECONDS

    def _own(self, arrival: _Arrival) -> None:
        session = arrival.session
        if arrival.number:
            self._relay.send(arrival.node, arrival.client_id, "moved", arrival.number)
        if session is not None:
            self.count += 1
            self._sessions.schedule(session)
        self._finish(arrival, "")

    # Of the other node

    def _ask(self, arrival: _Arrival, owner: FoundOwner) -> None:
        arrival.node, arrival.fence = owner.node, owner.revision
        arrival.number = next(self._numbers)
        arrival.stage = _Stage.ASKING
        arrival.until = self._now() + ANSWER_SECONDS
        request = arrival.number, arrival.clean, arrival.principal
        if not self._relay.send(arrival.node, arrival.client_id, "want", *request):
            arrival.waits_for = arrival.node
            self._pause(arrival)

    def _of(self, node: str, client_id: str, number: int) -> _Arrival | None:
        """Return the arrival that another node's message is about; None if the attempt is over."""
        arrival = self._arriving.get(client_id)
        if (
            arrival is None
            or arrival.stage is not _Stage.ASKING
            or (arrival.node, arrival.number) != (node, number)
        ):
            return None
        arrival.until = self._now() + ANSWER_SECONDS
        return arrival

    def _on_found(
        self,
        node: str,
        client_id: str,
        number: int,
        outcome: str,
        subscriptions: list[list[Any]],
        others: list[str],
    ) -> None:
        arrival = self._of(node, client_id, number)
        if arrival is None:
            self._relay.send(node, client_id, "stay", number)
        elif outcome == FOUND_SESSION:
            arrival.others = others
            self._expect(arrival, subscriptions)
        elif outcome == FOUND_NONE:
            self._commit(arrival)
        elif outcome == FOUND_FOREIGN:
            self._finish(arrival, FOREIGN)
        else:
            self._drop(arrival)
            self._pause(arrival)

    def _expect(self, arrival: _Arrival, subscriptions: list[list[Any]]) -> None:
        """Have the session's messages sent here as well, from now on."""
        client_id = arrival.client_id
        if self._sessions.refuses_to_keep(client_id):
            self._give_up(arrival)
            return
        arrival.messages, arrival.seen = [], []
        ready = partial(self._ready, arrival, arrival.number)
        flush = partial(self._flush, arrival.others)
        self._sessions.expected.expect(client_id, subscriptions, flush, ready)
        self._wake()

    def _ready(self, arrival: _Arrival, number: int, passed: bool) -> None:
        if not self._is_current(arrival) or arrival.number != number:
            return
        if not passed:
            arrival.until = self._now()
        else:
            self._relay.send(arrival.node, arrival.client_id, "ready", number)

    def _on_part(self, node: str, client_id: str, number: int, messages: list[list[Any]]) -> None:
        arrival = self._of(node, client_id, number)
        if arrival is not None:
            arrival.messages.extend(messages)

    def _on_seen(self, node: str, client_id: str, number: int, seen: list[list[int]]) -> None:
        arrival = self._of(node, client_id, number)
        if arrival is not None:
            arrival.seen = seen

    def _on_state(self, node: str, client_id: str, number: int, state: list[Any]) -> None:
        arrival = self._of(node, client_id, number)
        if arrival is not None:
            self._flush(arrival.others, partial(self._arrived, arrival, number, state))

    def _arrived(self, arrival: _Arrival, number: int, state: list[Any], passed: bool) -> None:
        """Continue a session whose messages have all come, from its former node or to this one."""
        if not self._is_current(arrival) or arrival.number != number:
            return
        if not passed:
            arrival.until = self._now()
            return
        client_id = arrival.client_id
        durable = self._sessions.durable
        session = session_of(
            *(client_id, state, arrival.messages, self._sessions.new_delivery()),
            self._sessions.subscriptions.groups,
            durable.keep,
            self._now(),
        )
        arrival.session = session
        journal: SessionJournal = session.delivery.durable
        journal.seen_elsewhere(arrival.seen)
        self._sessions.enter(session)
        self._sessions.expected.came(session, (values[-2] for values in arrival.messages))
        arrival.stage = _Stage.COMMITTING
        arrival.until = float("inf")
        session.delivery.durable.home.when_safe(partial(self._safe, arrival))
        durable.commit_waiter.wake()

    def _safe(self, arrival: _Arrival, reason: int) -> None:
        if not self._is_current(arrival):
            return
        if reason:
            self._give_up(arrival)
        else:
            self._commit(arrival)

    def _commit(self, arrival: _Arrival) -> None:
        arrival.stage = _Stage.COMMITTING
        arrival.until = float("inf")
        self._claim(arrival, arrival.fence)

    # Failure

    def _drop(self, arrival: _Arrival) -> None:
        """Drop what has come of the session: it is at another node."""
        self._sessions.expected.drop(arrival.client_id)
        arrival.messages = []
        session, arrival.session = arrival.session, None
        if session is not None:
            self._sessions.discard(session)
        arrival.number = 0

    def _give_up(self, arrival: _Arrival) -> None:
        """Refuse the client."""
        if arrival.number:
            self._relay.send(arrival.node, arrival.client_id, "stay", arrival.number)
        self._drop(arrival)
        self._finish(arrival, UNAVAILABLE)

    @property
    def under_way(self) -> bool:
        """True while there is a session that arrives."""
        return bool(self._arriving)

    def housekeeping(self) -> None:
        """Begin attempts again; called by the shard's timer."""
        now = self._now()
        overdue: dict[str, list[_Arrival]] = {}
        waited: set[str] = set()
        for arrival in list(self._arriving.values()):
            waited.add(arrival.waits_for)
            if arrival.stage is _Stage.COMMITTING:
                if arrival.until <= now:
                    self._commit(arrival)
            elif arrival.stage is _Stage.CLAIMING:
                if arrival.deadline <= now and self._ids.withdraw(arrival.client_id):
                    self._give_up(arrival)
            elif arrival.deadline <= now:
                self._give_up(arrival)
            elif arrival.until <= now:
                overdue.setdefault(arrival.waits_for, []).append(arrival)
        for node in self._ended.keys() - waited:
            del self._ended[node]
        self._go_on(overdue, now)

    def _go_on(self, overdue: dict[str, list[_Arrival]], now: float) -> None:
        """Begin attempts again, by the node that could not be reached: of its clients a few, until
        its keys vanish."""
        for node, arrivals in overdue.items():
            if not node:
                count = len(arrivals)
            elif self._ended.get(node, now + 1.0) <= now:
                count = len(arrivals)
                self._ended[node] = now + ENDED_SECONDS
            else:
                count = PROBES_MAX
            for arrival in arrivals[:count]:
                self._begin_again(arrival)

    def _begin_again(self, arrival: _Arrival) -> None:
        if arrival.stage is _Stage.ASKING:
            self._relay.send(arrival.node, arrival.client_id, "stay", arrival.number)
        self._drop(arrival)
        arrival.stage = _Stage.CLAIMING
        self._claim(arrival, 0)
