"""A shard's copy of the topology, and its channel for changes.

The copy follows control's deltas in order. Changes are sent as they come; those that come while
others await their answer share one request. Each set is answered when this shard's copy has it too.
While control is away changes wait, are sent again when it is back (every change is idempotent), and
are refused after `AWAY_SECONDS`. No socket, no clock: the shard's loop brings both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_FAILED, Body, Failure, MessageError
from fluxmq.ipc.topology_messages import (
    FROM_NOTHING,
    SETS_MAX,
    TOPOLOGY,
    TOPOLOGY_CHANGE,
    Packed,
    TopologyChanged,
    TopologyPart,
    change_body,
    pack_set,
    packed_bytes,
)
from fluxmq.ipc.user_messages import Confirmed
from fluxmq.routing.topology.changes import Change
from fluxmq.routing.topology.refusals import PRECONDITION_FAILED, Refusal
from fluxmq.routing.topology.topology import Delta, OutOfStepError, Topology, TopologyRow

AWAY_SECONDS: Final = 10.0
"""Time a change waits for its answer: longer than control needs to restart, shorter than clients
wait."""
REQUESTS_MAX: Final = 4
"""Requests in flight; later changes share the next one."""
REQUEST_BYTES_MAX: Final = 1 << 20
"""Bytes of the sets in one request; a larger set travels alone."""
WAITING_MAX: Final = 65_536
WAITING_BYTES_MAX: Final = 64 << 20
"""Waiting sets, and their bytes; beyond that changes are refused."""
INTERNAL_ERROR: Final = 541
RESOURCE_ERROR: Final = 506
"""Reply codes of AMQP 0.9.1 for what the broker cannot do now; they end the connection."""

ChangeCallback = Callable[["Refusal | None"], None]


class RequestSender(Protocol):
    """Interface to send requests, such as `client.ControlClient`."""

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        """Send a request to control; return whether it was sent."""


@dataclass(slots=True)
class _Set:
    """Pending changes; `done` is None once they were answered."""

    number: int
    packed: Packed
    size: int
    deadline: float
    done: ChangeCallback | None

    def answer(self, refusal: Refusal | None) -> None:
        """Call the waiting callback, once."""
        done, self.done = self.done, None
        if done is not None:
            done(refusal)


class TopologyClient:
    """The copy and the pending changes. Lives on the shard's loop.

    `on_changed` is called after each delta was applied, with the differences; `now` returns
    seconds. The shard puts `commands` and `established` into its `conversation.Handlers`, calls
    `connect` with its client, and `tick` about once a second. `first` are changes made before all
    others, once: they drop what this process's predecessor had in memory.
    """

    def __init__(
        self,
        now: Callable[[], float],
        on_changed: Callable[[Delta], None],
        first: Sequence[Change] = (),
    ) -> None:
        self.topology = Topology()
        self.known = False
        """True once control has sent the topology; before that the copy is empty."""
        self.before: Callable[[Delta], None] | None = None
        """Gets each difference before it is applied; not what a snapshot replaces."""
        self._now = now
        self._on_changed = on_changed
        self._requests: RequestSender | None = None
        self._rows: list[TopologyRow] = []
        self._last_number = 0
        self._waiting: deque[_Set] = deque()
        self._waiting_bytes = 0
        self._sent: list[list[_Set]] = []
        # Set when the last request could not be sent: then not every change tries again.
        self._away = True
        # Answered sets whose revision the copy has not reached yet, with their answers.
        self._ahead: list[tuple[int, _Set, Refusal | None]] = []
        if first:
            self.change(first, _forget)

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages: parts of the topology."""
        return {TOPOLOGY: self._take}

    @property
    def under_way(self) -> int:
        """Number of pending sets of changes."""
        sent = sum(len(batch) for batch in self._sent)
        return len(self._waiting) + sent + len(self._ahead)

    def connect(self, requests: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._requests = requests
        self.established()

    def established(self) -> None:
        """Send waiting changes: control is connected (again)."""
        self._away = False
        self._send()

    def change(self, changes: Sequence[Change], done: ChangeCallback) -> None:
        """Have changes made, all or none; `done` gets None when this copy has them, else the
        refusal."""
        try:
            packed = pack_set(changes)
        except ValueError as error:
            done(Refusal(PRECONDITION_FAILED, str(error)))
            return
        size = packed_bytes(packed)
        full = self._waiting_bytes + size > WAITING_BYTES_MAX or len(self._waiting) >= WAITING_MAX
        if full:
            done(Refusal(RESOURCE_ERROR, "too many changes of the topology are waiting"))
            return
        self._last_number += 1
        deadline = self._now() + AWAY_SECONDS
        self._waiting.append(_Set(self._last_number, packed, size, deadline, done))
        self._waiting_bytes += size
        self._send()

    @property
    def idle(self) -> bool:
        """True if no change is waiting for control."""
        return not (self._waiting or self._sent or self._ahead)

    def tick(self) -> None:
        """Refuse changes that have waited too long, and retry those that could not be sent."""
        now = self._now()
        late = [each for each in self._waiting if each.deadline <= now]
        if late:
            self._waiting = deque(each for each in self._waiting if each.deadline > now)
            self._waiting_bytes = sum(each.size for each in self._waiting)
        late += [each for batch in self._sent for each in batch if each.deadline <= now]
        late += [each for _, each, _ in self._ahead if each.deadline <= now]
        self._ahead = [each for each in self._ahead if each[1].deadline > now]
        for each in late:
            each.answer(Refusal(INTERNAL_ERROR, "the topology cannot be changed at the moment"))
        self.established()

    # Requests

    def _send(self) -> None:
        """Send what waits, in as few requests as are free."""
        if self._requests is None or self._away:
            return
        while self._waiting and len(self._sent) < REQUESTS_MAX:
            batch, size = [self._waiting[0]], self._waiting[0].size
            for each in list(self._waiting)[1:SETS_MAX]:
                size += each.size
                if size > REQUEST_BYTES_MAX:
                    break
                batch.append(each)
            body = change_body([each.packed for each in batch])
            # Noted first: the answer may come at once.
            self._sent.append(batch)
            for each in batch:
                self._waiting.popleft()
                self._waiting_bytes -= each.size
            if not self._requests.request(TOPOLOGY_CHANGE, body, self._answered(batch)):
                self._sent = [each for each in self._sent if each is not batch]
                self._put_back(batch)
                self._away = True
                return

    def _put_back(self, batch: Sequence[_Set]) -> None:
        """Queue again, in the order in which changes were requested."""
        unanswered = [each for each in batch if each.done is not None]
        self._waiting = deque(sorted([*unanswered, *self._waiting], key=lambda each: each.number))
        self._waiting_bytes += sum(each.size for each in unanswered)

    def _answered(self, batch: list[_Set]) -> Answered:
        def answered(answer: Body | Failure) -> None:
            self._sent = [each for each in self._sent if each is not batch]
            if isinstance(answer, Failure):
                if answer.code == ERROR_AWAY:
                    self._away = True
                    self._put_back(batch)
                    return
                self._fail(batch, answer.text)
            else:
                self._settle(batch, answer)
            self._send()

        return answered

    def _settle(self, batch: Sequence[_Set], answer: Body) -> None:
        try:
            changed = TopologyChanged.from_body(answer)
        except MessageError as problem:
            self._fail(batch, str(problem))
            return
        if len(changed.results) != len(batch):
            self._fail(batch, "the control process answered something else")
            return
        for each, refusal in zip(batch, changed.results, strict=True):
            self._ahead.append((changed.revision, each, refusal))
        self._tell()

    def _tell(self) -> None:
        """Answer the sets whose revision the copy has reached."""
        revision = self.topology.revision
        reached = [each for each in self._ahead if each[0] <= revision]
        self._ahead = [each for each in self._ahead if each[0] > revision]
        for _, each, refusal in reached:
            each.answer(refusal)

    @staticmethod
    def _fail(batch: Sequence[_Set], text: str) -> None:
        for each in batch:
            each.answer(Refusal(INTERNAL_ERROR, text))

    # Deltas

    @property
    def arriving(self) -> bool:
        """True while parts of the topology have arrived and more are to come."""
        return bool(self._rows)

    def _take(self, body: Body, answered: Answered) -> None:
        part = TopologyPart.from_body(body)
        if part.number == 0:
            self._rows = []
        self._rows += (TopologyRow(*row) for row in part.rows)
        if self.known and part.revision <= self.topology.revision:
            # Held already: this answer reaches control before it sends the rest.
            self._rows = []
            answered(Confirmed(self.topology.revision).to_body())
            return
        if part.more:
            answered(Confirmed(self.topology.revision).to_body())
            return
        rows, self._rows = self._rows, []
        whole = part.previous == FROM_NOTHING
        delta = Delta(part.revision, None if whole else part.previous, tuple(rows))
        try:
            self._follow(delta)
        except OutOfStepError as problem:
            answered(Failure(ERROR_FAILED, str(problem)))
            return
        answered(Confirmed(self.topology.revision).to_body())
        self._tell()

    def _follow(self, delta: Delta) -> None:
        """Apply a delta. Raises OutOfStepError."""
        if delta.previous is not None:
            if self.before is not None:
                self.before(delta)
            self.topology.take(delta)
            self._on_changed(delta)
            return
        before = {(row.kind, row.key): row.row for row in self.topology.snapshot().rows}
        previous = self.topology.revision
        self.topology.take(delta)
        first, self.known = not self.known, True
        rows = [row for row in delta.rows if before.pop((row.kind, row.key), None) != row.row]
        gone = [TopologyRow(kind, key, None) for kind, key in reversed(before)]
        if first or rows or gone:
            self._on_changed(Delta(delta.revision, previous, (*gone, *rows)))


def _forget(_refusal: Refusal | None) -> None:
    """Ignore the answer, for which no caller waits."""
