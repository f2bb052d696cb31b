"""Scopes of tokens: RabbitMQ's grammar, wildcards, prefixes, aliases, tags, and what they grant."""

from __future__ import annotations

import pytest

from fluxmq.auth.logins import BackendLogin
from fluxmq.auth.permissions import Permissions
from fluxmq.auth.scopes import (
    SCOPES_MAX,
    ScopesError,
    own_scopes,
    parse_scope,
    rights_of,
    tags_of,
)
from fluxmq.auth.users import User


def login(
    *scopes: str, vhosts: tuple[str, ...] = ("/",), tags: tuple[str, ...] = ()
) -> BackendLogin:
    """A user with these scopes."""
    rights = rights_of(scopes, vhosts)
    user = User("sub", "", None, (), (), True, tags, rights.permissions)
    return BackendLogin("oauth2", user, rights.keys)


def permissions(*scopes: str, vhost: str = "/") -> Permissions:
    found = login(*scopes, vhosts=("/", "prod", "production")).permissions(vhost)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "read",
        "read:",
        "read:*",
        "read:/x",
        "read:a/",
        "read:a/b/c/d",
        "READ:a/b",
        "grant:a/b",
        "read:%ff/b",
        "tag:administrator",
        "read:a/" + "b" * 3000,
    ],
)
def test_what_is_no_scope_grants_nothing(text: str) -> None:
    assert parse_scope(text) is None
    assert rights_of([text], ["/", "a"]).permissions == ()


def test_a_scope_grants_its_permission_alone() -> None:
    found = permissions("write:%2F/orders")
    assert found.write("orders")
    assert not found.read("orders")
    assert not found.configure("orders")
    assert not found.write("orders2")
    assert not found.write("my-orders")


def test_wildcards_stand_for_any_characters_and_others_for_themselves() -> None:
    found = permissions("read:*/a.*-in", "configure:p*d/%2A", "read:*/nl%0A*")
    assert found.read("a.x-in")
    assert found.read("a.-in")
    assert not found.read("axx-in")  # the dot is a dot
    assert found.read("nl\nwhatever\n")
    production = permissions("configure:p*d/%2A", vhost="prod")
    assert production.configure("*")
    assert not production.configure("x")
    assert login("configure:p*d/x", vhosts=("production",)).permissions("production") is None


def test_a_vhost_is_entered_with_any_scope_for_it_and_only_then() -> None:
    found = login("read:prod/x", vhosts=("/", "prod"))
    assert found.permissions("prod") is found.permissions("prod") is not None
    assert found.permissions("/") is None
    assert found.permissions("elsewhere") is None


def test_routing_keys_are_those_of_the_scopes_exchange() -> None:
    found = permissions("write:%2F/ex*/a.*", "write:%2F/other", "read:%2F/ex/b")
    assert found.topic_write("ex1", "a.b")
    assert not found.topic_write("ex1", "b.a")
    assert found.topic_write("other", "anything")  # no key in the scope: all
    assert found.topic_read("ex", "b")
    assert not found.topic_read("ex", "b.c")
    assert not found.topic_read("third", "b")  # unlike a user without topic permissions


def test_the_default_exchange_has_its_name() -> None:
    assert permissions("write:%2F/amq.default").write("")
    assert not permissions("write:%2F/x").write("")


def test_scopes_of_other_resources_are_not_ours() -> None:
    scopes = ["mq.read:a/b", "other.write:a/b", "openid", "mq.tag:monitoring", "admins"]
    aliases = {"admins": ["mq.tag:administrator", "mq.configure:*/*"]}
    own = own_scopes(scopes, "mq.", aliases)
    assert own == ["read:a/b", "tag:monitoring", "tag:administrator", "configure:*/*"]
    assert tags_of(own) == ("monitoring", "administrator")
    assert tags_of(["tag:", "tag:two words", "tag:ok", "tag:ok"]) == ("ok",)


def test_more_scopes_than_can_be_checked_are_refused() -> None:
    own_scopes(["p.x"] * SCOPES_MAX, "p.", {})
    with pytest.raises(ScopesError, match="scopes"):
        own_scopes(["p.x"] * (SCOPES_MAX + 1), "p.", {})
    with pytest.raises(ScopesError, match="bytes"):
        rights_of([f"read:%2F/{n}{'x' * 100}" for n in range(60)], ["/"])


def test_mqtt_topics_are_routing_keys_of_amq_topic() -> None:
    policy = login(
        "write:%2F/amq.topic/sensors.*", "read:%2F/amq.topic/sensors.*.temperature"
    ).policy("c")
    assert policy.may_publish("sensors/1/temperature")
    assert not policy.may_publish("sensors")
    assert not policy.may_publish("other")
    assert not policy.may_publish("$SYS/x")
    assert policy.may_subscribe("sensors/1/temperature")
    assert policy.may_subscribe("sensors/+/temperature")
    assert policy.may_subscribe("$share/g/sensors/+/temperature")
    # What these match is not covered by the scope.
    assert not policy.may_subscribe("sensors/#")
    assert not policy.may_subscribe("+/1/temperature")
    assert not policy.may_subscribe("#")
    assert not policy.allows_everything


def test_filters_need_a_scope_that_covers_their_wildcards() -> None:
    policy = login("read:%2F/amq.topic/a.*", "read:%2F/amq.topic/only.%23").policy("c")
    assert policy.may_subscribe("a/#")
    assert policy.may_subscribe("a/+")
    assert policy.may_subscribe("only/#")
    assert not policy.may_subscribe("only/x")
    assert not policy.may_subscribe("+/b")


def test_queues_and_system_topics_over_mqtt() -> None:
    policy = login("write:%2F/orders", "read:%2F/orders").policy("c")
    assert policy.may_publish("$queue/orders")
    assert not policy.may_publish("$queue/other")
    assert policy.may_subscribe("$queue/orders")
    assert policy.may_subscribe("$dlq/orders")
    assert not policy.may_subscribe("$queue/+")
    assert not policy.may_subscribe("$queue")
    assert not policy.may_subscribe("$SYS/#")
    assert login("read:%2F/x", tags=("monitoring",)).policy("c").may_subscribe("$SYS/#")
    assert not login(vhosts=()).policy("c").may_publish("a")
