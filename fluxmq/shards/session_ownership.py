"""Ownership of client ids: one shard at a time, whichever connection the client uses.

The *home* shard of a client id (a hash of it, the same as the acceptor's) knows which shard has its
session. A shard that gets a CONNECT claims the id at its home; the home asks the present owner to
yield, which closes its connection and hands over the session, and passes that on with the grant.
Claims of one id are served in order. Plain connections arrive at their home, so the usual claim is
one dictionary lookup; TLS and WebSocket connections, which the acceptor cannot read, may arrive
anywhere.

A dead shard loses its sessions except those on disk: its entries are dropped, and their homes
restore what they have. If it was asked to yield a session that nobody keeps, the grant has no
session. If the claimer dies while an owner yields, the home keeps the session for its client's next
attempt. A claim names its principal: an owner keeps another principal's session and answers
``FOREIGN``. A restarted home learns from the owners (``owned``) and serves no claim before all have
answered; if two shards own one id by then, the later one to report yields.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from fluxmq.net.links import Link
from fluxmq.protocols.sniff import shard_of

OwnershipCallback = Callable[[Any, bool], None]
"""Called with the session to continue and whether it is exported state rather than a session of
this shard; or with ``FOREIGN``."""

FOREIGN: Final = "foreign"
"""In place of a session: the client id belongs to another principal, and nothing has changed."""


class Sessions(Protocol):
    """The sessions of a shard, as its claims need them."""

    def take(self, client_id: str, clean: bool, principal: str | None) -> Any:
        """Close this shard's own connection of an id and return its session (None: none is left).

        Return ``FOREIGN`` if it belongs to a principal other than ``principal``; the principal None
        takes any.
        """

    def export(self, client_id: str, clean: bool, principal: str | None) -> Any:
        """Take a session for another shard; it leaves this one, as values."""

    def keep(self, state: Any) -> None:
        """Import an exported session that no claim waits for any more."""

    def holds(self, client_id: str) -> bool:
        """Return whether a session of this id is here."""

    def bring_back(self) -> bool:
        """Restore unowned sessions from this shard's disk; return False to be called again."""

    def revive(self, client_ids: list[str], done: Callable[[], None]) -> None:
        """Restore sessions of a shard that has died; call ``done`` when they are here."""


@dataclass(slots=True)
class _Acquisition:
    """A claim waiting at its home. ``done``: this shard's callback if it is the claimer."""

    shard: int
    clean: bool
    principal: str
    request: int
    done: OwnershipCallback | None = None


@dataclass(slots=True)
class _OwnershipRequest:
    """A claim of this shard that waits for its home's grant."""

    home: int
    client_id: str
    clean: bool
    principal: str
    done: OwnershipCallback


@dataclass(slots=True)
class _PendingSession:
    """Claims of one id; the first waits for ``owner`` to yield. Empty if the claimers died."""

    owner: int
    ownership: deque[_Acquisition] = field(default_factory=deque)


class SessionOwnership:
    """Ownership of client ids, for the claimer, the home and the owner."""

    _sessions: Sessions

    def __init__(self, shard: int, workers: int, links: dict[int, Link]) -> None:
        self.shard = shard
        self._workers = workers
        self._links = links
        self._owners: dict[str, int] = {}
        """Owners of this home's ids whose sessions are in other shards."""
        self._pending: dict[str, _PendingSession] = {}
        self._early: list[tuple[str, _Acquisition]] | None = []
        """Claims that came before every shard announced its ids; None from then on."""
        self._requests = itertools.count(1)
        self._asked: dict[int, _OwnershipRequest] = {}
        self._parked: list[_OwnershipRequest] = []
        """Claims whose home is down."""
        self._claiming: Counter[str] = Counter()
        """Ids with claims of this shard in flight: the end of their old session releases
        nothing."""

    def serve(self, sessions: Sessions) -> None:
        """Register the sessions that are yielded and restored. Nothing is claimed before."""
        self._sessions = sessions

    def home(self, client_id: str) -> int:
        """Return the shard that decides about a client id."""
        if self._workers == 1:
            return self.shard
        found = shard_of(client_id.encode(), self._workers)
        return self.shard if found is None else found

    # The claimer

    def undisputed(self, client_id: str) -> bool:
        """Return whether this shard is the home of an id that no other shard has or wants."""
        return (
            self.home(client_id) == self.shard
            and client_id not in self._owners
            and client_id not in self._pending
        )

    def acquire(self, client_id: str, clean: bool, principal: str, done: OwnershipCallback) -> None:
        """Claim ``client_id`` here for ``principal``; ``done`` is called with the result."""
        home = self.home(client_id)
        if home != self.shard:
            link = self._links[home]
            if not link.up:
                if not self._sessions.holds(client_id):
                    # The home has the kept session and knows its principal; the client waits as
                    # long as it likes.
                    self._parked.append(_OwnershipRequest(home, client_id, clean, principal, done))
                    return
                # The session is here; the home learns the owners when it is back.
                done(self._sessions.take(client_id, clean, principal), False)
                return
            request = next(self._requests)
            self._asked[request] = _OwnershipRequest(home, client_id, clean, principal, done)
            self._claiming[client_id] += 1
            link.send_control("claim", request, client_id, clean, principal)
            return
        if self.undisputed(client_id):
            done(self._sessions.take(client_id, clean, principal), False)
            return
        self._queue(client_id, _Acquisition(self.shard, clean, principal, 0, done))

    def _granted(self, asked: _OwnershipRequest, state: Any) -> None:
        client_id = asked.client_id
        self._finish(client_id, asked.clean, asked.principal, asked.done, state)
        if self._forget_acquisition(client_id) and not self._sessions.holds(client_id):
            # It led to nothing: the client has gone, or was refused.
            self.release(client_id)

    def _forget_acquisition(self, client_id: str) -> bool:
        """Finish a claim of an id; return whether it was the last one."""
        self._claiming[client_id] -= 1
        if self._claiming[client_id]:
            return False
        del self._claiming[client_id]
        return True

    def _finish(
        self, client_id: str, clean: bool, principal: str, done: OwnershipCallback, state: Any
    ) -> None:
        if state is None:
            done(self._sessions.take(client_id, clean, principal), False)
        elif state == FOREIGN:
            done(FOREIGN, False)
        else:
            done(state, True)

    def release(self, client_id: str) -> None:
        """Release the id of a session that has ended on this shard."""
        home = self.home(client_id)
        if home == self.shard or client_id in self._claiming:
            return
        if self._links[home].up:
            self._links[home].send_control("release", client_id)

    # The home

    @property
    def waiting(self) -> bool:
        """True while claims of other shards are not served yet."""
        return self._early is not None

    def open(self) -> bool:
        """Serve early claims, after all live shards announced their ids, once the unowned sessions
        on disk here are restored. Return False if that takes more time."""
        if not self._sessions.bring_back():
            return False
        early, self._early = self._early, None
        for client_id, acquisition in early or ():
            self._queue(client_id, acquisition)
        return True

    def is_owned(self, client_id: str) -> bool:
        """Return whether this shard or another has, or is about to have, the session of an id of
        this home."""
        return client_id in self._owners or self._sessions.holds(client_id)

    def _queue(self, client_id: str, acquisition: _Acquisition) -> None:
        pending = self._pending.get(client_id)
        if pending is not None:
            pending.ownership.append(acquisition)
            return
        owner = self._owners.get(client_id, self.shard)
        if owner == acquisition.shard:
            self._grant(client_id, acquisition, None)
            return
        if owner == self.shard:
            state = self._sessions.export(client_id, acquisition.clean, acquisition.principal)
            self._grant(client_id, acquisition, state)
            return
        link = self._links[owner]
        if not link.up:
            self._grant(client_id, acquisition, None)
            return
        self._pending[client_id] = _PendingSession(owner, deque((acquisition,)))
        link.send_control("yield", client_id, acquisition.clean, acquisition.principal)

    def _grant(self, client_id: str, acquisition: _Acquisition, state: Any) -> None:
        """Answer a claim: grant the id, unless it belongs to another principal and stays."""
        foreign = state == FOREIGN
        if acquisition.done is not None:
            if not foreign:
                self._owners.pop(client_id, None)
            self._finish(
                client_id, acquisition.clean, acquisition.principal, acquisition.done, state
            )
        else:
            if not foreign:
                self._owners[client_id] = acquisition.shard
            self._links[acquisition.shard].send_control("grant", acquisition.request, state)

    def _resolve(self, client_id: str, state: Any) -> None:
        ownership = self._pending.pop(client_id).ownership
        if not ownership:
            if state == FOREIGN:
                return
            self._owners.pop(client_id, None)
            if state is not None:
                self._sessions.keep(state)
            return
        self._grant(client_id, ownership.popleft(), state)
        for acquisition in ownership:
            self._queue(client_id, acquisition)

    # Frames

    def on_acquire(
        self, link: Link, request: int, client_id: str, clean: bool, principal: str
    ) -> None:
        """Handle another shard's claim of an id whose home is here."""
        acquisition = _Acquisition(link.peer, clean, principal, request)
        if self._early is not None:
            self._early.append((client_id, acquisition))
        else:
            self._queue(client_id, acquisition)

    def on_grant(self, _link: Link, request: int, state: Any) -> None:
        """Handle the home's answer to a claim of ours."""
        asked = self._asked.pop(request, None)
        if asked is not None:
            self._granted(asked, state)

    def on_yield(self, link: Link, client_id: str, clean: bool, principal: str | None) -> None:
        """Yield a session of this shard to ``principal``; None stands for any."""
        state = self._sessions.export(client_id, clean, principal)
        link.send_control("yielded", client_id, state)

    def on_yielded(self, link: Link, client_id: str, state: Any) -> None:
        """Handle a session that an owner has yielded."""
        pending = self._pending.get(client_id)
        if pending is not None and pending.owner == link.peer:
            self._resolve(client_id, state)

    def on_release(self, link: Link, client_id: str) -> None:
        """Handle the end of a session on another shard."""
        if self._owners.get(client_id) == link.peer and client_id not in self._pending:
            del self._owners[client_id]

    def on_owned(self, link: Link, client_ids: list[str]) -> None:
        """Handle the ids of this home that another shard owns, after our restart."""
        for client_id in client_ids:
            owner = self._owners.get(client_id)
            if owner in (None, link.peer) and not self._sessions.holds(client_id):
                self._owners[client_id] = link.peer
            else:
                # No claim awaits its answer: of two sessions one is lost.
                link.send_control("yield", client_id, False, None)

    def peer_lost(self, shard: int) -> None:
        """Handle a shard's death: drop its sessions and claims, and expect no answers."""
        orphans = [name for name, owner in self._owners.items() if owner == shard]
        for client_id in orphans:
            del self._owners[client_id]
        if self._early is not None:
            self._early = [entry for entry in self._early if entry[1].shard != shard]
        for client_id, pending in list(self._pending.items()):
            pending.ownership = deque(
                acquisition for acquisition in pending.ownership if acquisition.shard != shard
            )
            if pending.owner == shard and client_id not in orphans:
                self._resolve(client_id, None)
        for client_id in orphans:
            # Claims of an id wait until it is known what is on disk for it.
            self._pending.setdefault(client_id, _PendingSession(self.shard)).owner = self.shard
        if orphans:
            self._sessions.revive(orphans, partial(self._adopted, orphans))
        for request, asked in list(self._asked.items()):
            if asked.home == shard:
                # Only the home knows the id's owner: claims of sessions elsewhere wait for it.
                del self._asked[request]
                self._forget_acquisition(asked.client_id)
                self.acquire(asked.client_id, asked.clean, asked.principal, asked.done)

    def _adopted(self, client_ids: list[str]) -> None:
        for client_id in client_ids:
            pending = self._pending.pop(client_id, None)
            for acquisition in pending.ownership if pending is not None else ():
                self._queue(client_id, acquisition)

    def peer_up(self, shard: int) -> None:
        """Send claims that waited for their home shard to come up."""
        parked, self._parked = self._parked, []
        for asked in parked:
            if asked.home == shard:
                self.acquire(asked.client_id, asked.clean, asked.principal, asked.done)
            else:
                self._parked.append(asked)
