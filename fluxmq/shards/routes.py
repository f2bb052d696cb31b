"""Receivers of a topic's messages: subscriptions of this shard, other shards, shared groups.

One tree holds all three kinds of interest. A topic's route is built once and stays in the reactor's
cache until a relevant subscription changes: a change of a filter without wildcards drops one topic,
one with wildcards drops all.

A filter's first local subscription and its last removal are announced to the other shards, which
enter this shard's number for it. A shared subscription is announced as its group's member counts.
Filters of persistent sessions are marked as such: they stay while their shard is down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from fluxmq.engine.queue_targets import QueueTarget
from fluxmq.net.links import Link
from fluxmq.net.ports import RunLink
from fluxmq.net.reactor import Reactor
from fluxmq.net.route import Route
from fluxmq.protocols.mqtt.delivery import Target
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.topics import validate_topic
from fluxmq.routing.node_interest import OWN_SHARD, InterestChange, NodeInterest
from fluxmq.routing.subscriptions import SubscriptionTree
from fluxmq.sessions.mqtt.session import Grant, Session
from fluxmq.sessions.mqtt.subscribing import identifier_property
from fluxmq.shards.groups import SharedSubscription
from fluxmq.shards.retained import SYSTEM_PREFIX

if TYPE_CHECKING:
    from fluxmq.shards.durable.persistent_links import PersistentLink

KEPT = Grant(0)
"""Accompanies another shard's or node's number if persistent sessions there have the filter."""


class NodePaths(NamedTuple):
    """The paths to another node: ``prompt`` does not let the publisher wait, ``kept`` until the
    node's persistent sessions have the messages."""

    prompt: RunLink
    kept: RunLink


class NodeTable:
    """Other nodes: the paths to them, by numbers above those of shards, and what they want.

    ``interest`` adds up what this node's shards want, None without other nodes. ``routes`` caches
    the routes of messages that come from other nodes.
    """

    def __init__(self, interest: NodeInterest | None) -> None:
        self.interest = interest
        self.paths: dict[int, NodePaths] = {}
        self.filters: dict[int, dict[bytes, bool]] = {}
        """Topic filters that each node subscribes to, and whether its persistent sessions do."""
        self.routes: dict[bytes, Route] = {}


class RouteTable:
    """The subscription tree of one shard, and the routes built from it."""

    def __init__(
        self,
        reactor: Reactor,
        max_topic_bytes: int,
        max_topic_levels: int,
        control_characters: bool,
        targets: Callable[[bytes], list[QueueTarget] | None],
        links: Mapping[int, Link],
        persistent_links: Mapping[int, PersistentLink],
        interest: NodeInterest | None = None,
    ) -> None:
        """``targets`` returns the queues that store a topic's messages; None if it addresses an
        impossible queue. ``persistent_links`` lead reliably to other shards' persistent sessions,
        which acknowledge messages. ``interest`` adds up what this node's shards want, for other
        nodes; None without any."""
        self._reactor = reactor
        self._topic_limits = (max_topic_bytes, max_topic_levels, control_characters)
        self._tree: SubscriptionTree[Session | SharedSubscription | int, Grant | None] = (
            SubscriptionTree()
        )
        self._local: dict[bytes, int] = {}
        self._remote: dict[int, set[bytes]] = {}
        """Each other shard's filters, so that losing a shard costs no more than its own filters."""
        self._former: dict[int, set[bytes]] = {}
        """Filters of shards' persistent sessions that have not announced them since their start."""
        self._kept_here: dict[bytes, int] = {}
        self._before: dict[bytes, tuple[bool, bool]] = {}
        """State known to the peers of the filters in ``changed``."""
        self._links = links
        self._persistent_links = persistent_links
        self._nodes = NodeTable(interest)
        self._targets_of = targets
        self.subscription_count = 0
        self.changed: dict[bytes, bool] = {}
        """Filters that this shard began (True) or ceased to want since the last announcement."""

    def route(self, topic: bytes) -> Route | None:
        """Return the route of a client's publish to ``topic``; None if the topic is not valid."""
        try:
            validate_topic(topic, *self._topic_limits)
        except ProtocolError:
            return None
        if topic.startswith(SYSTEM_PREFIX):
            return Route([], [], [], [])  # only the broker itself publishes there
        if self._targets_of(topic) is None:
            return None
        return self.build(topic)

    def route_from_node(self, topic: bytes) -> Route:
        """Return the route of a message from another node, which has stored it in its queues."""
        route = self._nodes.routes.get(topic)
        if route is None:
            if len(self._nodes.routes) >= self._reactor.routes_max:
                self._nodes.routes.clear()
            route = self._nodes.routes[topic] = self.build(topic, from_node=True)
        return route

    def build(self, topic: bytes, *, from_node: bool = False) -> Route:
        """Return the route of a topic; ``from_node``: only to sessions of this node."""
        targets: dict[Session, Target] = {}
        links: dict[int, RunLink] = {}
        groups: list[SharedSubscription] = []
        for _, subscriber, grant in self._tree.match(topic):
            if isinstance(subscriber, Session):
                assert grant is not None
                self._merge(targets, subscriber, grant)
            elif isinstance(subscriber, int):
                if subscriber in self._nodes.paths:
                    if not from_node:
                        paths = self._nodes.paths[subscriber]
                        if grant is KEPT:
                            links[subscriber] = paths.kept
                        else:
                            links.setdefault(subscriber, paths.prompt)
                elif grant is KEPT:
                    links[subscriber] = self._persistent_links[subscriber]
                else:
                    links.setdefault(subscriber, self._links[subscriber])
            else:
                groups.append(subscriber)
        queues = [] if from_node else list(self._targets_of(topic) or ())
        return Route(list(targets.values()), list(links.values()), groups, queues)

    def _merge(self, targets: dict[Session, Target], session: Session, grant: Grant) -> None:
        """Merge overlapping subscriptions into one delivery: highest QoS, all identifiers.

        Source: MQTT 5.0 section 3.3.4.
        """
        target = targets.get(session)
        if target is None:
            targets[session] = target = new_target(session, grant)
            if not grant.no_local:
                target.own = new_target(session, grant)
            return
        add_grant(target, grant)
        target.no_local = target.no_local or grant.no_local
        if not grant.no_local:
            if target.own is None:
                target.own = new_target(session, grant)
            else:
                add_grant(target.own, grant)

    # Local interest

    def add(self, session: Session, topic_filter: bytes, grant: Grant) -> None:
        """Add a subscription of a session of this shard, or change its options."""
        known = self._tree.get(topic_filter, session) is not None
        self._tree.add(topic_filter, session, grant)
        self._invalidate(topic_filter)
        if known:
            return
        self.subscription_count += 1
        before = self._wanted(topic_filter)
        self._local[topic_filter] = self._local.get(topic_filter, 0) + 1
        if session.delivery.durable is not None:
            self._kept_here[topic_filter] = self._kept_here.get(topic_filter, 0) + 1
        self._note(topic_filter, before)

    def remove(self, session: Session, topic_filter: bytes) -> None:
        """Remove a subscription of a session of this shard."""
        if self._tree.get(topic_filter, session) is None:
            return
        self._tree.remove(topic_filter, session)
        self._invalidate(topic_filter)
        self.subscription_count -= 1
        before = self._wanted(topic_filter)
        if session.delivery.durable is not None:
            less(self._kept_here, topic_filter)
        less(self._local, topic_filter)
        self._note(topic_filter, before)

    def _wanted(self, topic_filter: bytes) -> tuple[bool, bool]:
        """Return whether sessions of this shard have a filter, and whether persistent ones do."""
        return topic_filter in self._local, topic_filter in self._kept_here

    def _note(self, topic_filter: bytes, before: tuple[bool, bool]) -> None:
        """Note a difference from the peers' knowledge, to be announced."""
        now = self._wanted(topic_filter)
        if now != before:
            self._tell_node(OWN_SHARD, topic_filter, *now)
        if not self._links or now == before:
            return
        if not self.changed:
            self._before.clear()
        if topic_filter not in self.changed:
            self._before[topic_filter] = before
        if now == self._before[topic_filter]:
            del self.changed[topic_filter]
        else:
            self.changed[topic_filter] = now[0]

    def kept(self, topic_filters: Iterable[bytes]) -> list[bytes]:
        """Return those filters that persistent sessions of this shard have."""
        return [each for each in topic_filters if each in self._kept_here]

    def local_filters(self) -> list[bytes]:
        """Return the filters to which sessions of this shard subscribe."""
        return list(self._local)

    # Groups and other shards

    def add_group(self, group: SharedSubscription) -> None:
        """Add a new shared group, from here or elsewhere."""
        self._tree.add(group.filter, group, None)
        self._invalidate(group.filter)

    def remove_group(self, group: SharedSubscription) -> None:
        """Remove a shared group without members."""
        self._tree.remove(group.filter, group)
        self._invalidate(group.filter)

    def set_remote(self, shard: int, topic_filter: bytes, wanted: bool, kept: bool = False) -> None:
        """Record that another shard begins or ceases to want a filter; ``kept``: for persistent
        sessions."""
        former = self._former.get(shard)
        if former is not None and topic_filter in former:
            if not kept:
                told = self._remote.setdefault(shard, set())
                (told.add if wanted else told.discard)(topic_filter)
                return
            former.discard(topic_filter)
        if wanted:
            self._remote.setdefault(shard, set()).add(topic_filter)
        else:
            self._remote.get(shard, set()).discard(topic_filter)
        self._set_shard(shard, topic_filter, wanted, kept)
        self._invalidate(topic_filter)

    def _set_shard(self, shard: int, topic_filter: bytes, wanted: bool, kept: bool = False) -> None:
        """Enter another shard's number for a filter, or remove it."""
        if wanted:
            self._tree.add(topic_filter, shard, KEPT if kept else None)
        else:
            self._tree.remove(topic_filter, shard)
        self._tell_node(shard, topic_filter, wanted, kept)

    def _tell_node(self, shard: int, topic_filter: bytes, wanted: bool, kept: bool) -> None:
        """Add a shard's interest to the node's, but for topics that each node has for itself."""
        interest = self._nodes.interest
        if interest is not None and not topic_filter.startswith(SYSTEM_PREFIX):
            interest.set_filter(shard, topic_filter, wanted, kept)

    def drop_shard(self, shard: int) -> None:
        """Drop another shard's interest, except that of persistent sessions."""
        former = self._former.setdefault(shard, set())
        for topic_filter in self._remote.pop(shard, ()):
            if topic_filter in former:
                continue
            if self._tree.get(topic_filter, shard) is KEPT:
                # The session will be back, and its messages are kept meanwhile.
                former.add(topic_filter)
            else:
                self._set_shard(shard, topic_filter, False)
        self._forget_routes()

    def expect(self, shard: int, topic_filters: Iterable[bytes]) -> None:
        """Add the filters of persistent sessions of a shard that is yet to start."""
        former = self._former.setdefault(shard, set())
        for topic_filter in topic_filters:
            self._set_shard(shard, topic_filter, True, kept=True)
            former.add(topic_filter)
        self._forget_routes()

    def forget_former(self, shard: int) -> None:
        """Drop filters not announced again although a shard's persistent sessions are back."""
        wanted = self._remote.get(shard, set())
        for topic_filter in self._former.pop(shard, ()):
            self._set_shard(shard, topic_filter, topic_filter in wanted)
            self._invalidate(topic_filter)

    # Other nodes

    def set_node(self, node: int, paths: NodePaths, change: InterestChange) -> None:
        """Follow a change of another node's interest; ``paths`` lead there."""
        self._nodes.paths[node] = paths
        filters = self._nodes.filters.setdefault(node, {})
        kept = set(change.kept)
        for topic_filter in change.begun:
            self._tree.add(topic_filter, node, KEPT if topic_filter in kept else None)
            filters[topic_filter] = topic_filter in kept
            self._invalidate(topic_filter)
        for topic_filter in change.ceased:
            if topic_filter in filters:
                del filters[topic_filter]
                self._tree.remove(topic_filter, node)
                self._invalidate(topic_filter)

    def node_filters(self, node: int) -> Mapping[bytes, bool]:
        """Return the filters that another node wants, and whether for persistent sessions."""
        return self._nodes.filters.get(node, {})

    def drop_node(self, node: int) -> None:
        """Drop another node's interest."""
        for topic_filter in self._nodes.filters.pop(node, ()):
            self._tree.remove(topic_filter, node)
        self._nodes.paths.pop(node, None)
        self._forget_routes()

    def _forget_routes(self) -> None:
        self._reactor.routes.clear()
        self._nodes.routes.clear()

    def _invalidate(self, topic_filter: bytes) -> None:
        if b"+" in topic_filter or b"#" in topic_filter:
            self._forget_routes()
        else:
            self._reactor.routes.pop(topic_filter, None)
            self._nodes.routes.pop(topic_filter, None)


def less(counts: dict[bytes, int], topic_filter: bytes) -> None:
    """Decrement a count; remove it at zero."""
    count = counts[topic_filter] - 1
    if count:
        counts[topic_filter] = count
    else:
        del counts[topic_filter]


def new_target(session: Session, grant: Grant) -> Target:
    """Return the target of one subscription."""
    return Target(
        session.delivery,
        grant.qos,
        grant.no_local,
        grant.retain_as_published,
        identifier_property(grant.subscription_id),
    )


def add_grant(target: Target, grant: Grant) -> None:
    """Merge another subscription of the same session into its target."""
    target.qos = max(target.qos, grant.qos)
    target.keep_retain = target.keep_retain or grant.retain_as_published
    target.subscription_ids += identifier_property(grant.subscription_id)
