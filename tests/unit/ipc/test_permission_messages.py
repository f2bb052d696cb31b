"""Messages about tags and permissions: there and back, and what is refused."""

import pytest

from fluxmq.auth.users import TopicPermission, VhostPermission
from fluxmq.ipc.messages import ERROR_INVALID, ERROR_MALFORMED, MessageError
from fluxmq.ipc.permission_messages import (
    PermissionClear,
    PermissionSet,
    TopicPermissionSet,
    UserHash,
    UserHashWanted,
    UserTags,
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
        PermissionSet("ann", PERMISSION),
        TopicPermissionSet("ann", TOPIC),
        UserHashWanted("ann"),
        UserHash("$argon2id$", enabled=True),
    ],
)
def test_there_and_back(value):
    assert type(value).from_body(travelled(value.to_body())) == value


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (UserTags.from_body, {"name": "ann", "tags": ["a b"]}),
        (PermissionSet.from_body, PermissionSet("a", VhostPermission("/", "(", "", "")).to_body()),
        (PermissionSet.from_body, PermissionSet("a", VhostPermission("", "", "", "")).to_body()),
        (
            TopicPermissionSet.from_body,
            TopicPermissionSet("a", TopicPermission("/", "x", "", "(")).to_body(),
        ),
        (
            TopicPermissionSet.from_body,
            TopicPermissionSet("a", TopicPermission("/", "", "", "")).to_body(),
        ),
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
        (PermissionSet.from_body, {"name": "ann"}),
        (
            PermissionSet.from_body,
            {"permission": PermissionSet("a", PERMISSION).to_body()["permission"]},
        ),
        (TopicPermissionSet.from_body, PermissionSet("ann", PERMISSION).to_body()),
        (UserHash.from_body, {"hash": "x"}),
    ],
)
def test_other_bodies_are_refused(read, body):
    with pytest.raises(MessageError) as caught:
        read(body)
    assert caught.value.code == ERROR_MALFORMED
