"""Etcd and the control processes of a cluster, as its shards know them: they commit and tell when a test lets them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_FAILED, Body, Failure
from fluxmq.ipc.owner_messages import (
    OWNER_CLAIM,
    OWNER_TERM,
    FoundOwner,
    FoundOwners,
    OwnerKeys,
    OwnerTerm,
)
from fluxmq.ipc.record_messages import (
    RECORD_CHANGE,
    ConsumerValue,
    RecordChanges,
    RefusedRecords,
    SubscriptionValue,
)
from fluxmq.ipc.retained_messages import (
    DELETED,
    RETAINED,
    RETAINED_CHANGE,
    CommittedChange,
    CommittedChanges,
    RetainedChanges,
    RetainedPart,
)
from fluxmq.ipc.will_messages import (
    WILL_CHANGE,
    WILL_PUBLISH,
    ClaimedWills,
    WillChanges,
    WillClaims,
    WillToPublish,
    WillValue,
)
from fluxmq.shards.retained_sync import RetainedSync
from tests.unit.shards.net_of_nodes import Net
from tests.unit.shards.node import Shard

LEASE_SECONDS = 10


class Connection:
    """A shard's connection to its control process. ``silent``: changes do not reach it; ``mute``: its requests wait; ``undecided``: those about client ids do."""

    def __init__(self, plane: Plane, shard: Shard) -> None:
        self.plane = plane
        self.silent = False
        self.mute = False
        self.undecided = False
        self.up = True
        self.until = 0.0
        self.claims: deque[tuple[str, Body, Answered]] = deque()
        self.requests: deque[tuple[str, Body, Answered]] = deque()
        self.told: deque[RetainedPart] = deque()
        assert isinstance(shard.retained_sync, RetainedSync)
        self.sync = shard.retained_sync
        self.shard = shard
        for part in shard.control_users:
            part.connect(self)
            part.established()

    def request(self, kind: str, body: Body, answered: Answered) -> bool:
        if kind == OWNER_CLAIM and not self.plane.rules_ids:
            answered(self.plane.answer(kind, body, self))
            return True
        if self.up:
            requests = self.claims if kind == OWNER_CLAIM else self.requests
            requests.append((kind, body, answered))
        return self.up

    def begin(self) -> None:
        """Be told everything, in two parts."""
        entries = sorted(self.plane.keys.values(), key=lambda each: each.topic)
        middle, revision = len(entries) // 2, self.plane.revision
        self.told.clear()
        self.told.append(RetainedPart(tuple(entries[:middle]), revision, first=True))
        self.told.append(RetainedPart(tuple(entries[middle:]), revision, last=True))

    def step(self) -> bool:
        worked = False
        self.term()
        for requests, waits in ((self.claims, self.undecided), (self.requests, self.mute)):
            while requests and not waits:
                requests.rotate(-self.plane.choose(len(requests)))
                kind, body, answered = requests.popleft()
                answered(self.plane.answer(kind, body, self))
                worked = True
        while self.told and self.up and not self.silent:
            self.sync.commands[RETAINED](self.told.popleft().to_body(), lambda _answer: None)
            worked = True
        return worked

    def term(self) -> None:
        """Be told until when the node owns its ids."""
        now = self.plane.net.clock.now
        if not self.plane.rules_ids:
            self.until = now + LEASE_SECONDS
        elif self.up and not self.silent and self.until < now + LEASE_SECONDS - 2:
            until = self.plane.term_of(self)
            if until > self.until:
                self.until = until
                body = OwnerTerm(until).to_body()
                self.command(OWNER_TERM, body)

    def command(self, kind: str, body: Body) -> None:
        """Be told something by control."""
        (handle,) = (
            user.commands[kind] for user in self.shard.control_users if kind in user.commands
        )
        handle(body, lambda _: None)

    def lose(self) -> None:
        """The connection ends, with what is on its way."""
        self.up = False
        requests = *self.claims, *self.requests
        self.claims.clear()
        self.requests.clear()
        for _, _, answered in requests:
            answered(Failure(ERROR_AWAY, "away"))

    def back(self) -> None:
        """It is there again."""
        self.up = True
        self.begin()
        for part in self.shard.control_users:
            part.established()


RecordKey = tuple[str, str] | tuple[str, str, str]
"""Client and filter of a subscription, or queue, group and name of a consumer."""


class Plane:
    """One store for all nodes."""

    def __init__(self, net: Net, *, rules_ids: bool = False) -> None:
        """``rules_ids``: claims of client ids are answered as other requests are, not at once."""
        self.net = net
        self.rules_ids = rules_ids
        self.revision = 1
        self.keys: dict[bytes, CommittedChange] = {}
        self.refusing = False
        self.wills: dict[str, tuple[str, WillValue]] = {}
        """By client, its node and will."""
        self.records: dict[
            RecordKey, tuple[tuple[str, int], SubscriptionValue | ConsumerValue]
        ] = {}
        """Subscriptions and consumers: the node and the shard that have told of them, and values."""
        self.claimed = 0
        self.asked = 0
        """Client ids that shards have asked for."""
        self.owners: dict[str, FoundOwner] = {}
        self.lives: dict[str, str] = dict.fromkeys(net.names, "1")
        self.cut_off: set[str] = set()
        """Nodes whose control processes do not reach etcd."""
        self.published: set[str] = set()
        """Clients whose wills the coordinator had published."""
        self.connections: dict[Shard, Connection] = {}
        self.choose: Callable[[int], int] = lambda _count: 0
        """Which of so many requests of a shard is answered next."""
        self.repeat: Callable[[], bool] = lambda: False
        """Whether the answer to a request is lost."""
        net.besides = self.step
        net.run()

    def all(self) -> Iterator[Connection]:
        """The connections of all shards that run."""
        for node in self.net.nodes:
            for shard in node:
                if shard not in self.connections:
                    self.connections[shard] = Connection(self, shard)
                    self.connections[shard].begin()
                yield self.connections[shard]

    def of(self, node: int) -> list[Connection]:
        """The connections of a node's shards."""
        return [self.connections[shard] for shard in self.net.nodes[node]]

    def step(self) -> bool:
        worked = [each.step() for each in self.all()]
        return any(worked)

    def answer(self, kind: str, body: Body, connection: Connection) -> Body | Failure:
        """The answer of a shard's control process."""
        node = self.name_of(connection)
        if node in self.cut_off:
            return Failure(ERROR_FAILED, "no answer in time")
        if kind == OWNER_CLAIM:
            return self.own(OwnerKeys.from_body(body), node, connection)
        if self.refusing:
            return Failure(ERROR_FAILED, "no space")
        if kind == RETAINED_CHANGE:
            return self.commit(body)
        if kind == RECORD_CHANGE:
            return self.record(RecordChanges.from_body(body), node)
        if kind == WILL_CHANGE:
            for change in WillChanges.from_body(body).changes:
                self.published.discard(change.client)
                self.wills.pop(change.client, None)
                if change.will is not None:
                    self.wills[change.client] = node, change.will
            return {}
        granted = []
        for client in WillClaims.from_body(body).clients:
            granted.append(client not in self.published)
            self.published.discard(client)
            if granted[-1]:
                self.wills.pop(client, None)
        return ClaimedWills(tuple(granted)).to_body()

    def record(self, changes: RecordChanges, node: str) -> Body:
        """Note subscriptions and consumers, as control does."""
        putter = node, changes.shard
        if changes.anew:
            self.records = {k: (p, v) for k, (p, v) in self.records.items() if p != putter}
        found: list[tuple[RecordKey, SubscriptionValue | ConsumerValue | None]] = []
        refused: dict[str, None] = {}
        for change in changes.subscriptions:
            if change.value is not None and self.owner_of(change.client) != node:
                refused[change.client] = None
            else:
                found.append(((change.client, change.filter), change.value))
        found += [
            ((each.queue, each.group, each.consumer), each.value) for each in changes.consumers
        ]
        for key, value in found:
            if value is not None:
                self.records[key] = putter, value
            elif self.records.get(key, (putter, None))[0] == putter:
                self.records.pop(key, None)
        return RefusedRecords(tuple(refused)).to_body()

    def owner_of(self, client: str) -> str:
        """The node that owns an id in its present life; empty for none."""
        owner = self.owners.get(client, FoundOwner())
        return owner.node if self.lives.get(owner.node) == owner.life else ""

    def name_of(self, connection: Connection) -> str:
        """The name of a connection's node."""
        return self.net.names[self.net.nodes.index(connection.shard.node)]  # type: ignore[arg-type]

    def term_of(self, connection: Connection) -> float:
        """Until when a node knows that its leases last."""
        if self.name_of(connection) in self.cut_off:
            return 0.0
        return self.net.clock.now + LEASE_SECONDS - 1 if self.rules_ids else 1e9

    def own(self, asked: OwnerKeys, node: str, connection: Connection) -> Body | Failure:
        """Claims, and releases, of client ids."""
        self.claimed += 1
        self.asked += len(asked.claims)
        found = []
        keys = *asked.claims, *asked.releases
        assert len({each.client for each in keys}) == len(keys)
        for each in keys:
            owner = self.owners.get(each.client, FoundOwner())
            if owner.revision == each.revision:
                self.owners.pop(each.client, None)
                if each in asked.claims:
                    owner = FoundOwner(node, self.lives[node], self.claimed)
                    self.owners[each.client] = owner
                    owner = replace(owner, ours=True)
            found.append(owner)
        if self.rules_ids and self.repeat():
            return Failure(ERROR_FAILED, "no answer in time")
        del found[len(asked.claims) :]
        return FoundOwners(tuple(found), self.term_of(connection)).to_body()

    def expire(self, node: int) -> None:
        """The leases of a node end."""
        name = self.net.names[node]
        for client, owner in list(self.owners.items()):
            if owner.node == name:
                del self.owners[client]
        self.records = {k: (p, v) for k, (p, v) in self.records.items() if p[0] != name}

    def ended(self, node: int, by: int) -> None:
        """The coordinator thinks that a node has ended, and has another one publish its wills."""
        name = self.net.names[node]
        for client, (owner, will) in list(self.wills.items()):
            if owner == name:
                del self.wills[client]
                self.published.add(client)
                body = WillToPublish(client, will).to_body()
                self.of(by)[0].command(WILL_PUBLISH, body)
        self.net.run()

    def commit(self, body: Body) -> Body | Failure:
        changes = RetainedChanges.from_body(body).changes
        assert len({each.topic for each in changes}) == len(changes)
        self.revision += 1
        told = []
        for each in changes:
            change = CommittedChange(each.topic, self.revision, each.kind, each.value)
            if each.kind != DELETED:
                self.keys[each.topic] = change
            elif self.keys.pop(each.topic, None) is None:
                continue  # of a key that is not there etcd tells nothing
            told.append(change)
        if told:
            for connection in self.all():
                connection.told.append(RetainedPart(tuple(told)))
        if self.repeat():
            return Failure(ERROR_FAILED, "no answer in time")
        return CommittedChanges(self.revision).to_body()

    def replace(self) -> None:
        """Etcd has lost everything."""
        self.keys.clear()
        self.revision = 1
        for connection in self.all():
            connection.begin()
