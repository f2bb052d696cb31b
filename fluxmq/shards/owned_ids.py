"""The client ids of a home shard that its node owns, as etcd says through the control process.

A claim is sent with others of the same moment. It names the revision of the key that it expects, the
*fence*: 0 for no key. An id whose session has ended is released some seconds later, since its
client may come back. Control says until when the keys hold. If that moment passes, because etcd
cannot be reached, all ids are lost at once: another node may have them soon. What was lost, and what
is here when the shard starts, is claimed anew. So is everything when control has restarted, since
its leases have ended with it; until that is done, the moment does not move.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Protocol

from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body, Failure, MessageError
from fluxmq.ipc.owner_messages import (
    CLAIMS_MAX,
    OWNER_CLAIM,
    OWNER_TERM,
    REQUEST_BYTES,
    FoundOwner,
    FoundOwners,
    OwnerKey,
    OwnerKeys,
    OwnerTerm,
)
from fluxmq.ipc.topology_client import RequestSender

RELEASE_SECONDS = 5.0
"""Time for which an id stays with its node after its session has ended."""
RETRY_SECONDS = 0.5
"""Pause after a request that failed."""

FoundCallback = Callable[[FoundOwner | None], None]
"""Called with the owner after a claim; None if etcd could not be asked."""


class IdUser(Protocol):
    """The part of a shard that uses ids."""

    def in_use(self, client_id: str, /) -> bool:
        """Return whether an id is in use."""

    def settled(self, client_id: str, /) -> None:
        """Handle that this node owns an id."""

    def lost(self) -> None:
        """Handle the loss of all ids."""

    def taken(self, client_id: str, /) -> None:
        """Handle that another node has an id that is in use here."""


def _of_request(client_ids: Iterable[str]) -> list[str]:
    """Return those of the first client ids that one request may have."""
    found: list[str] = []
    size = 0
    for client_id in islice(client_ids, CLAIMS_MAX):
        size += len(client_id.encode())
        if found and size > REQUEST_BYTES:
            break
        found.append(client_id)
    return found


class OwnedIds:
    """This node's ids among those whose home this shard is."""

    def __init__(
        self, node: str, user: IdUser, now: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        """``wake`` schedules a tick, after work outside of one."""
        self._node = node
        self._now = now
        self._wake = wake
        self._control: RequestSender | None = None
        self._user = user
        self._fences: dict[str, int] = {}
        self._until = 0.0
        """Moment until which the ids are owned for certain."""
        self._claims: dict[str, tuple[OwnerKey, FoundCallback]] = {}
        """Claims to send, by id."""
        self._unused: list[tuple[float, str]] = []
        """Heap of moments and ids to release then unless they are in use."""
        self._releases: dict[str, int] = {}
        self._renewed: dict[str, int] = {}
        """Ids to claim anew, and the revisions of their keys."""
        self._ending: set[str] = set()
        """Those of them whose keys are under leases that nobody prolongs."""
        self._asking = False
        self._retry_at = 0.0
        self._begun = False

    def __len__(self) -> int:
        return len(self._fences)

    def has(self, client_id: str) -> bool:
        """Return whether this node owns an id."""
        return client_id in self._fences

    def fence(self, client_id: str) -> int:
        """Return the revision of an id's key; 0 if this node does not own it."""
        return self._fences.get(client_id, 0)

    def is_doubtful(self, client_id: str) -> bool:
        """Return whether the session of an id is here that another node may own by now."""
        return client_id in self._renewed and client_id not in self._fences

    @property
    def all_settled(self) -> bool:
        """True if it is known of every session here whether it is this node's."""
        return self._begun and not self._renewed.keys() - self._fences.keys()

    def is_own(self, owner: FoundOwner) -> bool:
        """Return whether an id has no owner, or this node since before this claim, so that it can be
        claimed at once."""
        return owner.node in ("", self._node)

    def forget(self, client_id: str) -> None:
        """Note that another node owns an id."""
        self._fences.pop(client_id, None)
        self._renewed.pop(client_id, None)
        self._ending.discard(client_id)

    def claim(self, client_id: str, fence: int, done: FoundCallback, *, look: bool = False) -> None:
        """Claim an id whose key is of revision ``fence``. There is one claim of an id at a time.
        ``look``: it probably has an owner."""
        self._releases.pop(client_id, None)
        self._claims[client_id] = OwnerKey(client_id, fence, look), done
        self._ask()

    def withdraw(self, client_id: str) -> bool:
        """Give up the claim of an id; return whether it was not on its way yet."""
        return self._claims.pop(client_id, None) is not None

    def release(self, client_id: str) -> None:
        """Release an id in some seconds, unless it is in use then."""
        heapq.heappush(self._unused, (self._now() + RELEASE_SECONDS, client_id))

    # Control

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages."""
        return {OWNER_TERM: self._on_term}

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control

    def established(self) -> None:
        """Claim everything anew: control is connected (again)."""
        self._retry_at = 0.0
        self._ending = set(self._fences)
        self.renew(self._fences)

    def begin(self, client_ids: Iterable[str]) -> None:
        """Claim the ids of the sessions that were restored."""
        self._begun = True
        self.renew(client_ids)

    def renew(self, client_ids: Iterable[str]) -> None:
        """Claim ids anew, or for the first time, whose sessions are here."""
        self._renewed.update((each, self._fences.get(each, 0)) for each in client_ids)
        self._ask()

    def _on_term(self, body: Body, answered: Answered) -> None:
        until = OwnerTerm.from_body(body).until
        self._check()
        self._set_until(until)
        answered({})

    def _set_until(self, until: float) -> None:
        if not self._ending:
            self._until = until

    def _check(self) -> None:
        """Lose all ids if their time is over."""
        if self._until and self._now() > self._until:
            self._until = 0.0
            self._fences.clear()
            self._unused.clear()
            self._renewed.clear()
            self._ending.clear()
            self._user.lost()
            self._wake()

    @property
    def next_due(self) -> float:
        """Moment at which something becomes due, in monotonic seconds; 0.0 while there is work
        for every turn of the timer."""
        if self._claims or self._releases or self._renewed:
            return 0.0
        dues = [self._until or math.inf, *(at for at, _ in self._unused[:1])]
        return min(dues)

    def housekeeping(self) -> None:
        """Notice that time is over, and release what is not used; called by the shard's timer."""
        self._check()
        now = self._now()
        while self._unused and self._unused[0][0] <= now:
            _, client_id = heapq.heappop(self._unused)
            if not self._user.in_use(client_id) and client_id not in self._claims:
                fence = self.fence(client_id)
                self.forget(client_id)
                if fence:
                    self._releases[client_id] = fence
        self._ask(only_to_release=True)

    def _ask(self, *, only_to_release: bool = False) -> None:
        """Send claims, and releases along with them; one request at a time. ``only_to_release``:
        also without claims, which would have to wait for the answer if they came then."""
        if self._asking or self._now() < self._retry_at:
            return
        if self._renewed and not self._claims:
            for client_id in islice(self._renewed, CLAIMS_MAX):
                key = OwnerKey(client_id, self._renewed[client_id])
                self._claims[client_id] = key, partial(self._on_renewed, client_id)
        if not self._claims and not (self._releases and only_to_release):
            return
        claims = {each: self._claims.pop(each) for each in _of_request(self._claims)}
        releases = tuple(
            OwnerKey(each, self._releases[each]) for each in _of_request(self._releases)
        )
        self._asking = True
        body = OwnerKeys(tuple(key for key, _ in claims.values()), releases).to_body()

        def answered(answer: Body | Failure) -> None:
            self._check()  # or what is over would last as long as what is claimed now
            self._asking = False
            self._released(releases, answer)
            self._claimed(claims, answer)

        if self._control is None or not self._control.request(OWNER_CLAIM, body, answered):
            answered(Failure("away", "the control process cannot be reached"))

    def _released(self, releases: tuple[OwnerKey, ...], answer: Body | Failure) -> None:
        if isinstance(answer, Failure):
            self._retry_at = self._now() + RETRY_SECONDS
            return
        for each in releases:
            if self._releases.get(each.client) == each.revision:
                del self._releases[each.client]

    def _claimed(
        self, claims: dict[str, tuple[OwnerKey, FoundCallback]], answer: Body | Failure
    ) -> None:
        found: tuple[FoundOwner | None, ...] = (None,) * len(claims)
        until = 0.0
        if not isinstance(answer, Failure):
            try:
                answered = FoundOwners.from_body(answer)
                if len(answered.owners) == len(claims):
                    found = answered.owners
                    until = answered.until
            except MessageError:
                pass
        for (client_id, _), owner in zip(claims.items(), found, strict=True):
            if owner is not None and owner.ours:
                self._fences[client_id] = owner.revision
                self._ending.discard(client_id)
                self._user.settled(client_id)
        if until:
            self._set_until(until)
        for (_, done), owner in zip(claims.values(), found, strict=True):
            done(owner)
        self._wake()
        self._ask()

    def _on_renewed(self, client_id: str, owner: FoundOwner | None) -> None:
        if owner is None or client_id not in self._renewed:
            return  # it is asked again
        if owner.ours:
            del self._renewed[client_id]
        elif self.is_own(owner):
            self._renewed[client_id] = owner.revision
        else:
            self.forget(client_id)
            self._user.taken(client_id)
