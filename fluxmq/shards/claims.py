"""Who owns a client id: one shard at a time, whatever connection the client comes by.

The *home* shard of a client id (a hash of it, the same that the acceptor uses) knows which shard has its
session. A shard that gets a CONNECT claims the id at its home; the home asks the present owner to yield,
which closes its connection and hands the session over, and grants it on. Claims of one id are served one
after the other. Plain connections arrive at their home, so the usual claim is one look into a dictionary;
TLS and WebSocket connections, which the acceptor cannot read, may arrive anywhere.

A shard that dies takes its sessions with it: its entries are dropped, and what it was asked to yield is
granted as nothing. A home that dies is told again by the owners (``owned``).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fluxmq.protocols.sniff import shard_of
from fluxmq.shards.links import Link

Done = Callable[[Any], None]
"""Called with the exported state of the session to continue, or None."""


@dataclass(slots=True)
class _Claim:
    """A claim waiting at its home. ``reply`` None: the claimer is this shard, ``done`` its callback."""

    shard: int
    clean: bool
    request: int
    done: Done | None = None


@dataclass(slots=True)
class _Pending:
    """Claims of one id; the first one waits for ``owner`` to yield."""

    owner: int
    claims: deque[_Claim] = field(default_factory=deque)


class Claims:
    """Ownership of client ids, from the side of the claimer, the home and the owner."""

    def __init__(
        self,
        shard: int,
        workers: int,
        links: dict[int, Link],
        take: Callable[[str, bool], Any],
        export: Callable[[str, bool], Any],
    ) -> None:
        self.shard = shard
        self._workers = workers
        self._links = links
        self._take = take
        """Close this shard's own connection of an id and return its session (None: none is left)."""
        self._export = export
        """The same for another shard: the session leaves this one, as values."""
        self._owners: dict[str, int] = {}
        self._pending: dict[str, _Pending] = {}
        self._requests = itertools.count(1)
        self._asked: dict[int, tuple[int, Done]] = {}

    def home(self, client_id: str) -> int:
        """The shard that decides about a client id."""
        if self._workers == 1:
            return self.shard
        found = shard_of(client_id.encode(), self._workers)
        return self.shard if found is None else found

    # The claimer

    def claim(self, client_id: str, clean: bool, done: Callable[[Any, bool], None]) -> None:
        """Own ``client_id`` here. ``done(session, imported)``: ``imported`` tells exported state from a
        session of this shard."""
        home = self.home(client_id)
        if home != self.shard:
            link = self._links[home]
            if not link.up:
                # Nobody can be asked; the home, back again, is told who owns what.
                done(self._take(client_id, clean), False)
                return
            request = next(self._requests)
            self._asked[request] = (
                home,
                lambda state: self._granted(client_id, clean, state, done),
            )
            link.send_control("claim", request, client_id, clean)
            return
        owner = self._owners.get(client_id)
        if owner is None and client_id not in self._pending:
            done(self._take(client_id, clean), False)
            return
        claim = _Claim(
            self.shard,
            clean,
            0,
            lambda state: self._granted(client_id, clean, state, done),
        )
        self._queue(client_id, claim)

    def _granted(
        self, client_id: str, clean: bool, state: Any, done: Callable[[Any, bool], None]
    ) -> None:
        if state is None:
            done(self._take(client_id, clean), False)
        else:
            done(state, True)

    def release(self, client_id: str) -> None:
        """A session of this shard has ended."""
        home = self.home(client_id)
        if home == self.shard:
            return
        if self._links[home].up:
            self._links[home].send_control("release", client_id)

    # The home

    def _queue(self, client_id: str, claim: _Claim) -> None:
        pending = self._pending.get(client_id)
        if pending is not None:
            pending.claims.append(claim)
            return
        owner = self._owners.get(client_id, self.shard)
        if owner == claim.shard:
            self._grant(client_id, claim, None)
            return
        if owner == self.shard:
            self._grant(client_id, claim, self._export(client_id, claim.clean))
            return
        link = self._links[owner]
        if not link.up:
            self._grant(client_id, claim, None)
            return
        self._pending[client_id] = _Pending(owner, deque((claim,)))
        link.send_control("yield", client_id, claim.clean)

    def _grant(self, client_id: str, claim: _Claim, state: Any) -> None:
        if claim.shard == self.shard:
            self._owners.pop(client_id, None)
            assert claim.done is not None
            claim.done(state)
        else:
            self._owners[client_id] = claim.shard
            self._links[claim.shard].send_control("grant", claim.request, state)

    def _resolve(self, client_id: str, state: Any) -> None:
        pending = self._pending.pop(client_id, None)
        if pending is None:
            return
        claims = pending.claims
        self._grant(client_id, claims.popleft(), state)
        for claim in claims:
            self._queue(client_id, claim)

    # Frames

    def on_claim(self, link: Link, request: int, client_id: str, clean: bool) -> None:
        """Another shard claims an id whose home is here."""
        self._queue(client_id, _Claim(link.peer, clean, request))

    def on_grant(self, _link: Link, request: int, state: Any) -> None:
        """The home has granted a claim of ours."""
        asked = self._asked.pop(request, None)
        if asked is not None:
            asked[1](state)

    def on_yield(self, link: Link, client_id: str, clean: bool) -> None:
        """The home asks for a session of this shard."""
        link.send_control("yielded", client_id, self._export(client_id, clean))

    def on_yielded(self, link: Link, client_id: str, state: Any) -> None:
        """An owner has let go of a session."""
        pending = self._pending.get(client_id)
        if pending is not None and pending.owner == link.peer:
            self._resolve(client_id, state)

    def on_release(self, link: Link, client_id: str) -> None:
        """A session of another shard has ended."""
        if self._owners.get(client_id) == link.peer and client_id not in self._pending:
            del self._owners[client_id]

    def on_owned(self, link: Link, client_ids: list[str]) -> None:
        """After our restart: what another shard owns of ours."""
        for client_id in client_ids:
            self._owners[client_id] = link.peer

    def peer_lost(self, shard: int) -> None:
        """A shard has died: its sessions are gone, its claims moot, its answers will not come."""
        for client_id in [name for name, owner in self._owners.items() if owner == shard]:
            del self._owners[client_id]
        for client_id, pending in list(self._pending.items()):
            pending.claims = deque(claim for claim in pending.claims if claim.shard != shard)
            if not pending.claims:
                del self._pending[client_id]
            elif pending.owner == shard:
                self._resolve(client_id, None)
        for request, (home, done) in list(self._asked.items()):
            if home == shard:
                del self._asked[request]
                done(None)
