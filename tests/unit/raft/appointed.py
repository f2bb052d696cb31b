"""An appointed group with a record, in which anything may happen: nodes crash and come back with what is durable, links
are cut, messages are lost, doubled and overtaken, and so are answers of the record.

Members are appointed while their predecessor still leads, hear of it late, or after the next one was. What is checked is
in `Histories.check`; the harness of `cluster` checks the paper's figure 3 besides. In divided histories, leaders may go on
alone, as with `autoheal`: what they commit then is theirs until the record has agreed to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from fluxmq.raft.commits import EVERY_VOTER
from fluxmq.raft.types import Membership, Message, ProposalAccepted, RaftStatus, Role
from fluxmq.replication.divergent_mirrors import DivergentMirrors
from fluxmq.replication.mirror_voters import LedGroup, MirrorVoters
from tests.unit.raft.cluster import Cluster, Disk, Member, Violation


@dataclass
class Record:
    """The record: who leads the term ``epoch``, and which members may be appointed next."""

    synchronised: frozenset[int]
    epoch: int = 0
    leader: int = 0
    revision: int = 0

    def put(self, synchronised: frozenset[int]) -> None:
        """Change the members that may be appointed."""
        self.synchronised = synchronised
        self.revision += 1


@dataclass
class Asked:
    """A request of a leader on its way: to the record, which is read and then compared, and back."""

    term: int
    leader: int
    member: int
    enters: bool
    answered: Callable[[bool], None]
    read: int | None = None
    done: bool | None = None


@dataclass
class Control:
    """What keeps the record for one node: it works on one request about a member after the other."""

    record: Record
    number: int
    requests: list[Asked] = field(default_factory=list)
    loose: list[Asked] = field(default_factory=list)
    """Requests of former lives that were read, and may still come to be compared."""

    def enter(self, term: int, member: int, answered: Callable[[bool], None]) -> None:
        """Take a request."""
        self.requests.append(Asked(term, self.number, member, True, answered))

    def leave(self, term: int, member: int, answered: Callable[[bool], None]) -> None:
        """Take a request."""
        self.requests.append(Asked(term, self.number, member, False, answered))

    def die(self) -> None:
        """End with the node: nobody is answered."""
        self.loose += [
            each for each in self.requests if each.read is not None and each.done is None
        ]
        self.requests.clear()

    def restart(self) -> None:
        """End, and begin anew: the leader hears that nothing is known of its requests."""
        requests = [*self.requests]
        self.die()
        for each in requests:
            each.answered(False)

    def go_on(self, random: Random) -> None:
        """Let one request get one step further."""
        if random.random() < 0.05:
            self.restart()
        if self.loose and random.random() < 0.3:
            self._compare(self.loose.pop(random.randrange(len(self.loose))))
        if not self.requests:
            return
        asked = random.choice(self.requests)
        first = next(each for each in self.requests if each.member == asked.member)
        if first.read is None:
            self._read(first)
        elif first.done is None:
            self._compare(first)
        elif random.random() < 0.5:
            self.requests.remove(first)
            first.answered(first.done and random.random() < 0.95)

    def _read(self, asked: Asked) -> None:
        record = self.record
        if (record.epoch, record.leader) != (asked.term, asked.leader):
            asked.done = False
        asked.read = record.revision

    def _compare(self, asked: Asked) -> None:
        record = self.record
        asked.done = record.revision == asked.read
        if asked.done and asked.enters:
            record.put(record.synchronised | {asked.member})
        elif asked.done:
            record.put(record.synchronised - {asked.member})


def terms_of(member: Member) -> list[int]:
    """The terms of the entries in a member's log, by index."""
    terms, last = [0], member.node.status().last_index
    while len(terms) <= last:
        terms += [each.term for each in member.node._log.slice(len(terms), 1 << 30)]
    return terms


class Histories:
    """One history by a seed. ``divided``: leaders may go on alone."""

    def __init__(self, seed: int, divided: bool = False) -> None:
        self.random = random = Random(seed)
        voters = random.choice((1, 2, 2, 3, 3, 4))
        learners = random.choice((0, 0, 1)) if voters > 1 else 1
        self.cluster = Cluster(
            voters,
            learners,
            random.randrange,
            appointed=True,
            commit_rule=EVERY_VOTER,
            election_ticks=3,
            eager_commit=random.random() < 0.5,
        )
        self.members = self.cluster.members
        self.record = Record(frozenset(self.cluster.membership.voters))
        self.controls = {each: Control(self.record, each) for each in self.members}
        self.voters = {each: self._fresh(each) for each in self.members}
        self.nervous = random.choice((0.02, 0.3))
        """How often a voter seems lost that is not."""
        self.appointments: list[tuple[int, int]] = []
        """(term, member) that the member has not heard of yet."""
        self.down: set[int] = set()
        self.reported: list[int] = [0]
        """Terms of the entries that a leader reported as committed, by index."""
        self.reported_by: list[int] = [0]
        """Terms of the leaders that did so first."""
        self.led: dict[int, list[int]] = {}
        """By term: terms of the entries in the log of its leader when it was appointed."""
        self.leaders: dict[int, int] = {}
        """By term: the member that the record named."""
        self.reads: dict[int, int] = {}
        """The commit index that each read has to see."""
        self.asked = 0
        self.proposed = 0
        self.divided = divided
        self.marks: dict[int, int] = {}
        """Members that have gone on alone, and the terms in which they lead."""
        self.agreed: set[int] = set()
        """Terms that the record gave to such members, without all others."""
        self.doubts: set[tuple[int, int]] = set()
        """Pairs: a member, and one that has begun anew and does not hold any more what that may believe."""
        self.alone_since: dict[int, int] = {}
        """The commit index of each when it did so."""
        self.discarded = self.kept = 0
        """Entries that were committed alone."""

    def _fresh(self, number: int) -> MirrorVoters:
        return MirrorVoters(self.controls[number], lambda: 0.0)

    # What must hold

    def check(self, number: int) -> None:
        """Look at a member after something has happened to it.

        Any leader's committed entry is in the log that any later one was appointed with, and no read is answered from
        before what anybody had reported when it was requested.
        """
        member = self.members[number]
        member.collect()
        status = member.node.status()
        if number in self.marks:
            member.reads.clear()
        elif status.role is Role.LEADER and status.commit >= len(self.reported):
            self._report(member, status)
        while member.reads:
            context, index = member.reads.pop()
            if index < self.reads[context]:
                raise Violation(f"{number} reads at {index}, after {self.reads[context]}")

    def _report(self, member: Member, status: RaftStatus) -> None:
        terms = terms_of(member)
        for index in range(len(self.reported), status.commit + 1):
            self.reported.append(terms[index])
            self.reported_by.append(status.term)
            for term in self.led:
                if term > status.term:
                    self._expect(term, self.led[term], index)

    def _expect(self, term: int, terms: list[int], index: int) -> None:
        if index >= len(terms) or terms[index] != self.reported[index]:
            raise Violation(f"the leader of term {term} was appointed without entry {index}")

    def _appointed(self, member: Member, term: int) -> None:
        terms = self.led[term] = terms_of(member)[:-1]  # without the term's own
        for index in range(1, len(self.reported)):
            if self.reported_by[index] < term:
                self._expect(term, terms, index)

    # What may happen

    def happen(self) -> None:
        """Let something happen, by chance."""
        random = self.random
        number = random.choice(tuple(self.members))
        if self.marks and random.random() < 0.04:
            marked = random.choice(sorted(self.marks))
            if marked not in self.down:
                self.reunite(marked)
        chance = random.random()
        if chance < 0.35:
            self.carry()
        elif chance < 0.57:
            for each in self.members:
                self.work(each)
        elif chance < 0.65:
            self.propose()
        elif chance < 0.77:
            self.look()
        elif chance < 0.85:
            for control in self.controls.values():
                control.go_on(random)
        elif chance < 0.92:
            self.appoint()
        elif chance < 0.95:
            self.break_something(number)
        else:
            self.read()

    def carry(self) -> None:
        """Bring some messages to where they go, in any order."""
        network, random = self.cluster.network, self.random
        for _ in range(min(len(network), 8)):
            at = random.randrange(len(network)) if random.random() < 0.3 else 0
            message = network.pop(at)
            lost = message.target in self.down or random.random() < 0.05
            lost = lost or message.target in self.marks or self._doubted(message)
            if lost or (message.source, message.target) in self.cluster.cuts:
                continue
            if random.random() < 0.05:
                network.append(message)
            self.members[message.target].node.step(message)
            self.check(message.target)

    def _doubted(self, message: Message) -> bool:
        between = (message.source, message.target)
        return between in self.doubts or between[::-1] in self.doubts

    def work(self, number: int) -> None:
        """Let a member's clock go on, or its disk."""
        if number in self.down:
            return
        member = self.members[number]
        if self.random.random() < 0.3:
            member.node.tick()
            self.check(number)
        while member.writes and self.random.random() < 0.7:
            member.sync(1)
            self.check(number)

    def propose(self) -> None:
        """Propose commands, and commits with them, at whoever thinks it leads."""
        for number in self._leaders():
            self.proposed += 1
            outcome = self.members[number].node.propose([b"%d" % self.proposed])
            assert isinstance(outcome, ProposalAccepted)
            self.check(number)

    def read(self) -> None:
        """Request a read at whoever thinks it leads."""
        for number in self._leaders():
            self.asked += 1
            self.reads[self.asked] = len(self.reported) - 1
            self.members[number].node.read_index(self.asked)
            self.check(number)

    def look(self) -> None:
        """Have leaders look after their voters, who seem lost at any time."""
        for number in self._leaders():
            node = self.members[number].node
            status = node.status()
            membership = status.membership
            lost = [each for each in membership.voters if self._seems_lost(number, each)]
            self._believe(number, node.membership_at(status.commit), membership)
            if self.divided and (number in self.marks or (lost and self.random.random() < 0.1)):
                self.go_alone(number, status)
                continue
            change = self.voters[number].next_change(self._view(status, node.membership_at, lost))
            if change is not None:
                node.propose_membership(change)
                self.check(number)

    def _seems_lost(self, number: int, other: int) -> bool:
        if (number, other) in self.doubts:
            return True
        away = other in self.down or (number, other) in self.cluster.cuts
        return self.random.random() < (0.7 if away else self.nervous)

    def _view(
        self, status: RaftStatus, membership_at: Callable[[int], Membership], lost: list[int]
    ) -> LedGroup:
        leads = status.commit >= len(self.led[status.term])  # the first entry after those it had
        ready = [
            number
            for number, each in status.progress.items()
            if each.learner and each.match and status.last_index - each.match < 5
        ]
        return LedGroup(
            *(status.term, status.id, status.membership, membership_at(status.commit)),
            *(leads, lost, (), ready),
        )

    def _leaders(self) -> list[int]:
        return [
            number
            for number, each in self.members.items()
            if number not in self.down and each.node.status().role is Role.LEADER
        ]

    def appoint(self) -> None:
        """Have a synchronised member lead, and take its predecessor for dead; or bring it the news."""
        record, random = self.record, self.random
        if self.appointments and random.random() < 0.8:
            at = random.randrange(len(self.appointments))
            self.hear(*self.appointments.pop(at))
        elif record.epoch and random.random() < 0.5:
            self.appointments.append((record.epoch, record.leader))  # told again
        else:
            leader = random.choice(sorted(record.synchronised))
            if leader in self.marks:
                return  # it asks for that itself
            if leader != record.leader and (self.divided or random.random() < 0.7):
                record.synchronised -= {record.leader}
            record.epoch, record.leader = record.epoch + 1, leader
            record.revision += 1
            self.leaders[record.epoch] = leader
            self.appointments.append((record.epoch, leader))

    def hear(self, term: int, number: int) -> None:
        """Bring a member its appointment."""
        member = self.members[number]
        if number in self.down:
            return
        if number in self.marks:
            if term not in self.agreed or term <= self.marks[number]:
                return
            self._end(number)
        known = member.node.term
        if member.node.appoint(term) and term != known:
            self._appointed(member, term)
        self.check(number)

    # Going on alone

    def go_alone(self, number: int, status: RaftStatus) -> None:
        """Have a leader do without all others, one after the other; or have it hear of the record again."""
        if number not in self.marks:
            self.marks[number] = status.term
            self.cluster.divergent.add(number)
            self.alone_since[number] = status.commit
        change = DivergentMirrors.without_others(status)
        if change is not None:
            self.members[number].node.propose_membership(change)
        self.check(number)

    def reunite(self, number: int) -> None:
        """Have a member that went on alone hear of the record, and ask it."""
        record, status = self.record, self.members[number].node.status()
        term = self.marks[number]
        if any(each.done is None for each in self.controls[number].requests):
            return  # control works on one request about a group after the other
        if record.leader != number:
            self._discard(number, status)
        elif record.epoch == term == status.term and status.role is Role.LEADER:
            record.put(frozenset({number}))
            if self.random.random() < 0.7:  # or the answer is lost
                self._end(number)
                self.check(number)
        else:
            record.epoch += 1
            record.put(frozenset({number}))
            self.leaders[record.epoch] = number
            self.agreed.add(record.epoch)
            self.appointments.append((record.epoch, number))

    def _end(self, number: int) -> None:
        """The record has agreed: what was committed alone counts like everything else."""
        member = self.members[number]
        del self.marks[number]
        self.cluster.divergent.discard(number)
        for entry in member.disk.log[: member.applied]:
            self.cluster.check_applied(number, entry)
        self.kept += member.node.status().commit - self.alone_since[number]

    def _discard(self, number: int, status: RaftStatus) -> None:
        """Another one leads: the member begins anew, without anything."""
        self.discarded += max(0, status.commit - self.alone_since[number])
        del self.marks[number]
        self.cluster.divergent.discard(number)
        self.controls[number].die()
        self.voters[number] = self._fresh(number)
        others = tuple(each for each in self.members if each != number)
        self.cluster.add(number, Disk(Membership(others)))
        network = self.cluster.network
        network[:] = [each for each in network if number not in (each.source, each.target)]
        self.doubts |= {(other, number) for other in self.members if other != number}

    def _believe(self, number: int, committed: Membership, membership: Membership) -> None:
        """Have a leader begin from the start with members that have begun anew, once they are no voters."""
        for other in [each for each in self.members if (number, each) in self.doubts]:
            if other not in (*committed.voters, *membership.voters):
                self.members[number].node.start_over(other)
                self.doubts.discard((number, other))

    def break_something(self, number: int) -> None:
        """Crash a member, for a while or not, cut a link, or mend something."""
        chance, cuts = self.random.random(), self.cluster.cuts
        if chance < 0.35 and number not in self.down:
            self.controls[number].die()
            self.members[number].crash()
            for term in [term for term in self.led if self.leaders[term] == number]:
                if term > self.members[number].node.term:
                    del self.led[term]  # nobody has heard of it
            self.voters[number] = self._fresh(number)
            if self.random.random() < 0.5:
                self.down.add(number)
        elif chance < 0.55 and self.down:
            self.down.discard(self.random.choice(sorted(self.down)))
        elif chance < 0.65:
            other = self.random.choice(tuple(self.members))
            cuts |= {(number, other), (other, number)}
        elif chance < 0.75:
            self.cluster.cut(number)
        else:
            cuts.clear()

    # The end

    def run(self, events: int) -> None:
        """Go through the history; then all is well again, and the group has to go on."""
        for _ in range(events):
            self.happen()
        self.cluster.check_logs()
        self.down.clear()
        self.cluster.heal()
        for number in [*self.marks]:
            while number in self.marks:
                self.controls[number].die()
                self.reunite(number)
                for term, other in self.appointments:
                    if term in self.agreed and other == number in self.marks:
                        self.hear(term, number)
        self.doubts.clear()  # the next leader begins from the start with all
        leader = min(self.record.synchronised)
        self.record.epoch, self.record.leader = self.record.epoch + 1, leader
        self.record.revision += 1
        self.leaders[self.record.epoch] = leader
        self.hear(self.record.epoch, leader)
        self.cluster.settle()
        self.cluster.tick(3)
        self.propose()
        self.cluster.settle()
        self.cluster.tick(3)
        status = self.members[leader].node.status()
        if status.commit != status.last_index:
            raise Violation("the group does not go on")
        self.check(leader)
        commands = self.members[leader].commands
        if any(each.commands != commands for each in self.members.values()):
            raise Violation("copies differ")
