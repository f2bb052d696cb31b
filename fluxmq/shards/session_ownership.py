"""Ownership of client ids: one shard at a time, whichever connection the client uses.

The *home* shard of a client id (a hash of it, the same as the acceptor's) knows which shard has its
session. A shard that gets a CONNECT claims the id at its home; the home asks the present owner to
yield, which closes its connection and freezes the session. The claimer's shard expects the session
(`fluxmq.shards.expected_sessions`); then the owner exports it, and the home passes it on with the
grant: no message is lost or doubled on the way.
Claims of one id are served in order. Plain connections arrive at their home, so the usual claim is
one dictionary lookup; TLS and WebSocket connections, which the acceptor cannot read, may arrive
anywhere.

A dead shard loses its sessions except those on disk: its entries are dropped, and their homes
restore what they have. If it was asked to yield a session that nobody keeps, the grant has no
session. If the claimer dies while an owner yields, the home keeps the session for its client's next
attempt. A claim names its principal: an owner keeps another principal's session and answers
``FOREIGN``. A restarted home learns from the owners (``owned``) and serves no claim before all have
answered; if two shards own one id by then, the later one to report yields.

In a cluster with etcd the home first obtains the id for its node (`NodeIds`), with the session if
another node has one. While another node obtains a session from here, it is at its home, and claims
wait.

Longer than 500 lines because the claimer, the home and the owner of an id follow one protocol, and
any shard may be any of them.
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
UNAVAILABLE: Final = "unavailable"
"""In place of a session: the node cannot own the client id now."""
NOBODY: Final = -1
"""In place of a shard: the session is with, or on its way to or from, another node."""


class Sessions(Protocol):
    """The sessions of a shard, as its claims need them."""

    def take(self, client_id: str, clean: bool, principal: str | None) -> Any:
        """Close this shard's own connection of an id and return its session (None: none is left).

        Return ``FOREIGN`` if it belongs to a principal other than ``principal``; the principal None
        takes any.
        """

    def freeze(self, client_id: str, clean: bool, principal: str | None) -> Any:
        """Close this shard's connection of an id for another shard. Return the subscriptions of its
        session, which is frozen, or what `take` returns if there is nothing to move."""

    def thaw(self, client_id: str) -> None:
        """Go on with a frozen session."""

    def home_lost(self, home: int) -> None:
        """Go on with the frozen sessions of a home that has died."""

    def expect(self, client_id: str, subscriptions: Any, known: Callable[[], None]) -> None:
        """Have the messages of a session that is about to come wait here; call ``known`` when all
        shards send them here."""

    def when_all_came(self, done: Callable[[], None]) -> None:
        """Call ``done`` when all messages have come that other shards have sent here."""

    def export(self, client_id: str, done: Callable[[Any], None]) -> None:
        """Remove a frozen session from this shard once all messages for it have come that its next
        shard does not get; ``done`` gets its state as values, or None if it has ended."""

    def keep(self, state: Any) -> None:
        """Import an exported session that no claim waits for any more."""

    def holds(self, client_id: str) -> bool:
        """Return whether a session of this id is here."""

    def of_home(self) -> list[str]:
        """Return the ids of the sessions here whose home is this shard."""

    def delete(self, client_id: str) -> None:
        """Delete a session of which another node has a newer state."""

    def bring_back(self) -> bool:
        """Restore unowned sessions from this shard's disk; return False to be called again."""

    def revive(self, client_ids: list[str], done: Callable[[], None]) -> None:
        """Restore sessions of a shard that has died; call ``done`` when they are here."""


class NodeIds(Protocol):
    """The client ids that this node owns, among those of a home."""

    def has(self, client_id: str) -> bool:
        """Return whether this node owns an id."""

    def obtain(
        self, client_id: str, clean: bool, principal: str | None, done: Callable[[str], None]
    ) -> None:
        """Make this node the owner of an id, and fetch its session; ``done`` gets nothing, or
        ``FOREIGN`` or ``UNAVAILABLE``."""

    def release(self, client_id: str) -> None:
        """Note that an id may be in use no longer."""

    def when_settled(self, since: float, done: Callable[[bool], None]) -> None:
        """Call ``done`` with whether sessions have left for other nodes since a moment, when that is
        known of all that are leaving now, or were restored."""


class AllIds:
    """Stands in for `NodeIds` on a node that has no id in common with others."""

    def has(self, _client_id: str) -> bool:
        """Return True."""
        return True

    def obtain(
        self, _client_id: str, _clean: bool, _principal: str | None, done: Callable[[str], None]
    ) -> None:
        """Call ``done``."""
        done("")

    def release(self, _client_id: str) -> None:
        """Do nothing."""

    def when_settled(self, _since: float, done: Callable[[bool], None]) -> None:
        """Call ``done``: none leaves."""
        done(False)


@dataclass(slots=True)
class _Acquisition:
    """A claim waiting at its home. ``done``: this shard's callback if it is the claimer."""

    shard: int
    clean: bool
    principal: str | None
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
    """Claims of one id; the first waits for ``owner`` to yield. Empty if the claimers died, and with
    the owner `NOBODY`."""

    owner: int
    ownership: deque[_Acquisition] = field(default_factory=deque)
    subscriptions: Any = None
    """Those of the owner's frozen session, from the first claimer's shard expects it on."""
    exporting: bool = False


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
        self._arriving: dict[str, list[Callable[[], None]]] = {}
        """Ids granted to this shard whose sessions are not complete, and what is to be done then."""
        self._parked: list[_OwnershipRequest] = []
        """Claims whose home is down."""
        self._claiming: Counter[str] = Counter()
        """Ids with claims of this shard in flight: the end of their old session releases
        nothing."""
        self.ids: NodeIds = AllIds()

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
            and self.ids.has(client_id)
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
        self,
        client_id: str,
        clean: bool,
        principal: str | None,
        done: OwnershipCallback,
        state: Any,
    ) -> None:
        if state is None:
            done(self._sessions.take(client_id, clean, principal), False)
        elif isinstance(state, str):
            done(state, False)
        else:
            done(state, True)

    def release(self, client_id: str) -> None:
        """Release the id of a session that has ended on this shard."""
        home = self.home(client_id)
        if home == self.shard:
            self.ids.release(client_id)
            return
        if client_id in self._claiming:
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
        if not self.ids.has(client_id):
            self._pending[client_id] = _PendingSession(NOBODY, deque((acquisition,)))
            self.ids.obtain(
                *(client_id, acquisition.clean, acquisition.principal),
                partial(self._obtained, client_id),
            )
            return
        owner = self._owners.get(client_id, self.shard)
        if owner == acquisition.shard:
            self._grant(client_id, acquisition, None)
            return
        if owner != self.shard and not self._links[owner].up:
            self._grant(client_id, acquisition, None)
            return
        self._have_yielded(client_id, owner, acquisition)

    def _have_yielded(self, client_id: str, owner: int, acquisition: _Acquisition) -> None:
        """Begin to move an id's session to the shard of a claim."""
        pending = self._pending[client_id] = _PendingSession(owner, deque((acquisition,)))
        wanted = client_id, acquisition.clean, acquisition.principal
        if owner == self.shard:
            self._yielding(client_id, pending, self._sessions.freeze(*wanted))
        else:
            self._links[owner].send_control("yield", *wanted)

    def _yielding(self, client_id: str, pending: _PendingSession, found: Any) -> None:
        """Have the first claimer's shard expect a session with these subscriptions; answer its claim
        if there is none."""
        if not isinstance(found, list):
            self._resolve(client_id, found)
            return
        pending.subscriptions = found
        self._expect(client_id, pending)

    def _expect(self, client_id: str, pending: _PendingSession) -> None:
        if not pending.ownership:  # the claimers died
            del self._pending[client_id]
            if pending.owner == self.shard:
                self._sessions.thaw(client_id)
            else:
                self._links[pending.owner].send_control("stay", client_id)
            return
        shard = pending.ownership[0].shard
        if shard == self.shard:
            known = partial(self._expected, client_id, shard)
            self._sessions.expect(client_id, pending.subscriptions, known)
        else:
            self._links[shard].send_control("expect", client_id, pending.subscriptions)

    def _expected(self, client_id: str, shard: int) -> None:
        """Have the owner export a session that a shard expects."""
        pending = self._pending.get(client_id)
        if pending is None or pending.subscriptions is None or pending.exporting:
            return
        if not pending.ownership or pending.ownership[0].shard != shard:
            return
        pending.exporting = True
        if pending.owner == self.shard:
            self._sessions.export(client_id, partial(self._exported, client_id, pending))
        else:
            self._links[pending.owner].send_control("export", client_id)

    def _exported(self, client_id: str, pending: _PendingSession, state: Any) -> None:
        if self._pending.get(client_id) is not pending:
            if isinstance(state, list):
                self._sessions.keep(state)
        elif isinstance(state, list) and self._is_claimed_here(pending):
            self._sessions.when_all_came(partial(self._arrived, client_id, pending, state))
        else:
            self._resolve(client_id, state)

    def _is_claimed_here(self, pending: _PendingSession) -> bool:
        return bool(pending.ownership) and pending.ownership[0].shard == self.shard

    def _arrived(self, client_id: str, pending: _PendingSession, state: Any) -> None:
        """Continue a session that is claimed here, to which all messages have come."""
        if self._pending.get(client_id) is pending:
            self._resolve(client_id, state)

    def _obtained(self, client_id: str, refusal: str) -> None:
        """Go on with claims of an id that this node owns, or with a refusal does not."""
        pending = self._pending.pop(client_id, None)
        acquisitions = deque(() if pending is None else pending.ownership)
        if refusal and acquisitions:
            self._grant(client_id, acquisitions.popleft(), refusal)
        for acquisition in acquisitions:
            self._queue(client_id, acquisition)
        self.ids.release(client_id)

    def in_use(self, client_id: str) -> bool:
        """Return whether an id of this home is claimed, or has a session on this node."""
        return client_id in self._pending or self.is_owned(client_id)

    def bring_home(self, client_id: str, principal: str | None, done: OwnershipCallback) -> bool:
        """Bring the session of an id to this home, for another node, and have claims wait until
        `go_on`; its client is disconnected. Return False if that cannot be now."""
        if self._early is not None or client_id in self._pending:
            return False

        def here(found: Any, imported: bool) -> None:
            if found != FOREIGN:
                self._pending[client_id] = _PendingSession(NOBODY)
            done(found, imported)

        if client_id in self._owners:
            link = self._links[self._owners[client_id]]
            if not link.up:
                return False
            acquisition = _Acquisition(self.shard, False, principal, 0, here)
            self._have_yielded(client_id, link.peer, acquisition)
        else:
            here(self._sessions.take(client_id, False, principal), False)
        return True

    def ids_here(self) -> list[str]:
        """Return the ids of this home whose sessions are on this node."""
        return [*self._sessions.of_home(), *self._owners]

    def drop(self, client_id: str) -> None:
        """Delete the session of an id, wherever it is on this node: another one owns the id."""
        owner = self._owners.pop(client_id, None)
        if owner is None:
            self._sessions.delete(client_id)
        elif self._links[owner].up:
            self._links[owner].send_control("drop", client_id)

    def _on_drop(self, _link: Link, client_id: str) -> None:
        """Delete a session of this shard."""
        self._sessions.delete(client_id)

    def go_on(self, client_id: str) -> None:
        """Serve the claims that have waited since `bring_home`."""
        pending = self._pending.pop(client_id, None)
        for acquisition in () if pending is None else pending.ownership:
            self._queue(client_id, acquisition)

    def _grant(self, client_id: str, acquisition: _Acquisition, state: Any) -> None:
        """Answer a claim: grant the id, unless it is refused and the session stays."""
        refused = isinstance(state, str)
        if acquisition.done is not None:
            if not refused:
                self._owners.pop(client_id, None)
            self._finish(
                client_id, acquisition.clean, acquisition.principal, acquisition.done, state
            )
        else:
            if not refused:
                self._owners[client_id] = acquisition.shard
            self._links[acquisition.shard].send_control("grant", acquisition.request, state)

    def _resolve(self, client_id: str, state: Any) -> None:
        ownership = self._pending.pop(client_id).ownership
        if not ownership:
            if isinstance(state, str):
                return
            self._owners.pop(client_id, None)
            if state is not None:
                self._sessions.keep(state)
            return
        self._grant(client_id, ownership.popleft(), state)
        for acquisition in ownership:
            self._queue(client_id, acquisition)

    # Frames

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {
            "claim": self._on_acquire,
            "grant": self._on_grant,
            "yield": self._on_yield,
            "yielding": self._on_yielding,
            "expect": self._on_expect,
            "expected": self._on_expected,
            "export": self._on_export,
            "stay": self._on_stay,
            "yielded": self._on_yielded,
            "release": self._on_release,
            "owned": self._on_owned,
            "drop": self._on_drop,
        }

    def _on_acquire(
        self, link: Link, request: int, client_id: str, clean: bool, principal: str
    ) -> None:
        """Handle another shard's claim of an id whose home is here."""
        acquisition = _Acquisition(link.peer, clean, principal, request)
        if self._early is not None:
            self._early.append((client_id, acquisition))
        else:
            self._queue(client_id, acquisition)

    def _on_grant(self, _link: Link, request: int, state: Any) -> None:
        """Handle the home's answer to a claim of ours."""
        asked = self._asked.pop(request, None)
        if asked is None:
            return
        if asked.client_id in self._arriving:
            self._arriving[asked.client_id].append(partial(self._granted, asked, state))
        elif isinstance(state, list):
            self._arriving[asked.client_id] = []
            self._sessions.when_all_came(partial(self._settled, asked, state))
        else:
            self._granted(asked, state)

    def _settled(self, asked: _OwnershipRequest, state: Any) -> None:
        """Continue a session to which all messages have come; the home may want it back already."""
        delayed = self._arriving.pop(asked.client_id)
        self._granted(asked, state)
        for handle in delayed:
            handle()

    def _on_yield(self, link: Link, client_id: str, clean: bool, principal: str | None) -> None:
        """Yield a session of this shard to ``principal``; None stands for any."""
        if client_id in self._arriving:
            again = partial(self._on_yield, link, client_id, clean, principal)
            self._arriving[client_id].append(again)
            return
        found = self._sessions.freeze(client_id, clean, principal)
        link.send_control("yielding" if isinstance(found, list) else "yielded", client_id, found)

    def _on_yielding(self, link: Link, client_id: str, subscriptions: Any) -> None:
        """Handle the subscriptions of a session that an owner has frozen."""
        pending = self._pending.get(client_id)
        if pending is not None and pending.owner == link.peer:
            self._yielding(client_id, pending, subscriptions)
        else:  # of two sessions one is lost
            link.send_control("export", client_id)

    def _on_expect(self, link: Link, client_id: str, subscriptions: Any) -> None:
        """Expect a session."""
        epoch = link.epoch

        def known() -> None:
            if link.up and link.epoch == epoch:
                link.send_control("expected", client_id)

        self._sessions.expect(client_id, subscriptions, known)

    def _on_expected(self, link: Link, client_id: str) -> None:
        """Handle that the first claimer's shard is ready for a session."""
        self._expected(client_id, link.peer)

    def _on_export(self, link: Link, client_id: str) -> None:
        """Export a frozen session of this shard."""
        epoch = link.epoch

        def done(state: Any) -> None:
            if link.up and link.epoch == epoch:
                link.send_control("yielded", client_id, state)

        self._sessions.export(client_id, done)

    def _on_stay(self, _link: Link, client_id: str) -> None:
        """Go on with a frozen session of this shard: its claimers have died."""
        self._sessions.thaw(client_id)

    def _on_yielded(self, link: Link, client_id: str, state: Any) -> None:
        """Handle a session that an owner has yielded."""
        pending = self._pending.get(client_id)
        if pending is not None and pending.owner == link.peer:
            self._exported(client_id, pending, state)

    def _on_release(self, link: Link, client_id: str) -> None:
        """Handle the end of a session on another shard."""
        if self._owners.get(client_id) == link.peer and client_id not in self._pending:
            del self._owners[client_id]
            self.ids.release(client_id)

    def _on_owned(self, link: Link, client_ids: list[str]) -> None:
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
            elif (
                pending.owner != shard
                and pending.subscriptions is not None
                and not pending.exporting
            ):
                self._expect(client_id, pending)
        for client_id in orphans:
            # Claims of an id wait until it is known what is on disk for it.
            self._pending.setdefault(client_id, _PendingSession(self.shard)).owner = self.shard
        self._sessions.home_lost(shard)
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
