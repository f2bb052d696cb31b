"""Exchange between shards: liveness, interest and messages.

A starting shard sends ``hello`` with its own number (its epoch) to every peer. The peer drops its
state of the sender's former life, answers ``welcome`` with that epoch and then announces its own
interest; until that welcome the starting shard ignores frames, which may be meant for its
predecessor. Changes of interest carry an increasing number that the peer confirms (``known``), so
that a SUBACK can wait until every shard routes to the new subscription. Retained messages are
fetched from one peer that has them all, or from all peers if none has.

A dead peer is noticed by the process table when a link to it fills up or an answer is outstanding,
and at the latest by its successor's hello; it never holds up the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fluxmq.engine.queue_links import QueueLinks
from fluxmq.logs import get_logger
from fluxmq.net import frames
from fluxmq.net.links import Link, inbox_of
from fluxmq.net.reactor import PAUSED_LINK, Reactor
from fluxmq.shards.barriers import PassedCallback
from fluxmq.shards.confirmations import Confirmations
from fluxmq.shards.durable.links import DurableLinks
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.node_peers import OtherNodes
from fluxmq.shards.retained import RetainedMessages
from fluxmq.shards.routes import RouteTable
from fluxmq.shards.session_ownership import SessionOwnership
from fluxmq.shards.switch import Switch

HELLO_SECONDS = 1.0
"""Time for which a hello outweighs the process table, which may not show the new process yet."""
RETRY_SECONDS = 0.001
"""Interval at which waiting frames are sent again while a link is full."""
OWN = -1
"""Stands for this shard among its peers."""
FILTERS_PER_FRAME = 500
"""Number of filters per frame when a shard announces its whole interest."""

_log = get_logger("fluxmq.peers")


@dataclass(frozen=True, slots=True)
class Subjects:
    """The parts of a shard that it tells other shards about."""

    routes: RouteTable
    groups: GroupTable
    ownership: SessionOwnership
    retained: RetainedMessages
    durable: DurableLinks
    queues: QueueLinks
    nodes: OtherNodes


class Peers:
    """The other shards, as this one sees them."""

    def __init__(
        self,
        switch: Switch,
        epoch: int,
        reactor: Reactor,
        subjects: Subjects,
        alive: Callable[[int], bool],
        owned: Callable[[int], list[str]],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """``alive`` returns whether a peer's process runs, ``owned`` the client ids with a session
        here whose home is a peer."""
        self.links = switch.links
        self._epoch = epoch
        self._reactor = reactor
        self._routes = subjects.routes
        self._groups = subjects.groups
        self.ownership = subjects.ownership
        self._retained = subjects.retained
        self._durable = subjects.durable
        self._queues = subjects.queues
        self.nodes = subjects.nodes
        self._alive = alive
        self._owned = owned
        self._later = call_later
        self._confirmations = Confirmations()
        self._epochs: dict[int, int] = {}
        self._heard: dict[int, float] = {}
        """Times of hellos from peers that the process table has not shown alive since."""
        self._untold: set[int] = set()
        """Peers that have not announced their interest since this shard started."""
        self._complete: set[int] = set()
        """Peers that have all retained messages."""
        self._sources: set[int] = set()
        """Peers that are sending us their retained messages."""
        self.complete = False
        self._blocked: set[Link] = set()
        self._retrying = False
        self.numbers: dict[int, dict[str, int]] = {}
        """Latest numbers for ``$SYS`` topics by peer."""
        self._register(switch)

    def _register(self, switch: Switch) -> None:
        ownership, durable, queues = self.ownership, self._durable, self._queues
        switch.on_full(self._full)
        switch.on_control(durable.handlers())
        switch.on_control(queues.handlers())
        switch.on_control(
            {
                "hello": self._on_hello,
                "welcome": self._on_welcome,
                "interest": self._on_interest,
                "known": self._on_known,
                "flush": self._on_flush,
                "flushed": self._on_flushed,
                "left?": self._on_settle,
                "synchronised": self._on_synchronised,
                "retained?": self._on_retained_wanted,
                "retained": self._on_retained_sent,
                "numbers": self._on_numbers,
                **ownership.handlers(),
            }
        )
        switch.on_frame(self._on_run, frames.RUN)
        switch.on_frame(self._on_shared, frames.SHARED)
        switch.on_frame(self._on_retained, frames.RETAINED)
        switch.on_frame(self._on_kept, frames.KEPT)
        switch.on_frame(self._on_dealt, frames.DEALT)
        switch.on_frame(
            queues.received,
            *(frames.APPEND, frames.APPEND_BY_ADDRESS, frames.DELIVER, frames.REFER),
        )

    def start(self) -> None:
        """Send hello to every peer."""
        self._reactor.inbox = inbox_of(list(self.links.values()))
        self._untold = set(self.links)
        for link in self.links.values():
            link.send_control("hello", self._epoch)

    @property
    def synchronised(self) -> bool:
        """True once this shard knows every live peer's interest, and all retained messages."""
        return self.complete and self._told_all()

    @property
    def met_all(self) -> bool:
        """True once every peer has announced its interest since this shard started."""
        return not self._untold

    def _told_all(self) -> bool:
        return not any(self._alive(peer) for peer in self._untold)

    def _progress(self) -> None:
        """Continue the start as far as peers allow."""
        if self.ownership.waiting and self._told_all() and self.ownership.open():
            self.tell()  # announce the interest of restored sessions
            self._durable.restored()
        if self.complete or self._sources:
            return
        if self._complete:
            self._sources.add(min(self._complete))
        elif self._told_all():
            # No peer has everything (the node starts): together the peers have it.
            self._sources.update(peer for peer, link in self.links.items() if link.up)
            self.complete = not self._sources
        for peer in self._sources:
            self.links[peer].send_control("retained?")

    # Interest

    def when_known(self, done: Callable[[], None]) -> None:
        """Call ``done`` when all shards, and all connected nodes, know the interest noted so
        far."""
        self.tell()
        self._confirmations.when_known(lambda: self.nodes.when_known(done))

    def flush_shards(self, done: PassedCallback) -> None:
        """Call ``done`` when all messages that the node's other shards have sent to this one have
        arrived; with False if one of them has died meanwhile."""
        self.tell()
        up = [link for link in self.links.values() if link.up]
        number = self._confirmations.barriers.begin((link.peer for link in up), done)
        for link in up:
            link.send_control("flush", number, None)

    def flush_all(
        self,
        required: Sequence[str],
        done: PassedCallback,
        *,
        allowed: Sequence[str] | None = None,
    ) -> None:
        """Call ``done`` when all messages that other shards and nodes have sent to this one, and all
        that other nodes have sent for it to other shards of this node, have arrived; with False if a
        shard, or one of the required nodes, is away, or another than the allowed ones is not."""
        self.tell()
        links = list(self.links.values())
        if not all(link.up for link in links):
            done(False)
            return

        def own_passed(passed: bool) -> None:
            self._confirmations.barriers.returned(OWN, number, passed)

        number = self._confirmations.barriers.begin((OWN, *(link.peer for link in links)), done)
        for link in links:
            link.send_control("flush", number, required, allowed)
        self.nodes.flush_all(required, allowed, own_passed)

    def _on_flush(
        self,
        link: Link,
        number: int,
        required: list[str] | None,
        allowed: list[str] | None = None,
    ) -> None:
        epoch = link.epoch

        def passed(whole: bool) -> None:
            if link.up and link.epoch == epoch:
                link.send_control("flushed", number, whole)

        if required is None:
            passed(True)
        else:
            self.nodes.flush_all(required, allowed, passed)

    def _on_flushed(self, link: Link, number: int, passed: bool) -> None:
        self._confirmations.barriers.returned(link.peer, number, passed)

    def settle(self, since: float, done: PassedCallback) -> None:
        """Call ``done`` with whether no session has left this node since a moment, when that is known
        of all that are leaving now; with False if a shard is away."""
        links = list(self.links.values())
        if not all(link.up for link in links):
            done(False)
            return

        def own_settled(left: bool) -> None:
            self._confirmations.barriers.returned(OWN, number, not left)

        number = self._confirmations.barriers.begin((OWN, *(link.peer for link in links)), done)
        for link in links:
            link.send_control("left?", number, since)
        self.ownership.ids.when_settled(since, own_settled)

    def _on_settle(self, link: Link, number: int, since: float) -> None:
        epoch = link.epoch

        def settled(left: bool) -> None:
            self.tell()  # the interest that has ended with the sessions
            if link.up and link.epoch == epoch:
                link.send_control("flushed", number, not left)

        self.ownership.ids.when_settled(since, settled)

    def tell(self) -> None:
        """Announce changes since the last call to the peers, and to other nodes."""
        self.nodes.tell()
        changed, members = self._routes.changed, self._groups.changed
        if not changed and not members:
            return
        begun = [topic_filter for topic_filter, wanted in changed.items() if wanted]
        ceased = [topic_filter for topic_filter, wanted in changed.items() if not wanted]
        counts = [[name, topic, *self._groups.counts(name, topic)] for name, topic in members]
        kept = self._routes.kept(begun)
        self._routes.changed = {}
        self._groups.changed = set()
        up = [link for link in self.links.values() if link.up]
        sequence = self._confirmations.announce(link.peer for link in up)
        for link in up:
            link.send_control("interest", sequence, begun, ceased, counts, kept)

    def _tell_everything(self, link: Link) -> None:
        self._durable.tell_first(link)
        filters = self._routes.local_filters()
        for at in range(0, len(filters), FILTERS_PER_FRAME):
            part = filters[at : at + FILTERS_PER_FRAME]
            link.send_control("interest", 0, part, [], [], self._routes.kept(part))
        members = self._groups.local()
        for at in range(0, len(members), FILTERS_PER_FRAME):
            counts = [
                [name, topic, *self._groups.counts(name, topic)]
                for name, topic in members[at : at + FILTERS_PER_FRAME]
            ]
            link.send_control("interest", 0, [], [], counts, [])
        owned = self._owned(link.peer)
        for at in range(0, len(owned), FILTERS_PER_FRAME):
            link.send_control("owned", owned[at : at + FILTERS_PER_FRAME])
        self._queues.tell_everything(link)
        self._durable.tell_last(link)
        self.ownership.peer_up(link.peer)
        told = frames.encode_control("synchronised", self.complete)
        link.feed(itertools.chain(self._retained.recent(link.peer), (told,)))

    # Frames

    def _on_run(self, _link: Link, frame: bytes) -> None:
        self._deliver(frames.decode_run(frame))

    def _on_shared(self, _link: Link, frame: bytes) -> None:
        self._groups.dealt(*frames.decode_shared(frame))

    def _on_retained(self, link: Link, frame: bytes) -> None:
        stamp, run = frames.decode_retained(frame)
        self._retained.told(link, run, stamp)

    def _on_kept(self, link: Link, frame: bytes) -> None:
        number, source, run = frames.decode_kept(frame)
        self._durable.received(link, number, lambda: self._deliver(run), source)

    def _on_dealt(self, link: Link, frame: bytes) -> None:
        number, name, topic_filter, run = frames.decode_dealt(frame)
        self._durable.dealt(link, number, lambda: self._groups.dealt(name, topic_filter, run))

    def _on_numbers(self, link: Link, report: dict[str, int]) -> None:
        self.numbers[link.peer] = report

    def _deliver(self, run: Any) -> None:
        """Deliver a run published on another shard to this shard's sessions only."""
        reactor = self._reactor
        route = reactor.routes.get(run.topic)
        if route is None:
            route = self._routes.build(run.topic)
            if len(reactor.routes) >= reactor.routes_max:
                reactor.routes.clear()
            if not run.topic.startswith(b"$SYS/"):
                reactor.routes[run.topic] = route
        reactor.deliver(run, route)

    def _on_hello(self, link: Link, epoch: int) -> None:
        """Handle a peer's start."""
        if self._epochs.get(link.peer) not in (None, epoch):
            _log.info("shard %d has restarted", link.peer)
        fresh = link.peer not in self._epochs
        self.tell()  # the peer, too, hears only changes from now on
        self._lose(link)
        self._epochs[link.peer] = link.epoch = epoch
        self._heard[link.peer] = self._reactor.tally.now
        link.up = True
        link.send_control("welcome", epoch, self._epoch)
        self._tell_everything(link)
        if fresh and self.complete:
            # It may have started later than this shard, with messages that only its disk has.
            link.send_control("retained?")
        self._resume(link)

    def _on_welcome(self, link: Link, epoch: int, theirs: int) -> None:
        """Handle a peer's answer to our hello; it announces its interest next."""
        if epoch == self._epoch and not link.up:
            self.tell()
            link.up = True
            link.epoch = theirs
            self._tell_everything(link)

    def _on_interest(
        self,
        link: Link,
        sequence: int,
        begun: list[bytes],
        ceased: list[bytes],
        counts: list[list[Any]],
        kept: list[bytes],
    ) -> None:
        persistent = set(kept)
        for topic_filter in begun:
            self._routes.set_remote(link.peer, topic_filter, True, topic_filter in persistent)
        for topic_filter in ceased:
            self._routes.set_remote(link.peer, topic_filter, False)
        for group in counts:
            self._groups.set_remote(link.peer, *group)
        if sequence:
            # The peer's subscriber is answered when the nodes that this shard tells know as well.
            epoch = link.epoch
            self.nodes.tell()
            self.nodes.when_known(lambda: self._confirm(link, epoch, sequence))

    def _confirm(self, link: Link, epoch: int, sequence: int) -> None:
        if link.up and link.epoch == epoch:
            link.send_control("known", sequence)

    def _on_known(self, link: Link, sequence: int) -> None:
        self._confirmations.confirmed(link.peer, sequence)

    def _on_synchronised(self, link: Link, complete: bool) -> None:
        """Handle the end of a peer's announcements; ``complete``: it has all retained messages."""
        self._untold.discard(link.peer)
        if complete:
            self._complete.add(link.peer)
        self._progress()

    def _on_retained_wanted(self, link: Link) -> None:
        def source() -> Iterator[bytes]:
            yield from self._retained.frames()
            yield frames.encode_control("retained")

        link.feed(source())

    def _on_retained_sent(self, link: Link) -> None:
        """Handle the end of a peer's retained messages."""
        if link.peer in self._sources:
            self._sources.discard(link.peer)
            self.complete = not self._sources

    # Peers that are slow or gone

    def _dead(self, peer: int) -> bool:
        if self._alive(peer):
            self._heard.pop(peer, None)
            return False
        heard = self._heard.get(peer)
        return heard is None or self._reactor.tally.now > heard + HELLO_SECONDS

    def _full(self, link: Link) -> None:
        # Only noted: the world must not change while somebody is sending.
        self._blocked.add(link)
        if not self._retrying:
            self._retrying = True
            self._later(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        """Send waiting frames again, until no link is full."""
        for link in list(self._blocked):
            if self._dead(link.peer):
                self._lose(link)
            elif link.drain():
                self._blocked.discard(link)
                self._resume(link)
        self._retrying = bool(self._blocked)
        if self._retrying:
            self._later(RETRY_SECONDS, self._retry)

    def check(self) -> None:
        """Detect peers that died while they owe an answer; announce changes. Called every tenth of
        a second."""
        self.nodes.housekeeping()
        for link in self.links.values():
            if link.up and self._dead(link.peer):
                self._lose(link)
        self._progress()
        self.tell()

    def hold(self, connection: Any) -> bool:
        """Pause a connection whose messages a full link could not take; return False if no link is
        full."""
        full = [link for link in self._blocked if link.backlog]
        for link in full:
            link.paused.add(connection)
        return bool(full)

    def _resume(self, link: Link) -> None:
        paused = link.paused
        link.paused = set()
        for connection in paused:
            if not any(connection in other.paused for other in self.links.values()):
                self._reactor.resume(connection, PAUSED_LINK)

    def _lose(self, link: Link) -> None:
        """Drop the state of a peer's former life."""
        was_up = link.up
        link.forget()
        self._blocked.discard(link)
        if was_up:
            self._routes.drop_shard(link.peer)
            self._groups.drop_shard(link.peer)
            self.ownership.peer_lost(link.peer)
            self._queues.lose(link.peer)
            self._durable.lose(link.peer)
        self._heard.pop(link.peer, None)
        self._complete.discard(link.peer)
        self._sources.discard(link.peer)
        self._confirmations.lost(link.peer)
        self._resume(link)
