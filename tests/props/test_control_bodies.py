"""Whatever stands in a body of the control protocol, reading it gives a message or a MessageError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.control.messages import MessageError
from fluxmq.control.permission_messages import (
    PermissionClear,
    UserHash,
    UserTags,
    permission_set,
    topic_permission_set,
)
from fluxmq.control.row_messages import (
    CloseConnections,
    Count,
    Listed,
    ListWanted,
    Page,
    QueueOrder,
    RowsWanted,
)
from fluxmq.control.topology_messages import (
    TopologyChanged,
    TopologyPart,
    change_body,
    pack_set,
    read_sets,
)
from fluxmq.control.user_messages import UserAdd, UserListing, Users
from fluxmq.routing.topology.changes import AddVhost, Bind, DeclareQueue, DropOwner, SetPolicy
from fluxmq.routing.topology.records import Binding, Policy, Queue, Vhost

CHANGES = [
    AddVhost(Vhost("b", {"max-queues": 1}, tags=("x",))),
    DeclareQueue(Queue("/", "q", arguments={"x": [1, {"y": None}]})),
    Bind(Binding("/", "s", "d", arguments={"k": b"\xff"}), asker="0.1.1"),
    SetPolicy(Policy("/", "p", ".*", definition={"max-length": 1})),
    DropOwner("0.1.1"),
]
ROW = ["queue", ["/", "q"], {"name": "q"}]
PERMISSION = {"vhost": "/", "exchange": "x", "configure": "", "write": "", "read": ""}
USER = {
    "name": "ann",
    "hash": "x",
    "scram": None,
    "publish": [],
    "subscribe": [],
    "enabled": True,
    "tags": ["a"],
    "permissions": [PERMISSION],
    "topic_permissions": [PERMISSION],
}
READERS = {
    "sets": (read_sets, change_body([pack_set(CHANGES)])),
    "part": (TopologyPart.from_body, TopologyPart(0, 1, ()).to_body() | {"rows": [ROW]}),
    "changed": (
        TopologyChanged.from_body,
        {"revision": 1, "results": [None, [406, "x"]], "unconfirmed": ["a"]},
    ),
    "wanted": (RowsWanted.from_body, RowsWanted("queues", ("a",), 1, (("/", "q"),)).to_body()),
    "page": (Page.from_body, {"rows": [{"a": 1}], "next": 1}),
    "list": (ListWanted.from_body, ListWanted("queues", ("a",), "/", (1, 2)).to_body()),
    "listed": (Listed.from_body, {"rows": [{}], "place": [1], "missing": ["a"]}),
    "close": (CloseConnections.from_body, CloseConnections("1", "/", "x").to_body()),
    "order": (QueueOrder.from_body, QueueOrder("/", "q").to_body()),
    "count": (Count.from_body, {"count": 1}),
    "tags": (UserTags.from_body, {"name": "a", "tags": ["b"]}),
    "set": (permission_set, {"name": "a", "permission": PERMISSION}),
    "topic set": (topic_permission_set, {"name": "a", "permission": PERMISSION}),
    "clear": (PermissionClear.from_body, {"name": "a", "vhost": "/", "exchange": "x"}),
    "hash": (UserHash.from_body, {"hash": "a", "enabled": True}),
    "add": (UserAdd.from_body, {"user": USER}),
    "users": (Users.from_body, {"revision": 1, "users": [USER]}),
    "listing": (UserListing.from_body, {"revision": 1, "users": [USER | {"scram": True}]}),
}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(["queue", "declare_queue", "bind", "l", "d", "t", "(", "x" * 300]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def changed(value, path, new):
    """The value with something else at one of its places."""
    if not path or not isinstance(value, list | dict) or not value:
        return new
    step, *rest = path
    if isinstance(value, list):
        index = step % len(value)
        return [changed(e, rest, new) if n == index else e for n, e in enumerate(value)]
    name = sorted(value)[step % len(value)]
    return {key: changed(e, rest, new) if key == name else e for key, e in value.items()}


@pytest.mark.parametrize("name", READERS)
@given(path=st.lists(st.integers(0, 8), max_size=6), new=values)
def test_only_message_errors_escape(name, path, new):
    read, body = READERS[name]
    broken = changed(body, path, new)
    if not isinstance(broken, dict):
        broken = {"sets": broken}
    problem = None
    try:
        read(broken)
    except MessageError as error:
        problem = str(error)
    assert problem is None or problem
