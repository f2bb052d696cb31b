"""Messages about tags and permissions: there and back, and what is refused."""

import pytest

from fluxmq.auth.users import TopicPermission, VhostPermission
from fluxmq.ipc.messages import ERROR_INVALID, MessageError
from fluxmq.ipc.permission_messages import (
    PERMISSION_SET,
    TOPIC_PERMISSION_SET,
    PermissionClear,
    PermissionSet,
    UserHash,
    UserTags,
    permission_set,
    topic_permission_set,
)
from tests.unit.ipc.travelling import travelled

PERMISSION = VhostPermission("/", "", "^q", ".*")
TOPIC = TopicPermission("/", "amq.topic", "^{username}", "")


@pytest.mark.parametrize(
    "value",
    [
        UserTags("ann", ("administrator", "x")),
        UserTags("ann", ()),
        PermissionClear("ann", "/"),
        PermissionClear("ann", "/", "amq.topic"),
        UserHash("$argon2id$", enabled=True),
    ],
)
def test_there_and_back(value):
    assert type(value).from_body(travelled(value.to_body())) == value


def test_permissions_there_and_back():
    given, topic = PermissionSet("ann", PERMISSION), PermissionSet("ann", TOPIC)
    assert (given.kind, topic.kind) == (PERMISSION_SET, TOPIC_PERMISSION_SET)
    assert permission_set(travelled(given.to_body())) == ("ann", PERMISSION)
    assert topic_permission_set(travelled(topic.to_body())) == ("ann", TOPIC)


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (UserTags.from_body, {"name": "ann", "tags": ["a b"]}),
        (permission_set, PermissionSet("a", VhostPermission("/", "(", "", "")).to_body()),
        (permission_set, PermissionSet("a", VhostPermission("", "", "", "")).to_body()),
        (topic_permission_set, PermissionSet("a", TopicPermission("/", "x", "", "(")).to_body()),
        (topic_permission_set, PermissionSet("a", TopicPermission("/", "", "", "")).to_body()),
    ],
)
def test_what_a_person_may_have_caused_is_marked_invalid(read, body):
    with pytest.raises(MessageError) as caught:
        read(body)
    assert caught.value.code == ERROR_INVALID


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (UserTags.from_body, {"name": "ann"}),
        (UserTags.from_body, {"name": "ann", "tags": [1]}),
        (PermissionClear.from_body, {"name": "ann"}),
        (PermissionClear.from_body, {"name": "ann", "vhost": "/", "exchange": 1}),
        (permission_set, {"name": "ann"}),
        (permission_set, {"permission": PermissionSet("a", PERMISSION).to_body()["permission"]}),
        (topic_permission_set, PermissionSet("ann", PERMISSION).to_body()),
        (UserHash.from_body, {"hash": "x"}),
    ],
)
def test_other_bodies_are_refused(read, body):
    with pytest.raises(MessageError):
        read(body)
