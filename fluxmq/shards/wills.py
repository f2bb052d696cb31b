"""Wills of a shard's clients, as the cluster knows them.

In a cluster with etcd, control is told which wills clients have, soon after they have connected, and
a will that is due is claimed before it is published: if its node was thought to have ended, another
one may have published it. Without an answer in `CLAIM_SECONDS` it is published all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import Body, Failure, MessageError
from fluxmq.ipc.retained_messages import CHANGES_MAX, PART_BYTES
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.ipc.will_messages import (
    WILL_CHANGE,
    WILL_CLAIM,
    WILL_PUBLISH,
    ClaimedWills,
    WillChange,
    WillChanges,
    WillClaims,
    WillToPublish,
    WillValue,
)
from fluxmq.metrics.registry import Sample
from fluxmq.sessions.mqtt.session import Session, Will

CLAIM_SECONDS = 3.0
"""Time to wait for a claim: longer than etcd needs for an election."""
RETRY_SECONDS = 0.5
"""Pause after a request that failed."""
UNTOLD_MAX = 100_000
"""Clients of whose wills control has not been told; beyond it the oldest is forgotten, and its will
is not published if this node ends."""

PublishWill = Callable[[str, str, Will], None]
"""Called with client id, principal and will."""


class LocalWills:
    """Stands in for `ClusterWills` on a node that keeps wills for itself."""

    def __init__(self, publish: PublishWill) -> None:
        self._publish = publish

    @property
    def idle(self) -> bool:
        """Return True."""
        return True

    def changed(self, _session: Session, _former: Will | None) -> None:
        """Do nothing."""

    def due(self, session: Session, will: Will) -> None:
        """Publish a will."""
        self._publish(session.client_id, session.principal, will)


class _DueWill:
    """A will that is due, and that is published in any case at ``until``."""

    def __init__(self, principal: str, will: Will, until: float) -> None:
        self.principal = principal
        self.will = will
        self.until = until


class ClusterWills:
    """Tells control of this shard's wills, and publishes them."""

    def __init__(
        self, publish: PublishWill, now: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        """``wake`` schedules a tick, after messages were published outside of one."""
        self._publish = publish
        self._now = now
        self._wake = wake
        self._control: RequestSender | None = None
        self._untold: dict[str, WillValue | None] = {}
        """By client, what control has to be told, in order."""
        self._claims: dict[str, _DueWill] = {}
        """By client, in the order of ``until``."""
        self._asking = False
        self._claims_next = False
        """True if claims are made before control is told more."""
        self._retry_at = 0.0

    # Of sessions

    def changed(self, session: Session, former: Will | None) -> None:
        """Note a session's will, which has replaced a former one; each may be None."""
        will = session.will
        if will is None and former is None:
            return
        self._note(session.client_id, None if will is None else value_of(session, will))

    def _note(self, client_id: str, value: WillValue | None) -> None:
        self._untold.pop(client_id, None)
        self._untold[client_id] = value
        if len(self._untold) > UNTOLD_MAX:
            del self._untold[next(iter(self._untold))]
        self._ask()

    def due(self, session: Session, will: Will) -> None:
        """Publish a will unless another node has."""
        client_id = session.client_id
        earlier = self._claims.pop(client_id, None)
        if earlier is not None:
            self._publish(client_id, earlier.principal, earlier.will)
        self._claims[client_id] = _DueWill(session.principal, will, self._now() + CLAIM_SECONDS)
        self._ask()

    # Control

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages."""
        return {WILL_PUBLISH: self._take}

    @property
    def idle(self) -> bool:
        """True when control knows everything, and no will is due."""
        return not (self._untold or self._claims or self._asking)

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control

    def established(self) -> None:
        """Send what waits: control is connected (again)."""
        self._retry_at = 0.0
        self._ask()

    @property
    def next_due(self) -> float:
        """Moment at which something becomes due, in monotonic seconds; 0.0 while there is work
        for every turn of the timer."""
        return math.inf if self.idle else 0.0

    def housekeeping(self) -> None:
        """Publish what was not claimed in time, and ask again; called by the shard's timer."""
        now = self._now()
        for client_id, claim in list(self._claims.items()):
            if claim.until > now:
                break
            del self._claims[client_id]
            self._publish(client_id, claim.principal, claim.will)
            self._note(client_id, None)
        self._ask()

    def samples(self) -> Iterator[Sample]:
        """Yield nothing: control counts."""
        return iter(())

    def _ask(self) -> None:
        """Tell control of wills, or claim those that it was told of; one request at a time."""
        if self._asking or self._control is None or self._now() < self._retry_at:
            return
        ready = [client_id for client_id in self._claims if client_id not in self._untold]
        self._claims_next = bool(ready) and (self._claims_next or not self._untold)
        if self._claims_next:
            self._claims_next = False
            self._claim(tuple(ready[:CHANGES_MAX]))
        elif self._untold:
            self._claims_next = True
            self._tell()

    def _tell(self) -> None:
        changes: list[WillChange] = []
        size = 0
        for client_id, value in self._untold.items():
            size += 4 * len(client_id) + (
                len(value.payload) + len(value.properties) if value else 0
            )
            if len(changes) == CHANGES_MAX or (changes and size > PART_BYTES):
                break
            changes.append(WillChange(client_id, value))
        body = WillChanges(tuple(changes)).to_body()
        self._request(WILL_CHANGE, body, lambda answer: self._told(changes, answer))

    def _claim(self, clients: tuple[str, ...]) -> None:
        body = WillClaims(clients).to_body()
        claims = [self._claims[client_id] for client_id in clients]
        self._request(WILL_CLAIM, body, lambda answer: self._claimed(clients, claims, answer))

    def _request(self, kind: str, body: Body, answered: Answered) -> None:
        assert self._control is not None, "there is somebody to ask"
        self._asking = True
        if not self._control.request(kind, body, answered):
            self._failed()

    def _failed(self) -> None:
        self._asking = False
        self._retry_at = self._now() + RETRY_SECONDS

    def _told(self, changes: list[WillChange], answer: Body | Failure) -> None:
        if isinstance(answer, Failure):
            self._failed()
            return
        self._asking = False
        for change in changes:
            if self._untold.get(change.client, change) is change.will:
                del self._untold[change.client]
        self._ask()

    def _claimed(
        self, clients: tuple[str, ...], claims: list[_DueWill], answer: Body | Failure
    ) -> None:
        try:
            granted = () if isinstance(answer, Failure) else ClaimedWills.from_body(answer).granted
        except MessageError:
            granted = ()
        if len(granted) != len(clients):
            self._failed()
            return
        self._asking = False
        for client_id, claim, is_ours in zip(clients, claims, granted, strict=True):
            if self._claims.get(client_id) is claim:
                del self._claims[client_id]
                if is_ours:
                    self._publish(client_id, claim.principal, claim.will)
        self._wake()
        self._ask()

    def _take(self, body: Body, answered: Answered) -> None:
        """Publish the will of a client whose node has ended. Raises MessageError."""
        wanted = WillToPublish.from_body(body)
        value = wanted.will
        will = Will(
            *(value.topic, value.payload, value.qos, value.retain, value.properties),
            *(value.delay, value.expiry, value.without_user),
        )
        will.backend = value.backend
        self._publish(wanted.client, value.principal, will)
        self._wake()
        answered({})


def value_of(session: Session, will: Will) -> WillValue:
    """Return a session's will as control is told of it."""
    return WillValue(
        *(will.topic, will.payload, will.qos, will.retain, will.properties),
        delay=min(will.delay, session.expiry),
        expiry=will.expiry,
        principal=session.principal,
        without_user=will.without_user,
        backend=will.backend,
    )
