"""The node's bans: kept in a file, sent to the shards and the acceptor, which enforce them.

A change is written, then sent, and answered when the processes have confirmed it, or after a time.
A process that connects gets all bans. Ended ones are removed with the next change; until then the
processes pass them over. Bans are this node's alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from fluxmq.auth.bans import BANS_MAX, KINDS, Ban, ban_problem, canonical
from fluxmq.control.metadata import StoreThread
from fluxmq.control.peers import Peer, RequestError, answers_of
from fluxmq.ipc.door_messages import (
    BAN,
    BANS,
    LIST_BANS,
    UNBAN,
    BanChanged,
    BanList,
    BanRequest,
    BansApplied,
    UnbanRequest,
)
from fluxmq.ipc.messages import (
    ERROR_FAILED,
    ERROR_LIMIT,
    ERROR_NOT_FOUND,
    Body,
    ControlMessage,
)
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files

FILE_NAME: Final = "bans.json"
REQUESTS: Final = (BAN, UNBAN, LIST_BANS)
CONFIRM_SECONDS: Final = 2.0
"""Time the caller of a change waits for shards and acceptor."""

_log = get_logger(__name__)

Key = tuple[str, str]


class Bans:
    """The bans of the node. Lives on control's loop; the file is written on the store's thread."""

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

    async def load(self) -> None:
        """Read the file. Raises ValueError, which says what to do, and StorageError."""

        def read() -> bytes:
            return self._files.read_file(self._path) if self._files.exists(self._path) else b"[]"

        text = await self._thread.run(read)
        try:
            found = msgspec.json.decode(text, type=tuple[Ban, ...])
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

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        if message.kind == LIST_BANS:
            return BanList(tuple(self._in_force().values())).to_body()
        async with self._changing:
            if message.kind == BAN:
                changed = self._banned(BanRequest.from_body(message.body))
            else:
                changed = self._unbanned(UnbanRequest.from_body(message.body))
            return await self._change(changed)

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

    async def _change(self, changed: dict[Key, Ban]) -> Body:
        """Write and send new bans. Raises RequestError."""
        text = msgspec.json.format(msgspec.json.encode(list(changed.values())))
        try:
            await self._thread.run(lambda: self._files.write_whole(self._path, text))
        except StorageError as problem:
            raise RequestError(ERROR_FAILED, f"the bans cannot be written: {problem}") from problem
        self._bans = changed
        peers = [peer for peer in self._processes() if _enforces(peer)]
        answers = await self._send(peers)
        closed = sum(answer.closed for answer in answers if answer is not None)
        silent = tuple(
            peer.name for peer, answer in zip(peers, answers, strict=True) if answer is None
        )
        _log.info("bans changed", extra={"bans": len(changed), "closed": closed})
        return BanChanged(closed, silent).to_body()

    async def _send(self, peers: Sequence[Peer]) -> list[BansApplied | None]:
        """Send all bans."""
        body = BanList(tuple(self._bans.values())).to_body()
        return await answers_of(peers, BANS, body, CONFIRM_SECONDS, BansApplied)


def _enforces(peer: Peer) -> bool:
    return peer.hello is not None and peer.hello.role in ("shard", "acceptor")
