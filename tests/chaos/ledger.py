"""A history sorted into what the rules ask for: attempts by message, deliveries by group, faults by time. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tests.chaos.records import (
    FAIL,
    OK,
    Deliver,
    Drained,
    Fault,
    Finding,
    Forced,
    HistoryError,
    Join,
    Key,
    Lost,
    Moved,
    Probe,
    Publish,
    Queue,
    Record,
    Replica,
    Run,
    Settle,
)

SENTENCES_MAX = 20
"""Of one rule: more would not be read. They are counted all the same."""

MOVE_S = 1.0
"""How long before its log says so a leader may have begun to hand over, and the other way round."""
AFTERMATH_S = 10.0
"""So long after a fault its consequences may still show: elections, connections found dead, claims that ran out."""


class Violation(NamedTuple):
    """A broken rule and how."""

    rule: str
    sentence: str


class Ledger:
    """One history. Raises ``HistoryError`` when it does not say what was run."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.setting: Run
        """What was run."""
        self.publishes: list[Publish] = []
        self.attempts: dict[Key, list[Publish]] = defaultdict(list)
        self.deliveries: dict[tuple[str, str], list[Deliver]] = defaultdict(list)
        self.settles: dict[tuple[str, str], list[Settle]] = defaultdict(list)
        self.joins: dict[tuple[str, str], list[Join]] = defaultdict(list)
        self.lost: dict[str, list[float]] = defaultdict(list)
        """When each connection ended."""
        self.faults: list[Fault] = []
        self.probes: list[Probe] = []
        self.drained: set[tuple[str, str]] = set()
        self.replicas: list[Replica] = []
        self.moves: list[float] = []
        """When nodes gave leadership away by themselves."""
        self.forced: list[Forced] = []
        """Moments at which mirrors that lacked messages came to lead."""
        self.given_up: set[tuple[str, Key]] = set()
        """Confirmed messages, by queue, that were lost with that."""
        self.findings: list[Finding] = []
        self.violations: list[Violation] = []
        self.broken: Counter[str] = Counter()
        self.unmarked = 0
        """Repeats that were not marked, where what knew of the first time may have been lost."""
        for record in records:
            self._take(record)
        if not hasattr(self, "setting"):
            raise HistoryError("the history does not say what was run")
        self.queues: dict[str, Queue] = {queue.name: queue for queue in self.setting.queues}
        self.dead_letters: dict[str, str] = {
            queue.dead_letters: queue.name for queue in self.setting.queues if queue.dead_letters
        }
        """Queues of dead letters, and whose they are."""
        self.publishes.sort(key=lambda publish: publish.invoke)
        for publish in self.publishes:
            self.attempts[publish.publisher, publish.sequence].append(publish)
        for deliveries in self.deliveries.values():
            deliveries.sort(key=lambda delivery: delivery.time)
        self.faults.sort(key=lambda fault: fault.begin)
        self._losses: list[float] = sorted(time for times in self.lost.values() for time in times)

    def _take(self, record: Record) -> None:
        if isinstance(record, Publish):
            self.publishes.append(record)
        elif isinstance(record, Deliver):
            self.deliveries[record.queue, record.group].append(record)
        elif isinstance(record, Settle):
            self.settles[record.queue, record.group].append(record)
        elif isinstance(record, Join):
            self.joins[record.queue, record.group].append(record)
        elif isinstance(record, Lost):
            self.lost[record.connection].append(record.time)
        else:
            self._take_rare(record)

    def _take_rare(
        self, record: Run | Fault | Probe | Drained | Replica | Moved | Forced | Finding
    ) -> None:
        if isinstance(record, Run):
            self.setting = record
        elif isinstance(record, Fault):
            self.faults.append(record)
        elif isinstance(record, Probe):
            self.probes.append(record)
        elif isinstance(record, Drained):
            self.drained.add((record.queue, record.group))
        elif isinstance(record, Replica):
            self.replicas.append(record)
        elif isinstance(record, Moved):
            self.moves.append(record.time)
        elif isinstance(record, Forced):
            self.forced.append(record)
        else:
            self.findings.append(record)

    # --- what rules ask ----------------------------------------------------------------------------------------

    def confirmed(self, key: Key) -> Publish | None:
        """The attempt that was confirmed, if any."""
        return next((each for each in self.attempts[key] if each.outcome == OK), None)

    def appends(self, key: Key) -> int:
        """How many copies there may be: attempts that did not certainly fail."""
        return sum(each.outcome != FAIL for each in self.attempts[key])

    def readers(self, queue: Queue) -> list[str]:
        """Groups that have to be given everything: those of the run, and who read everything at the end."""
        named = [group.name for group in queue.groups]
        audits = {
            group
            for (name, group), deliveries in self.deliveries.items()
            if name == queue.name and group not in named and any(d.audit for d in deliveries)
        }
        drained = {group for name, group in self.drained if name == queue.name} - set(named)
        return [*named, *sorted(audits | drained)]

    def disturbed(self, begin: float, end: float) -> bool:
        """Whether a fault, what follows from it, or the loss of any connection lies within this time."""
        for fault in self.faults:
            if fault.begin > end:
                break
            if fault.end + AFTERMATH_S >= begin:
                return True
        at = bisect_left(self._losses, begin - AFTERMATH_S)
        return at < len(self._losses) and self._losses[at] <= end

    def moved(self, begin: float, end: float) -> bool:
        """Whether a node gave leadership away by itself within this time."""
        return any(begin - MOVE_S <= time <= end + MOVE_S for time in self.moves)

    def may_lack(self, time: float) -> bool:
        """Whether a mirror that came to lead during a fault may lack what was confirmed then: the fault had begun, and no
        mirror led yet that was not synchronised."""
        return any(
            fault.begin <= time <= forced.time <= fault.end + AFTERMATH_S
            for fault in self.faults
            for forced in self.forced
        )

    def violated(self, rule: str, sentence: str) -> None:
        """A rule is broken."""
        self.broken[rule] += 1
        if self.broken[rule] <= SENTENCES_MAX:
            self.violations.append(Violation(rule, sentence))
