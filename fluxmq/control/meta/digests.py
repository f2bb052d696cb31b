"""Audit of the nodes' copies of ``_meta``: digests of all rows, compared at equal applied indexes.

The leader requests digests periodically. A node whose copy differs from a majority's gives it up
and gets a new one from the leader, like a node that lost its directory. Reading everything takes
time in large clusters: it happens rarely, in a thread, over a connection that sees one moment of
the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from fluxmq.control.meta.cluster_view import Work
from fluxmq.control.meta.frames import DIFFERS as DIFFERS_FRAME
from fluxmq.control.meta.frames import DIGEST_BYTES, DIGEST_WANTED, Digest, encode
from fluxmq.control.meta.replica import MetaReplica
from fluxmq.control.meta.tables import MemberState
from fluxmq.control.metadata import BUSY_SECONDS
from fluxmq.control.topology_rows import pack
from fluxmq.ipc.clusters import (
    DIFFERS,
    EQUAL,
    LEARNER,
    NOT_COMPARED,
    VOTER,
    AuditListing,
    AuditRow,
)
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.settings.clustering import META_GROUP

PERIOD_SECONDS: Final = 5.0
"""Time between two comparisons."""
SHARE: Final = 50
"""Minimum pause before the next comparison, as a multiple of the last one's duration."""
ANSWER_SECONDS: Final = 1.3
"""Time to wait for the others' digests on request: less than fluxmqctl waits."""
AGAIN_SECONDS: Final = 600.0
"""A copy that differs again this soon after it was replaced is kept: the cause would persist."""
QUERIES: Final = (
    "SELECT * FROM users",
    "SELECT * FROM permissions",
    "SELECT * FROM topic_permissions",
    "SELECT * FROM topology",
    "SELECT * FROM shared",
    "SELECT revision, topology_revision FROM state",
)
"""Everything that the nodes agree on."""

_log = get_logger(__name__)


def digest(path: Path) -> Digest:
    """Read all rows and the applied index of a database in use. Callable in any thread. Raises
    sqlite3.Error."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    total = 0
    database = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    with contextlib.closing(database):
        database.execute("BEGIN")
        (applied,) = database.execute("SELECT applied FROM raft_state").fetchone()
        for place, query in enumerate(QUERIES):
            for row in database.execute(query):
                # Row order is that of the file and irrelevant, so sums are compared.
                hashed = hashlib.blake2b(pack((place, *row)), digest_size=DIGEST_BYTES)
                total += int.from_bytes(hashed.digest())
    return Digest(applied, (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES))


def deviating(digests: Mapping[int, Digest], voters: Iterable[int]) -> list[int]:
    """Return the members whose copy differs from a majority's of the voters at the same index.
    Pure.

    Without such a majority nobody knows which copy is right, and none is returned.
    """
    right = majority_digest(digests, voters)
    return sorted(
        number
        for number, each in digests.items()
        if right is not None and each.applied == right.applied and each != right
    )


def majority_digest(digests: Mapping[int, Digest], voters: Iterable[int]) -> Digest | None:
    """Return the digest that a majority of the voters has; None without one. Pure."""
    members = set(voters)
    votes = Counter(each for number, each in digests.items() if number in members)
    return next((each for each, count in votes.items() if count > len(members) // 2), None)


class MetaAudit:
    """One node's part in audits. `names` are those of all nodes; `send` sends a frame to another
    node and returns whether there is a stream."""

    def __init__(
        self,
        own: int,
        names: Mapping[int, str],
        path: Path,
        replica: MetaReplica,
        work: Work,
        send: Callable[[int, bytes], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mismatches = 0
        """Number of deviating copies that this node found as leader."""
        self.compared = 0
        """Last index at which this node, as leader, found a majority of equal copies."""
        self._own = own
        self._names = names
        self._path = path
        self._replica = replica
        self._work = work
        self._send = send
        self._now = now
        self._told: dict[int, Digest] = {}
        self._named: dict[int, Digest] = {}
        """Copies found to differ, each of which is counted once."""
        self._askers: set[int] = set()
        self._taking = False
        self._next = 0.0
        self._given_up: float | None = None
        self._news = asyncio.Event()

    def samples(self) -> Iterator[Sample]:
        """Yield the results as metrics."""
        yield "fluxmq_meta_compared_index", {}, self.compared
        yield "fluxmq_meta_mismatches_total", {}, self.mismatches

    def tend(self) -> None:
        """Advance; called every few tenths of a second while this node leads."""
        if self._now() >= self._next:
            self._told.clear()  # digests of copies replaced since then are obsolete
            self._ask()

    def _ask(self) -> set[int]:
        """Request the digests of all copies; return the nodes that were asked."""
        self._next = self._now() + PERIOD_SECONDS
        others = [number for number in self._names if number != self._own]
        asked = {number for number in others if self._send(number, bytes((DIGEST_WANTED,)))}
        self._take()
        return asked

    # Messages from other nodes

    def wanted(self, number: int) -> None:
        """Handle a node's request for this copy's digest."""
        self._askers.add(number)
        self._take()

    def told(self, number: int, found: Digest) -> None:
        """Take the digest of a node's copy."""
        self._told[number] = found
        self._news.set()
        self._judge()

    def parted(self, number: int) -> None:
        """Note that the stream to a node has ended: its copy may change meanwhile."""
        self._told.pop(number, None)
        self._askers.discard(number)

    def differs(self, number: int) -> None:
        """Handle a node's report that this copy differs: only the leader is believed."""
        if number == self._replica.leader:
            self._give_up()

    # Here

    def _take(self) -> None:
        replica = self._replica
        if replica.standing is not MemberState.MEMBER or replica.problem is not None:
            self._askers.clear()
        elif not self._taking:
            self._taking = True
            self._work.begin(self._taken())

    async def _taken(self) -> None:
        began = self._now()
        incarnation = self._replica.incarnation
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, digest, self._path)
        except sqlite3.Error as problem:
            _log.warning("cannot compute the digest of _meta: %s", problem)
            return
        finally:
            self._taking = False
            askers, self._askers = self._askers, set()
        self._next = max(self._next, self._now() + SHARE * (self._now() - began))
        if self._replica.incarnation != incarnation:
            return  # this copy was given up meanwhile
        for number in askers:
            self._send(number, encode(found))
        self.told(self._own, found)

    def _judge(self) -> None:
        """Have nodes with deviating copies give them up, as leader."""
        if not self._replica.leading:
            return
        voters = self._replica.status().membership.voters
        for number in deviating(self._told, voters):
            found = self._told[number]
            if self._named.get(number) != found:
                self._named[number] = found
                self.mismatches += 1
                about = {"group": META_GROUP, "member": self._names.get(number, str(number))}
                _log.error("replicas of a group differ", extra=about)
            if number == self._own:
                self._give_up()
            else:
                self._send(number, bytes((DIFFERS_FRAME,)))
        right = majority_digest(self._told, voters)
        if right is not None:
            self.compared = max(self.compared, right.applied)

    def _give_up(self) -> None:
        if self._replica.standing is not MemberState.MEMBER or self._replica.problem is not None:
            return  # already given up
        now = self._now()
        if self._given_up is not None and now - self._given_up < AGAIN_SECONDS:
            _log.error(
                "this replica of _meta differs again: keeping it", extra={"group": META_GROUP}
            )
            return
        self._given_up = now
        self._replica.forget_log("it differs from what a majority holds")

    # On request

    async def audit(self) -> AuditListing:
        """Compare all copies now. The leader's next periodic comparison, seconds later, replaces
        those that differ."""
        self._told.clear()
        expected = self._ask() | {self._own}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                while not expected <= set(self._told):
                    self._news.clear()
                    await self._news.wait()
        digests, membership = dict(self._told), self._replica.status().membership
        right = majority_digest(digests, membership.voters) or digests.get(self._own)
        index = self._replica.applied_index if right is None else right.applied
        here = self._replica.problem or "it is no member yet"
        rows = []
        for number, name in self._names.items():
            found, problem = digests.get(number), ""
            if found is None and number == self._own:
                problem = here
            elif found is None:
                asked = number in expected
                problem = "it did not answer in time" if asked else "it is not connected"
            elif found.applied != index:
                problem = f"it was at index {found.applied} then: ask again"
            rolling = "" if problem or found is None else found.content.hex()
            verdict = NOT_COMPARED if problem else EQUAL if found == right else DIFFERS
            kind = VOTER if number in membership.voters else LEARNER
            if number in (*membership.voters, *membership.learners):
                rows.append(AuditRow(name, kind, index, rolling, verdict, problem))
        return AuditListing(META_GROUP, tuple(sorted(rows, key=lambda row: row.node)))
