"""Rules about places and order: settled is settled, an offset is for ever, cursors and order hold. Pure.

I3, I5, I6 and I7 of the fault matrix.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from tests.chaos.ledger import AFTERMATH_S, Ledger
from tests.chaos.records import FAIL, OK, SENT, Deliver, Key, Publish
from tests.chaos.rules_messages import label


def check(ledger: Ledger) -> None:
    """All of them."""
    for queue, group in list(ledger.settles):
        _settled(ledger, queue, group)
        _cursor(ledger, queue, group)
    for queue in ledger.queues:
        _offsets(ledger, queue)
        _order_of_queue(ledger, queue)


def _settled(ledger: Ledger, queue: str, group: str) -> None:
    """I3: what was settled for certain does not come again; where nobody answers, only after something went wrong."""
    certain: dict[int, float] = {}
    said: dict[tuple[int, Key], tuple[float, str]] = {}
    for settle in ledger.settles[queue, group]:
        if settle.verb == "commit":
            continue
        if settle.outcome == OK:
            for offset in settle.offsets:
                certain.setdefault(offset, settle.complete)
        elif settle.outcome == SENT:
            offsets = settle.offsets or (-1,) * len(settle.messages)
            for offset, key in zip(offsets, settle.messages, strict=True):
                said[offset, key] = (settle.invoke, settle.connection)
    for each in ledger.deliveries[queue, group]:
        if each.offset in certain and each.time > certain[each.offset]:
            ledger.violated(
                "I3",
                f"{queue} offset {each.offset} was settled by {group} at {certain[each.offset]:.3f} s"
                f" and came again at {each.time:.3f} s over {each.node}",
            )
        key = (each.publisher, each.sequence)
        time, connection = said.get((each.offset, key), (each.time, ""))
        if time >= each.time or (each.offset < 0 and ledger.appends(key) > 1):
            continue
        ended = any(time - AFTERMATH_S <= loss <= each.time for loss in ledger.lost[connection])
        moved = ledger.moved(time, each.time)  # what nobody answers may be lost with that
        if not ended and not moved and not ledger.disturbed(time, each.time):
            ledger.violated(
                "I3",
                f"{queue}: {label(key)} was settled by {group} at {time:.3f} s and came again at"
                f" {each.time:.3f} s, with nothing wrong between",
            )


def _offsets(ledger: Ledger, queue: str) -> None:
    """I5: an offset holds one message for everybody and for ever; a reader of everything gets them in ascending order.

    A group goes on behind what it has settled when another node leads: one that settles nothing reads some of it again.
    """
    contents: dict[int, tuple[Key, str]] = {}
    last: dict[str, tuple[int, float]] = {}
    for (name, group), deliveries in ledger.deliveries.items():
        if name != queue:
            continue
        for each in deliveries:
            if each.offset < 0 or each.publisher < 0:
                continue
            content = ((each.publisher, each.sequence), each.digest)
            known = contents.setdefault(each.offset, content)
            if known != content:
                ledger.violated(
                    "I5",
                    f"{queue} offset {each.offset} was {label(known[0])} and is"
                    f" {label(content[0])} to {group} over {each.node}",
                )
            if not each.audit:
                continue
            before, time = last.get(each.connection, (-1, each.time))
            if each.offset <= before and not ledger.moved(time, each.time):
                ledger.violated(
                    "I5", f"{queue}: {group} was given offset {each.offset} after {before}"
                )
            last[each.connection] = (each.offset, each.time)


def _cursor(ledger: Ledger, queue: str, group: str) -> None:
    """I6: a group that committed how far it is goes on behind that, and commits nothing that it was not given."""
    commits = sorted(
        (settle.complete, max(settle.offsets))
        for settle in ledger.settles[queue, group]
        if settle.verb == "commit" and settle.outcome == OK and settle.offsets
    )
    if not commits:
        return
    times: list[float] = []
    floors: list[int] = []
    for time, offset in commits:
        times.append(time)
        floors.append(max(offset, floors[-1] if floors else -1))
    begin = {join.connection: join.invoke for join in ledger.joins[queue, group]}
    given = -1
    for each in ledger.deliveries[queue, group]:
        given = max(given, each.offset)
        at = bisect_right(times, begin.get(each.connection, -1.0)) - 1
        if at >= 0 and each.offset <= floors[at]:
            ledger.violated(
                "I6",
                f"{queue}: {group} had committed {floors[at]} and was given {each.offset} at"
                f" {each.time:.3f} s over a connection made later",
            )
    if floors[-1] > given:
        ledger.violated("I6", f"{queue}: {group} committed {floors[-1]}, beyond {given}")


def _order_of_queue(ledger: Ledger, queue: str) -> None:
    """I7: in the queue, and as a single consumer is given them for the first time and unmarked, a publisher's messages ascend."""
    places: dict[Key, int] = {}
    for (name, _), deliveries in ledger.deliveries.items():
        if name == queue:
            for each in deliveries:
                key = (each.publisher, each.sequence)
                if each.offset >= 0 and each.publisher >= 0:
                    places[key] = min(each.offset, places.get(key, each.offset))
    _ascending(ledger, queue, places, "offset")
    for group in ledger.queues[queue].groups:
        if group.single:
            firsts = _firsts(ledger.deliveries[queue, group.name])
            _ascending(ledger, queue, firsts, f"{group.name}'s delivery")


def _firsts(deliveries: list[Deliver]) -> dict[Key, int]:
    """Where messages came for the first time. One that is marked then was on its way to a connection that was lost: it comes
    again when that is known, and whoever has come instead may have had newer ones by then."""
    places: dict[Key, int] = {}
    seen: set[Key] = set()
    for place, each in enumerate(deliveries):
        key = (each.publisher, each.sequence)
        if key not in seen and not each.repeat:
            places[key] = place
        seen.add(key)
    return places


def _ascending(ledger: Ledger, queue: str, places: dict[Key, int], what: str) -> None:
    """Two messages are in order when the first was confirmed before the second was sent; and when both were sent once and
    confirmed, over one connection, one after the other."""
    events: list[tuple[float, int, Publish]] = []
    seen: set[Key] = set()
    confirmed: set[Key] = set()
    for each in ledger.publishes:
        key = (each.publisher, each.sequence)
        if queue not in each.queues or each.outcome == FAIL:
            continue
        if key not in seen:
            seen.add(key)
            events.append((each.invoke, 1, each))
        if each.outcome == OK and key not in confirmed:
            confirmed.add(key)
            events.append((each.complete, 0, each))
    events.sort(key=lambda event: event[:2])
    floors: dict[int, int] = defaultdict(lambda: -1)
    streams: dict[str, int] = defaultdict(lambda: -1)
    for _, sending, each in events:
        key = (each.publisher, each.sequence)
        place = places.get(key)
        if place is None:
            continue
        if not sending:
            floors[each.publisher] = max(floors[each.publisher], place)
            continue
        once = each.outcome == OK and len(ledger.attempts[key]) == 1
        floor = max(floors[each.publisher], streams[each.connection] if once else -1)
        if place <= floor:
            ledger.violated("I7", f"{queue}: {label(key)} has {what} {place}, behind {floor}")
        if once:
            streams[each.connection] = max(streams[each.connection], place)
