"""Publish and subscribe between nodes: interest, and the messages that it asks for.

A shard tells its counterparts on other nodes what its whole node wants (`NodeInterest`): changes are
numbered and confirmed (``known``), so that a SUBACK can wait until the messages of every connected
node are on their way. A message goes to another node once, however many subscribers it has there,
and to a shard of it (the primary one) that treats it as published there, except that no queue and
no other node gets it. One publisher's messages for a node take one stream, which keeps their order.

QoS 1 and 2 runs are numbered and answered. What is unanswered when a stream breaks is sent again
over the next one; the other side drops what it has had. The publisher waits for the answer only if
persistent sessions there want the message. A node that stays away for `route_publish_timeout` is
forgotten, with its interest: until then its QoS 1 and 2 messages wait here, within a bound.

Frames beside the control frames::

    NODE_RUN     u8 kind, u64 number (0: QoS 0), f64 seconds until it expires (0: never), u64 origin,
                 u64 number of its first message there, then as RUN
    NODE_SHARED  u8 kind, u64 number, f64 seconds until it expires, then as SHARED

Control frames: ``interest`` [number or 0, filters begun, ceased, kept ones among the begun, members
of shared groups, state: a part, everything, or everything once more with whether sessions have left
since the former stream ended]; ``known`` [number]; ``answered`` [number, reason,
...]; ``flush`` [number] and ``flushed`` [number], see `fluxmq.shards.barriers`; those of
`fluxmq.shards.retained_fetch`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from fluxmq.metrics.registry import Sample
from fluxmq.net import frames
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.connection import Connection
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.routing.node_interest import AnnouncedInterest, InterestChange, NodeInterest
from fluxmq.settings.clustering import TransportSettings
from fluxmq.shards.barriers import PassedCallback
from fluxmq.shards.confirmations import Confirmations
from fluxmq.shards.durable.commit_waiter import CommitWaiter
from fluxmq.shards.groups import GroupTable, NodeSharedPaths
from fluxmq.shards.node_paths import NodeCounts, NodePath, PathEnd, PublishLink
from fluxmq.shards.node_runs import NodeRuns
from fluxmq.shards.retained_fetch import RetainedFetch
from fluxmq.shards.routes import NodePaths, RouteTable

PAUSED_NODE = 64
"""Reason for pausing a connection: a stream to another node is too far behind."""
CONFIRM_SECONDS_MAX = 1.0
"""Time for a node to confirm interest; then its stream is begun anew."""
FILTERS_PER_FRAME = 500
PART, WHOLE, STAYED, LEFT = range(4)
"""State of an announcement of interest. Nodes of the release before tell False and True for the first
two, take the others for the second one, and do not send them."""


class StreamUser(Protocol):
    """Uses the streams for something besides messages and interest."""

    def came(self, link: PublishLink) -> None:
        """Handle a new stream."""

    def gone(self, link: PublishLink) -> None:
        """Handle the end of a stream."""

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""

    def frame_handlers(self) -> dict[int, Callable[[PublishLink, bytes], None]]:
        """Return the handlers of other frames by kind."""

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""


class BesideMessages:
    """Users of the streams besides messages: retained messages, and others."""

    def __init__(self, retained: RetainedFetch, *others: StreamUser) -> None:
        self.retained = retained
        self._users: tuple[StreamUser, ...] = (retained, *others)
        self.frame_handlers = {
            kind: handler for user in self._users for kind, handler in user.frame_handlers().items()
        }

    def came(self, link: PublishLink) -> None:
        """Handle a new stream."""
        for user in self._users:
            user.came(link)

    def gone(self, link: PublishLink) -> None:
        """Handle the end of a stream."""
        for user in self._users:
            user.gone(link)

    def housekeeping(self) -> None:
        """Run periodic work; called by the shard's timer."""
        for user in self._users:
            user.housekeeping()

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {name: each for user in self._users for name, each in user.handlers().items()}


class NodePeers:
    """Other nodes, as subscribers and publishers see them. Implements ``NodeLinkObserver``.

    ``shards_of`` returns the number of a node's shards, 0 while it is unknown.
    """

    def __init__(
        self,
        shard: int,
        routes: RouteTable,
        groups: GroupTable,
        interest: NodeInterest,
        reactor: Reactor,
        commit_waiter: CommitWaiter,
        settings: TransportSettings,
        beside: BesideMessages,
    ) -> None:
        """``settings`` has `route_batch_max_size` and `route_publish_timeout`."""
        self._shard = shard
        self._routes = routes
        self._groups = groups
        self._interest = interest
        self._reactor = reactor
        self._settings = settings
        self._beside = beside
        self.shards_of: Callable[[str], int] = _unknown
        self._links: dict[int, PublishLink] = {}
        self._paths: dict[int, NodePath] = {}
        self._confirmations = Confirmations()
        self._announced: dict[int, AnnouncedInterest] = {}
        self.runs = NodeRuns(
            *(self._links, reactor, commit_waiter, NodeCounts(), settings.route_publish_timeout)
        )
        self._paused: set[Connection] = set()
        self._numbers = itertools.count(1)

    @property
    def counts(self) -> NodeCounts:
        """Numbers for the metrics."""
        return self.runs.counts

    # Links

    def added(self, link: PublishLink) -> None:
        """Note a link, before its first frame."""
        self._links[link.peer] = link

    def came(self, link: PublishLink) -> None:
        """Announce everything over a new stream, and send what was unanswered."""
        self.tell()
        self._announced[link.peer] = AnnouncedInterest()
        for change in self._interest.all(FILTERS_PER_FRAME):
            link.send_control("interest", 0, *change, PART)
        sequence = self._confirmations.announce((link.peer,))
        link.send_control("interest", sequence, *InterestChange([], [], [], []), WHOLE)
        path = self._paths.get(link.peer)
        if path is not None:
            path.came()
        self._beside.came(link)
        self.runs.doubtful.came(link.peer, partial(self._announce_again, link))

    def _announce_again(self, link: PublishLink, left: bool) -> int:
        """Tell a shard all changes of this node's interest, and whether sessions have left; return
        the number of that."""
        self.tell()
        sequence = self._confirmations.announce((link.peer,))
        state = LEFT if left else STAYED
        link.send_control("interest", sequence, *InterestChange([], [], [], []), state)
        return sequence

    def gone(self, link: PublishLink) -> None:
        """Handle the end of a stream."""
        self._announced.pop(link.peer, None)
        self._confirmations.lost(link.peer)
        self.runs.doubtful.gone(link.peer)
        self._beside.gone(link)
        path = self._paths.get(link.peer)
        if path is not None:
            path.lost()

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {
            "interest": self._on_interest,
            "known": self._on_known,
            "answered": self._on_answered,
            "flush": self._on_flush,
            "flushed": self._on_flushed,
            **self._beside.handlers(),
        }

    def _is_primary(self, link: PublishLink) -> bool:
        """Return whether this shard's messages for a node go to that shard."""
        shards = self.shards_of(link.node)
        return shards > 0 and link.shard == self._shard % shards

    # Interest

    def when_known(self, done: Callable[[], None]) -> None:
        """Call ``done`` when all connected nodes know the interest told so far."""
        self._confirmations.when_known(done, self._reactor.tally.now)

    def start(self) -> None:
        """Make all callers of `when_known` wait: this shard has just started, and other nodes that
        run will be connected soon."""
        self._confirmations.hold()

    def started(self) -> None:
        """Make callers wait only for nodes that are connected."""
        self._confirmations.release(self._reactor.tally.now)

    def knows(self, link: PublishLink) -> bool:
        """Return whether this shard and the other side of a link know each other's interest."""
        told = not self._is_primary(link) or self._has_told(link)
        return told and self._confirmations.has_confirmed(link.peer)

    def _has_told(self, link: PublishLink) -> bool:
        """Return whether the other side has told all its interest over the present stream."""
        announced = self._announced.get(link.peer)
        return link.up and (announced is None or announced.whole)

    def tell(self) -> None:
        """Announce changes of this node's interest since the last call."""
        if not self._interest.changed:
            return
        change = self._interest.take_change()
        up = [link for link in self._links.values() if link.up]
        sequence = self._confirmations.announce(link.peer for link in up)
        for link in up:
            link.send_control("interest", sequence, *change, PART)

    def _on_interest(
        self,
        link: PublishLink,
        sequence: int,
        begun: list[bytes],
        ceased: list[bytes],
        kept: list[bytes],
        members: list[list[Any]],
        state: int,
    ) -> None:
        if self._is_primary(link):
            counts = [(name, filter_, *numbers) for name, filter_, *numbers in members]
            self._follow(link, InterestChange(begun, ceased, kept, counts), state)
        if state in (STAYED, LEFT):
            self._settled(link, state == LEFT)
        if sequence:
            link.send_control("known", sequence)

    def _follow(self, link: PublishLink, change: InterestChange, state: int) -> None:
        """Route to another node by a change of its interest."""
        node = link.peer
        announced = self._announced.get(node)
        if announced is not None:
            former, members = self._routes.node_filters(node), {}
            if change.members or state == WHOLE:
                members = self._groups.node_members(node)
            if not announced.whole:
                announced.add(change)
            if state == WHOLE:
                # Interest of the former stream that was not announced again has ended meanwhile.
                announced.whole = True
                change.ceased.extend(former.keys() - announced.filters)
                left = members.keys() - announced.groups
                change.members.extend((*each, 0, 0, 0) for each in left)
            kept = frozenset(change.kept)
            weaker = [each for each in (*change.ceased, *change.begun) if each not in kept]
            fewer = [each[:2] for each in change.members if each[4] < members.get(each[:2], 0)]
            self._may_have_moved(
                {each: former.get(each, False) for each in weaker},
                {each: members[each] for each in fewer},
            )
        self._set(link, change)

    def _settled(self, link: PublishLink, left: bool) -> None:
        """Handle that a node has told which of its interest has ended while it was away."""
        self._announced.pop(link.peer, None)
        if left and self._is_primary(link):
            # Others there may want the same as those that have left.
            node = link.peer
            self._may_have_moved(self._routes.node_filters(node), self._groups.node_members(node))

    def _may_have_moved(
        self, filters: Mapping[bytes, bool], members: Mapping[tuple[bytes, bytes], int]
    ) -> None:
        """Keep the interest of persistent sessions that have left a node while it was away: they may
        be at any other node that is still away, or has not told its interest yet."""
        kept = [each for each, is_kept in filters.items() if is_kept]
        groups = [(*each, 0, count, count) for each, count in members.items() if count]
        for link in self._links.values() if kept or groups else ():
            if self._is_primary(link) and not self._has_told(link):
                known = self._routes.node_filters(link.peer)
                there = self._groups.node_members(link.peer)
                begun = [each for each in kept if not known.get(each)]
                joined = [each for each in groups if not there.get(each[:2])]
                self._set(link, InterestChange(begun, [], begun, joined))

    def _set(self, link: PublishLink, change: InterestChange) -> None:
        """Route to another node by a change of interest."""
        node, batch = link.peer, self._settings.route_batch_max_size
        path = self._path_of(link)
        prompt, kept = PathEnd(path, batch, waits=False), PathEnd(path, batch, waits=True)
        self._routes.set_node(node, NodePaths(prompt, kept), change)
        self._groups.set_node(node, NodeSharedPaths(prompt, kept), change)

    def _path_of(self, link: PublishLink) -> NodePath:
        path = self._paths.get(link.peer)
        if path is None:
            # Another shard of the node was the primary one, when it had another number of them.
            for other in [each for each in self._paths.values() if each.link.node == link.node]:
                self._forget(other)
            path = self._paths[link.peer] = NodePath(
                *(link, self._reactor, lambda: self._reactor.tally.now),
                *(self._numbers, self.counts, self.runs.identities),
            )
            if not link.up:
                path.lost()
        return path

    def _on_known(self, link: PublishLink, sequence: int) -> None:
        self._confirmations.confirmed(link.peer, sequence)
        self.runs.doubtful.confirmed(link.peer, sequence)

    # Barriers

    @property
    def connected(self) -> list[str]:
        """The other nodes that this shard is connected with."""
        return sorted({link.node for link in self._links.values() if link.up})

    def flush_all(
        self, required: Sequence[str], allowed: Sequence[str] | None, done: PassedCallback
    ) -> None:
        """Call ``done`` when all that other nodes have sent to this shard has arrived; with False if
        one of the required nodes is away, or another than the allowed ones is connected."""
        here = {link.node for link in self._links.values()}
        up = [link for link in self._links.values() if link.up]
        down = {link.node for link in self._links.values() if not link.up}
        refused = allowed is not None and not here.difference(down).issubset(allowed)
        if refused or not here.issuperset(required) or not down.isdisjoint(required):
            done(False)
            return
        number = self._confirmations.barriers.begin((link.peer for link in up), done)
        for link in up:
            link.send_control("flush", number)

    def _on_flush(self, link: PublishLink, number: int) -> None:
        link.send_control("flushed", number)

    def _on_flushed(self, link: PublishLink, number: int) -> None:
        self._confirmations.barriers.returned(link.peer, number)

    # Messages

    def received(self, link: PublishLink, frame: bytes) -> None:
        """Deliver a run of another node."""
        other = self._beside.frame_handlers.get(frame[0])
        if other is not None:
            other(link, frame)
            return
        kind, number, left = frames.node_head(frame)
        if kind == frames.NODE_RUN:
            run = frames.decode_node_run(frame)
            deliver = partial(self._deliver, run)
        else:
            name, topic_filter, run = frames.decode_shared(frame, frames.NODE_HEAD_BYTES)
            deliver = partial(self._deliver_shared, name, topic_filter, run)
        run.deadline = self._reactor.tally.now + left if left else 0.0
        self.counts.received += run.count
        if number:
            self.runs.deliver(link, number, deliver, whole=kind == frames.NODE_RUN)
        else:
            deliver()

    def _deliver(self, run: PublishRun) -> None:
        self._beside.retained.announce(run)
        route = self._routes.route_from_node(run.topic)
        self._reactor.forward(run, route)

    def _deliver_shared(self, name: bytes, topic_filter: bytes, run: PublishRun) -> None:
        group = self._groups.find(name, topic_filter)
        if group is not None:
            group.offer_on_node(run)
        else:
            self._groups.count_drop("shared_no_member", run.count)

    def flush(self) -> None:
        """Send the answers of this tick."""
        self.runs.flush()

    def _on_answered(self, link: PublishLink, answers: list[int]) -> None:
        path = self._paths.get(link.peer)
        if path is not None:
            for at in range(0, len(answers), 2):
                path.answered(answers[at], answers[at + 1])

    # Flow and time

    def hold(self, connection: Connection) -> bool:
        """Pause a connection while a stream is too far behind; return False if none is."""
        if not any(path.behind for path in self._paths.values()):
            return False
        self._paused.add(connection)
        self._reactor.pause(connection, PAUSED_NODE)
        return True

    @property
    def holds(self) -> bool:
        """True while connections are paused until streams have caught up."""
        return bool(self._paused)

    def housekeeping(self) -> None:
        """Give up nodes that stay away or do not answer; called by the shard's timer."""
        self._beside.housekeeping()
        now, timeout = self._reactor.tally.now, self._settings.route_publish_timeout
        for peer in self._confirmations.overdue(now - CONFIRM_SECONDS_MAX):
            self.counts.slow += 1
            self._links[peer].close()
        for path in list(self._paths.values()):
            path.give_up(now - timeout)
            if path.away_since is not None and now > path.away_since + timeout:
                self._forget(path)
        if self._paused and not any(path.behind for path in self._paths.values()):
            paused, self._paused = self._paused, set()
            for connection in paused:
                self._reactor.resume(connection, PAUSED_NODE)

    def _forget(self, path: NodePath) -> None:
        """Forget another node's interest, and refuse what publishers wait for."""
        path.give_up()
        node = path.link.peer
        self._routes.drop_node(node)
        self._groups.drop_node(node)
        del self._paths[node]

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of messages between nodes."""
        counts = self.counts
        yield "fluxmq_cluster_publish_sent_total", {}, counts.sent
        yield "fluxmq_cluster_publish_received_total", {}, counts.received
        yield "fluxmq_cluster_publish_repeated_total", {}, counts.repeated
        yield "fluxmq_cluster_publish_dropped_total", {}, counts.dropped
        yield "fluxmq_cluster_publish_refused_total", {}, counts.refused
        yield "fluxmq_cluster_publish_slow_nodes_total", {}, counts.slow


def _unknown(_node: str) -> int:
    return 0


class NoNodes:
    """Stands in for `NodePeers` on a node without others."""

    def when_known(self, done: Callable[[], None]) -> None:
        """Call ``done``."""
        done()

    connected: Sequence[str] = ()
    holds = False

    def flush_all(
        self, _required: Sequence[str], _allowed: Sequence[str] | None, done: PassedCallback
    ) -> None:
        """Call ``done``."""
        done(True)

    def tell(self) -> None:
        """Ignore."""

    def flush(self) -> None:
        """Ignore."""

    def hold(self, connection: Connection) -> bool:
        """Return False."""
        return False

    def housekeeping(self) -> None:
        """Ignore."""

    def samples(self) -> Iterator[Sample]:
        """Yield nothing."""
        return iter(())


NO_NODES = NoNodes()
OtherNodes = NodePeers | NoNodes
