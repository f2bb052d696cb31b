"""What happened to every message of a campaign, and the rules that must hold over it. Pure.

Publishers number their messages from 0 and never send one twice; each sends to one queue, and what it sends in
a round goes through one connection. So, whatever happens:

* a confirmed message is there, or was taken by a consumer (I1: none is lost);
* what is delivered was sent, as it was sent (I2: no phantoms);
* a settlement that was confirmed is for ever: its message is not delivered to that group again (I3);
* an offset holds one message for ever, and a message has one offset (I5);
* in the order of offsets a publisher's numbers ascend, and of what it sent in a round a beginning survives: a
  message that is there has all before it of that round there too, but for those that were answered with an
  error (I7).

The identifiers are those of the fault matrix. A broken rule is a sentence in ``violations``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.powercut import payloads
from tests.powercut.payloads import Identity

SENTENCES_MAX = 50
"""More would not be read; they are counted all the same."""


@dataclass
class Sent:
    """What one publisher did. ``rounds``: first number of each round in which it sent."""

    queue: str
    attempted: int = 0
    rounds: list[int] = field(default_factory=list)
    confirmed: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)


@dataclass
class Taken:
    """What one group took from one queue: offsets delivered, settled, and settled for certain."""

    delivered: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)


class History:
    """The ledger of one data directory."""

    def __init__(self, campaign: int) -> None:
        self.campaign = campaign
        self.publishers: dict[int, Sent] = {}
        self.contents: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.places: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)
        self.groups: dict[tuple[str, str], Taken] = defaultdict(Taken)
        self.violations: list[str] = []
        self.broken = 0
        self.phantoms = 0

    # --- what publishers do ------------------------------------------------------------------------------------

    def begin(self, publisher: int, queue: str) -> None:
        """A publisher opens a connection of its own for a round."""
        sent = self.publishers.setdefault(publisher, Sent(queue))
        sent.rounds.append(sent.attempted)

    def attempt(self, publisher: int) -> bytes:
        """The next body; from here on it may be anywhere."""
        sent = self.publishers[publisher]
        body = payloads.build(Identity(self.campaign, publisher, sent.attempted))
        sent.attempted += 1
        return body

    def confirm(self, publisher: int, sequence: int) -> None:
        """The broker said that it has it."""
        self.publishers[publisher].confirmed.add(sequence)

    def refuse(self, publisher: int, sequence: int, certain: bool = True) -> None:
        """The broker said that it does not take it. Not ``certain``: it failed on the way, and it may be there."""
        sent = self.publishers[publisher]
        (sent.refused if certain else sent.failed).add(sequence)

    # --- what consumers see ------------------------------------------------------------------------------------

    def deliver(self, queue: str, group: str, offset: int, body: bytes) -> None:
        """A message came to a group: look at everything that must hold for it."""
        identity = payloads.parse(body)
        if identity is None or identity.campaign != self.campaign:
            self.phantoms += 1
            self.violated(f"{queue} offset {offset}: not a body that was sent: {body[:40]!r}")
            return
        _, publisher, sequence = identity
        sent = self.publishers.get(publisher)
        if sent is None or sequence >= sent.attempted or sent.queue != queue:
            self.phantoms += 1
            self.violated(f"{queue} offset {offset}: {publisher}/{sequence} was never sent there")
            return
        message = (publisher, sequence)
        known = self.contents[queue].setdefault(offset, message)
        if known != message:
            self.violated(f"{queue} offset {offset} was {known} and is {message}")
        place = self.places[queue].setdefault(message, offset)
        if place != offset:
            self.violated(f"{queue}: {message} is at offset {place} and at {offset}")
        if sequence in sent.refused:
            self.violated(f"{queue}: {message} was refused and is at offset {offset}")
        taken = self.groups[queue, group]
        taken.delivered.add(offset)
        if offset in taken.committed:
            self.violated(f"{queue} offset {offset} was settled by {group} and came again")

    def settle(self, queue: str, group: str, offsets: Iterable[int]) -> None:
        """A group is about to say that it is done with these; they may come again or not."""
        self.groups[queue, group].sent.update(offsets)

    def settled(self, queue: str, group: str, offsets: Iterable[int]) -> None:
        """The broker confirmed that; they must not come again."""
        self.groups[queue, group].committed.update(offsets)

    # --- after a restart ---------------------------------------------------------------------------------------

    def confirmed(self) -> int:
        """Messages confirmed so far."""
        return sum(len(sent.confirmed) for sent in self.publishers.values())

    def all_confirmed(self) -> set[tuple[int, int]]:
        """Every confirmed message: publisher and sequence."""
        return {
            (number, each) for number, sent in self.publishers.items() for each in sent.confirmed
        }

    def missing(self, queue: str) -> list[tuple[int, int]]:
        """Confirmed messages of a queue that no group was given yet."""
        places = self.places[queue]
        return [
            (publisher, sequence)
            for publisher, sent in self.publishers.items()
            if sent.queue == queue
            for sequence in sorted(sent.confirmed)
            if (publisher, sequence) not in places
        ]

    def missing_from(self, queue: str, group: str) -> list[tuple[int, int]]:
        """Confirmed messages of a queue that this group, which read everything, was not given."""
        taken = self.groups[queue, group].delivered
        there = {self.contents[queue][offset] for offset in taken}
        return [
            (publisher, sequence)
            for publisher, sent in self.publishers.items()
            if sent.queue == queue
            for sequence in sorted(sent.confirmed)
            if (publisher, sequence) not in there
        ]

    def unread(self, queue: str, group: str) -> list[int]:
        """Offsets known to hold a message that this group was never given: for a fresh reader of everything."""
        return sorted(self.contents[queue].keys() - self.groups[queue, group].delivered)

    def check_order(self, queue: str) -> None:
        """Numbers ascend with offsets, and what survived of a round is its beginning."""
        last: dict[int, int] = {}
        present: dict[int, set[int]] = defaultdict(set)
        for offset, (publisher, sequence) in sorted(self.contents[queue].items()):
            if sequence <= last.get(publisher, -1):
                self.violated(
                    f"{queue} offset {offset}: {publisher}/{sequence} after {last[publisher]}"
                )
            last[publisher] = sequence
            present[publisher].add(sequence)
        for publisher, there in present.items():
            sent = self.publishers[publisher]
            ends = [*sent.rounds[1:], sent.attempted]
            for first, end in zip(sent.rounds, ends, strict=True):
                of_round = [number for number in range(first, end) if number in there]
                if not of_round:
                    continue
                holes = set(range(first, of_round[-1])) - there - sent.refused - sent.failed
                if holes:
                    self.violated(
                        f"{queue}: {publisher}/{of_round[-1]} is there without {min(holes)}"
                    )

    def violated(self, sentence: str) -> None:
        """A rule is broken."""
        self.broken += 1
        if self.broken <= SENTENCES_MAX:
            self.violations.append(sentence)
