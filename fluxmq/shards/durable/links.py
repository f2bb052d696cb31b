"""Traffic over the links to other shards about kept sessions and retained messages.

Control frames: ``keep`` [number, changes, whether an answer is awaited] and ``kept`` [number,
reason] between a session's shard and its home; ``run kept`` [number, reason, ...] answers KEPT and
DEALT frames; ``retained kept`` [[topic, stamp, reason], ...] answers RETAINED frames at the topic's
home; ``refusing`` [reason]: a home keeps nothing new, or, with 0, does again; ``restored``: a
shard's persistent sessions are there and have announced their interest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxmq.net.frames import NO_SOURCE, KeptSource
from fluxmq.net.links import Link
from fluxmq.shards.durable.durability import Durability
from fluxmq.shards.groups import GroupTable
from fluxmq.shards.routes import RouteTable
from fluxmq.shards.run_numbers import RunOrigin
from fluxmq.storage.state_store import table_of


class DurableLinks:
    """Connects this shard's durable state to the other shards."""

    def __init__(
        self,
        links: dict[int, Link],
        durability: Durability,
        routes: RouteTable,
        groups: GroupTable,
    ) -> None:
        self._links = links
        self._commit_waiter = durability.commit_waiter
        self._retained = durability.rows
        self._routes = routes
        self._groups = groups
        self._runs = durability.runs
        self._restored = False
        self._refusing = 0
        """The state of this shard's store that the others know."""
        self._unsaid: dict[int, tuple[int, int]] = {}
        """Confirmations of peers' changes that are not awaited: sent now and then."""
        self.kept = durability.kept

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {
            "keep": self._on_keep,
            "kept": self._on_kept,
            "run kept": self._on_run_kept,
            "retained kept": self._retained.on_kept,
            "restored": self._on_restored,
            "refusing": self._on_refusing,
        }

    def received(
        self, link: Link, number: int, deliver: Callable[[], None], source: KeptSource = NO_SOURCE
    ) -> None:
        """Deliver a numbered run, of which each session that gets it gets all. ``source``: the run as
        another node has sent it."""
        numbers, shard = self._commit_waiter.numbers, self._commit_waiter.shard
        numbers.source = RunOrigin(*source) if source[2] else RunOrigin.over(link, shard, number)
        self.dealt(link, number, deliver)

    def dealt(self, link: Link, number: int, deliver: Callable[[], None]) -> None:
        """Deliver a numbered run for members of a shared group, who share it."""
        self._runs.deliver(link, number, deliver)
        self._commit_waiter.numbers.source = None

    def _on_keep(self, link: Link, number: int, changes: list[list[Any]], waited_for: bool) -> None:
        store = self._commit_waiter.store
        for verb, name, *values in changes:
            if verb == "put":
                store.put(table_of(name), tuple(values[0]))
            elif verb == "remove":
                store.remove(table_of(name), tuple(values[0]))
            else:
                store.wipe(name)

        def safe(reason: int) -> None:
            if not waited_for:
                self._unsaid[link.peer] = (number, reason)
            elif link.up:
                self._unsaid.pop(link.peer, None)  # this confirms all before it as well
                link.send_control("kept", number, reason)

        store.when_safe(safe)
        self._commit_waiter.wake()

    def _on_kept(self, link: Link, number: int, reason: int) -> None:
        self._commit_waiter.remote[link.peer].confirmed(number, reason)

    def _on_run_kept(self, link: Link, answers: list[int]) -> None:
        kept = self.kept[link.peer]
        for at in range(0, len(answers), 2):
            kept.answered(answers[at], answers[at + 1])

    def _on_restored(self, link: Link) -> None:
        self._routes.forget_former(link.peer)
        self._groups.forget_former(link.peer)
        self.kept[link.peer].serve()

    def _on_refusing(self, link: Link, reason: int) -> None:
        self._commit_waiter.remote[link.peer].told = reason

    # Coming and going

    def tell_first(self, link: Link) -> None:
        """Resend unconfirmed changes to a shard that has come, before all else."""
        self._commit_waiter.remote[link.peer].back()
        if self._refusing:
            link.send_control("refusing", self._refusing)

    def tell_last(self, link: Link) -> None:
        """Tell a shard that it knows all interest of this one."""
        if self._restored:
            link.send_control("restored")

    def restored(self) -> None:
        """Announce that this shard's sessions are there, with their interest known."""
        self._restored = True
        for link in self._links.values():
            if link.up:
                link.send_control("restored")

    def lose(self, peer: int) -> None:
        """Handle the death of a shard."""
        self._commit_waiter.numbers.losses += 1
        self.kept[peer].lose()
        self._commit_waiter.remote[peer].lost()
        self._retained.lost(peer)
        self._unsaid.pop(peer, None)

    def housekeeping(self) -> None:
        """Refuse overdue runs and send confirmations; called by the shard's timer."""
        for kept in self.kept.values():
            kept.give_up()
        self._tell_refusing()
        unsaid, self._unsaid = self._unsaid, {}
        for peer, (number, reason) in unsaid.items():
            if self._links[peer].up:
                self._links[peer].send_control("kept", number, reason)

    def _tell_refusing(self) -> None:
        refusing = self._commit_waiter.store.refusing
        if refusing != self._refusing:
            self._refusing = refusing
            for link in self._links.values():
                if link.up:
                    link.send_control("refusing", refusing)
