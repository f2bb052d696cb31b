"""Numbered runs of other nodes: each is delivered once, and answered when it is safe here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fluxmq.net.reactor import Reactor
from fluxmq.shards.doubtful_peers import DoubtfulPeers
from fluxmq.shards.durable.commit_waiter import CallbackAck, CommitWaiter
from fluxmq.shards.node_paths import NodeCounts, PublishLink
from fluxmq.shards.run_numbers import RunNumbers, RunOrigin

REFUSED_MAX = 1024
"""Number of refusals that are remembered, by stream, in case that their answers are lost."""


class HeardRuns:
    """The numbered runs of one stream's sender that have come."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last = 0
        self.open: set[int] = set()
        """Runs that are not answered yet."""
        self.refused: dict[int, int] = {}

    def answer(self, number: int, reason: int) -> None:
        """Note an answer."""
        self.open.discard(number)
        if reason:
            self.refused[number] = reason
            if len(self.refused) > REFUSED_MAX:
                del self.refused[next(iter(self.refused))]


class NodeRuns:
    """The receiving side of this shard's streams to other nodes."""

    def __init__(
        self,
        links: Mapping[int, PublishLink],
        reactor: Reactor,
        commit_waiter: CommitWaiter,
        counts: NodeCounts,
        kept_seconds: float,
    ) -> None:
        """``kept_seconds``: time for which other nodes keep unanswered runs."""
        self._links = links
        self._reactor = reactor
        self._commit_waiter = commit_waiter
        self.counts = counts
        self.doubtful = DoubtfulPeers(lambda: reactor.tally.now, kept_seconds)
        self._heard: dict[int, HeardRuns] = {}
        self._answers: dict[int, list[int]] = {}

    @property
    def identities(self) -> RunNumbers:
        """Identities of this shard's messages."""
        return self._commit_waiter.numbers

    def _heard_of(self, link: PublishLink) -> HeardRuns:
        heard = self._heard.get(link.peer)
        if heard is None or heard.epoch != link.epoch:
            heard = self._heard[link.peer] = HeardRuns(link.epoch)
        return heard

    def deliver(
        self, link: PublishLink, number: int, deliver: Callable[[], None], whole: bool
    ) -> None:
        """Deliver a numbered run unless it has come before, and answer it once it is safe;
        ``whole``: each session that gets it gets all of it."""
        heard = self._heard_of(link)
        if number <= heard.last:
            self.counts.repeated += 1
            if number not in heard.open:
                self._answer(link.peer, number, heard.refused.get(number, 0))
            return
        heard.last = number
        heard.open.add(number)
        known = heard

        def safe(reason: int) -> None:
            known.answer(number, reason)
            if self._heard.get(link.peer) is known:
                self._answer(link.peer, number, reason)

        reactor, waiter = self._reactor, self._commit_waiter
        if whole:
            waiter.numbers.source = RunOrigin.over(link, waiter.shard, number)
        pending_ack = CallbackAck(reactor, safe)
        reactor.pending_ack = pending_ack.hold()
        try:
            deliver()
        finally:  # a malformed run ends its stream, and nothing else
            reactor.pending_ack = None
            waiter.numbers.source = None
        self.doubtful.answer(link.peer, pending_ack)

    def _answer(self, peer: int, number: int, reason: int) -> None:
        self._answers.setdefault(peer, []).extend((number, reason))
        self._commit_waiter.wake()

    def flush(self) -> None:
        """Send the answers of this tick."""
        if not self._answers:
            return
        answers, self._answers = self._answers, {}
        for peer, said in answers.items():
            if self._links[peer].up:
                self._links[peer].send_control("answered", said)
