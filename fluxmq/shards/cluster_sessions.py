"""The sessions of a shard as part of a cluster with etcd: a client id is on one node at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxmq.ipc.conversation import RequestHandler
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.metrics.registry import Sample
from fluxmq.net.reactor import Reactor
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.sessions.mqtt.outcomes import Cause
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.shards.home_relay import HomeRelay
from fluxmq.shards.owned_ids import OwnedIds
from fluxmq.shards.peers import Peers
from fluxmq.shards.session_arrivals import SessionArrivals
from fluxmq.shards.session_departures import SessionDepartures
from fluxmq.shards.session_ownership import SessionOwnership
from fluxmq.shards.session_table import SessionTable


class ClusterSessions:
    """Owns ids for the node, and moves sessions between nodes. Implements ``NodeIds``."""

    def __init__(
        self,
        cluster: ClusterSettings,
        relay: HomeRelay,
        ownership: SessionOwnership,
        sessions: SessionTable,
        peers: Peers,
        handler: MqttConnectionHandler,
        reactor: Reactor,
    ) -> None:
        self._drops = cluster.lease_loss == "drop"
        self._ownership = ownership
        self._sessions = sessions
        self._handler = handler
        self._begun = False
        now, wake = sessions.durable.clock.now, reactor.host.schedule
        self.owned = OwnedIds(cluster.node_id, self, now, wake)
        self.departures = SessionDepartures(
            self.owned, relay, ownership, sessions, peers, handler, now, wake
        )
        self.arrivals = SessionArrivals(
            self.owned, relay, sessions, peers.flush_all, now, wake, self.taken
        )
        relay.home = ownership.home
        relay.receivers = {**self.departures.receivers(), **self.arrivals.receivers()}
        ownership.ids = self

    # Of the home

    def has(self, client_id: str) -> bool:
        """Return whether this node owns an id."""
        return self.owned.has(client_id)

    def obtain(
        self, client_id: str, clean: bool, principal: str | None, done: Callable[[str], None]
    ) -> None:
        """Make this node the owner of an id, and fetch its session."""
        self.arrivals.obtain(client_id, clean, principal, done)

    def release(self, client_id: str) -> None:
        """Note that an id may be in use no longer."""
        self.owned.release(client_id)

    def when_settled(self, since: float, done: Callable[[bool], None]) -> None:
        """Call ``done`` with whether sessions have left since a moment, once that is known."""
        self.departures.when_settled(since, done)

    # Control

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages."""
        return self.owned.commands

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self.owned.connect(control)

    def established(self) -> None:
        """Claim everything anew: control is connected (again)."""
        self.owned.established()

    @property
    def next_due(self) -> float:
        """Moment at which something becomes due, in monotonic seconds; 0.0 while there is work
        for every turn of the timer."""
        if not self._begun or self.departures.under_way or self.arrivals.under_way:
            return 0.0
        return self.owned.next_due

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        if not self._begun and not self._ownership.waiting:
            # Sessions were restored: they may be on another node by now.
            self._begun = True
            self.owned.begin(self._ownership.ids_here())
        self.owned.housekeeping()
        self.departures.housekeeping()
        self.arrivals.housekeeping()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_cluster_sessions_arrived_total", {}, self.arrivals.count
        yield "fluxmq_cluster_client_ids_left_total", {}, self.departures.count

    # Of the ids

    def in_use(self, client_id: str) -> bool:
        """Return whether an id is claimed, or has a session on this node."""
        return self._ownership.in_use(client_id)

    def settled(self, client_id: str) -> None:
        """Answer publishers: a session that was restored is still this node's."""
        self._sessions.durable.settle(self._sessions.by_id.get(client_id))

    def taken(self, client_id: str) -> None:
        """Delete a session that another node has."""
        if self._ownership.is_owned(client_id):
            self._ownership.drop(client_id)
            self._sessions.durable.note_departure()

    def lost(self) -> None:
        """Let no client be connected that another node may have by now; claim its id again."""
        if self._drops:
            for session in list(self._sessions.by_id.values()):
                if session.client is not None:
                    self._handler.disconnect(session.client, Cause.LEASE_LOST)
        self.owned.renew(self._ownership.ids_here())
