"""Keys that mirror queues, in policies and in arguments: valid values, and RabbitMQ's texts."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.routing.topology.arguments import check_queue
from fluxmq.routing.topology.changes import AddVhost, SetPolicy
from fluxmq.routing.topology.effective import effective, explain, policy_definition
from fluxmq.routing.topology.policies import check_policy
from fluxmq.routing.topology.records import Policy, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology

WHOLE: dict[str, Any] = {
    "ha-mode": "exactly",
    "ha-params": 2,
    "ha-sync-mode": "automatic",
    "ha-sync-batch-size": 5000,
    "ha-promote-on-failure": "when-synced",
    "ha-promote-on-shutdown": "always",
}


def refused(definition: dict[str, Any], *, operator: bool = False) -> str:
    try:
        check_policy(Policy("/", "p", "^q", definition=definition, operator=operator))
    except Refusal as refusal:
        return refusal.text if refusal.code == 406 else f"code {refusal.code}"
    return ""


@pytest.mark.parametrize(
    "definition",
    [
        WHOLE,
        {"ha-mode": "all"},
        {"ha-mode": "all", "max-length": 3},
        {"ha-mode": "exactly", "ha-params": 1},
        {"ha-mode": "nodes", "ha-params": ["rabbit@nodeA", "rabbit@nodeB"]},
        {"ha-mode": "all", "ha-sync-mode": "manual", "ha-promote-on-shutdown": "when-synced"},
    ],
)
def test_definitions_that_mirror(definition: dict[str, Any]) -> None:
    """S4-08, S4-11, S4-14, S4-15, S4-58."""
    assert refused(definition) == ""


WITHOUT_MODE = (
    "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
)


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"ha-params": 2}, WITHOUT_MODE),
        ({"ha-sync-mode": "automatic", "max-length": 1}, WITHOUT_MODE),
        ({"ha-sync-batch-size": 4}, WITHOUT_MODE),
        ({"ha-promote-on-shutdown": "always"}, WITHOUT_MODE),
        ({"ha-promote-on-failure": "always"}, WITHOUT_MODE),
        ({"ha-mode": "some"}, '<<"some">> is not a valid ha-mode value'),
        ({"ha-mode": 1}, "1 is not a valid ha-mode value"),
        ({"ha-mode": ["all"]}, '[<<"all">>] is not a valid ha-mode value'),
        ({"ha-mode": "all", "ha-params": 2}, 'ha-mode="all" does not take parameters'),
        ({"ha-mode": "exactly"}, 'ha-mode="exactly" takes an integer, none given'),
        (
            {"ha-mode": "exactly", "ha-params": 0},
            'ha-mode="exactly" takes an integer, 0 given',
        ),
        (
            {"ha-mode": "exactly", "ha-params": "2"},
            'ha-mode="exactly" takes an integer, <<"2">> given',
        ),
        (
            {"ha-mode": "exactly", "ha-params": True},
            'ha-mode="exactly" takes an integer, true given',
        ),
        ({"ha-mode": "nodes"}, 'ha-mode="nodes" takes a list, none given'),
        ({"ha-mode": "nodes", "ha-params": 2}, 'ha-mode="nodes" takes a list, 2 given'),
        ({"ha-mode": "nodes", "ha-params": "a"}, 'ha-mode="nodes" takes a list, <<"a">> given'),
        ({"ha-mode": "nodes", "ha-params": []}, 'ha-mode="nodes" list must be non-empty'),
        (
            {"ha-mode": "nodes", "ha-params": ["a", 1, None]},
            'ha-mode="nodes" takes a list of strings, [1,null] was not a string',
        ),
        (
            {"ha-mode": "all", "ha-sync-mode": "sometimes"},
            'ha-sync-mode must be "manual" or "automatic", got <<"sometimes">>',
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 0},
            "ha-sync-batch-size takes an integer greater than 0, 0 given",
        ),
        (
            {"ha-mode": "all", "ha-promote-on-shutdown": "never"},
            'ha-promote-on-shutdown must be "always" or "when-synced", got <<"never">>',
        ),
        (
            {"ha-mode": "all", "ha-promote-on-failure": True},
            'ha-promote-on-failure must be "always" or "when-synced", got true',
        ),
        ({"ha-mode": "all", "max-length": -1}, "-1 is not a valid maximum length"),
    ],
)
def test_definitions_that_are_refused(definition: dict[str, Any], text: str) -> None:
    """S4-08: with the texts of RabbitMQ 3.10."""
    assert refused(definition) == text


def test_operators_do_not_mirror() -> None:
    text = '[{<<"ha-mode">>,<<"all">>}] are not recognised policy settings'
    assert refused({"ha-mode": "all"}, operator=True) == text


def test_arguments_are_checked_as_policies_are() -> None:
    """S3-20: those of classic queues; others have keys of that name without a meaning."""
    check_queue(QueueRecord("/", "q", durable=True, arguments=WHOLE))
    check_queue(QueueRecord("/", "q", "quorum", durable=True, arguments={"ha-mode": "some"}))
    with pytest.raises(Refusal) as refusal:
        check_queue(QueueRecord("/", "q", durable=True, arguments={"ha-mode": "exactly"}))
    assert refusal.value.code == 406
    assert refusal.value.text == (
        "invalid arg 'ha-params' for queue 'q' in vhost '/': "
        'ha-mode="exactly" takes an integer, none given'
    )


def test_what_is_effective_has_the_keys_on_classic_queues() -> None:
    """S4-21: with the policy or argument that says so."""
    topology = Topology()
    mirrored = Policy("/", "ha", "", definition={"ha-mode": "all"})
    topology.apply_all([AddVhost(Vhost("/")), SetPolicy(mirrored)])
    classic = QueueRecord("/", "q", durable=True)
    assert effective(topology, classic) == {"ha-mode": "all"}
    assert policy_definition(topology, classic) == {"ha-mode": "all"}
    given = QueueRecord("/", "q", durable=True, arguments={"ha-mode": "exactly", "ha-params": 2})
    assert effective(topology, given) == {"ha-mode": "exactly", "ha-params": 2}
    (first, _) = explain(topology, given)
    assert tuple(first) == ("ha-mode", "exactly", "argument", "policy 'ha' says all")
    quorum = QueueRecord("/", "q", "quorum", durable=True, arguments={"ha-mode": "exactly"})
    assert effective(topology, quorum) == {}
