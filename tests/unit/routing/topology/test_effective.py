"""Policies: what they may be, which applies, and what a queue's settings come to."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from fluxmq.queues.config import QueueConfig
from fluxmq.routing.topology.arguments import MILLISECONDS_MAX
from fluxmq.routing.topology.changes import (
    AddVhost,
    Change,
    DeclareExchange,
    DeclareQueue,
    SetPolicy,
)
from fluxmq.routing.topology.effective import (
    Explained,
    effective,
    explain,
    policy_definition,
    policy_of,
)
from fluxmq.routing.topology.policies import check_policy
from fluxmq.routing.topology.queue_config import COUNT_MAX, queue_settings
from fluxmq.routing.topology.records import Exchange, Policy, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology


def policy(name: str, definition: dict[str, Any], **values: Any) -> SetPolicy:
    return SetPolicy(Policy("/", name, values.pop("pattern", ""), definition=definition, **values))


def made(*changes: Change) -> Topology:
    topology = Topology()
    topology.apply_all([AddVhost(Vhost("/")), *changes])
    return topology


def _refused(**values: Any) -> str:
    given = {"pattern": "^q", "definition": {"max-length": 1}, **values}
    try:
        check_policy(Policy("/", "p", **given))
    except Refusal as refusal:
        return refusal.text if refusal.code == 406 else f"code {refusal.code}"
    return ""


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        # As RabbitMQ 3.10.8 answered.
        ({}, "no policy provided"),
        ({"zork": 1}, '[{<<"zork">>,1}] are not recognised policy settings'),
        ({"max-length": 1, "zork": 2}, '[{<<"zork">>,2}] are not recognised policy settings'),
        ({"max-priority": 5}, '[{<<"max-priority">>,5}] are not recognised policy settings'),
        (
            {"single-active-consumer": True},
            '[{<<"single-active-consumer">>,true}] are not recognised policy settings',
        ),
        ({"max-length": -1}, "-1 is not a valid maximum length"),
        ({"max-length": "a"}, '<<"a">> is not a valid maximum length'),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"overflow": "zork"}, '<<"zork">> is not a valid overflow value'),
        ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
        ({"dead-letter-routing-key": 3}, "3 is not a valid dead letter routing key"),
        ({"dead-letter-strategy": "zork"}, '<<"zork">> is not a valid dead letter strategy'),
        ({"delivery-limit": "a"}, '<<"a">> is not a valid delivery limit'),
        ({"queue-mode": "zork"}, '<<"zork">> is not a valid queue-mode value'),
        ({"queue-version": 4}, "4 is not a valid queue-version value"),
        ({"alternate-exchange": 1}, "1 is not a valid alternate exchange name"),
        ({"stream-max-segment-size-bytes": -4}, "-4 is not a valid segment size"),
        ({"max-in-memory-length": -3}, "-3 is not a valid maximum memory in bytes"),
        ({"consumer-timeout": 0}, "0 is not a valid consumer timeout"),
        ({"consumer-timeout": 1 << 50}, "1125899906842624 is not a valid consumer timeout"),
        (
            {"stream-max-segment-size-bytes": 3 * 10**9 + 1},
            "3000000001 is not a valid segment size",
        ),
        ({"deliver-before-sync": 1}, "1 is not a valid deliver-before-sync value"),
        # Where RabbitMQ takes or breaks on what is no value.
        ({"max-age": "zork"}, '<<"zork">> is not a valid max age'),
        ({"max-length": True}, "true is not a valid maximum length"),
        ({"queue-version": True}, "true is not a valid queue-version value"),
        ({"delivery-limit": -2}, "-2 is not a valid delivery limit"),
        ({"max-length": None}, "null is not a valid maximum length"),
        ({"max-length": 1 << 63}, "9223372036854775808 is not a valid maximum length"),
    ],
)
def test_definitions_that_are_refused(definition: dict[str, Any], text: str) -> None:
    assert _refused(definition=definition) == text


ALL: dict[str, Any] = {
    "alternate-exchange": "a",
    "dead-letter-exchange": "d",
    "dead-letter-routing-key": "k",
    "dead-letter-strategy": "at-least-once",
    "message-ttl": 0,
    "expires": 1,
    "max-length": 0,
    "max-length-bytes": 0,
    "max-in-memory-length": 0,
    "max-in-memory-bytes": 0,
    "delivery-limit": -1,
    "consumer-timeout": 1,
    "queue-mode": "lazy",
    "queue-version": 2,
    "overflow": "reject-publish-dlx",
    "max-age": "1D",
    "stream-max-segment-size-bytes": 1,
    "queue-leader-locator": "balanced",
    "queue-master-locator": "min-masters",
    "deliver-before-sync": True,
}


def test_every_key_is_taken() -> None:
    """S4-24: the version of classic queues among them."""
    assert _refused(definition=ALL) == ""


@pytest.mark.parametrize("key", sorted(ALL))
def test_operators_limit_and_do_nothing_else(key: str) -> None:
    limits = {
        "message-ttl",
        "expires",
        "max-length",
        "max-length-bytes",
        "max-in-memory-length",
        "max-in-memory-bytes",
        "delivery-limit",
        "consumer-timeout",
    }
    refused = _refused(definition={key: ALL[key]}, operator=True)
    assert (not refused) is (key in limits)
    assert not refused or refused.endswith("are not recognised policy settings")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"pattern": "("}, "pattern should be regular expression but is invalid: "),
        ({"apply_to": "zork"}, "apply-to 'zork' unrecognised; should be 'exchanges', 'queues', "),
        (
            {"definition": {"dead-letter-exchange": "\ud800"}},
            "a policy's definition has values of ",
        ),
        ({"definition": {"overflow": "x" * (129 << 10)}}, "a policy's definition has more than "),
    ],
)
def test_policies_that_are_refused(values: dict[str, Any], text: str) -> None:
    assert _refused(**values).startswith(text)


def test_the_policy_of_highest_priority_applies_of_equals_the_first_by_name() -> None:
    topology = made(
        DeclareQueue(QueueRecord("/", "q1")),
        policy("c", {"max-length": 3}, priority=1),
        policy("b", {"max-length": 2}, priority=1, pattern="^q"),
        policy("a", {"max-length": 1}),
        policy("z", {"max-length": 9}, priority=9, pattern="^r"),
        policy("o", {"max-length": 5}, priority=99, operator=True),
    )
    queue = topology.queue("/", "q1")
    assert queue is not None
    found = policy_of(topology, queue)
    assert found is not None
    assert found.name == "b"
    assert policy_of(topology, QueueRecord("/", "x")) == Policy(
        "/", "c", "", priority=1, definition={"max-length": 3}
    )


@pytest.mark.parametrize(
    ("apply_to", "applies"),
    [
        ("all", "ecqs"),
        ("exchanges", "e"),
        ("queues", "cqs"),
        ("classic_queues", "c"),
        ("quorum_queues", "q"),
        ("streams", "s"),
    ],
)
def test_what_a_policy_applies_to(apply_to: str, applies: str) -> None:
    topology = made(policy("p", {"max-length": 1}, apply_to=apply_to))
    things: dict[str, Exchange | QueueRecord] = {
        "e": Exchange("/", "x"),
        "c": QueueRecord("/", "x"),
        "q": QueueRecord("/", "x", "quorum"),
        "s": QueueRecord("/", "x", "stream"),
    }
    assert "".join(name for name, to in things.items() if policy_of(topology, to)) == applies


@pytest.mark.parametrize(
    ("argument", "by_policy", "by_operator", "wanted"),
    [
        (10, 20, 30, 10),
        (20, 10, 30, 10),
        (30, 20, 10, 10),
        (None, 20, 10, 10),
        (None, 10, 20, 10),
        (None, None, 10, 10),
        (10, None, None, 10),
        (0, 5, None, 0),
    ],
)
@pytest.mark.parametrize("key", ["max-length", "message-ttl"])
def test_of_limits_the_smallest_counts(
    key: str, argument: int | None, by_policy: int | None, by_operator: int | None, wanted: int
) -> None:
    topology = made()
    if by_policy is not None:
        topology.apply(policy("p", {key: by_policy}))
    if by_operator is not None:
        topology.apply(policy("o", {key: by_operator}, operator=True))
    arguments = {} if argument is None else {f"x-{key}": argument}
    assert effective(topology, QueueRecord("/", "q", arguments=arguments)) == {key: wanted}


def test_no_delivery_limit_is_larger_than_any() -> None:
    topology = made(policy("p", {"delivery-limit": 5}))
    given = {"x-delivery-limit": -1}
    assert effective(topology, QueueRecord("/", "q", "quorum", arguments=given)) == {
        "delivery-limit": 5
    }


def test_ages_are_compared_as_times() -> None:
    topology = made(policy("p", {"max-age": "2h"}))
    for given, wanted in (("100m", "100m"), ("1D", "2h")):
        queue = QueueRecord("/", "q", "stream", arguments={"x-max-age": given})
        assert effective(topology, queue) == {"max-age": wanted}


def test_of_everything_else_the_argument_counts() -> None:
    definition = {"overflow": "reject-publish", "dead-letter-exchange": "p", "queue-mode": "lazy"}
    topology = made(policy("p", definition))
    queue = QueueRecord(
        "/", "q", arguments={"x-overflow": "drop-head", "unknown": 1, "x-queue-type": "classic"}
    )
    assert effective(topology, queue) == {
        "overflow": "drop-head",
        "dead-letter-exchange": "p",
        "queue-mode": "lazy",
    }


def test_what_a_type_cannot_have_is_left_out() -> None:
    topology = made(policy("p", ALL))
    for kind, count in (("classic", 12), ("quorum", 13), ("stream", 4)):
        found = effective(topology, QueueRecord("/", "q", kind))
        assert len(found) == count, found
    assert policy_definition(topology, Exchange("/", "e")) == {"alternate-exchange": "a"}


def test_a_policy_changes_what_is_effective_at_once() -> None:
    topology = made(DeclareQueue(QueueRecord("/", "q")), DeclareExchange(Exchange("/", "e")))
    copy = Topology()
    copy.take(topology.snapshot())
    queue = QueueRecord("/", "q")
    assert effective(copy, queue) == {}
    copy.take(topology.apply(policy("p", {"max-length": 5}, pattern="^q$")))
    assert effective(copy, queue) == {"max-length": 5}
    copy.take(topology.apply(policy("p", {"max-length": 5}, pattern="^r$")))
    assert effective(copy, queue) == {}


def test_explanations_say_who_prevailed_over_whom() -> None:
    topology = made(
        policy("p", {"max-length": 10, "overflow": "reject-publish", "expires": 5}),
        policy("o", {"max-length": 7}, operator=True),
    )
    queue = QueueRecord("/", "q", arguments={"x-max-length": 9, "x-overflow": "drop-head"})
    assert explain(topology, queue) == [
        Explained("expires", "5", "policy 'p'", ""),
        Explained("max-length", "7", "operator policy 'o'", "argument says 9; policy 'p' says 10"),
        Explained("overflow", "drop-head", "argument", "policy 'p' says reject-publish"),
    ]
    topology.apply(policy("p", {"alternate-exchange": "a"}))
    told = Exchange("/", "e", arguments={"alternate-exchange": "b"})
    assert explain(topology, told) == [
        Explained("alternate-exchange", "b", "argument", "policy 'p' says a")
    ]
    assert policy_definition(topology, queue) == {"max-length": 7}


SETTINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("classic", {"message-ttl": 5}, {"message_ttl": 5000}),
    ("classic", {"message-ttl": 0}, {"message_ttl": 1}),
    ("classic", {"expires": 5}, {"expires": 5000}),
    ("classic", {"max-length": 5, "max-length-bytes": 6}, {"max_length": 5, "max_length_bytes": 6}),
    ("classic", {"max-length": 0}, {"max_length": 1, "keeps_none": True}),
    ("quorum", {"max-length-bytes": 0}, {"max_length_bytes": 1, "keeps_none": True}),
    ("stream", {"max-length-bytes": 0}, {"retention_bytes": 1}),
    ("classic", {"max-length": 1 << 62}, {"max_length": COUNT_MAX}),
    ("stream", {"max-length-bytes": 6}, {"retention_bytes": 6}),
    ("stream", {"max-age": "2h"}, {"retention_age": 7_200_000_000}),
    ("classic", {"overflow": "drop-head"}, {"overflow": 0}),
    ("classic", {"overflow": "reject-publish"}, {"overflow": 1}),
    ("classic", {"overflow": "reject-publish-dlx"}, {"overflow": 2}),
    ("quorum", {"delivery-limit": 2}, {"delivery_limit": 3}),
    ("quorum", {"delivery-limit": -1}, {"delivery_limit": 0}),
    ("quorum", {"delivery-limit": 1 << 62}, {"delivery_limit": COUNT_MAX}),
    ("classic", {"consumer-timeout": 5}, {"visibility_timeout": 5000}),
    ("quorum", {"max-in-memory-length": 5}, {"max_in_memory_length": 5}),
    ("quorum", {"max-in-memory-length": 0}, {"max_in_memory_length": 1}),
    ("quorum", {"max-in-memory-bytes": 5}, {"max_in_memory_bytes": 5}),
    ("quorum", {"max-in-memory-bytes": 1 << 62}, {"max_in_memory_bytes": COUNT_MAX}),
    ("stream", {"stream-max-segment-size-bytes": 5}, {"max_segment_bytes": 5}),
    ("stream", {"stream-max-segment-size-bytes": 0}, {"max_segment_bytes": 1}),
    ("classic", {"single-active-consumer": True}, {"single_active_consumer": True}),
    ("classic", {"max-priority": 7}, {"max_priority": 7}),
    (
        "classic",
        {"dead-letter-exchange": ""},
        {
            "dead_letter": True,
            "dead_letter_exchange": "",
            "dead_letter_routing_key": None,
            "dead_letter_at_least_once": False,
        },
    ),
    (
        "quorum",
        {
            "dead-letter-exchange": "d",
            "dead-letter-routing-key": "k",
            "dead-letter-strategy": "at-least-once",
            "overflow": "reject-publish",
        },
        {
            "dead_letter": True,
            "dead_letter_exchange": "d",
            "dead_letter_routing_key": "k",
            "dead_letter_at_least_once": True,
            "overflow": 1,
        },
    ),
    (
        "quorum",
        {"dead-letter-exchange": "d", "dead-letter-strategy": "at-least-once"},
        {
            "dead_letter": True,
            "dead_letter_exchange": "d",
            "dead_letter_routing_key": None,
            "dead_letter_at_least_once": False,
        },
    ),
    ("classic", {"dead-letter-routing-key": "k"}, {}),
    ("classic", {"queue-mode": "lazy", "queue-version": 2}, {}),
]


@pytest.mark.parametrize(("kind", "given", "wanted"), SETTINGS)
def test_settings_as_the_engine_has_them(
    kind: str, given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    queue = QueueRecord("/", "q", kind, durable=True)
    plain, found = queue_settings(queue, {}), queue_settings(queue, given)
    assert found == {**plain, **wanted}
    assert QueueConfig("q", **found) == QueueConfig("q", **{**plain, **wanted})


@pytest.mark.parametrize(("kind", "number"), [("classic", 0), ("quorum", 1), ("stream", 2)])
def test_a_queue_without_arguments_is_limited_by_nothing_but_deliveries(
    kind: str, number: int
) -> None:
    config = QueueConfig("q", **queue_settings(QueueRecord("/", "q", kind), {}, 60_000_000))
    assert config.type == number
    assert config.visibility_timeout == 60_000_000
    assert config.delivery_limit == (21 if kind == "quorum" else 0)
    assert (config.max_depth, config.message_ttl, config.max_length, config.expires) == (0, 0, 0, 0)
    assert not config.dead_letter


def test_the_longest_timeout_is_one_that_the_engine_takes() -> None:
    given = {"consumer-timeout": MILLISECONDS_MAX}
    config = QueueConfig("q", **queue_settings(QueueRecord("/", "q"), given))
    assert config.visibility_timeout == MILLISECONDS_MAX * 1000


LIKE_MAX_LENGTH = ["consumer-timeout", "max-in-memory-length", "max-in-memory-bytes"]


@pytest.mark.parametrize("key", LIKE_MAX_LENGTH)
def test_the_smallest_limit_counts_for_how_a_queue_is_kept_too(key: str) -> None:
    topology = made(policy("p", {key: 10}), policy("o", {key: 7}, operator=True))
    for given, wanted in ((9, 7), (5, 5)):
        queue = QueueRecord("/", "q", "quorum", arguments={f"x-{key}": given})
        assert effective(topology, queue) == {key: wanted}


def test_the_size_of_segments_is_the_arguments_before_the_policys() -> None:
    key = "stream-max-segment-size-bytes"
    topology = made(policy("p", {key: 10}))
    stream = QueueRecord("/", "q", "stream")
    assert effective(topology, stream) == {key: 10}
    assert effective(topology, replace(stream, arguments={f"x-{key}": 20})) == {key: 20}
    assert effective(topology, QueueRecord("/", "q", "quorum")) == {}


def test_a_queue_of_the_settings_gets_what_policies_add_and_nothing_else() -> None:
    queue = QueueRecord("/", "q", "quorum", durable=True, origin="settings")
    assert queue_settings(queue, {}) == {}
    assert queue_settings(queue, {"max-length": 5}) == {"max_length": 5}


def test_every_name_is_a_field_of_the_engine() -> None:
    known = {field.name for field in fields(QueueConfig)}
    assert {name for _, _, wanted in SETTINGS for name in wanted} <= known
