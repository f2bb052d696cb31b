"""Sessions that leave this node, because their clients have connected to another one.

The home of the client id answers the other node's home. Messages between the two, all with the
number of the attempt:

    want      a session, for a principal; with clean start, only its end
    found     the outcome, the subscriptions of a persistent session, and the nodes that may send
              messages for it, with which the new node has to be connected as well
    ready     the new node gets all messages of these subscriptions from now on
    part      messages of the session
    seen      QoS 2 messages that the session has received
    state     the rest of it: it is complete
    moved     the new node owns the id, and has everything on its disk
    stay      the attempt has failed

From ``found`` on the session is frozen: its client is disconnected, and claims of the id wait; the
messages that still come are kept as for any absent client. Before the state is sent, a barrier makes
sure that all messages have come that the new node does not get. The session goes on here if there is
no ``moved`` in time, but only once the id's key in etcd was put anew, after which the other node
cannot become its owner; if it has become that, the session is deleted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fluxmq.ipc.owner_messages import FoundOwner
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.durable.session_journal import SessionJournal
from fluxmq.shards.home_relay import HomeHandler, HomeRelay
from fluxmq.shards.node_transfer import state_of, unanswered_of
from fluxmq.shards.owned_ids import OwnedIds
from fluxmq.shards.peers import Peers
from fluxmq.shards.session_ownership import FOREIGN, SessionOwnership
from fluxmq.shards.session_table import SessionTable
from fluxmq.shards.transfer import subscriptions_of

STEP_SECONDS = 5.0
"""Time between two messages of the other node; then the session goes on here."""
RETRY_SECONDS = 0.5
"""Pause after etcd could not be asked."""
PART_BYTES = 1 << 20
"""Size above which a part is sent."""

FOUND_SESSION = "session"
FOUND_NONE = "none"
FOUND_FOREIGN = "foreign"
FOUND_BUSY = "busy"
"""Outcomes: the other node asks again."""


class _Departure:
    """A session, or None, that another node has asked for."""

    def __init__(
        self, node: str, number: int, session: Session | None, clean: bool, until: float
    ) -> None:
        self.node = node
        self.number = number
        self.session = session
        self.clean = clean
        self.until = until
        self.staying = False
        self.nodes: Sequence[str] = ()
        """The nodes that may send messages for it."""

    @property
    def whole(self) -> bool:
        """True if the session moves with its state."""
        session = self.session
        return session is not None and not self.clean and session.delivery.durable is not None


class SessionDepartures:
    """The leaving sessions whose home this shard is."""

    def __init__(
        self,
        ids: OwnedIds,
        relay: HomeRelay,
        ownership: SessionOwnership,
        sessions: SessionTable,
        peers: Peers,
        handler: MqttConnectionHandler,
        now: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """``wake`` schedules a tick, after work outside of one."""
        self._ids = ids
        self._relay = relay
        self._ownership = ownership
        self._sessions = sessions
        self._peers = peers
        self._handler = handler
        self._now = now
        self._wake = wake
        self._leaving: dict[str, _Departure] = {}
        self.count = 0
        """Number of ids that have moved to other nodes."""
        self._asked: list[tuple[float, set[_Departure], Callable[[bool], None]]] = []
        """Callers of `when_settled`, and the departures that each waits for."""

    def receivers(self) -> dict[str, HomeHandler]:
        """Return the handlers of other nodes' messages by name."""
        return {
            "want": self._on_want,
            "ready": self._on_ready,
            "moved": self._on_moved,
            "stay": self._on_stay,
        }

    # Leaving

    def _on_want(self, node: str, client_id: str, number: int, clean: bool, principal: str) -> None:
        leaving = self._leaving.get(client_id)
        if self._ids.is_doubtful(client_id):
            self._busy(node, client_id, number)
        elif leaving is None:
            here = partial(self._here, node, client_id, number, clean)
            if not self._ownership.bring_home(client_id, principal, here):
                self._busy(node, client_id, number)
        elif leaving.node == node and not leaving.staying:
            # Its former attempt has failed, and it has not told us, or begun again at once.
            if leaving.session is not None:
                self._sessions.thaw(leaving.session)
            self._begin(client_id, _Departure(node, number, leaving.session, clean, 0.0))
        else:
            self._busy(node, client_id, number)

    def _busy(self, node: str, client_id: str, number: int) -> None:
        self._relay.send(node, client_id, "found", number, FOUND_BUSY, [], [])

    def _here(
        self, node: str, client_id: str, number: int, clean: bool, found: Any, imported: bool
    ) -> None:
        if found == FOREIGN:
            self._relay.send(node, client_id, "found", number, FOUND_FOREIGN, [], [])
            return
        session = self._sessions.move_in(found) if imported else found
        self._begin(client_id, _Departure(node, number, session, clean, 0.0))

    def _begin(self, client_id: str, departure: _Departure) -> None:
        departure.until = self._now() + STEP_SECONDS
        self._leaving[client_id] = departure
        session, subscriptions = departure.session, []
        if session is not None:
            self._sessions.freeze(session)
        if departure.whole and session is not None:
            subscriptions = subscriptions_of(session)
        outcome = FOUND_SESSION if departure.whole else FOUND_NONE
        departure.nodes = self._peers.nodes.connected
        nodes = [each for each in departure.nodes if each != departure.node]
        self._relay.send(
            *(departure.node, client_id, "found", departure.number, outcome, subscriptions, nodes)
        )
        self._wake()

    def _of(self, node: str, client_id: str, number: int) -> _Departure | None:
        departure = self._leaving.get(client_id)
        if departure is None or (departure.node, departure.number) != (node, number):
            return None
        return None if departure.staying else departure

    def _on_ready(self, node: str, client_id: str, number: int) -> None:
        departure = self._of(node, client_id, number)
        session = None if departure is None else departure.session
        if departure is None or session is None:
            self._busy(node, client_id, number)
            return
        departure.until = self._now() + STEP_SECONDS
        # Messages of shared groups go to the new node's member, or to others, from now on.
        self._sessions.leave_groups(session)
        passed = partial(self._flushed, client_id, departure)
        self._peers.flush_all([node], passed, allowed=departure.nodes)

    def _flushed(self, client_id: str, departure: _Departure, passed: bool) -> None:
        session = departure.session
        if self._leaving.get(client_id) is not departure or session is None:
            return
        if not passed or self._sessions.by_id.get(client_id) is not session:
            self._refuse(client_id, departure)
            return
        self._sessions.durable.when_gone(
            client_id, partial(self._send_state, client_id, departure, session)
        )

    def _refuse(self, client_id: str, departure: _Departure) -> None:
        self._busy(departure.node, client_id, departure.number)
        self._stay(client_id, departure)

    def _send_state(self, client_id: str, departure: _Departure, session: Session) -> None:
        """Send a session that is on disk, with all messages that the new node does not get."""
        if self._leaving.get(client_id) is not departure or departure.staying:
            return
        if self._sessions.by_id.get(client_id) is not session:  # an administrator has ended it
            self._refuse(client_id, departure)
            return
        node, number, now = departure.node, departure.number, self._now()
        part: list[list[Any]] = []
        size = 0
        for values in unanswered_of(session, now):
            part.append(values)
            size += len(values[0])
            if size > PART_BYTES:
                self._relay.send(node, client_id, "part", number, part)
                part, size = [], 0
        self._relay.send(node, client_id, "part", number, part)
        journal: SessionJournal = session.delivery.durable
        self._relay.send(node, client_id, "seen", number, journal.seen.all())
        self._relay.send(node, client_id, "state", number, state_of(session, now))
        departure.until = now + STEP_SECONDS
        self._wake()

    # Gone, or here again

    def _on_moved(self, node: str, client_id: str, number: int) -> None:
        departure = self._leaving.get(client_id)
        if departure is not None and (departure.node, departure.number) == (node, number):
            self._end(client_id, departure)

    def _end(self, client_id: str, departure: _Departure) -> None:
        """Delete a session whose id another node owns."""
        del self._leaving[client_id]
        self.count += 1
        self._ids.forget(client_id)
        session = departure.session
        if session is not None and self._sessions.by_id.get(client_id) is session:
            if departure.clean:
                self._handler.finish(session)
            else:
                self._sessions.discard(session)
                self._sessions.durable.note_departure()
        self._ownership.go_on(client_id)
        self._wake()

    def _on_stay(self, node: str, client_id: str, number: int) -> None:
        departure = self._of(node, client_id, number)
        if departure is not None:
            self._stay(client_id, departure)

    def _stay(self, client_id: str, departure: _Departure) -> None:
        """Keep the session, if etcd lets this node."""
        departure.staying = True
        departure.until = float("inf")
        self._claim(client_id, departure, self._ids.fence(client_id))

    def _claim(self, client_id: str, departure: _Departure, fence: int) -> None:
        self._ids.claim(client_id, fence, partial(self._claimed, client_id, departure))

    def _claimed(self, client_id: str, departure: _Departure, owner: FoundOwner | None) -> None:
        if self._leaving.get(client_id) is not departure:
            return
        if owner is None:
            departure.until = self._now() + RETRY_SECONDS
        elif owner.ours:
            del self._leaving[client_id]
            if departure.session is not None:
                self._sessions.thaw(departure.session)
            self._ownership.go_on(client_id)
            self._ids.release(client_id)
            self._wake()
        elif self._ids.is_own(owner):
            self._claim(client_id, departure, owner.revision)
        else:
            self._end(client_id, departure)

    @property
    def under_way(self) -> bool:
        """True while there is a session that leaves, or somebody who waits for that."""
        return bool(self._leaving or self._asked)

    def housekeeping(self) -> None:
        """Keep what was not moved in time; called by the shard's timer."""
        now = self._now()
        for client_id, departure in list(self._leaving.items()):
            if departure.until <= now:
                self._stay(client_id, departure)
        asked, self._asked = self._asked, []
        for since, leaving, done in asked:
            self._when_settled(since, leaving, done)

    # For other nodes that are met again

    def when_settled(self, since: float, done: Callable[[bool], None]) -> None:
        """Call ``done`` as `session_ownership.NodeIds` has it."""
        self._when_settled(since, {*self._leaving.values()}, done)

    def _when_settled(
        self, since: float, leaving: set[_Departure], done: Callable[[bool], None]
    ) -> None:
        if self._ids.all_settled and leaving.isdisjoint(self._leaving.values()):
            done(self._sessions.durable.last_departure >= since)
            self._wake()
        else:
            self._asked.append((since, leaving, done))
