"""Bans: kept in a file, sent to the shards and the acceptor of this node, which enforce them.

A change is written, then sent, and answered when the processes have confirmed it, or after a time.
A process that connects gets all bans. Ended ones are removed with the next change; until then the
processes pass them over.

The bans of a cluster with etcd are there (`fluxmq.control.etcd.bans`), and the file is this node's
copy of them, by which it starts. A change is committed, then applied here, and answered when the
other nodes that can be reached have applied it too. A node that joins a cluster brings its bans.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from fluxmq.auth.bans import BANS_MAX, KINDS, Ban, ban_problem, canonical
from fluxmq.control.metadata import StoreThread
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import Peer, RequestError, answers_of
from fluxmq.ipc.door_messages import (
    BAN,
    BANS,
    BANS_WANTED,
    LIST_BANS,
    UNBAN,
    BanChanged,
    BanList,
    BanRequest,
    BansApplied,
    BansWanted,
    UnbanRequest,
)
from fluxmq.ipc.messages import (
    ERROR_AWAY,
    ERROR_FAILED,
    ERROR_LIMIT,
    ERROR_NOT_FOUND,
    Body,
    ControlMessage,
    MessageError,
)
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

FILE_NAME: Final = "bans.json"
REQUESTS: Final = (BAN, UNBAN, LIST_BANS)
CONFIRM_SECONDS: Final = 2.0
"""Time the caller of a change waits for shards and acceptor."""
NODE_SECONDS: Final = 5.0
"""Time the caller waits for another node, which waits for its shards and acceptor."""
REVISIONS_KEPT: Final = 64
"""Changes of other nodes that are remembered for their authors, who ask at once."""

_log = get_logger(__name__)

Key = tuple[str, str]


class CopiedBans(msgspec.Struct, frozen=True):
    """The file's content where the bans are a cluster's; otherwise it is a list."""

    cluster: tuple[Ban, ...]


class SharedBans(Protocol):
    """The bans of a cluster."""

    async def commit(self, key: Key, ban: Ban | None, /) -> int:
        """Set a ban, or delete it (None); return the revision. Raises RequestError, after which it
        may have been done."""


class Bans:
    """Bans as this node knows them. Lives on control's loop; the file is written on the store's
    thread."""

    def __init__(
        self,
        path: str,
        thread: StoreThread,
        processes: Callable[[], Sequence[Peer]],
        now: Callable[[], float],
    ) -> None:
        """``processes``: those that are connected; ``now``: the wall clock, as Unix time."""
        self._path = path
        self._thread = thread
        self._processes = processes
        self._now = now
        self._files = Files()
        self._bans: dict[Key, Ban] = {}
        self._changing = asyncio.Lock()
        self._sending: set[asyncio.Task[list[BansApplied | None]]] = set()
        self._shared: SharedBans | None = None
        self._others: ControlOfNodes | None = None
        self._copied = False
        """True if the file is a copy of a cluster's bans."""
        self._reached = self._committed = 0
        """Revisions: that of the bans in force here, and that of this node's last change."""
        self._closed: dict[int, int] = {}
        """Connections closed here by a revision, until its author asks."""
        self._news = asyncio.Event()

    async def load(self) -> None:
        """Read the file. Raises ValueError, which says what to do, and StorageError."""

        def read() -> bytes:
            return self._files.read_file(self._path) if self._files.exists(self._path) else b"[]"

        text = await self._thread.run(read)
        try:
            content = msgspec.json.decode(text, type=CopiedBans | tuple[Ban, ...])
            self._copied = isinstance(content, CopiedBans)
            found = content.cluster if isinstance(content, CopiedBans) else content
            problems = [ban_problem(ban.kind, ban.value) for ban in found]
            wrong = next(filter(None, problems), "")
        except msgspec.DecodeError as error:
            found, wrong = (), str(error)
        if wrong or len(found) > BANS_MAX:
            reason = wrong or f"more than {BANS_MAX} bans"
            raise ValueError(f"{reason}; correct the file {FILE_NAME}, or remove it and ban anew")
        self._bans = {(ban.kind, ban.value): ban for ban in found}

    def greeted(self, peer: Peer) -> None:
        """Send a process that has connected all bans; if there are none, it may know of lifted
        ones."""
        if _enforces(peer):
            task = asyncio.get_running_loop().create_task(self._send([peer]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def gone(self, _peer: Peer) -> None:
        """Do nothing: a process that connects again gets all bans again."""

    def share(self, store: SharedBans, others: ControlOfNodes) -> None:
        """Commit changes in a store of the cluster from now on, from which ``take`` gets all
        bans."""
        self._shared, self._others = store, others

    @property
    def own(self) -> tuple[Ban, ...]:
        """Return the bans of a time before this node was one of a cluster."""
        return () if self._copied else tuple(self._in_force().values())

    async def take(self, revision: int, bans: Mapping[Key, Ban]) -> None:
        """Apply the bans of the cluster, as of a revision."""
        async with self._changing:
            if revision < self._committed:
                return  # what this node has committed meanwhile comes next
            now = self._now()
            changed = {key: ban for key, ban in bans.items() if ban.holds(now)}
            if changed != self._in_force() or not self._copied:
                await self._write(changed)
                self._copied = True
                self._closed[revision] = (await self._apply(changed)).closed
                for before in [*self._closed][:-REVISIONS_KEPT]:
                    del self._closed[before]
            self._reached = revision
            self._news.set()

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        if message.kind == LIST_BANS:
            return BanList(tuple(self._in_force().values())).to_body()
        if message.kind == BANS_WANTED:
            return (await self._applied(BansWanted.from_body(message.body).revision)).to_body()
        asked: BanRequest | UnbanRequest
        async with self._changing:
            if self._shared is not None and not self._reached:
                raise RequestError(
                    ERROR_AWAY, "the cluster's bans are not known yet: is etcd there?"
                )
            if message.kind == BAN:
                asked = BanRequest.from_body(message.body)
                changed = self._banned(asked)
            else:
                asked = UnbanRequest.from_body(message.body)
                changed = self._unbanned(asked)
            if self._shared is not None:
                key = asked.kind, canonical(asked.kind, asked.value)
                self._committed = await self._shared.commit(key, changed.get(key))
            await self._write(changed)
            here = await self._apply(changed)
            revision = self._committed
        if self._others is None:
            return here.to_body()
        closed, missing = await self._elsewhere(self._others, revision)
        return BanChanged(here.closed + closed, (*here.unconfirmed, *missing)).to_body()

    async def stop(self) -> None:
        """Do nothing: what is acknowledged is on disk."""

    def samples(self) -> Iterator[Sample]:
        """Yield the number of bans of each kind."""
        counts = Counter(kind for kind, _ in self._in_force())
        for kind in KINDS:
            yield "fluxmq_bans", {"kind": kind}, counts[kind]

    def _in_force(self) -> dict[Key, Ban]:
        now = self._now()
        return {key: ban for key, ban in self._bans.items() if ban.holds(now)}

    def _banned(self, asked: BanRequest) -> dict[Key, Ban]:
        """Return the bans with one more, or with another end of it. Raises RequestError."""
        value = canonical(asked.kind, asked.value)
        until = None if asked.seconds is None else self._now() + asked.seconds
        changed = self._in_force()
        changed[asked.kind, value] = Ban(asked.kind, value, until, asked.reason)
        if len(changed) > BANS_MAX:
            raise RequestError(
                ERROR_LIMIT,
                f"there are {BANS_MAX} bans already: lift some, or ban a network instead of addresses",
            )
        return changed

    def _unbanned(self, asked: UnbanRequest) -> dict[Key, Ban]:
        """Return the bans without one. Raises RequestError."""
        value = canonical(asked.kind, asked.value)
        changed = self._in_force()
        if changed.pop((asked.kind, value), None) is None:
            raise RequestError(ERROR_NOT_FOUND, f"{asked.kind} {value} is not banned")
        return changed

    async def _write(self, bans: dict[Key, Ban]) -> None:
        """Write the file. Raises RequestError, but not for a copy, which the next change replaces."""
        rows = tuple(bans.values())
        content = rows if self._shared is None else CopiedBans(rows)
        text = msgspec.json.format(msgspec.json.encode(content))
        try:
            await self._thread.run(lambda: self._files.write_whole(self._path, text))
        except StorageError as problem:
            wrong = f"the bans cannot be written: {problem}"
            if self._shared is None:
                raise RequestError(ERROR_FAILED, wrong) from problem
            _log.error(wrong)

    async def _apply(self, changed: dict[Key, Ban]) -> BanChanged:
        """Have the processes of this node enforce new bans."""
        self._bans = changed
        peers = [peer for peer in self._processes() if _enforces(peer)]
        answers = await self._send(peers)
        closed = sum(answer.closed for answer in answers if answer is not None)
        silent = tuple(
            peer.name for peer, answer in zip(peers, answers, strict=True) if answer is None
        )
        _log.info("bans changed", extra={"bans": len(changed), "closed": closed})
        return BanChanged(closed, silent)

    async def _applied(self, revision: int) -> BansApplied:
        """Wait until a revision is in force here; tell its author how many connections it has
        closed. Raises RequestError."""
        try:
            async with asyncio.timeout(NODE_SECONDS):
                while self._reached < revision:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as problem:
            text = f"revision {revision} of the bans is not in force yet"
            raise RequestError(ERROR_FAILED, text) from problem
        # A later change may have come with it.
        of = next((each for each in sorted(self._closed) if each >= revision), revision)
        return BansApplied(self._closed.pop(of, 0))

    async def _elsewhere(
        self, others: ControlOfNodes, revision: int
    ) -> tuple[int, tuple[str, ...]]:
        """Return the number of connections that other nodes have closed, and those that have not
        confirmed a change. A node that cannot be reached reads the bans before it serves again."""
        body = BansWanted(revision).to_body()
        closed, missing = 0, []
        answers = await others.ask_all(BANS_WANTED, body, NODE_SECONDS)
        for node, answer in zip(others.nodes, answers, strict=True):
            if isinstance(answer, RequestError):
                if answer.code != ERROR_AWAY:
                    missing.append(node)
                continue
            try:
                closed += BansApplied.from_body(answer).closed
            except MessageError:
                missing.append(node)
        return closed, tuple(missing)

    async def _send(self, peers: Sequence[Peer]) -> list[BansApplied | None]:
        """Send all bans."""
        body = BanList(tuple(self._bans.values())).to_body()
        return await answers_of(peers, BANS, body, CONFIRM_SECONDS, BansApplied)


def _enforces(peer: Peer) -> bool:
    return peer.hello is not None and peer.hello.role in ("shard", "acceptor")
