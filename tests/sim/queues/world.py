"""Nodes with queues and storage in one process: virtual clock, network, faults and clients, all drawn from one seed.

A run has two parts: first faults act while clients work; then they stop, all nodes come up, everything is consumed, and
every node has to hold the same. The ledger is asked at every step, and the first violation ends the run. Nothing depends
on anything but the seed and the options. The digest covers every event, so equal digests mean equal runs.

Longer than 500 lines because every kind of event is handled here, each in a few lines.
"""

from __future__ import annotations

import heapq
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from fluxmq.model.errors import FluxmqError
from fluxmq.raft.types import Membership, MembershipChange, Message, ProposalAccepted
from fluxmq.storage.errors import Corruption, StorageError
from tests.sim.events import described
from tests.sim.history import History
from tests.sim.queues.clients import Clients
from tests.sim.queues.faults import Faults
from tests.sim.queues.host import Host
from tests.sim.queues.ledger import Ledger
from tests.sim.queues.parts import ReplicationGroup
from tests.sim.queues.swarm import Swarm, draw
from tests.sim.queues.transfer import Transfer

EVENTS = 500
"""Events of the first part unless told otherwise."""
MEMORY = Path("/dev/shm")
"""Where the directories of the nodes are, if the system has it; otherwise with other temporary files."""
RESTART_US = 400_000
TURN_US = 1_000
"""Longest time between what wakes a node and its turn."""
CHECKPOINT_US = 30_000
ANNOUNCE_US = 20_000
CALM_DELAY_US = 2_000
CALM_SYNC_US = 1_000
CALM_US = 60_000_000
"""Longest second part."""
DRAIN_US = 50_000
OPERATE_US = 100_000
FORGOTTEN = 0.1
"""Reports of an installed snapshot that are lost."""

T = TypeVar("T")


class World:
    """One run of one seed."""

    def __init__(
        self,
        seed: int,
        swarm: Swarm | None = None,
        *,
        voters: int | None = None,
        trace: Callable[[str], None] | None = None,
        host_type: type[Host] = Host,
    ) -> None:
        self.seed = seed
        self.swarm = swarm or draw(seed, voters)
        self.random = Random(f"queues world {seed}")
        self.chance = self.random.random
        self.trace = trace
        self.now_us = 0
        self.events = 0
        self.digest = 0
        self.seen: Counter[str] = Counter()
        self.calm = False
        self.history = History()
        self.ledger = Ledger(self.history)
        self.ledger.lossy.add("short")
        self.root = tempfile.mkdtemp(prefix="sim-", dir=MEMORY if MEMORY.is_dir() else None)
        self.cuts: dict[tuple[int, int], int] = {}
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._made = 0
        self._messages = 0
        self._failing: set[int] = set()
        members = tuple(range(1, self.swarm.voters + 1))
        self.membership = Membership(members)
        """The last one that anybody has applied."""
        self._membership_index = 0
        self._host_type = host_type
        self.hosts: dict[int, Host] = {
            number: host_type(self, number, members) for number in members
        }
        self._founders = members
        for _ in range(self.swarm.spares if self.swarm.voters > 1 else 0):
            self._new_host()
        self._faults = Faults(self)
        self._clients = Clients(self)

    # Chance and time

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, by chance."""
        return options[int(self.chance() * len(options))]

    def at(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action` after a delay."""
        self._made += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._made, action, arguments))

    def next_message(self) -> int:
        """The number of a new message."""
        self._messages += 1
        return self._messages

    def note(self, what: str, *numbers: int) -> None:
        """Add an event to the digest, and to the trace if there is one."""
        self.digest = hash((self.digest, self.now_us, numbers))
        if self.trace is not None:
            self.trace_line(f"{what} {' '.join(map(str, numbers))}")

    def trace_line(self, line: str) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            self.trace(f"{self.now_us / 1e6:.6f} {line}")

    def violated(self, rule: str, what: str) -> None:
        """Keep a violation."""
        self.history.violated(rule, what)

    # The run

    def run(self, events: int = EVENTS) -> bool:
        """The whole run; whether it kept all promises."""
        try:
            self._begin()
            self._commit_waiter(events)
            if not self.history.violations:
                self._liveness()
        except (AssertionError, FluxmqError, LookupError, OSError, TypeError, ValueError) as error:
            self.violated("the program goes on", f"{type(error).__name__}: {error}")
            if self.trace is not None:
                raise
        finally:
            for host in self.hosts.values():
                host.destroy()
            shutil.rmtree(self.root, ignore_errors=True)
        return not self.history.violations

    def _begin(self) -> None:
        for number in self._founders:
            self.at(0, self._start, self.hosts[number])
        self.at(self.swarm.command_us, self._command)
        self.at(self.swarm.fault_us, self._strike)
        self.at(OPERATE_US, self._operate)

    def _commit_waiter(self, events: int) -> None:
        violations = self.history.violations
        while self.events < events and not violations:
            self._next()

    def _next(self) -> None:
        self.now_us, _, action, arguments = heapq.heappop(self._queue)
        self.history.now_us = self.now_us
        self.events += 1
        action(*arguments)

    def _liveness(self) -> None:
        self.calm = True
        self.cuts.clear()
        self._failing.clear()
        for host in list(self.hosts.values()):
            host.files.work_again()
            host.files.full = False
            if host.damaged and not host.gone:
                self._lose(host, "damage found by reading everything")
            elif not host.gone and self._belongs(host):
                if host.up and host.faulted:
                    host.end(power=True, mode="sectors")
                self.at(0, self._start, host)
        self.at(DRAIN_US, self._drain)
        for restarts in (True, False):
            self._until_done()
            if self.history.violations:
                return
            self._compare()
            if restarts:
                self._restart_all()
        self.ledger.finish()
        self.seen["entries"] += self.ledger.last
        self.seen["terms"] += len(self.ledger.leaders)
        self.seen["messages"] += self._messages

    def _until_done(self) -> None:
        deadline = self.now_us + CALM_US
        violations = self.history.violations
        while not violations and not self._is_done():
            if self.now_us > deadline:
                self._not_live()
                return
            self._next()

    def _compare(self) -> None:
        for host in self._current():
            self.ledger.opened(host.number, host.group)
            self.ledger.compare_disk(host.number, host.group)

    def _restart_all(self) -> None:
        """After a last loss of power, every node has to have from its disk what it had."""
        for host in self._current():
            host.end(power=True, mode="nothing")
            self._start(host)
        self._clients_done = False

    def _is_done(self) -> bool:
        if not self._clients_done or any(self.hosts[number].gone for number in self._everybody()):
            return False
        leader = self.leader()
        if leader is None or not leader.group.idle:
            return False
        last = self.ledger.last
        return all(
            host.listens and host.group.applied_index == last and not host.fetching
            for host in self._current()
        )

    _clients_done = False

    def _drain(self) -> None:
        self.at(DRAIN_US, self._drain)
        leader = self.leader()
        self.note("drain", 0 if leader is None else leader.number)
        self._clients_done = self._clients.done()
        if leader is not None and not self._clients_done:
            self._clients.drain(leader)
            self.after(leader)

    def _not_live(self) -> None:
        states = ", ".join(
            f"{host.number}: "
            + ("lost" if host.gone else "down" if not host.listens else self._state(host))
            for host in self.hosts.values()
        )
        waiting = "" if self._clients_done else " clients wait,"
        self.violated("liveness", f"{waiting} last entry {self.ledger.last}; {states}")

    @staticmethod
    def _state(host: Host) -> str:
        assert host.hosted is not None, "it listens"
        status = host.hosted.driver.node.status()
        return f"{status.role.value} term {status.term} applied {host.group.applied_index}"

    # Network

    def cut(self, link: tuple[int, int], until_us: int) -> None:
        """No message passes from the first to the second until then."""
        self.cuts[link] = max(self.cuts.get(link, 0), until_us)

    def send(self, message: Message) -> None:
        """Carry a message, or lose it, or carry it twice."""
        self.ledger.sent(message)
        swarm, chance = self.swarm, self.chance
        if message.target not in self.hosts:
            return
        if self.calm:
            self.at(CALM_DELAY_US, self._deliver, message)
            return
        if self.cuts.get((message.source, message.target), 0) > self.now_us:
            return
        if swarm.drop and chance() < swarm.drop:
            return
        delay = swarm.delay_us + int(swarm.jitter_us * chance())
        if swarm.straggle and chance() < swarm.straggle:
            delay *= 50
        self.at(delay, self._deliver, message)
        if swarm.duplicate and chance() < swarm.duplicate:
            self.at(int(delay * (1 + 3 * chance())), self._deliver, message)

    def _deliver(self, message: Message) -> None:
        host = self.hosts[message.target]
        self.digest = hash(
            (
                *(self.digest, self.now_us, message.kind, message.source, message.target),
                *(message.term, message.index, message.log_term, message.commit, message.reject),
                len(message.entries),
            )
        )
        if self.trace is not None:
            self.trace_line(described(message))
        if host.listens:
            host.step(message)
            self.after(host)

    # Nodes

    def _start(self, host: Host) -> None:
        if host.up or host.gone:
            return
        self.note("start", host.number)
        try:
            host.start()
        except Corruption as damage:
            self._died_opening(host, damage)
            return
        except StorageError as problem:
            self.trace_line(f"{host.number} does not start: {problem}")
            if not (host.faulted or host.files.dead or self.swarm.full):
                self.violated("nodes start", f"{host.number}: {problem}")
            host.end(power=host.files.dead, mode=self.pick(("nothing", "sectors", "all")))
            self.start_later(host)
            return
        self.seen["starts"] += 1
        host.faulted = False
        self.at(int(self.chance() * host.tick_us), self._tick, host, host.life)
        self.after(host)

    def _died_opening(self, host: Host, damage: Corruption) -> None:
        self.trace_line(f"{host.number} is damaged: {damage}")
        host.end(power=False)
        if not host.damaged:
            self.violated("what is written is read", f"{host.number}: {damage}")
        else:
            self._lose(host, "damage found at a start")

    def reopen(self, host: Host) -> None:
        """Open a node's group again, whose files were replaced or should have been."""
        try:
            host.open()
        except Corruption as damage:
            self._died_opening(host, damage)
        except StorageError as problem:
            self.trace_line(f"{host.number} does not open: {problem}")
        host.fetching = False

    def start_later(self, host: Host) -> None:
        """A node that is down will be started."""
        self.at(int(self.chance() * (50_000 if self.calm else RESTART_US)), self._start, host)

    def _tick(self, host: Host, life: int) -> None:
        if not host.up or host.life != life:
            return
        self.note("tick", host.number)
        host.tick()
        self.after(host)
        self.at(host.tick_us, self._tick, host, life)

    def after(self, host: Host) -> None:
        """Look at a node after anything has happened on it."""
        if not host.up:
            return
        if host.files.dead:
            self._died(host)
            return
        if host.shared.failed or (host.hosted is not None and host.hosted.group.failed):
            self._failed(host)
            return
        if host.hosted is None:
            self._failed(host)
            return
        chance = self.chance
        if host.marked and not host.turn_due:
            host.turn_due = True
            self.at(int(TURN_US * chance()), self._turn, host, host.life)
        if host.syncer.waiting and not host.sync_due:
            host.sync_due = True
            longest = CALM_SYNC_US if self.calm else self.swarm.sync_us
            self.at(int(longest * chance()), self._synced, host, host.life)
        if host.announce_due:
            host.announce_due = False
            self.at(int(ANNOUNCE_US * chance()), self._announce, host, host.life)

    def _died(self, host: Host) -> None:
        """A node's process died inside a call, perhaps with its machine."""
        power = self.chance() < self.swarm.power or host.faulted
        self.note("died", host.number, power)
        self.seen["died in a call"] += 1
        host.end(power=power, mode=self.pick(("nothing", "prefix", "sectors", "all")))
        self.start_later(host)

    def _failed(self, host: Host) -> None:
        """A node's group or log has given up; somebody restarts it."""
        hosted = host.hosted
        why = host.shared.failed or ("" if hosted is None else hosted.group.failed) or "not open"
        self.note("failed", host.number)
        self.trace_line(f"{host.number} has failed: {why}")
        if not (host.faulted or host.damaged):
            self.violated("groups do not fail by themselves", f"{host.number}: {why}")
        self.seen["groups failed"] += 1
        if host.gone:
            return
        host.end(power=True, mode=self.pick(("nothing", "sectors", "all")))
        self.start_later(host)

    def damage_found(self, host: Host) -> None:
        """A node's program has found damage in its files."""
        if not host.damaged:
            self.violated("what is written is read", f"{host.number} finds damage")
        elif not host.gone:
            self.at(0, self._lose, host, "damage found while it ran")

    def _lose(self, host: Host, why: str) -> None:
        """A node is lost for good: what it promised is not to be trusted."""
        if host.gone:
            return
        self.note("lost", host.number)
        self.seen[f"lost, {why}"] += 1
        host.destroy()

    def _turn(self, host: Host, life: int) -> None:
        if not host.up or host.life != life:
            return
        host.turn_due = False
        self.note("turn", host.number)
        host.turn()
        self.after(host)

    def _synced(self, host: Host, life: int) -> None:
        if not host.up or host.life != life:
            return
        self.note("synced", host.number)
        error = 0
        if host.number in self._failing:
            self._failing.discard(host.number)
            self.seen["syncs failed"] += 1
            host.faulted = True
            error = 5
        host.synced(error)
        self.after(host)

    def fail_sync(self, host: Host) -> None:
        """The next sync of a node's log fails."""
        self.note("sync error", host.number)
        self._failing.add(host.number)

    def _announce(self, host: Host, life: int) -> None:
        if host.up and host.life == life:
            self.note("announce", host.number)
            host.announce()
            self.after(host)

    def free_later(self, host: Host, delay_us: int) -> None:
        """A full disk has room again after a while."""
        self.at(delay_us, self._free, host)

    def _free(self, host: Host) -> None:
        self.note("free", host.number)
        host.files.full = False
        if host.up:
            host.marked = True
            self.after(host)

    def checkpoint_later(self, host: Host) -> None:
        """A checkpoint's data is on its way to the disk."""
        delay = int(CHECKPOINT_US * self.chance())
        self.at(delay, self._checkpointed, host, (host.life, host.opening))

    def _checkpointed(self, host: Host, place: tuple[int, int]) -> None:
        if host.up and (host.life, host.opening) == place:
            self.note("checkpoint", host.number)
            host.end_checkpoint()
            self.after(host)

    # Snapshots

    def fetch(self, host: Host, source: int, least: int) -> None:
        """A node fetches another's snapshot."""
        Transfer(self, self.hosts[source], host, least)

    def carry_later(self, transfer: Transfer, delay_us: int) -> None:
        """A transfer's next step comes."""
        self.at(delay_us, self._carry, transfer)

    def _carry(self, transfer: Transfer) -> None:
        source, target = transfer.ends
        self.note("carry", source.number, target.number)
        transfer.step()
        self.after(source)
        self.after(target)

    def report_later(self, source: Host, target: Host, index: int) -> None:
        """A node tells another how it got on with its snapshot."""
        if self.calm or self.chance() >= FORGOTTEN:
            self.at(CALM_DELAY_US, self._report, source, target.number, index, source.life)

    def _report(self, source: Host, member: int, index: int, life: int) -> None:
        self.note("report", source.number, member, index)
        if source.listens and source.life == life:
            source.report(member, index)
            self.after(source)

    # Members

    def _new_host(self) -> Host:
        number = len(self.hosts) + 1
        host = self.hosts[number] = self._host_type(self, number, ())
        return host

    def spare_host(self, everybody: Sequence[int]) -> Host:
        """A node that is no member and may become one."""
        for host in self.hosts.values():
            if host.number not in everybody and not host.gone:
                return host
        return self._new_host()

    def propose_change(self, leader: Host, change: MembershipChange) -> bool:
        """Ask a leader for a change; whether it took it. A node that is to join is started."""
        assert leader.hosted is not None, "leaders run"
        self.note("change", leader.number, int(change.verb), change.node)
        self._start(self.hosts[change.node])
        outcome = leader.hosted.driver.node.propose_membership(change)
        leader.hosted.driver.pump()
        self.after(leader)
        taken = isinstance(outcome, ProposalAccepted)
        self.seen[f"members, {change.verb.name.lower()}"] += taken
        return taken

    def _operate(self) -> None:
        """An operator replaces who is lost and stops who was removed."""
        self.at(OPERATE_US, self._operate)
        self._learn_membership()
        leader = self.leader()
        wanted = self.calm or any(host.gone for host in self.hosts.values())
        if leader is not None and self.swarm.voters > 1 and wanted:
            self._faults.replace_lost(leader)

    def _learn_membership(self) -> None:
        for host in self.hosts.values():
            hosted = host.hosted
            if hosted is not None and hosted.group.applied_index > self._membership_index:
                found = hosted.driver.node.membership_at(hosted.group.applied_index)
                self._membership_index = hosted.group.applied_index
                gone = set(self._everybody()) - {*found.voters, *found.learners}
                self.membership = found
                for number in sorted(gone):
                    self._lose(self.hosts[number], "removed from the group")

    def _everybody(self) -> tuple[int, ...]:
        return (*self.membership.voters, *self.membership.learners)

    def _belongs(self, host: Host) -> bool:
        """Whether a node is a member, or was started to become one."""
        return host.number in self._everybody() or host.life > 0

    def _current(self) -> list[Host]:
        return [self.hosts[number] for number in self._everybody()]

    def leader(self) -> Host | None:
        """A node that believes it leads; which one is a matter of chance when several do."""
        leaders = [host for host in self.hosts.values() if host.leads]
        return self.pick(leaders) if leaders else None

    def leads(self, host: Host, group: ReplicationGroup) -> None:
        """A node begins to lead."""
        assert host.hosted is not None, "it leads"
        term = host.hosted.driver.node.term
        self.note("leads", host.number, term)
        self.ledger.leads(host.number, term, group.applied_index)
        self._clients.declare(host)

    # Clients and faults

    def _command(self) -> None:
        if self.calm:
            return
        self.at(int(self.swarm.command_us * 2 * self.chance()), self._command)
        leader = self.leader()
        self.note("client", 0 if leader is None else leader.number)
        if leader is not None and not leader.group.above_high_watermark:
            self._clients.act(leader)
            self.after(leader)

    def _strike(self) -> None:
        if not self.calm:
            self.at(self.swarm.fault_us, self._strike)
            self.note("fault")
            self._faults.strike()
