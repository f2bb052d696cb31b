"""Events of changes of users."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxmq.auth.user_events import user_events
from fluxmq.auth.users import TopicPermission, User, VhostPermission
from tests.unit.auth.test_hash_upgrades import upgrade

ANN = User("ann", "hash", None, (), (), enabled=True)
UPGRADE = upgrade("ann")
IMPORTED = replace(ANN, hash=UPGRADE.verified)
PERMITTED = replace(ANN, permissions=(VhostPermission("/", "c", "w", "r"),))
RESTRICTED = replace(ANN, topic_permissions=(TopicPermission("/", "x", "w", "r"),))
PERMISSION = {"user": "ann", "vhost": "/", "configure": "c", "write": "w", "read": "r"}
TOPICS = {"user": "ann", "vhost": "/", "exchange": "x"}


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        ([], [ANN], [("user.created", {"name": "ann"})]),
        ([ANN], [], [("user.deleted", {"name": "ann"})]),
        ([ANN], [ANN], []),
        ([ANN], [replace(ANN, enabled=False)], []),
        ([ANN], [replace(ANN, hash="other")], [("user.password.changed", {"name": "ann"})]),
        ([IMPORTED], [replace(ANN, hash=UPGRADE.hash)], []),
        ([ANN], [replace(ANN, tags=("a",))], [("user.tags.set", {"name": "ann", "tags": ["a"]})]),
        ([ANN], [PERMITTED], [("permission.created", PERMISSION)]),
        ([], [PERMITTED], [("user.created", {"name": "ann"}), ("permission.created", PERMISSION)]),
        ([PERMITTED], [ANN], [("permission.deleted", {"user": "ann", "vhost": "/"})]),
        (
            [ANN],
            [RESTRICTED],
            [("topic.permission.created", {**TOPICS, "write": "w", "read": "r"})],
        ),
        ([RESTRICTED], [ANN], [("topic.permission.deleted", TOPICS)]),
    ],
)
def test_changes_are_events(
    before: list[User], after: list[User], events: list[tuple[str, dict[str, Any]]]
) -> None:
    assert list(user_events(before, after)) == events
