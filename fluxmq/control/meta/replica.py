"""Driver of the Raft node of ``_meta``: time and messages in, messages and database writes out.

Messages that depend on no write leave at once; writes wait for the running transaction and share
the next. Nothing that depends on a write leaves, is applied or answered before it is on disk.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from fluxmq.control.meta.decisions import DecisionError
from fluxmq.control.meta.log import MetaLog
from fluxmq.control.meta.tables import (
    CommittedEntries,
    ForeignTopologyError,
    Kept,
    MemberState,
    MetaTables,
    SnapshotContent,
)
from fluxmq.control.metadata import StoreThread
from fluxmq.control.ports import LostError, NotLeadingError
from fluxmq.logs import get_logger
from fluxmq.raft.errors import InconsistentLog
from fluxmq.raft.node import Config, Node
from fluxmq.raft.types import (
    Entry,
    Membership,
    Message,
    MessageKind,
    ProposalAccepted,
    RaftStatus,
    Ready,
    Role,
)
from fluxmq.settings.plans import GroupPlan

TICKS_PER_ELECTION: Final = 20
"""Ticks in the shortest election timeout: the more, the rarer two nodes campaign at once."""
INFLIGHT_BYTES_MAX: Final = 16 << 20
MESSAGE_BYTES_MAX: Final = 4 << 20
"""Unacknowledged bytes per member, and bytes in one message; a larger entry travels alone."""
RETRY_SECONDS: Final = 1.0
"""Delay before a failed transaction is retried."""
_FROM_LEADER: Final = (MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT)

_log = get_logger(__name__)


class Observer(Protocol):
    """Recipient of the replica's events."""

    def applied(self, written: CommittedEntries) -> None:
        """Handle a transaction that is on disk."""

    def turned(self) -> None:
        """Handle a possible change of role, leader or member state."""

    def behind(self, number: int) -> None:
        """Handle a member that needs entries compacted from the log."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    index: int
    term: int
    done: asyncio.Future[None]


class MetaReplica:
    """This node's member of the group. Lives on control's loop."""

    def __init__(
        self,
        plan: GroupPlan,
        tables: MetaTables,
        thread: StoreThread,
        kept: Kept,
        send: Callable[[Message], None],
        observer: Observer,
    ) -> None:
        self.standing = kept.standing
        self.incarnation = kept.incarnation
        self.brings = kept.brings
        self.problem: str | None = None
        """Reason why this node does not take part."""
        self.elections = 0
        """Number of times that it became leader."""
        self._plan = plan
        self._tables = tables
        self._thread = thread
        self._send = send
        self._observer = observer
        self._members = Membership(tuple(member.number for member in plan.members))
        self._begin(kept)
        self._failed = False
        self._work: deque[Ready] = deque()
        self._received: SnapshotContent | None = None
        self._writer: asyncio.Task[None] | None = None
        self._over: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._proposals: deque[_Proposal] = deque()
        self._reads: dict[int, asyncio.Future[int]] = {}
        self._last_read = 0
        self._applied_changed = asyncio.Event()
        self._pumping = False

    def _begin(self, kept: Kept) -> None:
        plan = self._plan
        tick = plan.election_timeout / TICKS_PER_ELECTION
        heartbeat = min(max(round(plan.heartbeat_timeout / tick), 1), TICKS_PER_ELECTION - 1)
        self._tick_seconds = tick
        self.incarnation, self.standing = kept.incarnation, kept.standing
        self._log = MetaLog(kept.base_index, kept.base_term, kept.entries)
        self.applied_index = kept.applied
        self._applied_term = self._log.term(kept.applied)
        self._role, self._leader = Role.FOLLOWER, 0
        self.node = Node(
            Config(plan.own, TICKS_PER_ELECTION, heartbeat, INFLIGHT_BYTES_MAX, MESSAGE_BYTES_MAX),
            self._log,
            kept.hard_state,
            kept.membership,
            kept.applied,
            secrets.randbelow,
        )

    def start(self) -> None:
        """Start the clock."""
        self._timer = asyncio.get_running_loop().call_later(self._tick_seconds, self._tick)
        self.pump()

    async def stop(self) -> None:
        """Stop taking part; wait for the running transaction."""
        self._failed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._over is not None:
            self._over.cancel()
        self._lose()
        while self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer])

    # State

    @property
    def leading(self) -> bool:
        """True when proposals are accepted here: all entries committed before are applied."""
        return (
            not self._failed
            and self.problem is None
            and self._role is Role.LEADER
            and self._applied_term == self.node.term
        )

    @property
    def leader(self) -> int:
        """Number of the leader, 0 when it is unknown."""
        return self._leader

    @property
    def last_index(self) -> int:
        """Index of the last entry on disk."""
        return self._log.last_index()

    def status(self) -> RaftStatus:
        """Return an overview of the node."""
        return self.node.status()

    # Events

    def stand(self, standing: MemberState) -> None:
        """Take another member state, which is on disk."""
        self.standing = standing
        self._observer.turned()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_seconds, self._tick)
        if self.standing is MemberState.MEMBER:
            self._guarded(self.node.tick)

    def step(self, message: Message, content: SnapshotContent | None = None) -> None:
        """Handle a member's message; `content` belongs to a SNAPSHOT. Raises MalformedMessage."""
        if self.standing is MemberState.NEW:
            return
        if self.standing is MemberState.RETURNING and message.kind not in _FROM_LEADER:
            return
        if content is not None:
            self._received = content
        self._guarded(lambda: self.node.step(message))

    def campaign(self) -> None:
        """Campaign now."""
        if self.standing is MemberState.MEMBER:
            self._guarded(self.node.campaign)

    def unreachable(self, number: int) -> None:
        """Note that the stream to a member has ended."""
        self._guarded(lambda: self.node.report_unreachable(number))

    def transfer(self, number: int) -> bool:
        """Transfer leadership; return whether the transfer began."""
        begun = self.node.transfer_leadership(number)
        self.pump()
        return begun

    def _guarded(self, action: Callable[[], object]) -> None:
        if self._failed or self.problem is not None:
            return
        try:
            action()
        except InconsistentLog as problem:
            self._start_over(f"it is older than what others were told of it: {problem}")
            return
        self.pump()

    # Requests

    def propose(self, data: bytes) -> asyncio.Future[None]:
        """Propose an entry; the future is done when it is applied here. Raises NotLeadingError.

        The future's LostError: the entry may yet be committed by another leader, or never.
        """
        if not self.leading:
            raise NotLeadingError
        outcome = self.node.propose([data])
        if not isinstance(outcome, ProposalAccepted):
            raise NotLeadingError
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._proposals.append(_Proposal(outcome.first_index, outcome.term, done))
        self.pump()
        return done

    async def barrier(self) -> None:
        """Return when this node has led since the call, with all committed entries applied.

        Raises NotLeadingError or LostError.
        """
        if not self.leading:
            raise NotLeadingError
        self._last_read += 1
        number = self._last_read
        if self.node.read_index(number) is not None:
            raise NotLeadingError
        self._reads[number] = asyncio.get_running_loop().create_future()
        self.pump()
        try:
            index = await self._reads[number]
        finally:
            self._reads.pop(number, None)
        await self.reached(index)

    async def reached(self, index: int) -> None:
        """Return when this index is applied. Raises LostError when this node stops taking part."""
        while self.applied_index < index:
            if self._failed or self.problem is not None:
                raise LostError
            self._applied_changed.clear()
            await self._applied_changed.wait()

    # Output of the node

    def pump(self) -> None:
        """Process the node's output until there is none left."""
        if self._failed or self.problem is not None or self._pumping:
            return
        self._pumping = True
        try:
            while (ready := self.node.ready()) is not None:
                self._take(ready)
        finally:
            self._pumping = False

    def _take(self, ready: Ready) -> None:
        for message in ready.messages:
            self._send(message)
        for context, index in ready.reads:
            waiting = self._reads.get(context)
            if waiting is not None and not waiting.done():
                waiting.set_result(index)
        for context in ready.reads_failed:
            waiting = self._reads.get(context)
            if waiting is not None and not waiting.done():
                waiting.set_exception(LostError())
        if (
            ready.entries
            or ready.committed
            or ready.messages_after_persistence
            or ready.hard_state is not None
            or ready.snapshot is not None
        ):
            self._work.append(ready)
            self._write()
        self._turn(ready.role, ready.leader)
        for number in ready.snapshot_wanted:
            self._observer.behind(number)

    def _turn(self, role: Role, leader: int) -> None:
        if (role, leader) == (self._role, self._leader):
            return
        if role is Role.LEADER and self._role is not Role.LEADER:
            self.elections += 1
        led = self._role is Role.LEADER
        self._role, self._leader = role, leader
        if led and role is not Role.LEADER:
            self._lose()
        self._observer.turned()

    def _lose(self) -> None:
        """Fail all proposals: their outcome will not be known here."""
        while self._proposals:
            proposal = self._proposals.popleft()
            if not proposal.done.done():
                proposal.done.set_exception(LostError())
        for waiting in self._reads.values():
            if not waiting.done():
                waiting.set_exception(LostError())
        self._applied_changed.set()

    # Writing

    def _write(self) -> None:
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._work and not self._failed and self.problem is None:
                await self._write_some()
        except Exception as problem:  # noqa: BLE001 - the writer's outermost frame: the group must not go on
            _log.exception("the log of _meta has failed")
            self._fail(f"the log of _meta has failed: {problem}")
        finally:
            self._writer = None

    async def _write_some(self) -> None:
        work = list(self._work)
        self._work.clear()
        installs = any(ready.snapshot is not None for ready in work)
        surplus = None if installs else self._log.surplus(self.applied_index)
        cut = None if surplus is None else (surplus, self._log.term(surplus))
        received = self._received
        try:
            written = await self._kept(lambda: self._tables.write(work, received, cut))
        except (ForeignTopologyError, DecisionError) as problem:
            self._fail(str(problem))
            return
        if written is None:
            return
        self._mirror(work, cut)
        for ready in work:
            for message in ready.messages_after_persistence:
                self._send(message)
        if written.standing is not self.standing:
            self.standing = written.standing
        self.brings = self.brings and not written.anew
        if any(ready.committed or ready.snapshot is not None for ready in work):
            self._observer.applied(written)
            self._settle(written)
        self._observer.turned()
        self.pump()

    async def _kept(self, write: Callable[[], CommittedEntries]) -> CommittedEntries | None:
        """Write, and retry until the disk accepts, not leading; None when the process ends."""
        stalled: str | None = None
        while True:
            try:
                written = await self._thread.run(write)
            except sqlite3.Error as problem:
                stalled = f"cannot write the log of _meta: {problem}"
                if self.problem is None or self.problem == stalled:
                    self._fail(stalled)
            else:
                if stalled is not None and self.problem == stalled:
                    self.problem = None
                return written
            if self._failed:
                return None
            await asyncio.sleep(RETRY_SECONDS)

    def _mirror(self, work: list[Ready], cut: tuple[int, int] | None) -> None:
        """Report written entries to the log and the node."""
        node, log = self.node, self._log
        for ready in work:
            last: tuple[int, int] | None = None
            if ready.snapshot is not None:
                mark = ready.snapshot.mark
                last = mark.index, mark.term
                log.restart(*last)
                self.applied_index, self._applied_term = last
                self._received = None
            if ready.entries:
                log.append(ready.entries)
                last = ready.entries[-1].index, ready.entries[-1].term
            if last is not None:
                node.advance(persisted=last)
            if ready.committed:
                self.applied_index = ready.committed[-1].index
                self._applied_term = ready.committed[-1].term
                node.advance(applied=self.applied_index)
        if cut is not None:
            log.compact(cut[0])
            node.compact(*cut)

    def _settle(self, written: CommittedEntries) -> None:
        """Complete proposals that are applied now."""
        applied: dict[int, Entry] = {entry.index: entry for entry, _ in written.applied}
        while self._proposals and self._proposals[0].index <= self.applied_index:
            proposal = self._proposals.popleft()
            entry = applied.get(proposal.index)
            if proposal.done.done():
                continue
            if entry is not None and entry.term == proposal.term:
                proposal.done.set_result(None)
            else:
                proposal.done.set_exception(LostError())
        self._applied_changed.set()

    # Failures

    def _fail(self, problem: str) -> None:
        """Stop taking part: until the disk works again, or else until the process is restarted."""
        _log.error("this node no longer takes part in _meta: %s", problem)
        self.problem = problem
        self._role, self._leader = Role.FOLLOWER, 0
        self._lose()
        self._observer.turned()

    def _start_over(self, why: str) -> None:
        """Start over like a restored copy: others saw more of this log, or it differs."""
        _log.error("discarding this replica of _meta: %s", why, extra={"group": self._plan.name})
        self.problem = "its replica was discarded; it waits for a full copy from the others"
        self._role, self._leader = Role.FOLLOWER, 0
        self._lose()
        self._observer.turned()
        if self._over is None or self._over.done():
            self._over = asyncio.get_running_loop().create_task(self._forget_log())

    def forget_log(self, why: str) -> None:
        """Forget the log: this directory is a restored copy, foreign, or deviates."""
        if self.problem is None and not self._failed:
            self._start_over(why)

    async def _forget_log(self) -> None:
        if self._writer is not None:
            await asyncio.wait([self._writer])
        self._work.clear()
        try:
            kept = await self._thread.run(lambda: self._tables.restart(self._members))
        except sqlite3.Error as problem:
            self._fail(f"cannot write the log of _meta: {problem}")
            return
        self._begin(kept)
        self._received = None
        self.problem = None
        self._observer.turned()
