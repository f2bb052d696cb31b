"""Shared subscriptions of this shard: distributes runs over members here and on other shards.

``routing.shared`` decides whose turn it is; this module delivers. Messages that a leaving member
has not acknowledged go to another member. The shard of persistent members acknowledges their
messages; while it is down they count as offline.

Source: MQTT 5.0 section 4.8.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from fluxmq.model.trace_context import TRACEPARENT
from fluxmq.net.links import Link
from fluxmq.net.ports import SpanPort
from fluxmq.protocols.mqtt.inflight_range import InflightRange
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.routing.node_interest import OWN_SHARD, InterestChange, NodeInterest
from fluxmq.routing.shared import SharedGroup, SharedGroups
from fluxmq.sessions.mqtt.handover import give_up_shared
from fluxmq.sessions.mqtt.session import Grant, Session
from fluxmq.sessions.mqtt.subscribing import identifier_property

T = TypeVar("T")


class SharedLink(Protocol):
    """A link to another shard's members of shared groups."""

    def send_shared(self, group: bytes, topic_filter: bytes, run: PublishRun, /) -> None:
        """Send a run to deliver to the members there."""


class NodeSharedPaths(NamedTuple):
    """The paths to another node's members, as in `routes.NodePaths`."""

    prompt: SharedLink
    kept: SharedLink


class SharedSubscription:
    """A shared group: the routing core's bookkeeping and the members' grants."""

    def __init__(self, core: SharedGroup[Session], table: GroupTable) -> None:
        self.core = core
        self.filter = core.filter
        self.grants: dict[Session, Grant] = {}
        self.kept: set[Session] = set()
        """Members with persistent sessions and a QoS above 0."""
        self.kept_at: dict[int, int] = {}
        """Number of such members by other shard, or other node."""
        self._table = table

    def offer(self, run: PublishRun) -> None:
        """Distribute a run published on this shard over all members."""
        self._offer(run, self.core.split(run.count))

    def offer_on_node(self, run: PublishRun) -> None:
        """Distribute a part that another node assigned to this one over its shards."""
        parts = self.core.split(run.count, on_node=True)
        if not parts:
            # As in `offer_here`: that node has to know first that nobody is left here.
            self._table.tell()
            parts = self.core.split(run.count)
        self._offer(run, parts)

    def _offer(self, run: PublishRun, parts: list[tuple[Session | int, int]]) -> None:
        if not parts:
            self._table.count_drop("shared_no_member", run.count)
            return
        for target, piece in cut(run, parts):
            if isinstance(target, int):
                path = self._table.path(target, bool(run.qos) and target in self.kept_at)
                path.send_shared(self.core.group, self.filter, piece)
            else:
                self.deliver(target, piece)

    def offer_here(self, run: PublishRun) -> None:
        """Distribute a part that another shard assigned to this one over the members here."""
        parts = self.core.split_local(run.count)
        if not parts:
            # The last member left while the part was in transit: others may still want it. Update
            # them first, so that it cannot come back.
            self._table.tell()
            self.offer(run)
            return
        for member, piece in cut(run, parts):
            self.deliver(member, piece)

    def deliver(self, session: Session, run: PublishRun) -> None:
        """Deliver a part to one member."""
        grant = self.grants[session]
        identifier = identifier_property(grant.subscription_id)
        spans = self._table.spans
        if spans is not None and TRACEPARENT in run.properties:
            spans.delivered(run, 1)
        qos = min(run.qos, grant.qos)
        if qos:
            session.delivery.enqueue(run, qos, 0, identifier, self)
        elif session.client is not None:
            session.delivery.send_now(run, 0, identifier)
        else:
            self._table.count_drop("shared_no_member", run.count)

    def others_connected(self, session: Session) -> bool:
        """Return whether another member could take over a member's messages now."""
        online, _ = self.core.counts
        here = online - (1 if session.client is not None else 0)
        elsewhere = (*self.core.remote().values(), *self.core.nodes().values())
        return here > 0 or any(count for count, _ in elsewhere)


class GroupTable:
    """All shared groups known to this shard; ``changed``: those whose counts the peers do not know
    yet."""

    def __init__(
        self,
        added: Callable[[SharedSubscription], None],
        removed: Callable[[SharedSubscription], None],
        count_drop: Callable[[str, int], None],
        tell: Callable[[], None],
        pass_on: Callable[[InflightRange], None],
        links: Mapping[int, Link],
        persistent_links: Mapping[int, SharedLink],
        interest: NodeInterest | None = None,
    ) -> None:
        """``tell`` announces changes to the peers; ``pass_on`` gives a member's remaining messages
        to the others of its group. ``persistent_links`` lead reliably to other shards' persistent
        members, which acknowledge messages. ``interest`` adds up this node's members, for other
        nodes; None without any."""
        self._interest = interest
        self._nodes: dict[int, NodeSharedPaths] = {}
        self._groups: SharedGroups[Session] = SharedGroups()
        self._by_core: dict[SharedGroup[Session], SharedSubscription] = {}
        self._added = added
        self._removed = removed
        self.count_drop = count_drop
        self.member_count = 0
        """Number of shared subscriptions of this shard's sessions."""
        self.spans: SpanPort | None = None
        self.links = links
        self.persistent_links = persistent_links
        self._former: dict[int, set[tuple[bytes, bytes]]] = {}
        """Groups, by shard, of persistent members that have not reappeared since its start."""
        self.tell = tell
        self._pass_on = pass_on
        self.changed: set[tuple[bytes, bytes]] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def path(self, target: int, kept: bool) -> SharedLink:
        """Return the path to another shard's or node's members; ``kept``: to persistent ones, which
        acknowledge messages."""
        node = self._nodes.get(target)
        if node is not None:
            return node.kept if kept else node.prompt
        return self.persistent_links[target] if kept else self.links[target]

    def obtain(self, name: bytes, topic_filter: bytes) -> SharedSubscription:
        """Return the group; create it if it is new."""
        core, fresh = self._groups.obtain(name, topic_filter)
        if fresh:
            group = SharedSubscription(core, self)
            self._by_core[core] = group
            self._added(group)
            return group
        return self._by_core[core]

    def find(self, name: bytes, topic_filter: bytes) -> SharedSubscription | None:
        """Return the group, or None if it has no members."""
        core = self._groups.get(name, topic_filter)
        return None if core is None else self._by_core[core]

    def join(self, name: bytes, topic_filter: bytes, session: Session, grant: Grant) -> None:
        """Add a session of this shard as a member, or change its options."""
        group = self.obtain(name, topic_filter)
        group.grants[session] = grant
        if session.delivery.durable is not None and grant.qos:
            group.kept.add(session)
        else:
            group.kept.discard(session)
        self.member_count += group.core.join(session, connected=session.client is not None)
        self._note(name, topic_filter)

    def leave(self, name: bytes, topic_filter: bytes, session: Session) -> None:
        """Remove a session of this shard from the members."""
        group = self.find(name, topic_filter)
        if group is None or not group.core.leave(session):
            return
        group.grants.pop(session, None)
        group.kept.discard(session)
        self.member_count -= 1
        self._note(name, topic_filter)
        self._release(group)

    def set_connected(
        self, name: bytes, topic_filter: bytes, session: Session, connected: bool
    ) -> None:
        """Record that a member connected or disconnected."""
        group = self.find(name, topic_filter)
        if group is not None and session in group.grants:
            group.core.set_connected(session, connected)
            self._note(name, topic_filter)

    def _note(self, name: bytes, topic_filter: bytes) -> None:
        """Note that the number of members here has changed, to be announced."""
        self.changed.add((name, topic_filter))
        self._tell_node(OWN_SHARD, name, topic_filter, self.counts(name, topic_filter))

    def _tell_node(
        self, shard: int, name: bytes, topic_filter: bytes, counts: tuple[int, int, int]
    ) -> None:
        if self._interest is not None:
            self._interest.set_members(shard, (name, topic_filter), counts)

    def hand_over(self, session: Session, ended: bool) -> None:
        """Hand on a member's unacknowledged messages after its connection, or its session, has
        ended."""
        shared = [
            (grant.shared, session.filter_of(written), written)
            for written, grant in session.subscriptions.items()
            if grant.shared
        ]
        for name, topic_filter, written in shared:
            self.set_connected(name, topic_filter, session, False)
            if ended:
                self.leave(name, topic_filter, session)
                del session.subscriptions[written]
        if not shared:
            return
        for inflight in give_up_shared(
            session.delivery, lambda group: ended or group.others_connected(session)
        ):
            self._pass_on(inflight)

    def dealt(self, name: bytes, topic_filter: bytes, run: PublishRun) -> None:
        """Deliver a part that another shard assigned to this shard's members."""
        group = self.find(name, topic_filter)
        if group is not None:
            group.offer_here(run)
        else:
            self.count_drop("shared_no_member", run.count)

    def set_remote(
        self, shard: int, name: bytes, topic_filter: bytes, online: int, offline: int, kept: int
    ) -> None:
        """Set another shard's member counts; ``kept``: number of persistent ones among them."""
        self._former.get(shard, set()).discard((name, topic_filter))
        self._tell_node(shard, name, topic_filter, (online, offline, kept))
        if online or offline:
            group = self.obtain(name, topic_filter)
            group.core.set_remote(shard, online, offline)
            if kept:
                group.kept_at[shard] = kept
            else:
                group.kept_at.pop(shard, None)
            return
        found = self.find(name, topic_filter)
        if found is not None:
            found.core.set_remote(shard, 0, 0)
            found.kept_at.pop(shard, None)
            self._release(found)

    def drop_shard(self, shard: int) -> None:
        """Drop another shard's members, except persistent ones, which come back."""
        former = self._former.setdefault(shard, set())

        def staying(core: SharedGroup[Session]) -> int:
            kept = self._by_core[core].kept_at.get(shard, 0)
            if kept:
                former.add((core.group, core.filter))
            if shard in core.remote():
                self._tell_node(shard, core.group, core.filter, (0, kept, kept))
            return kept

        for core in self._groups.drop_shard(shard, staying):
            self._removed(self._by_core.pop(core))

    # Other nodes

    def set_node(self, node: int, paths: NodeSharedPaths, change: InterestChange) -> None:
        """Follow a change of another node's member counts; ``paths`` lead there."""
        self._nodes[node] = paths
        for name, topic_filter, online, offline, kept in change.members:
            found = (
                self.obtain(name, topic_filter)
                if online or offline
                else self.find(name, topic_filter)
            )
            if found is None:
                continue
            found.core.set_node(node, online, offline)
            if kept:
                found.kept_at[node] = kept
            else:
                found.kept_at.pop(node, None)
            self._release(found)

    def node_members(self, node: int) -> dict[tuple[bytes, bytes], int]:
        """Return the groups that have members on another node, and how many have persistent
        sessions."""
        return {
            (core.group, core.filter): self._by_core[core].kept_at.get(node, 0)
            for core in self._groups
            if node in core.nodes()
        }

    def drop_node(self, node: int) -> None:
        """Drop another node's members."""
        for core in list(self._groups):
            group = self._by_core[core]
            core.set_node(node, 0, 0)
            group.kept_at.pop(node, None)
            self._release(group)
        self._nodes.pop(node, None)

    # Shards that start later

    def expect(self, shard: int, members: Iterable[tuple[bytes, bytes]]) -> None:
        """Add persistent members (group and filter, one each) of a shard that is yet to start."""
        for name, topic_filter in members:
            kept = self.obtain(name, topic_filter).kept_at.get(shard, 0) + 1
            self.set_remote(shard, name, topic_filter, 0, kept, kept)
            self._former.setdefault(shard, set()).add((name, topic_filter))

    def forget_former(self, shard: int) -> None:
        """Drop members that have not reappeared although their shard's persistent sessions are
        back."""
        for name, topic_filter in self._former.pop(shard, ()):
            self.set_remote(shard, name, topic_filter, 0, 0, 0)

    def counts(self, name: bytes, topic_filter: bytes) -> tuple[int, int, int]:
        """Return this shard's member counts: connected, disconnected, and persistent among both."""
        group = self.find(name, topic_filter)
        return (0, 0, 0) if group is None else (*group.core.counts, len(group.kept))

    def local(self) -> list[tuple[bytes, bytes]]:
        """Return the groups with members on this shard."""
        return [(core.group, core.filter) for core in self._groups if len(core)]

    def _release(self, group: SharedSubscription) -> None:
        if self._groups.release(group.core):
            self._removed(self._by_core.pop(group.core))


def cut(run: PublishRun, parts: list[tuple[T, int]]) -> list[tuple[T, PublishRun]]:
    """Split the run into contiguous parts with the given counts."""
    if len(parts) == 1:
        return [(parts[0][0], run)]
    run.detach()
    pieces: list[tuple[T, PublishRun]] = []
    offset = run.start
    for target, count in parts:
        end = run.skip(offset, count)
        pieces.append((target, run.part(offset, end, count)))
        offset = end
    return pieces


def run_of(inflight: InflightRange) -> PublishRun:
    """Return the rest of a share as a run to distribute again."""
    run = inflight.run
    end = run.skip(inflight.offset, inflight.count)
    piece = run.part(inflight.offset, end, inflight.count)
    piece.qos = run.qos
    if piece.largest == 0:
        # Its size was measured for its former member; another may accept only smaller packets.
        piece.largest = end - inflight.offset + len(run.topic) + len(run.properties)
    return piece
