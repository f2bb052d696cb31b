"""Sessions that are on their way to this shard, from another shard or node.

Their subscriptions are here before they are: each message that is published from then on is sent to
the session's former place, where it is frozen, and to this one. First a barrier is passed, so that
no message comes any more that was sent here before, for other sessions, and that the client may have
had at the former place. Then messages wait here, with their publishers, until the session has come
with what it had before. Those that have reached the former place as well are recognised by their
``PublishRun.identity``: a run reaches a session in whole or not at all. They
have all come here, too, once a second barrier is passed, which is begun when the session has come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from fluxmq.model.outcomes import Outcome
from fluxmq.net.reactor import Reactor
from fluxmq.protocols.mqtt.delivery import SessionDelivery
from fluxmq.protocols.mqtt.pending_acks import PendingAck
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.sessions.mqtt.handover import abandon
from fluxmq.sessions.mqtt.session import Session
from fluxmq.shards.barriers import PassedCallback
from fluxmq.shards.durable.commit_waiter import CommitWaiter
from fluxmq.shards.durable.rows import grant_of
from fluxmq.shards.durable.session_journal import SessionJournal
from fluxmq.shards.run_numbers import RunOrigin
from fluxmq.shards.subscriptions import Subscriptions
from fluxmq.shards.transfer import GrantValues

EXPECTED_BYTES_MAX = 16 << 20
"""Bytes of messages that wait for a session; beyond it they are refused."""

Identity = tuple[int, int, int]
"""Messages of a run: its origin, the number of the first, and how many there are."""


class _WaitingRun:
    """A run that waits, and what its publisher waits for."""

    __slots__ = ("group", "pending_ack", "qos", "retain", "run", "source", "subscription_ids")

    def __init__(
        self,
        run: PublishRun,
        qos: int,
        retain: int,
        subscription_ids: bytes,
        group: object,
        pending_ack: PendingAck,
        source: RunOrigin | None,
    ) -> None:
        self.run = run
        self.qos = qos
        self.retain = retain
        self.subscription_ids = subscription_ids
        self.group = group
        self.pending_ack = pending_ack
        self.source = source


class ExpectedRuns:
    """The ``durable`` of the delivery that stands in for a session's."""

    def __init__(self, commit_waiter: CommitWaiter, reactor: Reactor) -> None:
        self._commit_waiter = commit_waiter
        self._reactor = reactor
        self._runs: list[_WaitingRun] = []
        self._bytes = 0
        self.open = False
        """False while messages come that the former place gets as well, for certain."""

    def keep(
        self, run: PublishRun, qos: int, retain: int, subscription_ids: bytes, group: object
    ) -> None:
        """Have a run, and its publisher, wait."""
        if not self.open and group is None:
            return
        self._commit_waiter.numbers.identify(run)
        pending_ack = self._commit_waiter.hold()
        size = run.end - run.start
        if self._bytes + size > EXPECTED_BYTES_MAX:
            self._commit_waiter.count_drop("not_stored", run.count)
            pending_ack.done(Outcome.OVER_LIMIT)
            return
        self._bytes += size
        source = self._commit_waiter.numbers.source
        self._runs.append(
            _WaitingRun(run, qos, retain, subscription_ids, group, pending_ack, source)
        )

    def pass_on(self, journal: SessionJournal, known: Iterable[Identity]) -> None:
        """Keep everything in a session's journal but what the session has, ``known``."""
        covered = _Covered(known)
        reactor, waiter = self._reactor, self._commit_waiter
        former, former_source = reactor.pending_ack, waiter.numbers.source
        for each in self._take():
            if each.group is not None or not covered.covers(each.run):
                reactor.pending_ack, waiter.numbers.source = each.pending_ack, each.source
                journal.keep(each.run, each.qos, each.retain, each.subscription_ids, each.group)
            each.pending_ack.done(0)
        reactor.pending_ack, waiter.numbers.source = former, former_source

    def drop(self) -> None:
        """Answer the publishers: the session is elsewhere, with all messages."""
        for each in self._take():
            each.pending_ack.done(0)

    def _take(self) -> list[_WaitingRun]:
        runs, self._runs, self._bytes = self._runs, [], 0
        return runs


class _Covered:
    """The messages of runs, by origin, as ranges of numbers."""

    def __init__(self, known: Iterable[Identity]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for origin, first, count in sorted(known):
            self._ranges.setdefault(origin, []).append((first, first + count))

    def covers(self, run: PublishRun) -> bool:
        """Return whether a run's messages are among them."""
        if run.identity is None:
            return False
        origin, number = run.identity
        ranges = self._ranges.get(origin, [])
        at = bisect_right(ranges, (number, 1 << 64)) - 1
        return at >= 0 and number < ranges[at][1]


class ExpectedSessions:
    """The sessions on their way to this shard, by client id."""

    def __init__(
        self,
        new_delivery: Callable[[], SessionDelivery],
        commit_waiter: CommitWaiter,
        subscriptions: Subscriptions,
        reactor: Reactor,
        when_known: Callable[[Callable[[], None]], None],
    ) -> None:
        """``when_known`` calls back when all shards know the subscriptions made so far."""
        self._new_delivery = new_delivery
        self._commit_waiter = commit_waiter
        self._subscriptions = subscriptions
        self._reactor = reactor
        self._when_known = when_known
        self._expected: dict[str, Session] = {}

    def expect(
        self,
        client_id: str,
        subscriptions: GrantValues,
        flush: Callable[[PassedCallback], None],
        ready: PassedCallback,
    ) -> None:
        """Have messages of these subscriptions wait here. ``flush`` begins a barrier of all that send
        messages here; ``ready`` is told whether it was passed, and what comes from then on waits. If
        the session is expected already, what waits goes on waiting."""
        session = self._expected.get(client_id)
        if session is None:
            session = Session(client_id, self._new_delivery())
            session.delivery.durable = ExpectedRuns(self._commit_waiter, self._reactor)
            self._expected[client_id] = session
        for written, *options in subscriptions:
            if written not in session.subscriptions:
                grant = session.subscriptions[written] = grant_of(options)
                topic_filter = session.filter_of(written)
                self._subscriptions.subscribe(session, written, topic_filter, grant)
        runs: ExpectedRuns = session.delivery.durable

        def passed(whole: bool) -> None:
            runs.open = True
            ready(whole)

        self._when_known(lambda: flush(passed))

    def came(self, session: Session, known: Iterable[list[int] | None]) -> None:
        """Give a session that has come, with its subscriptions, what has waited for it; ``known``:
        the identities of messages that it has, None for those without."""
        expected = self._expected.get(session.client_id)
        if expected is not None:
            runs: ExpectedRuns = expected.delivery.durable
            journal: SessionJournal | None = session.delivery.durable
            if journal is not None:
                found = [(each[0], each[1], each[2]) for each in known if each is not None]
                runs.pass_on(journal, found)
            self.drop(session.client_id)

    def drop(self, client_id: str) -> None:
        """Expect a session no longer: it is elsewhere, or has ended."""
        expected = self._expected.pop(client_id, None)
        if expected is None:
            return
        for written in list(expected.subscriptions):
            self._subscriptions.unsubscribe(expected, written)
        runs: ExpectedRuns = expected.delivery.durable
        runs.drop()
        expected.subscriptions.clear()
        abandon(expected.delivery)
