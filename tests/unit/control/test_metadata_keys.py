"""Topology and users as keys of etcd: what is written comes back, and half of a decision is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxmq.auth.users import User
from fluxmq.control.decisions import AcceptedDelta, Decision, NodeRecord, UsersChange
from fluxmq.control.etcd import metadata_keys
from fluxmq.control.etcd.messages import Change, Delete, EtcdTransaction, KeyValue, Operation, Put
from fluxmq.control.etcd.metadata_keys import (
    FLAT_MAX,
    NESTED_MAX,
    OPERATIONS_MAX,
    ROOT,
    MetadataRoot,
    content_of,
    decision_of,
    operations_of,
    row_key,
    row_key_of,
)
from fluxmq.ipc.user_messages import Users
from fluxmq.routing.topology.changes import AddVhost, Bind, DeclareQueue
from fluxmq.routing.topology.changes import Change as TopologyChange
from fluxmq.routing.topology.records import Binding, QueueRecord, Vhost
from fluxmq.routing.topology.topology import Delta, Topology, TopologyRow
from tests.unit.control.topology_node import GUEST

BEFORE = MetadataRoot(0, 3, 7)
STRANGE = "a/b%2F %é"
ANN = replace(GUEST, name=STRANGE)


def decided(*changes: TopologyChange) -> tuple[Decision, Topology]:
    """A decision about a vhost, queues of strange names and a binding with arguments."""
    topology = Topology()
    first = (
        AddVhost(Vhost("/")),
        AddVhost(Vhost(STRANGE)),
        DeclareQueue(QueueRecord(STRANGE, STRANGE, durable=True, arguments={"x": 1})),
        Bind(Binding(STRANGE, "amq.headers", STRANGE, arguments={"a": STRANGE, "b": True})),
    )
    deltas = [topology.apply_all(first), *(topology.apply(each) for each in changes)]
    accepted = tuple(AcceptedDelta(each, (False,) * len(each.rows)) for each in deltas)
    users = UsersChange(4, (ANN,), ("gone/",))
    return Decision(accepted, users, (("node/1", NodeRecord("life", ("q",))),)), topology


def changes_of(operations: tuple[Operation, ...], revision: int = 9) -> list[Change]:
    """What a watch tells after these operations."""
    found = []
    for each in operations:
        if isinstance(each, EtcdTransaction):
            found += changes_of(each.success, revision)
        elif isinstance(each, Put):
            found.append(Change(False, KeyValue(each.key, each.value, revision, each.lease)))
        elif isinstance(each, Delete):
            found.append(Change(True, KeyValue(each.key, b"", revision, 0)))
    return found


def test_a_decision_comes_back() -> None:
    decision, topology = decided()
    root = MetadataRoot(topology.revision, 4, 7)
    found = decision_of(changes_of(operations_of(decision, root)), BEFORE)
    assert found is not None
    assert found[0] == root
    assert found[1].users == decision.users
    assert found[1].nodes == decision.nodes
    copy = Topology()
    for taken in found[1].deltas:
        copy.take(taken.delta)
    assert copy.snapshot() == topology.snapshot()


def test_a_delta_is_one_of_several_that_were_decided_together() -> None:
    more = DeclareQueue(QueueRecord("/", "q", durable=True))
    again = DeclareQueue(QueueRecord("/", "r", durable=True))
    decision, topology = decided(more, again)
    root = MetadataRoot(topology.revision, 4, 7)
    found = decision_of(changes_of(operations_of(decision, root)), BEFORE)
    assert found is not None
    (taken,) = found[1].deltas
    assert (taken.delta.previous, taken.delta.revision) == (0, 3)
    copy = Topology()
    copy.take(taken.delta)
    assert copy.snapshot() == topology.snapshot()


def test_all_keys_are_the_content() -> None:
    decision, topology = decided()
    root = MetadataRoot(topology.revision, 4, 7)
    entries = [each.entry for each in changes_of(operations_of(decision, root)) if not each.deleted]
    content = content_of(reversed(entries))
    assert content.root == root
    copy = Topology()
    (taken,) = content.decision.deltas
    copy.take(taken.delta._replace(previous=None))
    assert set(map(repr, copy.snapshot().rows)) == set(map(repr, topology.snapshot().rows))
    assert content.decision.users == UsersChange(4, (ANN,), ())
    with pytest.raises(ValueError, match="no key with the revisions"):
        content_of(each for each in entries if each.key != ROOT)


def test_what_has_no_revisions_is_no_decision() -> None:
    decision, _ = decided()
    changes = changes_of(operations_of(decision, MetadataRoot(1, 4, 7)))
    assert decision_of([each for each in changes if each.entry.key != ROOT], BEFORE) is None


@pytest.mark.parametrize(
    "entry",
    [
        KeyValue(ROOT, b"\x01", 1, 0),
        KeyValue(ROOT, b"\x92\x01\x02", 1, 0),
        KeyValue(metadata_keys.TOPOLOGY + b"nothing/a", b"\x92\x80\xc2", 1, 0),
        KeyValue(metadata_keys.TOPOLOGY + b"queue/%2F/q", b"\x01", 1, 0),
        KeyValue(metadata_keys.TOPOLOGY + b"queue/%2F/q", b"\x92\x01\xc2", 1, 0),
        KeyValue(metadata_keys.TOPOLOGY + b"binding/%2F/q/zz", b"\x92\x80\xc2", 1, 0),
        KeyValue(metadata_keys.USERS + b"ann", b"\x80", 1, 0),
        KeyValue(metadata_keys.NODES + b"node1", b"\x01", 1, 0),
        KeyValue(metadata_keys.NODES + b"\xff", b"\x92\xa0\x90", 1, 0),
    ],
)
def test_damaged_values_are_refused(entry: KeyValue) -> None:
    root = KeyValue(ROOT, MetadataRoot(1, 4, 7).pack(), 1, 0)
    with pytest.raises(ValueError, match=r"\w"):
        decision_of([Change(False, entry), Change(False, root)], BEFORE)


@pytest.mark.parametrize("key", [("/",), (STRANGE,)])
def test_keys_of_records_come_back(key: tuple[str, ...]) -> None:
    assert row_key_of(row_key("vhost", key)) == ("vhost", key)
    assert row_key_of(row_key("global_parameter", key)) == ("global_parameter", key)
    binding: tuple[str | bytes, ...] = (*key, "x", "queue", "", "r/k", b"\x00/%")
    assert row_key_of(row_key("binding", binding)) == ("binding", binding)


def queues(count: int) -> Decision:
    rows = tuple(TopologyRow("queue", ("/", str(n)), None) for n in range(count))
    return Decision((AcceptedDelta(Delta(1, 0, rows), (False,) * count),))


@pytest.mark.parametrize("count", [1, FLAT_MAX, FLAT_MAX + 1, FLAT_MAX**2 + 1, OPERATIONS_MAX])
def test_a_transaction_has_no_more_operations_than_etcd_accepts(count: int) -> None:
    """Of those side by side, and of each that is within it, what is left of 128 or 1,024."""
    limit = 128 if count <= FLAT_MAX**2 else 1024
    operations = operations_of(queues(count), MetadataRoot(1, 1, 1))
    nested = [each for each in operations if isinstance(each, EtcdTransaction)]
    assert len(changes_of(operations)) == count + 1
    assert max((len(each.success) for each in nested), default=0) <= limit - len(operations)
    assert len(operations) <= limit
    assert max((len(each.success) for each in nested), default=0) <= NESTED_MAX


def test_a_row_that_is_put_and_dropped_is_one_operation() -> None:
    row = TopologyRow("queue", ("/", "q"), {"name": "q"})
    deltas = (
        AcceptedDelta(Delta(1, 0, (row,)), (False,)),
        AcceptedDelta(Delta(2, 1, (row._replace(row=None),)), (False,)),
    )
    put, dropped = operations_of(Decision(deltas), MetadataRoot(2, 1, 1))
    assert isinstance(put, Put)
    assert dropped == Delete(row_key("queue", ("/", "q")))


def test_users_that_have_changed() -> None:
    other = User("other", GUEST.hash, None, (), (), True)
    before = Users(1, (GUEST, other))
    after = Users(2, (replace(GUEST, enabled=False), ANN))
    change = UsersChange.between(before, after)
    assert change == UsersChange(2, (replace(GUEST, enabled=False), ANN), ("other",))
