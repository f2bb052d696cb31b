"""What a group of queues promises, checked against a memory of the whole run.

Knows the log: the first member to apply an entry says what it is, and a state machine of the ledger's own applies it
once; every other member, and the same one after each restart, has to have the same entry and the same state there. Knows
the clients: what they were told is kept, delivered and settled. Knows no disk and no network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from fluxmq.raft.types import COMMAND, Entry, Message, MessageKind
from tests.sim.history import History
from tests.sim.queues.parts import DEAD, TEMPORARY, Batch, Machine, QueueType, ReplicationGroup

WHOLE_EVERY = 8
"""Entries after which whole states are compared; in between only the rolling hash of entries and results."""


class _Known(NamedTuple):
    """An entry of the log, and the state behind it."""

    term: int
    content: tuple[int, int]
    rolled: int
    state: int | None
    """Digest of all of the state, of every few entries."""


@dataclass(slots=True)
class _Reader:
    """A consumer group of a queue, as its consumers see it."""

    begins: int
    """The first offset that it is to get."""
    delivered: set[int]
    asked: set[int]
    """Offsets for which a consumer wanted an end, whether it was answered or not."""
    settled: dict[int, int]
    """Offset to the term in which the settlement was confirmed."""
    committed: tuple[int, int] = (0, 0)
    """Of a stream: the highest offset whose commit was confirmed, and that term."""


def number_in(payload: bytes) -> int:
    """The number of a message, which its payload begins with."""
    return int(payload.split(b" ", 1)[0])


class Ledger:
    """The memory of one run."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.machine = Machine()
        """Applies every entry once, and has no disk."""
        self._known: list[_Known] = []
        self._start = self._digest(self.machine)
        self.leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self.contents: dict[int, dict[int, int]] = {}
        """By queue id: offset to message number, of everything ever appended."""
        self.names: dict[int, str] = {}
        self.places: dict[tuple[str, int], int] = {}
        """By queue name and message number: the id of the queue that took it."""
        self.buried: Counter[int] = Counter()
        """How often each message is in the dead-letter queue."""
        self.confirmed: dict[int, tuple[str, int]] = {}
        """By message number: the queue that its publisher was told has it, and the last entry that was applied then."""
        self._deletions: set[tuple[str, int]] = set()
        """Queues that an entry deleted, with all that it brought them."""
        self.rejected: dict[int, int] = {}
        """By message number: the id of the queue whose consumer rejected it for good."""
        self.sessions: dict[int, tuple[int, int, int]] = {}
        """By message number: who took it from its publisher, unless it was sent again."""
        self._last: dict[tuple[int, tuple[int, int, int]], int] = {}
        self.readers: dict[tuple[int, str], _Reader] = {}
        self.lossy: set[str] = set()
        """Queues that may drop what they took."""

    def violated(self, rule: str, what: str) -> None:
        """Keep a violation."""
        self._history.violated(rule, what)

    # The log

    @property
    def last(self) -> int:
        """The last entry that anybody has applied."""
        return len(self._known)

    @staticmethod
    def _digest(machine: Machine) -> int:
        return xxh3_64_intdigest(machine.snapshot())

    def applied(self, host: int, entry: Entry, group: ReplicationGroup) -> None:
        """A member has applied an entry."""
        index = entry.index
        if index == len(self._known) + 1:
            self._take(entry)
        elif index > len(self._known):
            self.violated("applied in order", f"{host} applied {index} after {len(self._known)}")
            return
        known = self._known[index - 1]
        if (entry.term, self._content(entry)) != (known.term, known.content):
            self.violated(
                "state-machine safety",
                f"{host} applied another entry at {index}: of term {entry.term}, not {known.term}",
            )
        self._compare(host, index, group.machine)

    def opened(self, host: int, group: ReplicationGroup) -> None:
        """A member has its state from its disk, or from another member's."""
        self._compare(host, group.applied_index, group.machine)
        if group.applied_index == self.last and self._digest(group.machine) != self._digest(
            self.machine
        ):
            self.violated("states are equal", f"{host} differs at the last entry {self.last}")

    def _compare(self, host: int, index: int, machine: Machine) -> None:
        if index > len(self._known):
            self.violated("committed entries stay", f"{host} has a snapshot of {index}")
            return
        known = self._known[index - 1] if index else None
        rolled, state = (known.rolled, known.state) if known is not None else (0, self._start)
        if machine.state_hash() != rolled or (state is not None and self._digest(machine) != state):
            self.violated("states are equal", f"{host} differs at entry {index}")

    @staticmethod
    def _content(entry: Entry) -> tuple[int, int]:
        return entry.kind, xxh3_64_intdigest(entry.data)

    def _take(self, entry: Entry) -> None:
        machine = self.machine
        if entry.kind == COMMAND:
            applied = machine.apply(entry.index, entry.term, entry.data)
            for queue_id in applied.declared:
                if queue_id in machine.queues:
                    self.names[queue_id] = machine.queues[queue_id].name
                    self.contents[queue_id] = {}
            self._deletions.update((name, entry.index) for _, name in applied.deleted)
            for queue_id, batch in applied.batches:
                if queue_id in self.contents:
                    self._stored(queue_id, batch)
            for queue_id in machine.changed:
                self._look_for_readers(queue_id)
            machine.changed.clear()
        whole = self._digest(machine) if entry.index % WHOLE_EVERY == 0 else None
        self._known.append(_Known(entry.term, self._content(entry), machine.state_hash(), whole))

    def _look_for_readers(self, queue_id: int) -> None:
        queue = self.machine.queues[queue_id]
        for group in queue.groups.values():
            if group.name and (queue_id, group.name) not in self.readers:
                self.readers[queue_id, group.name] = _Reader(queue.start, set(), set(), {})

    def _stored(self, queue_id: int, batch: Batch) -> None:
        contents, name = self.contents[queue_id], self.names[queue_id]
        for index in range(batch.count):
            number = number_in(batch.payload(index))
            offset = batch.base_offset + index
            if contents.setdefault(offset, number) != number:
                self.violated("offsets are used once", f"{name} has two messages at {offset}")
            if name == DEAD:
                self.buried[number] += 1
                if self.buried[number] > 1 + (("work", number) in self.places):  # of two groups
                    self.violated("buried once", f"{name} has message {number} once more")
                continue
            if (name, number) in self.places:
                self.violated("stored once", f"{name} has message {number} twice")
            self.places[name, number] = queue_id
            session = self.sessions.get(number)
            if session is not None:
                if self._last.get((queue_id, session), 0) > number:
                    self.violated(
                        "order of a publisher", f"{name} has message {number} after a later one"
                    )
                self._last[queue_id, session] = number

    def leads(self, host: int, term: int, applied: int) -> None:
        """A member leads: nobody else does in this term, and it has all that earlier terms have committed."""
        if self.leaders.setdefault(term, host) != host:
            self.violated("election safety", f"{self.leaders[term]} and {host} lead term {term}")
        index = len(self._known)
        while index and self._known[index - 1].term >= term:
            index -= 1
        if applied < index:
            self.violated("leader completeness", f"{host} leads {term} without entry {index}")

    def sent(self, message: Message) -> None:
        """A member has sent a message: it votes once in a term."""
        if message.kind is MessageKind.VOTE_ANSWER and not message.reject:
            vote = self._votes.setdefault((message.source, message.term), message.target)
            if vote != message.target:
                self.violated(
                    "one vote per term",
                    f"{message.source} votes for {message.target} in term {message.term}",
                )

    # Clients

    def delivered(self, queue_id: int, group: str, term: int, offset: int, number: int) -> None:
        """A consumer was given a message by the leader of a term."""
        name = self.names.get(queue_id, "")
        if self.contents.get(queue_id, {}).get(offset) != number:
            self.violated("what is delivered was stored", f"{name} gave {number} at {offset}")
        reader = self.readers.get((queue_id, group))
        if reader is None:
            return
        if term >= reader.settled.get(offset, term + 1):
            self.violated(
                "settled for good", f"{name} gave {group} message {number} ({offset}) again"
            )
        committed, since = reader.committed
        if offset < committed and term >= since:
            self.violated("committed for good", f"{name} gave {group} {offset} below {committed}")
        reader.delivered.add(offset)

    def asked(self, queue_id: int, group: str, offsets: Iterable[int], *, refused: bool) -> None:
        """A consumer wants messages settled, or `refused`, which ends them where there is no dead-letter queue."""
        reader, queue = self.readers.get((queue_id, group)), self.machine.queues.get(queue_id)
        if reader is None or queue is None:
            return
        if not refused or not queue.config.dead_letter:
            reader.asked.update(offsets)

    def settled(
        self, queue_id: int, group: str, term: int, offsets: Iterable[int], *, rejected: bool
    ) -> None:
        """A consumer was told that a settlement is durable."""
        reader = self.readers.get((queue_id, group))
        if reader is None:
            self.violated("settlements have a group", f"{queue_id} {group}")
            return
        for offset in offsets:
            reader.settled.setdefault(offset, term)
            if rejected:
                self.rejected[self.contents[queue_id][offset]] = queue_id

    def committed(self, queue_id: int, group: str, term: int, offset: int) -> None:
        """A stream's consumer was told that its offset is durable."""
        reader = self.readers.get((queue_id, group))
        if reader is not None and offset > reader.committed[0]:
            reader.committed = (offset, term)

    # The end

    def compare_disk(self, host: int, group: ReplicationGroup) -> None:
        """A member's logs hold what its queues still need."""
        for queue_id, queue in group.machine.queues.items():
            log = group.logs.get(queue_id)
            if log is None:
                self.violated("queues have logs", f"{host} has none of {queue.name}")
                continue
            offset, contents = queue.start, self.contents[queue_id]
            while offset < queue.next_offset:
                batch = log.read(offset)
                for index in range(offset - batch.base_offset, batch.count):
                    number = number_in(batch.payload(index))
                    if contents.get(batch.base_offset + index) != number:
                        self.violated(
                            "logs hold what was appended",
                            f"{host} has {number} in {queue.name} at {batch.base_offset + index}",
                        )
                offset = batch.base_offset + batch.count

    def finish(self) -> None:
        """Everything was consumed long ago: nothing is missing."""
        for number, (name, index) in self.confirmed.items():
            deleted = (name, index) in self._deletions or number not in self.sessions
            if (name, number) not in self.places and not (deleted and name.startswith(TEMPORARY)):
                self.violated("confirmed is kept", f"message {number} of {name} is nowhere")
        for (queue_id, group), reader in self.readers.items():
            queue = self.machine.queues.get(queue_id)
            if queue is None or queue.name in self.lossy:
                continue
            missing = [
                offset
                for offset in self.contents[queue_id]
                if offset >= reader.begins
                and offset not in reader.delivered
                and not (queue.config.type == QueueType.STREAM and offset < reader.committed[0])
            ]
            if missing:
                self.violated(
                    "all is delivered",
                    f"{group} never got {len(missing)} of {queue.name}, the first {missing[0]}",
                )
            stream = queue.config.type == QueueType.STREAM
            gone = [
                offset
                for offset, number in self.contents[queue_id].items()
                if offset >= reader.begins
                and offset not in reader.asked
                and number not in self.buried
            ]
            if gone and not stream:
                self.violated(
                    "nothing ends by itself",
                    f"{len(gone)} of {queue.name} are settled for {group}, the first {gone[0]}",
                )
        for number, queue_id in self.rejected.items():
            queue = self.machine.queues.get(queue_id)
            if queue is not None and queue.config.dead_letter and number not in self.buried:
                self.violated("rejected is buried", f"message {number} of {queue.name}")
