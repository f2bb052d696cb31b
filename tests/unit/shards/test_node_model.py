"""A node against a model of a few lines: who gets which message, whatever comes and goes.

The model is one broker with a dictionary of sessions. The node is three shards; clients come by any of them, so that
sessions move, and shards are killed and started again, which ends the sessions they have.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fluxmq.net.reactor
from fluxmq.protocols.sniff import shard_of
from tests.conformance import wire
from tests.conformance.client import Client
from tests.unit.shards.node import Clock, Node, messages

SHARDS, CLIENTS = 3, 4
FILTERS = ("a", "a/b", "a/+", "+/b", "#", "a/#", "c")
TOPICS = ("a", "a/b", "a/c", "c", "d/b")
LASTING = ((wire.SESSION_EXPIRY_INTERVAL, 1000),)
SHARD, CLIENT = st.integers(0, SHARDS - 1), st.integers(0, CLIENTS - 1)

EVENTS = st.one_of(
    st.tuples(st.just("connect"), CLIENT, SHARD, st.booleans(), st.booleans()),
    st.tuples(st.just("drop"), CLIENT),
    st.tuples(st.just("subscribe"), CLIENT, st.sampled_from(FILTERS), st.integers(0, 2)),
    st.tuples(st.just("subscribe"), CLIENT, st.sampled_from(FILTERS), st.integers(1, 2)),
    st.tuples(st.just("unsubscribe"), CLIENT, st.sampled_from(FILTERS)),
    st.tuples(st.just("publish"), SHARD, st.sampled_from(TOPICS), st.integers(0, 2)),
    st.tuples(st.just("publish"), SHARD, st.sampled_from(TOPICS), st.integers(1, 2)),
    st.tuples(st.just("restart"), SHARD),
    st.tuples(st.just("time"), st.sampled_from((0.2, 10.0))),
)


def matches(topic_filter: str, topic: str) -> bool:
    """Section 4.7, without topics that begin with $."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index == len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


class Session:
    """What the model keeps for a client id."""

    def __init__(self, shard: int, lasting: bool) -> None:
        self.shard = shard
        self.lasting = lasting
        self.client: Client | None = None
        self.filters: dict[str, int] = {}
        self.owed: list[bytes] = []


class Model:
    """The node and what it should do."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sessions: dict[int, Session] = {}
        self.publishers: dict[int, Client] = {}
        self.count = 0

    def connect(self, who: int, shard: int, clean: bool, lasting: bool) -> None:
        """A client comes, perhaps while it is here already."""
        old = self.sessions.get(who)
        if old is not None and old.client is not None:
            self.read(old)
            if not old.lasting:
                old = None
        if clean:
            old = None
        client = self.node.connect(
            shard, f"client{who}", clean=clean, props=LASTING if lasting else ()
        )
        assert client.present == (old is not None)
        session = old or Session(shard, lasting)
        session.shard, session.lasting, session.client = shard, lasting, client
        self.sessions[who] = session
        self.read(session)

    def drop(self, who: int) -> None:
        """A client goes, having read everything."""
        session = self.sessions.get(who)
        if session is None or session.client is None:
            return
        self.read(session)
        session.client.drop()
        session.client = None
        if not session.lasting:
            del self.sessions[who]

    def subscribe(self, who: int, topic_filter: str, qos: int) -> None:
        """A connected client subscribes."""
        session = self.sessions.get(who)
        if session is not None and session.client is not None:
            session.client.subscribe(topic_filter, qos=qos)
            session.filters[topic_filter] = qos

    def unsubscribe(self, who: int, topic_filter: str) -> None:
        """A connected client unsubscribes."""
        session = self.sessions.get(who)
        if session is not None and session.client is not None:
            expected = 0 if session.filters.pop(topic_filter, None) is not None else 0x11
            assert session.client.unsubscribe(topic_filter).reasons == [expected]

    def publish(self, shard: int, topic: str, qos: int) -> None:
        """Somebody publishes."""
        if shard not in self.publishers:
            self.publishers[shard] = self.node.connect(shard, self.node.id_of(shard, "publisher"))
        self.count += 1
        payload = b"%d" % self.count
        self.publishers[shard].publish(topic, payload, qos=qos)
        self.node.run()
        for session in self.sessions.values():
            granted = [q for f, q in session.filters.items() if matches(f, topic)]
            if granted and (session.client is not None or min(qos, max(granted))):
                session.owed.append(payload)

    def restart(self, shard: int) -> None:
        """A shard dies, with everything on disk; sessions that last come back at their home."""
        self.node.advance(0.1)
        for who, session in list(self.sessions.items()):
            if session.shard == shard:
                if session.client is not None:
                    self.read(session)
                    session.client = None
                if session.lasting:
                    home = shard_of(f"client{who}".encode(), SHARDS)
                    assert home is not None
                    session.shard = home
                else:
                    del self.sessions[who]
        self.publishers.pop(shard, None)
        self.node.kill(shard)
        self.node.start(shard)
        self.node.run()
        self.node.advance(0.3)

    def time(self, seconds: float) -> None:
        """Nothing happens."""
        self.node.advance(seconds)

    def read(self, session: Session) -> None:
        """A client has got what it is owed, in order, once."""
        assert session.client is not None
        assert messages(session.client) == session.owed
        session.owed.clear()

    def end(self) -> None:
        """Nothing is left over, and nothing is forgotten."""
        self.node.advance(0.3)
        for session in self.sessions.values():
            if session.client is not None:
                self.read(session)
        for who in range(CLIENTS):
            expected = self.sessions.get(who)
            holders = self.node.holders(f"client{who}")
            assert holders == ([] if expected is None else [expected.shard])
        count = sum(len(session.filters) for session in self.sessions.values())
        assert sum(shard.broker.subscriptions.count for shard in self.node) == count
        for shard in self.node:
            wanted = {
                (session.shard, topic_filter.encode())
                for session in self.sessions.values()
                for topic_filter in session.filters
                if session.shard != shard.index
            }
            told = shard.broker.subscriptions.routes._remote
            assert {(peer, f) for peer, found in told.items() for f in found} == wanted


@example(
    [
        ("connect", 0, 0, False, True),
        ("connect", 0, 1, False, False),
        ("restart", 1),
    ]
)  # the former shard's rows came after the next one's
@example(
    [
        ("connect", 0, 0, False, True),
        ("connect", 0, 1, True, True),
        ("restart", 1),
    ]
)  # nor is the end of the former session written after the next one
@settings(max_examples=60)
@given(st.lists(EVENTS, max_size=40))
def test_everybody_gets_what_they_are_owed(events: list[Any]) -> None:
    loop, clock = asyncio.new_event_loop(), Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fluxmq.net.reactor, "monotonic", clock)
        node = Node(SHARDS, clock, loop)
        try:
            model = Model(node)
            for name, *arguments in events:
                getattr(model, name)(*arguments)
            model.end()
        finally:
            node.close()
            loop.close()
