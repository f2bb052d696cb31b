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
from typing import TYPE_CHECKING

from fluxmq.engine.queue_targets import QueueTarget
from fluxmq.net.links import Link
from fluxmq.net.reactor import Reactor
from fluxmq.net.route import Route
from fluxmq.protocols.mqtt.inflight_range import Target
from fluxmq.protocols.mqtt.reasons import ProtocolError
from fluxmq.protocols.mqtt.topics import validate_topic
from fluxmq.routing.subscriptions import SubscriptionTree
from fluxmq.sessions.mqtt.session import Grant, Session
from fluxmq.sessions.mqtt.subscribing import identifier_property
from fluxmq.shards.groups import SharedSubscription
from fluxmq.shards.retained import SYSTEM_PREFIX

if TYPE_CHECKING:
    from fluxmq.shards.durable.persistent_links import PersistentLink

KEPT = Grant(0)
"""Accompanies another shard's number if persistent sessions there have the filter."""


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
    ) -> None:
        """``targets`` returns the queues that store a topic's messages; None if it addresses an
        impossible queue. ``persistent_links`` lead reliably to other shards' persistent sessions, which
        acknowledge messages."""
        self._reactor = reactor
        self._max_topic_bytes = max_topic_bytes
        self._max_topic_levels = max_topic_levels
        self._control_characters = control_characters
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
        self._kept_links = persistent_links
        self._sinks = targets
        self.subscription_count = 0
        self.changed: dict[bytes, bool] = {}
        """Filters that this shard began (True) or ceased to want since the last announcement."""

    def route(self, topic: bytes) -> Route | None:
        """Return the route of a client's publish to ``topic``; None if the topic is not valid."""
        try:
            validate_topic(
                topic, self._max_topic_bytes, self._max_topic_levels, self._control_characters
            )
        except ProtocolError:
            return None
        if topic.startswith(SYSTEM_PREFIX):
            return Route([], [], [], [])  # only the broker itself publishes there
        if self._sinks(topic) is None:
            return None
        return self.build(topic)

    def build(self, topic: bytes) -> Route:
        """Return the route of a topic."""
        targets: dict[Session, Target] = {}
        links: dict[int, Link | PersistentLink] = {}
        groups: list[SharedSubscription] = []
        for _, subscriber, grant in self._tree.match(topic):
            if isinstance(subscriber, Session):
                assert grant is not None
                self._merge(targets, subscriber, grant)
            elif isinstance(subscriber, int):
                if grant is KEPT:
                    links[subscriber] = self._kept_links[subscriber]
                else:
                    links.setdefault(subscriber, self._links[subscriber])
            else:
                groups.append(subscriber)
        queues = list(self._sinks(topic) or ())
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
        before = self._interest(topic_filter)
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
        before = self._interest(topic_filter)
        if session.delivery.durable is not None:
            less(self._kept_here, topic_filter)
        less(self._local, topic_filter)
        self._note(topic_filter, before)

    def _interest(self, topic_filter: bytes) -> tuple[bool, bool]:
        """Return whether sessions of this shard have a filter, and whether persistent ones do."""
        return topic_filter in self._local, topic_filter in self._kept_here

    def _note(self, topic_filter: bytes, before: tuple[bool, bool]) -> None:
        """Note a difference from the peers' knowledge, to be announced."""
        now = self._interest(topic_filter)
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
            self._tree.add(topic_filter, shard, KEPT if kept else None)
            self._remote.setdefault(shard, set()).add(topic_filter)
        else:
            self._tree.remove(topic_filter, shard)
            self._remote.get(shard, set()).discard(topic_filter)
        self._invalidate(topic_filter)

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
                self._tree.remove(topic_filter, shard)
        self._reactor.routes.clear()

    def expect(self, shard: int, topic_filters: Iterable[bytes]) -> None:
        """Add the filters of persistent sessions of a shard that is yet to start."""
        former = self._former.setdefault(shard, set())
        for topic_filter in topic_filters:
            self._tree.add(topic_filter, shard, KEPT)
            former.add(topic_filter)
        self._reactor.routes.clear()

    def forget_former(self, shard: int) -> None:
        """Drop filters not announced again although a shard's persistent sessions are back."""
        wanted = self._remote.get(shard, set())
        for topic_filter in self._former.pop(shard, ()):
            if topic_filter in wanted:
                self._tree.add(topic_filter, shard, None)
            else:
                self._tree.remove(topic_filter, shard)
            self._invalidate(topic_filter)

    def _invalidate(self, topic_filter: bytes) -> None:
        if b"+" in topic_filter or b"#" in topic_filter:
            self._reactor.routes.clear()
        else:
            self._reactor.routes.pop(topic_filter, None)


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
