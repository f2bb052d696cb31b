"""Placement of groups: the only writer of placement.json while the node runs, and conductor of
moves.

A move: mark the group as *moving* (durably: no shard that starts now opens it), have its shard
release it, have the new one receive it, write the new placement, notify everybody, the new shard
first. That write decides. A move that fails before it is undone by writing the old placement, and
so is one that this process finds half-done when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from fluxmq.control.metadata import StoreThread
from fluxmq.control.peers import Peer, PeerError, RequestError, answers_of
from fluxmq.ipc.messages import (
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    Body,
    ControlMessage,
    MessageError,
)
from fluxmq.ipc.placements import (
    EXPECT,
    GROUPS,
    PIN,
    PLACEMENT,
    QUEUES,
    RECEIVE,
    RELEASE,
    UNPIN,
    GroupListing,
    GroupRow,
    Pin,
    PinResult,
    QueueListing,
    Release,
    ReleasedGroup,
    placement_to_body,
    shard_of,
)
from fluxmq.ipc.table import ProcessRow
from fluxmq.logs import get_logger
from fluxmq.storage.directory import DataPaths, Placement, read_placement, write_placement
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

KINDS: Final = frozenset({PIN, UNPIN, GROUPS, QUEUES})

RELEASE_SECONDS: Final = 60.0
"""Time for a shard to release a group: its first checkpoint, taken while it goes on, may sync a
lot."""
RECEIVE_SECONDS: Final = 10.0
TELL_SECONDS: Final = 10.0
"""Time for a shard to take a placement and to open the groups assigned to it."""
LIST_SECONDS: Final = 2.0

Listing = TypeVar("Listing", GroupListing, QueueListing)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Move:
    """A group, its present shard and its target."""

    group: str
    source: int
    target: int


class Placements:
    """The placement in force. Lives on control's loop; files are written on the store's thread.

    `shards` returns the connected shards, `rows` the process table's.
    """

    def __init__(
        self,
        paths: DataPaths,
        thread: StoreThread,
        shards: Callable[[], list[Peer]],
        rows: Callable[[], list[ProcessRow]],
    ) -> None:
        self._paths = paths
        self._files = Files()
        self._thread = thread
        self._shards = shards
        self._rows = rows
        self._placement: Placement | None = None
        self._moving = asyncio.Lock()
        self._moves: set[asyncio.Task[PinResult]] = set()
        self._pushes: set[asyncio.Task[None]] = set()

    @property
    def placement(self) -> Placement:
        """Placement in force."""
        assert self._placement is not None, "load() comes first"
        return self._placement

    @contextlib.asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Keep groups from moving while the context is open; moves wait."""
        async with self._moving:
            yield

    async def load(self, first: Placement) -> None:
        """Read the placement, `first` when there is none; undo an unfinished move. Raises
        StorageError."""
        found = await self._thread.run(lambda: read_placement(self._files, self._paths))
        self._placement = found or first
        if found is None:
            await self._write(first)
            return
        if found.moving:
            _log.warning("move abandoned", extra={"groups": list(found.moving)})
            await self._write(replace(found, moving={}))

    async def _write(self, placement: Placement) -> None:
        """Put a placement in force. Raises StorageError; the old one then stays."""
        numbered = replace(placement, revision=self.placement.revision + 1)
        await self._thread.run(lambda: write_placement(self._files, self._paths, numbered))
        self._placement = numbered

    # Notifying shards

    def push(self, shard: Peer) -> None:
        """Send the placement to a shard without waiting."""
        task = asyncio.get_running_loop().create_task(self._tell(shard))
        self._pushes.add(task)
        task.add_done_callback(self._pushes.discard)

    async def _tell(self, shard: Peer) -> None:
        try:
            await shard.ask(PLACEMENT, placement_to_body(self.placement), TELL_SECONDS)
        except (PeerError, MessageError, TimeoutError) as problem:
            # It gets the placement with its next hello; until then the others wait for it.
            _log.warning("shard refused the placement: %s", problem, extra={"shard": shard.name})

    async def _tell_all(self, first: int) -> None:
        """Notify every shard, the one that receives something before those that will ask it."""
        shards = self._shards()
        await asyncio.gather(*(self._tell(each) for each in shards if _index(each) == first))
        await asyncio.gather(*(self._tell(each) for each in shards if _index(each) != first))

    # Requests

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request about groups and queues. Raises RequestError or MessageError."""
        try:
            match message.kind:
                case "pin":
                    placed = self._pin(Pin.from_body(message.body))
                    return (await self._to_the_end(placed)).to_body()
                case "unpin":
                    placed = self._unpin(Release.from_body(message.body).group)
                    return (await self._to_the_end(placed)).to_body()
                case "groups":
                    return (await self.groups()).to_body()
                case "queues":
                    return (await self._queues()).to_body()
        except StorageError as problem:
            raise RequestError(ERROR_FAILED, str(problem)) from problem
        raise RequestError(ERROR_UNKNOWN_KIND, f"{message.kind} is not supported here")

    async def _to_the_end(self, work: Coroutine[None, None, PinResult]) -> PinResult:
        """Shield work that must not stop half-way when the caller hangs up."""
        task = asyncio.get_running_loop().create_task(work)
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)
        return await asyncio.shield(task)

    async def _pin(self, wanted: Pin) -> PinResult:
        async with self._moving:
            target = self._target(wanted)
            before = self.placement
            pinned = replace(before, pins={**before.pins, wanted.group: target})
            return await self._place(wanted.group, target, pinned)

    async def _unpin(self, group: str) -> PinResult:
        async with self._moving:
            before = self.placement
            if group not in before.pins:
                raise RequestError(ERROR_NOT_FOUND, f"group {group} is not pinned")
            pins = {name: shard for name, shard in before.pins.items() if name != group}
            placement = replace(before, pins=pins)
            return await self._place(group, shard_of(placement, group), placement)

    def _target(self, wanted: Pin) -> int:
        """Return the shard a pin names; of several on one core the group's present one, else the
        first."""
        cores = self._cores()
        if wanted.shard >= 0:
            if wanted.shard not in cores:
                raise RequestError(ERROR_INVALID, f"there is no shard {wanted.shard}")
            return wanted.shard
        there = sorted(shard for shard, core in cores.items() if core == wanted.core)
        if not there:
            known = ", ".join(str(core) for core in sorted(set(cores.values())))
            raise RequestError(
                ERROR_INVALID, f"no shard runs on core {wanted.core}; there are {known}"
            )
        now = shard_of(self.placement, wanted.group)
        return now if now in there else there[0]

    def _cores(self) -> dict[int, int]:
        return {row.index: row.core for row in self._rows() if row.role == "shard"}

    # Moving

    async def _place(self, group: str, target: int, placement: Placement) -> PinResult:
        """Put a placement in force that differs in one group."""
        source = shard_of(self.placement, group)
        row = await self._find(group)
        if row is None:
            raise RequestError(ERROR_NOT_FOUND, f"there is no group {group}")
        pause = 0.0
        if source == target:
            await self._write(placement)
            await self._tell_all(target)
        else:
            pause = await self._move(_Move(group, source, target), placement)
        core = self._cores().get(target, -1)
        return PinResult(target, core, source != target, round(pause, 6))

    async def _find(self, group: str) -> GroupRow | None:
        """Return the group's row. Raises RequestError when a shard does not answer: it may have
        it."""
        listing = await self.groups()
        for row in listing.groups:
            if row.group == group:
                return row
        if listing.missing:
            raise RequestError(ERROR_FAILED, f"{', '.join(listing.missing)} did not answer")
        return None

    async def _move(self, move: _Move, placement: Placement) -> float:
        """Move a group; return its pause in seconds. Raises RequestError, and then it is where it
        was."""
        source, target = self._peer(move.source), self._peer(move.target)
        await self._write(replace(self.placement, moving={move.group: move.target}))
        try:
            await target.ask(EXPECT, Release(move.group).to_body(), RECEIVE_SECONDS)
            released = ReleasedGroup.from_body(
                await source.ask(RELEASE, Release(move.group).to_body(), RELEASE_SECONDS)
            )
            begun = time.monotonic() - released.stopped
            await target.ask(RECEIVE, released.to_body(), RECEIVE_SECONDS)
        except (PeerError, MessageError, TimeoutError) as problem:
            await self._give_up(move)
            reason = str(problem) or "no answer in time"
            raise RequestError(ERROR_FAILED, f"{move.group} stays: {reason}") from problem
        try:
            await self._write(placement)
        except StorageError:
            await self._give_up(move)
            raise
        await self._tell_all(move.target)
        pause = time.monotonic() - begun
        _log.info(
            "group moved",
            extra={
                "group": move.group,
                "from": move.source,
                "to": move.target,
                "pause": round(pause, 3),
            },
        )
        return pause

    async def _give_up(self, move: _Move) -> None:
        """Decide that the group stays. Raises StorageError: then the next start of this process
        decides."""
        await self._write(replace(self.placement, moving={}))
        await self._tell_all(move.source)

    def _peer(self, shard: int) -> Peer:
        for peer in self._shards():
            if _index(peer) == shard:
                return peer
        raise RequestError(ERROR_FAILED, f"shard-{shard} is not connected")

    # Listings

    async def groups(self) -> GroupListing:
        """Return all groups of the node."""
        found, missing = await self._ask_all(GROUPS, GroupListing)
        rows = [row for listing in found for row in listing.groups]
        return GroupListing(tuple(sorted(rows, key=lambda row: row.group)), missing)

    async def _queues(self) -> QueueListing:
        found, missing = await self._ask_all(QUEUES, QueueListing)
        rows = [row for listing in found for row in listing.queues]
        left_out = sum(listing.left_out for listing in found)
        return QueueListing(tuple(sorted(rows, key=lambda row: row.queue)), left_out, missing)

    async def _ask_all(
        self, kind: str, listing: type[Listing]
    ) -> tuple[list[Listing], tuple[str, ...]]:
        """Return the answers of all shards, and the names of those that gave none."""
        shards = self._shards()
        answers = await answers_of(shards, kind, {}, LIST_SECONDS, listing)
        known = {row.index for row in self._rows() if row.role == "shard"}
        told = {
            _index(shard)
            for shard, answer in zip(shards, answers, strict=True)
            if answer is not None
        }
        missing = tuple(f"shard-{index}" for index in sorted(known - told))
        return [answer for answer in answers if answer is not None], missing


def _index(peer: Peer) -> int:
    assert peer.hello is not None
    return peer.hello.index
