"""What a history comes to: how many messages, how long confirms took, how long nobody was served. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos import rules_cluster, rules_messages, rules_order
from tests.chaos.ledger import AFTERMATH_S, Ledger
from tests.chaos.records import OK, UNKNOWN, Key, Record


@dataclass
class Report:
    """Of one run. Latencies are in milliseconds: 50th and 99th percentile."""

    attempted: int = 0
    confirmed: int = 0
    ok: int = 0
    lost: int = 0
    unexpected: int = 0
    duplicated: int = 0
    recovered: int = 0
    forced: int = 0
    """Mirrors that came to lead without being synchronised."""
    given_up: int = 0
    """Confirmed messages that these lacked."""
    unmarked: int = 0
    """Repeats after faults that were not marked as such."""
    latency: dict[str, tuple[float, float]] = field(default_factory=dict)
    unavailable: dict[str, list[float]] = field(default_factory=dict)
    """By kind of fault, the longest time without a confirm for each, in seconds."""
    violations: list[tuple[str, str]] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether every rule held."""
        return not self.broken

    def lines(self) -> list[str]:
        """As printed; the last line is the tally."""
        said = [f"violated {rule}: {sentence}" for rule, sentence in self.violations]
        if self.broken:
            said.append("broken: " + ", ".join(f"{k} {v}" for k, v in sorted(self.broken.items())))
        if self.forced:
            said.append(
                f"unsynchronised mirrors that came to lead: {self.forced}; confirmed messages that they"
                f" lacked: {self.given_up}"
            )
        if self.unmarked:
            said.append(f"repeats after faults that were not marked: {self.unmarked}")
        for when, (middle, high) in self.latency.items():
            said.append(f"confirm latency {when}: p50 {middle:.1f} ms, p99 {high:.1f} ms")
        for kind, gaps in sorted(self.unavailable.items()):
            mean = sum(gaps) / len(gaps)
            said.append(
                f"unavailable at {kind}: {len(gaps)} times, mean {mean:.2f} s, longest {max(gaps):.2f} s"
            )
        said.append(
            f"attempted {self.attempted}, confirmed {self.confirmed}, ok {self.ok},"
            f" {self.lost} confirmed lost, unexpected {self.unexpected},"
            f" duplicated {self.duplicated}, recovered {self.recovered}"
        )
        return said


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which so much of it lies; 0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def examine(records: Iterable[Record]) -> Report:
    """Hold a history against every rule. Raises ``HistoryError``."""
    ledger = Ledger(records)
    lost = rules_messages.check(ledger)
    rules_order.check(ledger)
    rules_cluster.check(ledger)
    report = Report(
        lost=len(lost),
        unexpected=ledger.broken["I2"],
        forced=len(ledger.forced),
        given_up=len(ledger.given_up),
        unmarked=ledger.unmarked,
        violations=[*ledger.violations],
        broken=dict(ledger.broken),
    )
    _count(ledger, report, lost)
    _latency(ledger, report)
    _unavailable(ledger, report)
    return report


def _count(ledger: Ledger, report: Report, lost: set[tuple[str, Key]]) -> None:
    delivered: set[Key] = set()
    for deliveries in ledger.deliveries.values():
        delivered.update((each.publisher, each.sequence) for each in deliveries)
    gone = {key for _, key in lost | ledger.given_up}
    report.attempted = len(ledger.attempts)
    for key, attempts in ledger.attempts.items():
        outcomes = {each.outcome for each in attempts}
        if OK in outcomes:
            report.confirmed += 1
            report.ok += key in delivered and key not in gone
        elif UNKNOWN in outcomes and key in delivered:
            report.recovered += 1
    report.duplicated = rules_messages.duplicates(ledger)


def _latency(ledger: Ledger, report: Report) -> None:
    """Of the attempts that were confirmed, by when they were sent: before the first fault, after the last, between."""
    first = min((fault.begin for fault in ledger.faults), default=float("inf"))
    last = max((fault.end for fault in ledger.faults), default=float("inf"))
    found: dict[str, list[float]] = {"before": [], "during": [], "after": []}
    for each in ledger.publishes:
        if each.outcome == OK:
            when = "before" if each.invoke < first else "after" if each.invoke > last else "during"
            found[when].append((each.complete - each.invoke) * 1e3)
    for when, values in found.items():
        if values:
            values.sort()
            report.latency[when] = percentile(values, 0.5), percentile(values, 0.99)


def _unavailable(ledger: Ledger, report: Report) -> None:
    """For each fault and queue the longest time without a confirm, of which the worst queue counts."""
    times: dict[str, list[float]] = {name: [] for name in ledger.queues}
    for each in ledger.publishes:
        if each.outcome == OK:
            for queue in each.queues:
                times.setdefault(queue, []).append(each.complete)
    for each_times in times.values():
        each_times.sort()
    begins = [fault.begin for fault in ledger.faults]
    for number, fault in enumerate(ledger.faults, 1):
        until = min((fault.end + AFTERMATH_S, *begins[number : number + 1]))
        gaps = (_gap(found, fault.begin, until) for found in times.values() if found)
        worst = max(gaps, default=0.0)
        report.unavailable.setdefault(fault.kind, []).append(worst)


def _gap(times: Sequence[float], begin: float, until: float) -> float:
    """The longest time without a confirm that begins within this time, however long it lasts."""
    longest, before = 0.0, begin
    for time in times[bisect_right(times, begin) :]:
        longest = max(longest, time - before)
        before = time
        if time > until:
            break
    return longest
