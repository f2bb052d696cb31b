"""What single queues of the settings say of their replication, and what their group makes of it."""

from __future__ import annotations

import pytest

from fluxmq.replication.queue_plans import QueuePlans
from fluxmq.settings.plans import GroupPlans, UnknownGroup
from tests.unit.settings.test_plans import THREE, node


def queue_plans(raft: dict[str, object], **modes: str) -> QueuePlans:
    """A queue of each name in the group ``default``, with a mode of its own, or "" for the group's."""
    queues = [
        {
            "name": name,
            "replication": {"enabled": True} | ({"distribution_mode": mode} if mode else {}),
        }
        for name, mode in modes.items()
    ]
    settings = node("a", THREE, raft, queues=queues)
    return QueuePlans(settings, GroupPlans(settings))


@pytest.mark.parametrize(
    ("group", "queues", "read"),
    [
        ("forward", {}, False),
        ("forward", {"one": "", "two": "forward"}, False),
        ("forward", {"one": "", "two": "replicate"}, True),
        ("replicate", {}, True),
        ("replicate", {"one": "forward"}, True),  # clients may declare others
    ],
)
def test_copies_are_read_as_soon_as_one_queue_of_the_group_wants_it(
    group: str, queues: dict[str, str], read: bool
) -> None:
    assert queue_plans({"distribution_mode": group}, **queues).reads_copies("default") is read


def test_what_another_groups_queue_wants_is_its_own_affair() -> None:
    raft: dict[str, object] = {"auto_provision_groups": True}
    plans = queue_plans(raft, two="replicate")
    assert plans.reads_copies("default")
    assert not plans.reads_copies("invoices")
    with pytest.raises(UnknownGroup):
        queue_plans({"auto_provision_groups": False}).reads_copies("invoices")
