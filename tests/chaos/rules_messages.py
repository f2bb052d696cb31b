"""Rules about which messages there are: none lost, none invented, repeats bounded and marked. Pure.

I1, I2, I4, I9 and I14 of the fault matrix.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.chaos.ledger import AFTERMATH_S, Ledger
from tests.chaos.records import FAIL, OK, Deliver, Key, Publish, Queue


def check(ledger: Ledger) -> set[tuple[str, Key]]:
    """All of them; what is lost, as queue and message."""
    _genuine(ledger)
    lost: set[tuple[str, Key]] = set()
    for queue in ledger.setting.queues:
        lost |= _lost(ledger, queue)
        _dead_letters(ledger, queue)
    for queue_group, deliveries in ledger.deliveries.items():
        _repeats(ledger, *queue_group, deliveries)
    _bounded(ledger)
    _together(ledger, lost)
    return lost


def label(key: Key) -> str:
    """A message in a sentence."""
    return f"{key[0]}/{key[1]}"


def _lost(ledger: Ledger, queue: Queue) -> set[tuple[str, Key]]:
    """I1: a confirmed message was given to every group that reads all of the queue; unless a mirror came to lead that was
    not synchronised."""
    wanted = {
        (each.publisher, each.sequence): each
        for each in ledger.publishes
        if each.outcome == OK and queue.name in each.queues
    }
    lost: set[tuple[str, Key]] = set()
    for group in ledger.readers(queue):
        if (queue.name, group) not in ledger.drained:
            ledger.violated("I13", f"{queue.name}: reading by {group} did not come to its end")
        given = {(d.publisher, d.sequence) for d in ledger.deliveries[queue.name, group]}
        for key, publish in wanted.items():
            if key not in given and ledger.may_lack(publish.complete):
                ledger.given_up.add((queue.name, key))
            elif key not in given:
                lost.add((queue.name, key))
                _tell_lost(ledger, queue.name, group, publish)
    return lost


def _tell_lost(ledger: Ledger, queue: str, group: str, publish: Publish) -> None:
    """I9 where a node that had been stopped confirmed it, I1 elsewhere."""
    stale = any(
        fault.silent
        and publish.node in fault.nodes
        and fault.end <= publish.complete <= fault.end + AFTERMATH_S
        for fault in ledger.faults
    )
    named = label((publish.publisher, publish.sequence))
    ledger.violated(
        "I9" if stale else "I1",
        f"{queue}: {named} was confirmed by {publish.node} over {publish.protocol} at"
        f" {publish.complete:.3f} s and is lost to {group}",
    )


def _genuine(ledger: Ledger) -> None:
    """I2: what is delivered was sent there, as it was sent, and not refused."""
    for (queue, group), deliveries in ledger.deliveries.items():
        source = ledger.dead_letters.get(queue, queue)
        for each in deliveries:
            where = f"{queue} offset {each.offset} to {group}"
            if each.publisher < 0:
                ledger.violated("I2", f"{where}: not a body that was sent")
                continue
            key = (each.publisher, each.sequence)
            attempts = [a for a in ledger.attempts.get(key, ()) if source in a.queues]
            if not attempts:
                ledger.violated("I2", f"{where}: {label(key)} was never sent there")
            elif attempts[0].digest != each.digest:
                ledger.violated("I2", f"{where}: {label(key)} is not as it was sent")
            elif all(attempt.outcome == FAIL for attempt in attempts):
                ledger.violated("I2", f"{where}: {label(key)} was refused, and is there")


def _dead_letters(ledger: Ledger, queue: Queue) -> None:
    """I1 and I2 for dead letters: all that was rejected for certain is there, and nothing that nobody rejected."""
    if not queue.dead_letters:
        return
    tried: set[Key] = set()
    certain: set[Key] = set()
    for (name, _), settles in ledger.settles.items():
        for settle in settles:
            if name == queue.name and settle.verb == "reject":
                tried.update(settle.messages)
                if settle.outcome == OK:
                    certain.update(settle.messages)
    places: dict[Key, set[int]] = defaultdict(set)
    for (name, _), deliveries in ledger.deliveries.items():
        if name == queue.dead_letters:
            for each in deliveries:
                places[each.publisher, each.sequence].add(each.offset)
    for key in sorted(certain - places.keys()):
        ledger.violated("I1", f"{queue.dead_letters}: {label(key)} was rejected and is lost")
    for key, offsets in places.items():
        if key not in tried:
            ledger.violated("I2", f"{queue.dead_letters}: {label(key)} was never rejected")
        elif len(offsets) > ledger.appends(key):
            ledger.violated(
                "I2", f"{queue.dead_letters}: {label(key)} is there {len(offsets)} times"
            )


def _repeats(ledger: Ledger, queue: str, group: str, deliveries: list[Deliver]) -> None:
    """I4: a message that comes again is marked, unless what knew of the first time was lost with a leader; and it lies in
    a queue no more often than it was sent. Streams mark nothing."""
    known = ledger.queues.get(queue)
    stream = known is not None and known.kind == "stream"
    last: dict[tuple[int, Key], float] = {}
    places: dict[Key, set[int]] = defaultdict(set)
    unmarked: Counter[Key] = Counter()
    for each in deliveries:
        key = (each.publisher, each.sequence)
        if each.publisher < 0:
            continue
        before = last.get((each.offset, key))
        last[each.offset, key] = each.time
        places[key].add(each.offset)
        if each.repeat or stream:
            continue
        if each.offset < 0:
            unmarked[key] += 1
            if unmarked[key] <= ledger.appends(key):
                continue
        elif before is None:
            continue
        if before is None:
            continue
        if ledger.disturbed(before, each.time):
            ledger.unmarked += 1
        else:
            ledger.violated(
                "I4", f"{queue}: {label(key)} came to {group} again at {each.time:.3f} s, unmarked"
            )
    if queue in ledger.dead_letters:
        return
    for key, offsets in places.items():
        if len(offsets) > max(1, ledger.appends(key)):
            sent = ledger.appends(key)
            ledger.violated(
                "I4", f"{queue}: {label(key)} sent {sent} times lies at {sorted(offsets)}"
            )


def duplicates(ledger: Ledger) -> int:
    """Deliveries of a message to a group beyond the first, readers of everything and dead letters left out."""
    found = 0
    for (queue, _), deliveries in ledger.deliveries.items():
        if queue in ledger.dead_letters:
            continue
        keys = {(d.publisher, d.sequence) for d in deliveries if not d.audit}
        found += sum(not d.audit for d in deliveries) - len(keys)
    return found


def _bounded(ledger: Ledger) -> None:
    """I4: no more repeats than messages were under way at the faults: both their begin and their end may move leaders, and
    nodes do so by themselves."""
    run = ledger.setting
    losses = sum(len(times) for times in ledger.lost.values())
    moves = 2 * len(ledger.faults) + len(ledger.moves)
    allowed = moves * run.window + losses * run.share
    found = duplicates(ledger)
    if found > allowed:
        ledger.violated("I4", f"{found} repeats, and no more than {allowed} were under way")


def _together(ledger: Ledger, lost: set[tuple[str, Key]]) -> None:
    """I14: what goes to several queues is confirmed when all have it; a transaction is there whole or not at all."""
    for publish in ledger.publishes:
        if publish.outcome != OK or len(publish.queues) < 2:
            continue
        key = (publish.publisher, publish.sequence)
        missing = [queue for queue in publish.queues if (queue, key) in lost]
        if missing and len(missing) < len(publish.queues):
            ledger.violated("I14", f"{label(key)} was confirmed and is missing from {missing}")
    outcomes: dict[tuple[str, int], set[str]] = defaultdict(set)
    for publish in ledger.publishes:
        if publish.transaction >= 0:
            outcomes[publish.client, publish.transaction].add(publish.outcome)
    for (client, number), found in outcomes.items():
        if len(found) > 1:
            ledger.violated("I14", f"transaction {number} of {client} ended as {sorted(found)}")
