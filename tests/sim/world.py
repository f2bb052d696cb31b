"""A group of simulated members: virtual clock, network, faults and clients, all drawn from one seed.

Longer than 500 lines because one class dispatches every kind of event.

Responsible for what happens when. A run has two parts: first faults act while commands are given (safety), then they
stop, all members come up again, and a probe command must be committed and everybody must catch up (liveness). The
invariants and the history are asked at every step; the first violation ends the run. Nothing here depends on
anything but the seed and the options: events at one time keep the order in which they were made, no set is iterated,
no hash of text is taken. The digest covers every event, so equal digests mean equal runs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from fluxmq.model.errors import FluxmqError
from fluxmq.raft.node import Node
from fluxmq.raft.types import Membership, Message, ProposalAccepted, Role
from tests.sim.carriage import Carriage
from tests.sim.disk import Disk
from tests.sim.events import (
    APPLIED,
    CARRIED,
    COMMAND,
    DELIVER,
    FAILED,
    FAULT,
    FRAME,
    HEAL,
    NAMES,
    OPERATE,
    PIECE,
    PROBE,
    SNAPSHOT,
    START,
    STOP,
    SYNCED,
    TICK,
    described,
)
from tests.sim.faults import Faults
from tests.sim.history import History
from tests.sim.invariants import Invariants
from tests.sim.member import COMMAND_ID_BYTES, Member
from tests.sim.operator import Operator
from tests.sim.rest import Rests
from tests.sim.swarm import TICK_US, Swarm, draw
from tests.sim.wear import NOBODY, Wear

EVENTS = 4_000
"""Events of the first part unless told otherwise."""
OUTSTANDING_MAX = 300
"""Clients wait when so many entries are not committed."""
CALM_DELAY_US = 2_000
CALM_SYNC_US = 1_000
CALM_ELECTIONS = 60
"""Longest second part, in longest election timeouts: elections by chance may fail a few times in a row."""
CALM_MIN_US = 20_000_000
PROBE_US = 50_000
STALL_US = 2_000_000
"""The longest sync of a disk that stalls."""

Event = tuple[int, int, int, Any, Any]
Trace = Callable[[str], None]


class World:
    """One run. `node_type` may be a broken core; `trace` is given a line for every event."""

    def __init__(
        self,
        seed: int,
        swarm: Swarm | None = None,
        *,
        voters: int | None = None,
        node_type: Callable[..., Node] = Node,
        member_type: type[Member] = Member,
        trace: Trace | None = None,
    ) -> None:
        self.seed = seed
        self.swarm = swarm = swarm or draw(seed, voters)
        self.make_node = node_type
        self.tick_us = TICK_US
        self.trace = trace
        self.random = Random(f"world {seed}")
        self.chance = self.random.random
        self.now_us = 0
        self.events = 0
        self.digest = 0
        self.calm = False
        self.seen: Counter[str] = Counter()
        """How often something worth testing happened."""
        self.history = History()
        membership = Membership(tuple(range(1, swarm.voters + 1)), ())
        self.invariants = Invariants(self.history, membership)
        self._member_type = member_type
        self.members: dict[int, Member] = {}
        self.disks: dict[int, Disk] = {}
        """Of lost members too: what they had promised they had."""
        self.incarnations: dict[int, int] = {}
        """The list of members as it is kept outside of their directories."""
        for place in range(swarm.voters + swarm.spares):
            self.new_member(membership if place < swarm.voters else NOBODY)
        self._queue: list[Event] = []
        self._made = 0
        self.cuts: dict[tuple[int, int], int] = {}
        self._last_arrival: dict[tuple[int, int], int] = {}
        self._commands = 0
        self._contexts = 0
        self._memberships_known = 1
        self._probe = 0
        self._padding = bytes(swarm.payload)
        self._faults = Faults(self)
        self.disturb = self._faults.disturb
        self.wear = Wear(self)
        self.operator = Operator(self)
        self.rests = Rests(self) if swarm.rests else None

    # Time

    def at(self, delay_us: int, kind: int, who: object = None, what: object = None) -> None:
        """Let something happen in `delay_us`."""
        self._made += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._made, kind, who, what))

    def run(self, events: int = EVENTS) -> bool:
        """The whole run; whether it kept all promises."""
        for member in self.members.values():
            self.at(0, START, member)
        self.at(self.swarm.command_us, COMMAND)
        self.at(self.swarm.fault_us, FAULT)
        try:
            self._commit_waiter(events)
            if not self.history.violations:
                self._liveness()
        except (AssertionError, FluxmqError, LookupError, TypeError, ValueError) as error:
            self.history.violated("the core goes on", f"{type(error).__name__}: {error}")
            if self.trace is not None:
                raise
        return not self.history.violations

    def _commit_waiter(self, events: int) -> None:
        violations = self.history.violations
        while self.events < events and not violations:
            self._next()

    def _liveness(self) -> None:
        self._become_calm()
        wait = CALM_ELECTIONS * 2 * self.swarm.election_ticks * TICK_US
        deadline = self.now_us + max(wait, CALM_MIN_US)
        violations = self.history.violations
        while not violations and not self._all_caught_up():
            if self.now_us > deadline:
                self._not_live()
                return
            self._next()
        contents = {member.id: dict(enumerate(member.content, 1)) for member in self._current()}
        self.history.finish(contents)
        self.seen["acknowledged"] += len(self.history.acknowledged)
        self.seen["committed"] += self.invariants.commit
        self.seen["memberships"] += len(self.invariants.memberships) - 1
        self.seen["terms"] += len(self.invariants.leaders)

    def _next(self) -> None:
        now, _, kind, who, what = heapq.heappop(self._queue)
        self.now_us = self.history.now_us = now
        self.events += 1
        self._act(kind, who, what)

    def _act(self, kind: int, who: Any, what: Any) -> None:
        """Do one event and remember it in the digest."""
        if kind == DELIVER:
            self.deliver(who, what)
        elif kind == TICK:
            self._tick(who, what)
        elif kind == SYNCED:
            self.note(kind, who.id, what)
            if who.life == what and who.node is not None:
                if who.sync_fails and not self.calm:
                    self.note(FAILED, who.id)
                    self.wear.sync_failed(who)
                else:
                    who.synced()
        elif kind == APPLIED:
            life, index = what
            self.note(kind, who.id, index)
            if who.life == life and who.node is not None and index > who.told_applied:
                who.told_applied = index
                who.node.advance(applied=index)
                who.pump()
        elif kind == COMMAND:
            self._command()
        elif kind == FAULT:
            self._strike()
        else:
            self._seldom(kind, who, what)

    def _seldom(self, kind: int, who: Any, what: Any) -> None:
        if kind == START:
            self._start(who)
        elif kind == HEAL:
            self.note(kind, *what)
            if self.cuts.get(what, 0) <= self.now_us:
                self.cuts.pop(what, None)
        elif kind == SNAPSHOT:
            self._offer(who, *what)
        elif kind == STOP:
            self.note(kind, who.id)
            if who.incarnations == what:
                who.removed = True
                if who.node is not None:
                    who.crash()
        elif kind == PROBE:
            self._give_probe()
        elif kind == PIECE:
            who.piece()
        elif kind == CARRIED:
            who.carried(what)
        elif kind == OPERATE:
            self.operator.work()
        elif kind == FRAME and self.rests is not None:
            self.rests.frame(who, what)

    def note(self, kind: int, *numbers: int) -> None:
        """Add an event to the digest, and to the trace if there is one."""
        self.digest = hash((self.digest, self.now_us, kind, numbers))
        if self.trace is not None:
            self.trace(f"{self.now_us / 1e6:.6f} {NAMES[kind]} {' '.join(map(str, numbers))}")

    # Network

    def send(self, message: Message) -> None:
        """Carry a message, or lose it, or carry it twice."""
        swarm = self.swarm
        chance = self.chance
        target = self.members.get(message.target)
        if target is None:
            return
        if self.calm:
            self._carry(message, target, CALM_DELAY_US)
            return
        link = (message.source, message.target)
        if link in self.cuts or (swarm.drop and chance() < swarm.drop):
            return
        delay = swarm.delay_us + int(swarm.jitter_us * chance())
        if swarm.straggle and chance() < swarm.straggle:
            delay *= 50
        if swarm.fifo:
            arrival = max(self.now_us + delay, self._last_arrival.get(link, 0))
            self._last_arrival[link] = arrival
            delay = arrival - self.now_us
        self._carry(message, target, delay)
        if swarm.duplicate and chance() < swarm.duplicate:
            self._carry(message, target, int(delay * (1 + 3 * chance())))

    def _carry(self, message: Message, target: Member, delay: int) -> None:
        self._made += 1
        heapq.heappush(self._queue, (self.now_us + delay, self._made, DELIVER, target, message))

    def deliver(self, member: Member, message: Message) -> None:
        """A message comes to a member, or waits while it is paused."""
        if member.paused_until > self.now_us:
            self.at(member.paused_until - self.now_us, DELIVER, member, message)
            return
        size = len(message.entries)
        self.digest = hash(
            (
                self.digest,
                self.now_us,
                message.kind,
                message.source,
                message.target,
                message.term,
                message.index,
                message.log_term,
                message.commit,
                message.reject,
                message.hint,
                size,
            )
        )
        if self.trace is not None:
            self.trace(f"{self.now_us / 1e6:.6f} {described(message)}")
        node = member.node
        if node is not None:
            if self.rests is not None:
                self.rests.hears(member, message)
            node.step(message)
            member.pump()

    # Members

    def _start(self, member: Member) -> None:
        if member.node is not None or member.removed:
            return
        self.note(START, member.id, member.disk.view.base, member.disk.view.last_index())
        member.start()
        if self.rests is not None:
            self.rests.started(member)
        self.at(int(self.chance() * member.tick_us), TICK, member, member.life)

    def _tick(self, member: Member, life: int) -> None:
        if member.life != life or member.node is None:
            return
        if member.paused_until > self.now_us:
            self.at(member.paused_until - self.now_us, TICK, member, life)
            return
        self.note(TICK, member.id)
        if self.rests is None or self.rests.tick(member):
            member.node.tick()
        member.pump()
        self.at(member.tick_us, TICK, member, life)

    def sync_later(self, member: Member) -> None:
        """A member's disk is syncing; it takes a while."""
        longest = CALM_SYNC_US if self.calm else self.swarm.sync_us
        if member.id == 1 and self.swarm.slow_disk:
            longest *= 10
        if self.swarm.stall and not self.calm and self.chance() < self.swarm.stall:
            self.seen["syncs stalled"] += 1
            longest = STALL_US
        self.at(int(longest * self.chance()), SYNCED, member, member.life)

    def applied_later(self, member: Member, index: int) -> None:
        """A member's state machine has applied up to index; it says so a little later."""
        delay = 0 if self.calm else int(self.swarm.apply_us * self.chance())
        self.at(delay, APPLIED, member, (member.life, index))

    def snapshot_later(self, member: Member, peer: int) -> None:
        """A member's peer needs a snapshot; carrying it takes a while."""
        delay = CALM_DELAY_US if self.calm else int(self.chance() * 100_000)
        self.at(delay, SNAPSHOT, member, (member.life, peer))

    def _offer(self, member: Member, life: int, peer: int) -> None:
        self.note(SNAPSHOT, member.id, peer)
        node = member.node
        if node is None or member.life != life:
            return
        store = member.disk.durable
        if store.damaged and store.base in store.damaged:
            self.operator.lose(member, "damage found in a snapshot to be sent")
            return
        lost = not self.calm and self.chance() < 0.3
        message = node.offer_snapshot(peer, store.snapshot)
        if message is not None and self.swarm.pieces:
            Carriage(self, member, message)
        elif message is not None:
            if not lost:
                self.send(message)
            node.report_snapshot(peer, not lost)
        member.pump()

    def membership_applied(self) -> None:
        """Somebody applied a membership: who is removed by it is stopped a little later, as an operator would."""
        known = self.invariants.memberships
        while self._memberships_known < len(known):
            before, after = known[self._memberships_known - 1][1], known[self._memberships_known][1]
            self._memberships_known += 1
            stay = (*after.voters, *after.learners)
            for me in (*before.voters, *before.learners):
                if me not in stay:
                    longest = 300_000 if self.calm else self.swarm.linger_us
                    member = self.members[me]
                    self.at(int(self.chance() * longest), STOP, member, member.incarnations)

    def was_removed(self, me: int) -> bool:
        """Whether a member was in the group once and is not any more: its id is not used again."""
        known = self.invariants.memberships
        was = any(me in (*each.voters, *each.learners) for _, each in known)
        now = self.invariants.membership
        return was and me not in (*now.voters, *now.learners)

    def new_member(self, membership: Membership = NOBODY) -> Member:
        """One more member, with an empty disk; it knows of nobody unless it belongs to the first."""
        me = len(self.members) + 1
        member = self._member_type(self, me, membership)
        self.members[me] = member
        self.disks[me] = member.disk
        return member

    def forget_messages(self, member: Member) -> None:
        """Streams from and to a member have ended, with all that was on its way in them."""
        self._queue = [
            event
            for event in self._queue
            if event[2] != DELIVER or member.id not in (event[4].source, event[4].target)
        ]
        heapq.heapify(self._queue)

    def removals_are_told(self) -> bool:
        """Whether whoever is removed by what is committed is being stopped."""
        return self._memberships_known == len(self.invariants.memberships)

    def _current(self) -> list[Member]:
        membership = self.invariants.membership
        return [self.members[me] for me in (*membership.voters, *membership.learners)]

    # Clients

    def leader(self) -> Member | None:
        """A member that believes it leads; which one is a matter of chance when several do."""
        leaders = [
            member
            for member in self.members.values()
            if member.node is not None and member.role is Role.LEADER
        ]
        if not leaders:
            return None
        return leaders[int(self.chance() * len(leaders))] if len(leaders) > 1 else leaders[0]

    def _data(self, command: int) -> bytes:
        return command.to_bytes(COMMAND_ID_BYTES, "little") + self._padding

    def propose(self, member: Member, count: int) -> bool:
        """Give a member `count` new commands; whether it took them."""
        node = member.node
        assert node is not None, "clients only reach who runs"
        first = self._commands + 1
        self._commands += count
        outcome = node.propose([self._data(first + place) for place in range(count)])
        if not isinstance(outcome, ProposalAccepted):
            return False
        for place in range(count):
            member.proposed[outcome.first_index + place] = (outcome.term, first + place)
        return True

    def _command(self) -> None:
        swarm = self.swarm
        chance = self.chance
        if self.calm:
            return
        self.at(int(swarm.command_us * 2 * chance()), COMMAND)
        member = self.leader()
        self.note(COMMAND, member.id if member is not None else 0)
        if member is None or member.paused_until > self.now_us:
            return
        if member.disk.view.last_index() - member.applied > OUTSTANDING_MAX:
            return
        self.propose(member, 1 + int(swarm.batch * chance()))
        if swarm.read and chance() < swarm.read:
            self._ask(member)
        member.pump()

    def _ask(self, member: Member) -> None:
        """Ask a member for a read."""
        self._contexts += 1
        self.invariants.read_asked(self._contexts)
        assert member.node is not None, "clients only reach who runs"
        member.node.read_index(self._contexts)

    def _strike(self) -> None:
        if self.calm:
            return
        self.at(self.swarm.fault_us, FAULT)
        self.note(FAULT)
        self._faults.strike()

    # The second part

    def _become_calm(self) -> None:
        self.calm = True
        self.cuts.clear()
        for member in list(self.members.values()):
            member.paused_until = 0
            if member.node is not None and member.disk.durable.damaged:
                self.operator.lose(member, "damage found by reading everything")
            self.at(0, START, member)
        self.at(PROBE_US, PROBE)

    def _give_probe(self) -> None:
        self.at(PROBE_US, PROBE)
        done = self._probe in self.history.acknowledged
        if done and self.invariants.answered(self._contexts):
            return
        member = self.leader()
        self.note(PROBE, member.id if member is not None else 0)
        if member is not None and self.propose(member, 1):
            self._probe = self._commands
            self._ask(member)
            member.pump()

    def _all_caught_up(self) -> bool:
        index = self.history.acknowledged.get(self._probe)
        if index is None or not self.invariants.answered(self._contexts):
            return False
        if not self.operator.done():
            return False
        return all(
            member.node is not None and member.applied >= index for member in self._current()
        )

    def _not_live(self) -> None:
        states = ", ".join(
            f"{member.id}: {member.role.value} term {member.term} applied {member.applied}"
            if member.node is not None
            else f"{member.id}: down"
            for member in self.members.values()
        )
        self.history.violated("liveness", f"probe {self._probe} or a member is stuck: {states}")
