"""The other control processes as one of them sees them: introductions, permitted messages,
snapshots."""

from __future__ import annotations

from typing import Final

from fluxmq.cluster import raft_messages
from fluxmq.control.meta import admission, snapshots, transfers
from fluxmq.control.meta.cluster_view import ClusterView, Work
from fluxmq.control.meta.digests import MetaAudit
from fluxmq.control.meta.frames import (
    DIFFERS,
    DIGEST_WANTED,
    PROGRESSES,
    RAFT,
    WELCOME,
    Digest,
    Introduction,
    Part,
    PartReceived,
    Request,
    RequestReply,
    RevisionProgress,
    SnapshotSent,
    decode,
    encode,
)
from fluxmq.control.meta.remote_revisions import RemoteRevisions
from fluxmq.control.meta.replica import MetaReplica
from fluxmq.control.meta.requests import MetaRequests
from fluxmq.control.meta.streams import Links
from fluxmq.control.meta.tables import (
    FORCED_MAX,
    MemberState,
    MetaTables,
    NodeRecord,
    SnapshotContent,
)
from fluxmq.control.metadata import MetadataStore, StoreThread
from fluxmq.ipc.messages import MessageError
from fluxmq.logs import get_logger
from fluxmq.raft.errors import MalformedMessage
from fluxmq.raft.types import Message, MessageKind, RaftStatus, Snapshot
from fluxmq.settings.plans import GroupPlan

_WELCOME: Final = bytes((WELCOME,))
_RAFT: Final = bytes((RAFT,))

_log = get_logger(__name__)


class MetaTransport:
    """Implements `streams.Neighbours`. Created before the replica, whose messages it sends; `join`
    connects them."""

    def __init__(
        self,
        plan: GroupPlan,
        store: MetadataStore,
        thread: StoreThread,
        agreed: ClusterView,
        work: Work,
    ) -> None:
        self.known: dict[int, Introduction] = {}
        """Introduction of each node with a stream."""
        others = {member.number: member.node for member in plan.nodes if member.number != plan.own}
        self.remote_revisions = {
            what: RemoteRevisions(what, others, self.send) for what in PROGRESSES
        }
        """Progress of the other nodes with each of these."""
        self._plan = plan
        self._names = {member.number: member.node for member in plan.nodes}
        self._store = store
        self._thread = thread
        self._cluster_view = agreed
        self._work = work
        self._introduced: dict[int, Introduction] = {}
        self._incarnation = 0
        # Leaders whose messages are meant for this node's present directory.
        self._welcomed: set[int] = set()
        # Nodes, with their incarnations, that were told so over the current stream.
        self._greeted: set[tuple[int, int]] = set()
        self._sending: dict[int, transfers.OutgoingSnapshot] = {}
        self._receiving: dict[int, transfers.Receiving] = {}
        self._snapshots = 0
        self._deciding_standing = False
        self._tables: MetaTables
        self._replica: MetaReplica
        self._requests: MetaRequests
        self.comparing: MetaAudit
        self.streams: Links

    def join(self, tables: MetaTables, replica: MetaReplica, requests: MetaRequests) -> None:
        """Set the recipients of the other nodes' messages."""
        self._tables, self._replica, self._requests = tables, replica, requests
        self._incarnation = replica.incarnation
        self.comparing = MetaAudit(
            *(self._plan.own, self._names, self._store.path, replica, self._work, self.send)
        )

    # Sending

    def send(self, number: int, frame: bytes) -> bool:
        """Send a frame to a node; return whether there is a stream."""
        return self.streams.send(number, frame)

    def send_raft(self, message: Message) -> None:
        """Send a message of the Raft core."""
        self.send(message.target, _RAFT + raft_messages.encode(message))

    def introduce(self) -> None:
        """Introduce this node to the others for whom that is news."""
        replica = self._replica
        if replica.incarnation != self._incarnation:
            self._incarnation = replica.incarnation
            self._welcomed.clear()
            self._cluster_view.leave()
        for number, name in self._names.items():
            if not self.streams.reaches(number):
                continue
            introduction = self._introduction(self._cluster_view.records.get(name))
            before = self._introduced.get(number)
            if before is None or _is_news(before, introduction):
                self._introduced[number] = introduction
                self.send(number, encode(introduction))

    def _introduction(self, record: NodeRecord | None) -> Introduction:
        replica = self._replica
        return Introduction(
            replica.incarnation,
            replica.standing,
            replica.last_index,
            replica.applied_index,
            replica.brings,
            self._cluster_view.cluster,
            0 if record is None else record.incarnation,
            0 if record is None else record.index,
        )

    def tend(self, status: RaftStatus, records: dict[int, NodeRecord]) -> None:
        """Welcome, as leader, returning nodes whose present directory is addressed; compare copies
        periodically."""
        for number, introduction in self.known.items():
            place = number, introduction.incarnation
            welcome = admission.is_welcome(number, status, introduction, records.get(number))
            if welcome and place not in self._greeted:
                self._greeted.add(place)
                self.send(number, _WELCOME)
        self.comparing.tend()

    # Receiving

    def met(self, number: int) -> None:
        """Handle a new stream to a node."""
        self._introduced.pop(number, None)
        self.introduce()
        for each in self.remote_revisions.values():
            each.met(number)

    def parted(self, number: int) -> None:
        """Handle the end of the stream to a node."""
        self.known.pop(number, None)
        for each in self.remote_revisions.values():
            each.parted(number)
        self._welcomed.discard(number)
        self._greeted = {each for each in self._greeted if each[0] != number}
        self._receiving.pop(number, None)
        if self._sending.pop(number, None) is not None:
            self._replica.node.report_snapshot(number, ok=False)
        self._requests.parted(number)
        self.comparing.parted(number)
        self._replica.unreachable(number)

    def said(self, number: int, frame: bytes) -> None:
        """Handle a frame. Raises MessageError or MalformedMessage."""
        kind = frame[0] if frame else -1
        if kind == RAFT:
            self._take_raft(number, frame)
        elif kind == WELCOME:
            self._welcomed.add(number)
        elif kind == DIGEST_WANTED:
            self.comparing.wanted(number)
        elif kind == DIFFERS:
            self.comparing.differs(number)
        else:
            self._take_frame(number, decode(frame))

    def _take_raft(self, number: int, frame: bytes) -> None:
        message = raft_messages.decode(frame[1:], number, self._plan.own)
        if message.kind is MessageKind.SNAPSHOT:
            raise MalformedMessage("a snapshot comes in parts")
        if self._heeds(number):
            self._replica.step(message)

    def _heeds(self, number: int) -> bool:
        """Return whether a node's messages about the log count: it has introduced itself and, while
        this directory is returning, welcomed it."""
        if number not in self.known:
            return False
        return self._replica.standing is not MemberState.RETURNING or number in self._welcomed

    def _take_frame(self, number: int, frame: object) -> None:
        match frame:
            case Introduction():
                self._heard(number, frame)
            case Request():
                self._requests.asked(number, frame)
            case RequestReply():
                self._requests.answered(number, frame)
            case RevisionProgress():
                self.remote_revisions[frame.what].heard(number, frame.revision)
            case Digest():
                self.comparing.told(number, frame)
            case Part():
                receiving = self._receiving.setdefault(
                    number, transfers.Receiving(lambda data: self.send(number, data))
                )
                receiving.part(frame)
            case PartReceived():
                sending = self._sending.get(number)
                if sending is not None:
                    self._sent(number, sending, ok=sending.taken(frame))
            case SnapshotSent():
                self._work.begin(self._take_snapshot(number, frame))

    # Identities

    def _heard(self, number: int, introduction: Introduction) -> None:
        own = self._cluster_view.cluster
        if own and own < introduction.cluster <= own + FORCED_MAX:
            self._replica.forget_log(
                f"the copy of {self._names[number]} was declared the truth, and this one left behind"
            )
            return  # it will introduce itself again
        if introduction.cluster and introduction.cluster < own <= introduction.cluster + FORCED_MAX:
            return  # it was left behind, and forgets its log when it learns that
        if own and introduction.cluster and own != introduction.cluster:
            _log.error(
                "a node belongs to another cluster: one of the two was bootstrapped again",
                extra={"node": self._names[number]},
            )
            self.streams.close(number)
            return
        self.known[number] = introduction
        replica = self._replica
        if admission.is_old_copy(
            introduction,
            replica.incarnation,
            replica.standing,
            replica.applied_index,
            replica.last_index,
        ):
            replica.forget_log(f"{self._names[number]} knows more of this node than it does")
        self.form()

    def form(self) -> None:
        """Determine the member state of a new directory if the introductions allow it."""
        replica = self._replica
        if replica.standing is not MemberState.NEW or self._deciding_standing:
            return
        standing = admission.state_of_new_member(self.known.values(), len(self._plan.members))
        if standing is not MemberState.NEW:
            self._deciding_standing = True
            self._work.begin(self._stand(standing))

    async def _stand(self, standing: MemberState) -> None:
        try:
            await self._thread.run(lambda: self._tables.stand(standing))
        finally:
            self._deciding_standing = False
        self._replica.stand(standing)
        if standing is MemberState.MEMBER and self._replica.brings:
            self._replica.campaign()

    # Snapshots

    def lacks(self, number: int) -> None:
        """Send a snapshot to a member that needs entries compacted from the log."""
        self._work.begin(self._send_snapshot(number))

    def leads_no_longer(self) -> None:
        """Abort the snapshots being sent."""
        self._sending.clear()

    async def _send_snapshot(self, number: int) -> None:
        mark, parts = await self._thread.run(lambda: snapshots.take(self._store))
        message = self._replica.node.offer_snapshot(number, Snapshot(mark, b""))
        if message is None:
            return
        self._snapshots += 1
        sending = transfers.OutgoingSnapshot(
            self._snapshots,
            parts,
            raft_messages.encode(message),
            lambda frame: self.send(number, frame),
        )
        self._sending[number] = sending
        _log.info(
            "sending a snapshot of _meta",
            extra={"node": self._names[number], "index": mark.index, "parts": len(parts)},
        )
        self._sent(number, sending, ok=sending.begin())

    def _sent(self, number: int, sending: transfers.OutgoingSnapshot, *, ok: bool) -> None:
        """Continue sending a snapshot, or give it up when that failed."""
        if ok and not sending.ended:
            return
        self._sending.pop(number, None)
        self._replica.node.report_snapshot(number, ok=ok)
        self._replica.pump()

    async def _take_snapshot(self, number: int, sent: SnapshotSent) -> None:
        receiving = self._receiving.pop(number, None)
        try:
            parts = receiving.complete(sent) if receiving is not None else []
            message = raft_messages.decode(sent.message, number, self._plan.own)
            snapshot = _snapshot_of(message)
            content = await self._thread.run(lambda: transfers.read(parts))
        except (ValueError, MessageError, MalformedMessage) as problem:
            _log.warning("a snapshot of _meta is invalid: %s", problem)
            self.streams.close(number)
            return
        if self._heeds(number):
            self._replica.step(message, SnapshotContent(snapshot.mark, content))


def _snapshot_of(message: Message) -> Snapshot:
    if message.kind is not MessageKind.SNAPSHOT or message.snapshot is None:
        raise MalformedMessage("parts of a snapshot that end with something else")
    return message.snapshot


def _is_news(before: Introduction, now: Introduction) -> bool:
    """Return whether a node that knows one introduction must hear the other. A log that only grows
    is no news."""
    return (before.last_index == 0 and now.last_index > 0) or (
        (before.incarnation, before.standing, before.brings, before.cluster)
        != (now.incarnation, now.standing, now.brings, now.cluster)
        or before.known_incarnation != now.known_incarnation
    )
