"""The node's topology (exchanges, queues, bindings, policies, vhosts): decided, stored, published.

Sets of changes that arrive during a write form the next transaction, so that they share one sync.
Nothing is sent to a shard, or answered, before it is written. A shard that says hello gets
everything; after that the differences, by revision and in order. The caller of a change is answered
when every live shard has confirmed it, or after `CONFIRM_SECONDS`.

Queues of the settings file are rows like others, but not written: each start reads them again.

In a cluster (`decider`) the node that is asked decides in the same way, and every node, it included,
learns the result through `told` once it is committed and on the node's disk. Configured queues are written then: each
node declares its own when it starts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from fluxmq.auth.users import User
from fluxmq.control.decisions import AcceptedDelta, NodeRecord
from fluxmq.control.metadata import MetadataStore, StoreThread
from fluxmq.control.peers import Peer, PeerError, RequestError
from fluxmq.control.ports import ConflictError, Decider, LostError, Set
from fluxmq.control.revision_barrier import RevisionBarrier
from fluxmq.control.topology_rows import Write, pack
from fluxmq.ipc.messages import ERROR_FAILED, Body, MessageError
from fluxmq.ipc.topology_messages import (
    FROM_NOTHING,
    TOPOLOGY,
    TopologyChanged,
    parts,
    read_sets,
    shard_of_connection,
)
from fluxmq.ipc.user_messages import Confirmed, Users
from fluxmq.logs import get_logger
from fluxmq.routing.topology.changes import AddVhost, DropOwner
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.routing.topology.records import (
    ORIGIN_SETTINGS,
    QUEUE,
    VHOST,
    QueueRecord,
    Vhost,
    row_of,
)
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import (
    Delta,
    OutOfStepError,
    Topology,
    TopologyRow,
    reversal,
)

CONFIRM_SECONDS: Final = 2.0
"""Time the caller of a change waits for live shards."""
PUSH_SECONDS: Final = 30.0
"""Time for a shard to take one part: longer than any stall it survives."""
HISTORY_MAX: Final = 4096
HISTORY_ROWS_MAX: Final = 65_536
"""Changes and their rows kept for shards that lag; a shard further behind gets everything."""
WAITING_MAX: Final = 4096
"""Requests waiting for the disk: more than all shards and people may make at once."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Request:
    """Pending sets of changes: the future gets the revision, and per set its refusal or None."""

    sets: Sequence[Set]
    done: asyncio.Future[tuple[int, tuple[Refusal | None, ...]]]


class TopologyService:
    """The topology in force. Lives on control's loop; the database on its own thread.

    `shards` returns the connected shards, `live` the names of those that serve; `users_changed`
    runs when permissions went with a virtual host. `topology` may lead the disk during a write.
    """

    def __init__(
        self,
        store: MetadataStore,
        thread: StoreThread,
        shards: Callable[[], list[Peer]],
        live: Callable[[], list[str]],
        users_changed: Callable[[Users], None],
        node: str = "",
    ) -> None:
        self.topology = Topology()
        self.revision = 0
        """Revision that is on disk and sent to shards."""
        self.known = False
        """True once there is a topology: a new node of a cluster waits for the cluster's."""
        self.decider: Decider | None = None
        """The cluster that decides, if this node belongs to one."""
        self._node = node
        self._store = store
        self._thread = thread
        self._shards = shards
        self._users_changed = users_changed
        self._configured: dict[tuple[str, object], TopologyRow] = {}
        self._history: deque[Delta] = deque()
        self._history_rows = 0
        self._waiting: deque[_Request] = deque()
        self._writer: asyncio.Task[None] | None = None
        # Held from a transaction's first change until it is written: shards must not see it yet.
        self._writing = asyncio.Lock()
        self._damaged = False
        self._pushes: dict[Peer, asyncio.Task[None]] = {}
        self._drops: set[asyncio.Task[None]] = set()
        self.revision_barrier = RevisionBarrier(live, self._held)
        # Committed in the cluster and on disk here, in order; None: everything is new.
        self._told: deque[Sequence[Delta] | None] = deque()
        self._follower: asyncio.Task[None] | None = None
        self._followed = asyncio.Event()

    # Beginning

    async def load(
        self, node: str, configured: Iterable[QueueRecord], first: Callable[[], User]
    ) -> None:
        """Read the topology. `node` is the running node, `configured` its settings' queues.

        On a new database, create the first virtual host, and the user `first` when there is none.
        Raises sqlite3.Error, or ValueError for a row that is damaged.
        """
        if await self._thread.run(lambda: self._store.begin(node)):
            _log.debug("records owned by connections of the previous run were dropped")
        if not await self._thread.run(lambda: self._store.seeded):
            rows = Topology().apply(AddVhost(Vhost(DEFAULT_VHOST))).rows
            writes = [Write(row.kind, pack(row.key), pack(row.row), False) for row in rows]
            await self._thread.run(lambda: self._store.seed(first, writes))
        records = ((QUEUE, queue.key, row_of(queue)) for queue in configured)
        self._configured = {(kind, key): TopologyRow(kind, key, row) for kind, key, row in records}
        await self._restore()

    async def load_shared(self) -> None:
        """Read a cluster's topology. Raises as `load` does."""
        await self._restore()

    async def _restore(self) -> None:
        """Set the state to what is on disk and in the settings."""
        # On the store's thread: rows by the hundred thousand would stop the loop for seconds.
        self.topology, unusable = await self._thread.run(self._read)
        for row in unusable:
            _log.error("unusable row in the topology", extra={"kind": row.kind, "key": row.key})
        self.revision = self.topology.revision
        self.known = self.decider is None or self.decider.known
        self._damaged = False
        self._history.clear()
        self._history_rows = 0

    def _read(self) -> tuple[Topology, list[TopologyRow]]:
        """Return the topology of disk and settings, and the rows that do not fit."""
        stored = self._store.topology
        found = (TopologyRow(kind, tuple(key), row) for kind, key, row in stored.rows())
        kept = [row for row in found if (row.kind, row.key) not in self._configured]
        topology = Topology()
        # Differs from the revision on disk, which may have lacked a configured queue.
        revision = stored.revision + bool(self._configured)
        unusable = topology.restore([*kept, *self._configured.values()], revision)
        return topology, unusable

    # Changing

    async def answer(self, body: Body) -> Body:
        """Answer a request for changes. Raises RequestError or MessageError."""
        return (await self.change(read_sets(body))).to_body()

    async def change(self, sets: Sequence[Set]) -> TopologyChanged:
        """Make sets of changes, each whole or not at all; return when live shards have them.

        Raises RequestError when they could not be written; then nothing happened.
        """
        decide = self.decide if self.decider is None else self.decider.change
        revision, results = await decide(sets)
        unconfirmed = await self.revision_barrier.missing(revision, CONFIRM_SECONDS)
        return TopologyChanged(revision, results, unconfirmed)

    async def decide(self, sets: Sequence[Set]) -> tuple[int, tuple[Refusal | None, ...]]:
        """Decide here about sets of changes; return their revision, per set None or a refusal.

        Raises RequestError as `change` does, ConflictError and LostError in a cluster.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise RequestError(ERROR_FAILED, f"{WAITING_MAX} requests are waiting for the disk")
        loop = asyncio.get_running_loop()
        request = _Request(sets, loop.create_future())
        self._waiting.append(request)
        if self._writer is None:
            self._writer = loop.create_task(self._write_all())
        return await request.done

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[Topology]:
        """Block other decisions on this node; yield the topology with everything decided so far.

        Changes then made to it must be committed. Raises ConflictError.
        """
        async with self._writing:
            await self._follow()
            assert self.decider is not None, "there is a cluster"
            self.decider.check()
            with self._undone_if_not_committed():
                yield self.topology
            await self._follow()

    @contextmanager
    def _undone_if_not_committed(self) -> Iterator[None]:
        """Undo the changes that are made within, if that raises: they are not committed, or are told
        like those of other nodes."""
        topology, before = self.topology, self.topology.revision
        topology.replaced = []
        try:
            yield
        except BaseException:
            if topology.revision != before:
                topology.take(reversal(topology, before))
            raise
        finally:
            topology.replaced = None

    async def commit(
        self, deltas: Sequence[Delta], nodes: Sequence[tuple[str, NodeRecord | None]] = ()
    ) -> None:
        """Commit changes on all nodes, within `ports`. Raises as `Decider.commit` does."""
        assert self.decider is not None, "there is a cluster"
        taken = [
            AcceptedDelta(delta, tuple(map(self._is_transient, delta.rows))) for delta in deltas
        ]
        await self.decider.commit(taken, nodes)

    async def _write_all(self) -> None:
        """Write pending requests, in as few transactions as possible, until there are none."""
        try:
            while self._waiting:
                async with self._writing:
                    await self._write_some()
        finally:
            self._writer = None

    async def _write_some(self) -> None:
        requests = list(self._waiting)
        self._waiting.clear()
        ahead = False
        try:
            await self._follow()
            if self.decider is not None:
                self.decider.check()
                with self._undone_if_not_committed():
                    results, deltas = self._apply(requests)
                    await (self.commit(deltas) if deltas else self.decider.barrier())
                await self._follow()
            else:
                ahead = True
                results, deltas = self._apply(requests)
                if deltas:
                    await self._commit(deltas)
        except Exception as problem:  # noqa: BLE001 - the writer's outermost frame: who waits has to be answered
            if not isinstance(problem, ConflictError | LostError | RequestError):
                _log.exception("topology changes could not be written")
            await self._give_up(requests, problem, ahead=ahead)
            return
        revision = deltas[-1].revision if deltas else self.topology.revision
        for request, result in zip(requests, results, strict=True):
            if not request.done.done():
                request.done.set_result((revision, result))

    async def _give_up(
        self, requests: Sequence[_Request], problem: Exception, *, ahead: bool
    ) -> None:
        """Fail requests, undone or of unknown outcome, and drop what is not on disk."""
        if ahead:
            self._damaged = True
            try:
                await self._restore()
            except Exception:  # noqa: BLE001 - as in _write_some; the next change tries again
                _log.exception("cannot reload the topology")
        for request in requests:
            if not request.done.done():
                refusal = RequestError(ERROR_FAILED, "the change could not be written")
                known = isinstance(problem, ConflictError | LostError | RequestError)
                request.done.set_exception(problem if known else refusal)

    def _apply(
        self, requests: Sequence[_Request]
    ) -> tuple[list[tuple[Refusal | None, ...]], list[Delta]]:
        deltas: list[Delta] = []

        def made(changes: Set) -> Refusal | None:
            if isinstance(changes, Refusal):
                return changes
            try:
                delta = self.topology.apply_all(changes)
            except Refusal as refusal:
                return refusal
            if delta.rows:
                deltas.append(delta)
            return None

        return [tuple(made(each) for each in request.sets) for request in requests], deltas

    async def _commit(self, deltas: Sequence[Delta]) -> None:
        """Write deltas, then send them to shards."""
        rows = [row for delta in deltas for row in delta.rows]
        writes = [self._write(row) for row in rows if (row.kind, row.key) not in self._configured]
        dropped = [str(row.key[0]) for row in rows if row.kind == VHOST and row.row is None]
        revision = deltas[-1].revision
        users = await self._thread.run(
            lambda: self._store.write_topology(writes, revision, dropped)
        )
        self._remember(deltas)
        if users is not None:
            self._users_changed(users)

    def _remember(self, deltas: Sequence[Delta]) -> None:
        """Remember changes that are on disk, and send them to shards."""
        for delta in deltas:
            self.revision = delta.revision
            self._history.append(delta)
            self._history_rows += len(delta.rows)
        while len(self._history) > HISTORY_MAX or self._history_rows > HISTORY_ROWS_MAX:
            self._history_rows -= len(self._history.popleft().rows)
        for shard in self._shards():
            self.push(shard)

    def _write(self, row: TopologyRow) -> Write:
        if row.row is None:
            return Write(row.kind, pack(row.key), None, False)
        return Write(row.kind, pack(row.key), pack(row.row), self._is_transient(row))

    def _is_transient(self, row: TopologyRow) -> bool:
        return not self.topology.is_durable(row.kind, row.key) or _of_settings(row)

    # Following, in a cluster

    def told(self, deltas: Sequence[Delta] | None) -> None:
        """Take changes that the cluster committed and that are on disk; None: everything is new."""
        self._told.append(deltas)
        if self._follower is None:
            self._follower = asyncio.get_running_loop().create_task(self._follow_all())

    async def reached(self, revision: int) -> None:
        """Return when the topology in force has this revision or a later one."""
        while self.revision < revision:
            self._followed.clear()
            await self._followed.wait()

    async def _follow_all(self) -> None:
        try:
            while self._told:
                async with self._writing:
                    await self._follow()
        except Exception:  # noqa: BLE001 - a task's outermost frame: the next change tries again
            _log.exception("cannot reload the topology")
        finally:
            self._follower = None

    async def _follow(self) -> None:
        """Apply committed changes, or reload. Raises sqlite3.Error or ValueError."""
        before = self.revision
        if self._damaged:
            await self._restore()
        while self._told:
            deltas = self._told.popleft()
            try:
                if deltas is not None:
                    self._take(deltas)
                    continue
            except OutOfStepError as problem:
                _log.error("topology changes cannot be applied: %s", problem)
            self._damaged = True
            await self._restore()
        if self.revision != before:
            self._followed.set()
            for shard in self._shards():
                self.push(shard)
            self.revision_barrier.confirmed()

    def _take(self, deltas: Sequence[Delta]) -> None:
        """Apply changes except those already in the topology. Raises OutOfStepError."""
        for delta in deltas:
            if delta.revision > self.topology.revision:
                self.topology.take(delta)
        self._remember([delta for delta in deltas if delta.revision > self.revision])

    # Notifying shards

    def greeted(self, shard: Peer) -> None:
        """Send a shard everything, and drop exclusive queues that its predecessor left."""
        self.push(shard)
        left = self._left_by_others(shard)
        if left:
            task = asyncio.get_running_loop().create_task(self._drop(left))
            self._drops.add(task)
            task.add_done_callback(self._drops.discard)

    def push(self, shard: Peer) -> None:
        """Bring a shard up to the topology in force and note its confirmation."""
        if shard not in self._pushes and self.known:
            self._pushes[shard] = asyncio.get_running_loop().create_task(self._push(shard))

    async def _push(self, shard: Peer) -> None:
        """Send what a shard lacks until it lacks nothing, refuses it, or is gone.

        The task leaves the table in the same step as its last look at the revision.
        """
        try:
            while shard.topology_revision < self.revision and shard in self._shards():
                if not await self._sent(shard):
                    return
                self.revision_barrier.confirmed()
        finally:
            del self._pushes[shard]

    async def _sent(self, shard: Peer) -> bool:
        """Send what a shard lacks now; return whether to continue."""
        extra: dict[str, object] = {"shard": shard.name, "revision": self.revision}
        previous = shard.topology_revision
        try:
            previous, revision, rows = await self._lacking(shard)
            held = previous
            for part in parts(previous, revision, rows):
                body = await shard.ask(TOPOLOGY, part.to_body(), PUSH_SECONDS)
                held = Confirmed.from_body(body).revision
                if held >= revision:
                    # After the last part; or the first, if the shard's copy outlived our
                    # connection.
                    break
            shard.topology_revision = held
        except TimeoutError:
            _log.warning("shard did not acknowledge the topology revision in time", extra=extra)
            return True
        except (PeerError, MessageError) as problem:
            _log.warning("shard refused the topology update: %s", problem, extra=extra)
            # A copy that is out of step gets everything, once.
            shard.topology_revision = FROM_NOTHING
            return previous != FROM_NOTHING
        if shard.topology_revision < revision:
            _log.warning("shard acknowledged an older topology revision", extra=extra)
            return False
        return True

    async def _lacking(self, shard: Peer) -> tuple[int, int, Sequence[TopologyRow]]:
        """Return the revisions from and to, and the rows between. Raises PeerError if unknown."""
        begun = shard.topology_revision
        behind: list[Delta] = []
        for delta in reversed(self._history):
            if delta.revision <= begun:
                break
            behind.append(delta)
        if behind and behind[-1].previous == begun:
            return begun, self.revision, [row for delta in reversed(behind) for row in delta.rows]
        # Not while the topology is ahead of the disk.
        async with self._writing:
            if self._damaged:
                raise PeerError("cannot reload the topology")
            snapshot = await self._thread.run(self.topology.snapshot)
            return FROM_NOTHING, self.revision, snapshot.rows

    def _held(self) -> dict[str, int]:
        return {shard.name: shard.topology_revision for shard in self._shards()}

    def _left_by_others(self, shard: Peer) -> list[Set]:
        """Return changes that drop exclusive queues left by this shard's earlier processes."""
        hello = shard.hello
        assert hello is not None, "a shard said hello"
        owners = {queue.owner for queue in self.topology.queues() if queue.owner}
        left = []
        for owner in sorted(owners):
            where = shard_of_connection(owner, self._node)
            if where is not None and where[0] == hello.index and where[1] != hello.pid:
                left.append(owner)
        return [(DropOwner(owner),) for owner in left]

    async def _drop(self, left: Sequence[Set]) -> None:
        try:
            await self.change(left)
        except RequestError as problem:
            _log.warning("queues of lost connections remain: %s", problem)


def _of_settings(row: TopologyRow) -> bool:
    return row.kind == QUEUE and row.row is not None and row.row["origin"] == ORIGIN_SETTINGS
