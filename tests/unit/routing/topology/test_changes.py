"""Changes and records: to plain values and back, and what is no change."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from fluxmq.model.properties import Timestamp
from fluxmq.routing.topology import changes
from fluxmq.routing.topology.changes import Change, pack, unpack
from fluxmq.routing.topology.fields import DESCRIPTION_BYTES_MAX, PRIORITY_MAX, TAGS_MAX
from fluxmq.routing.topology.names import NAME_BYTES_MAX, internal_name, public_name
from fluxmq.routing.topology.records import (
    Binding,
    Exchange,
    GlobalParameter,
    Policy,
    QueueRecord,
    Record,
    Vhost,
    kind_of,
    record_of,
    row_of,
)
from fluxmq.routing.topology.values import TABLE_BYTES_MAX

ARGUMENTS = {
    "d": Decimal("1.50"),
    "l": [1, [True, None]],
    "m": {"a": b"\xff"},
    "t": Timestamp(7),
    "x-message-ttl": 5,
}
RECORDS: list[Record] = [
    GlobalParameter("tags", '{"a":[1,null]}'),
    Vhost("v", {"max-queues": 5}, "quorum", ("a", "b"), "text"),
    Vhost("/"),
    Exchange("/", "e", "topic", True, True, True, ARGUMENTS),
    Exchange("/", ""),
    QueueRecord(
        "/", "q", "classic", False, True, True, ARGUMENTS, "connection-1", "local-3", "client"
    ),
    QueueRecord("/", "é" * 100),
    Binding("/", "e", "q", "queue", "a.#", ARGUMENTS),
    Binding("/", "e", "f", "exchange"),
    Policy("/", "p", "^a", "queues", -5, {"max-length": 5}, True),
]
CHANGES: list[Change] = [
    changes.DeclareExchange(Exchange("/", "e", arguments=ARGUMENTS)),
    changes.DeleteExchange("/", "e", if_unused=True),
    changes.DeclareQueue(QueueRecord("/", "q", arguments=ARGUMENTS)),
    changes.DeleteQueue("/", "q", "me", by_broker=True),
    changes.DeleteQueue("/", "q"),
    changes.Bind(Binding("/", "e", "q", arguments=ARGUMENTS), "me"),
    changes.Bind(Binding("/", "e", "q")),
    changes.Unbind(Binding("/", "e", "q"), "me"),
    changes.SetPolicy(Policy("/", "p", "^a", definition={"max-length": 5})),
    changes.ClearPolicy("/", "p", operator=True),
    changes.AddVhost(Vhost("v")),
    changes.DeleteVhost("v"),
    changes.AddEventExchange(),
    changes.SetVhostLimits("v", {"max-queues": 5}),
    changes.SetUserLimits("u", {"max-channels": 5}),
    changes.ClearUserLimits("u", "max-channels"),
    changes.SetGlobalParameter(GlobalParameter("cluster_name", '"a"')),
    changes.ClearGlobalParameter("cluster_name"),
    changes.DropOwner("me"),
    changes.DropGroup("memory-1"),
    changes.QueueUnused("/", "q"),
    changes.MigrateQueue("/", "q", "hot", "cold", "0a"),
    changes.MigrateQueue("/", "q", "local-0@node1", "cold", "0a", "quorum"),
    changes.AbortMigration("/", "q"),
    changes.FinishMigration("/", "q", "0a"),
]


@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_changes_come_back(change: Change) -> None:
    assert repr(unpack(msgpack.unpackb(msgpack.packb(pack(change))))) == repr(change)


def test_every_change_is_among_them() -> None:
    named = {pack(change)[0] for change in CHANGES}
    assert named == set(changes._CHANGES)


@pytest.mark.parametrize("record", RECORDS, ids=repr)
def test_records_come_back(record: Record) -> None:
    row = msgpack.unpackb(msgpack.packb(row_of(record)))
    key = msgpack.unpackb(msgpack.packb(list(record.key)))
    again = record_of(kind_of(record), tuple(key), row)
    assert again == record
    assert hash(again) == hash(record)
    assert again.key == record.key


def test_fields_with_a_default_may_be_missing() -> None:
    assert record_of("queue", ("/", "q"), {"vhost": "/", "name": "q"}) == QueueRecord("/", "q")


LONG = "a" * (NAME_BYTES_MAX + 1)
WRONG_QUEUES: list[dict[str, object]] = [
    {"vhost": ""},
    {"name": LONG},
    {"name": b"q"},
    {"name": "\ud800"},
    {"type": ""},
    {"durable": 1},
    {"arguments": []},
    {"arguments": ["l"]},
    {"arguments": {"a": ["x"]}},
    {"arguments": {1: 2}},
    {"arguments": {"a": b"x" * TABLE_BYTES_MAX}},
    {"origin": "elsewhere"},
    {"owner": None},
    {"zork": 1},
]


@pytest.mark.parametrize(
    "packed",
    [
        None,
        [],
        ["bind"],
        ["nothing", {}],
        [5, {}],
        ["drop_owner", []],
        ["drop_owner", {}],
        ["drop_owner", {"owner": 5}],
        ["drop_owner", {"owner": "a", "more": 1}],
        ["bind", {"asker": None}],
        ["bind", {"binding": 5, "asker": None}],
        ["bind", {"binding": {"vhost": "/", "source": "e", "destination": "q"}, "asker": 5}],
        ["bind", {"binding": {"vhost": "/", "source": "e", "destination": "q"}, "more": 5}],
        ["bind", {"binding": {"vhost": "/", "source": "e"}, "asker": None}],
        ["declare_queue", {"queue": {"vhost": "/", "name": "q"}, "asker": "me"}],
        ["delete_queue", {"vhost": "/", "name": "q", "asker": 5}],
        *(
            ["declare_queue", {"queue": {"vhost": "/", "name": "q", **wrong}}]
            for wrong in WRONG_QUEUES
        ),
        [
            "bind",
            {"binding": {"vhost": "/", "source": "e", "destination": "q", "destination_kind": "x"}},
        ],
        *(
            ["set_policy", {"policy": {"vhost": "/", "name": "p", "pattern": "", **wrong}}]
            for wrong in (
                {"priority": True},
                {"priority": 1.5},
                {"priority": PRIORITY_MAX + 1},
                {"pattern": "a" * (DESCRIPTION_BYTES_MAX + 1)},
                {"operator": None},
            )
        ),
        *(
            ["add_vhost", {"vhost": {"name": "v", **wrong}}]
            for wrong in (
                {"tags": "a"},
                {"tags": [5]},
                {"tags": ["a"] * (TAGS_MAX + 1)},
                {"default_queue_type": "zork"},
                {"description": "a" * (DESCRIPTION_BYTES_MAX + 1)},
            )
        ),
    ],
)
def test_what_is_no_change(packed: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is for a log
        unpack(packed)


@pytest.mark.parametrize(
    ("kind", "key", "row"),
    [
        ("zork", ("/",), {"name": "/"}),
        ("vhost", ("other",), {"name": "/"}),
        ("vhost", ("/",), None),
        ("queue", ("/", "q"), {"vhost": "/"}),
    ],
)
def test_what_is_no_record(kind: str, key: tuple[str, ...], row: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        record_of(kind, key, row)


@pytest.mark.parametrize(
    ("vhost", "name", "internal"),
    [
        ("/", "orders", "orders"),
        ("/", "$dlq/orders", "$dlq/orders"),
        ("v", "orders", "v\x1forders"),
        ("/", "a\x1fb", "/\x1fa\x1fb"),
        ("a", "b\x1fc", "a\x1fb\x1fc"),
        ("/", "", ""),
    ],
)
def test_internal_names(vhost: str, name: str, internal: str) -> None:
    assert internal_name(vhost, name) == internal
    assert public_name(internal) == (vhost, name)
    assert QueueRecord(vhost, name).internal_name == internal
