"""Rules about the nodes: replicas are equal, what works again does so in time, nothing hangs. Pure.

I10, I13 and I16 of the fault matrix, and what the harness itself found.
"""

from __future__ import annotations

from collections import defaultdict

from tests.chaos.ledger import Ledger
from tests.chaos.records import OK, Replica
from tests.chaos.rules_messages import label

HANG_GRACE_S = 2.0
"""An operation ends within the acknowledgement's timeout and so much more."""
BLOCKED = (("F12 disk full", "amqp"), ("F12 disk full", "amqp10"))
"""A node with a full disk does not read AMQP publishers (`connection.blocked`) until space is free."""


def check(ledger: Ledger) -> None:
    """All of them."""
    _replicas(ledger)
    _recovery(ledger)
    _hangs(ledger)
    for finding in ledger.findings:
        ledger.violated(finding.rule, finding.sentence)


def _replicas(ledger: Ledger) -> None:
    """I10: of each segment all replicas have the same bytes, and all have a queue to the same end. A work queue may be
    empty, and then have no segment; a stream is everywhere."""
    segments: dict[tuple[str, str], list[Replica]] = defaultdict(list)
    ends: dict[str, dict[str, tuple[str, int]]] = defaultdict(dict)
    for each in ledger.replicas:
        segments[each.queue, each.segment].append(each)
        end = (each.segment, each.length)
        ends[each.queue][each.node] = max(end, ends[each.queue].get(each.node, end))
    for (queue, segment), replicas in segments.items():
        if len({(each.common, each.digest) for each in replicas}) > 1:
            told = ", ".join(f"{each.node} {each.digest}" for each in replicas)
            ledger.violated("I10", f"{queue}: segment {segment} differs: {told}")
    nodes = set(ledger.setting.nodes)
    for wanted in ledger.setting.queues:
        without = nodes - ends[wanted.name].keys()
        if ledger.replicas and wanted.kind == "stream" and without:
            told = ", ".join(sorted(without))
            ledger.violated("I10", f"{wanted.name}: there is nothing of it at {told}")
    for name, by_node in ends.items():
        if len(set(by_node.values())) > 1:
            told = ", ".join(f"{node} {at[0]}+{at[1]}" for node, at in sorted(by_node.items()))
            ledger.violated("I10", f"{name}: replicas end differently: {told}")


def _recovery(ledger: Ledger) -> None:
    """I13: after the faults everything works again within its time."""
    for probe in ledger.probes:
        took = probe.complete - probe.invoke
        if probe.outcome != OK or took > probe.limit:
            told = f": {probe.why}" if probe.why else ""
            ledger.violated(
                "I13",
                f"{probe.name}: {probe.outcome} after {took:.1f} of {probe.limit:.1f} s{told}",
            )


def _hangs(ledger: Ledger) -> None:
    """I16: publishes to a node that runs are answered, or their connection is lost, in time; unless it blocks them."""
    limit = ledger.setting.ack_timeout + HANG_GRACE_S
    for each in ledger.publishes:
        if each.complete - each.invoke <= limit and each.why != "timeout":
            continue
        silent = any(
            (fault.silent or (fault.kind, each.protocol) in BLOCKED)
            and each.node in fault.nodes
            and fault.begin <= each.complete
            and each.invoke <= fault.end + HANG_GRACE_S
            for fault in ledger.faults
        )
        if not silent:
            named = label((each.publisher, each.sequence))
            ledger.violated(
                "I16",
                f"{named} to {each.node} over {each.protocol} was not answered from"
                f" {each.invoke:.3f} to {each.complete:.3f} s",
            )
