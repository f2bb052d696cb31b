"""Permissions: rules filled with the client's names never grant more than they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.auth.policy import TopicPolicy, rule_problem


def publisher(*rules, **names):
    return TopicPolicy(rules, (), **names)


def subscriber(*rules, **names):
    return TopicPolicy((), rules, **names)


def test_nothing_is_allowed_without_rules():
    policy = TopicPolicy((), ())
    assert not policy.may_publish("a")
    assert not policy.may_subscribe("a")
    assert not policy.allows_everything


def test_publishing_needs_a_matching_rule():
    policy = publisher("sensors/+/temperature", "logs/#")
    assert policy.may_publish("sensors/7/temperature")
    assert policy.may_publish("logs")
    assert policy.may_publish("logs/a/b")
    assert not policy.may_publish("sensors/7")
    assert not policy.may_publish("sensors/7/8/temperature")
    assert not policy.may_subscribe("logs/a")


def test_a_topic_name_with_wildcards_is_never_allowed():
    policy = publisher("#")
    for topic in ("#", "a/+", "a/#", ""):
        assert not policy.may_publish(topic)


def test_subscribing_needs_the_filter_covered_by_one_rule():
    policy = subscriber("a/+", "b/#")
    assert policy.may_subscribe("a/x")
    assert policy.may_subscribe("a/+")
    assert policy.may_subscribe("b/+/c/#")
    assert not policy.may_subscribe("a/#")
    assert not policy.may_subscribe("+/x")
    assert not policy.may_subscribe("#")


def test_two_rules_are_never_added_up():
    assert not subscriber("a", "a/+/#").may_subscribe("a/#")


def test_topics_beginning_with_a_dollar_sign_are_granted_by_name_only():
    everything = TopicPolicy(("#",), ("#",))
    assert everything.allows_everything
    assert not everything.may_publish("$SYS/x")
    assert not everything.may_subscribe("$SYS/#")
    assert subscriber("$SYS/#").may_subscribe("$SYS/broker/+")


def test_of_a_shared_subscription_the_filter_counts():
    policy = subscriber("a/#")
    assert policy.may_subscribe("$share/group/a/+")
    assert not policy.may_subscribe("$share/group/b")
    for malformed in ("$share", "$share/", "$share/a", "$share/g/", "$share/+/a/b", "$share/g/a#"):
        assert not policy.may_subscribe(malformed)
    assert not subscriber("#").may_subscribe("$share/g/$SYS/#")


def test_malformed_filters_are_never_allowed():
    policy = subscriber("#")
    for malformed in ("", "a#", "a/#/b", "a\x00"):
        assert not policy.may_subscribe(malformed)


def test_names_are_put_in():
    policy = TopicPolicy(
        ("devices/{client_id}/up", "{username}/#", "x-{client_id}-y"),
        ("devices/{client_id}/#",),
        client_id="d1",
        username="ann",
    )
    assert policy.may_publish("devices/d1/up")
    assert not policy.may_publish("devices/d2/up")
    assert policy.may_publish("ann/anything")
    assert policy.may_publish("x-d1-y")
    assert policy.may_subscribe("devices/d1/+")
    assert not policy.may_subscribe("devices/+/up")


@pytest.mark.parametrize("name", ["+", "#", "a/b", "a+", "", "a\x00", "/", None])
def test_names_that_would_widen_make_the_rule_grant_nothing(name):
    policy = TopicPolicy(
        ("devices/{client_id}", "devices/{client_id}/#"), ("{client_id}",), client_id=name
    )
    for topic in ("devices/a", "devices/a/b", "devices/+", "devices/", "devices", "a"):
        assert not policy.may_publish(topic)
        assert not policy.may_subscribe(topic)
    assert not policy.may_subscribe("#")
    assert not policy.may_subscribe("+")


def test_a_name_cannot_reach_topics_beginning_with_a_dollar_sign():
    assert not subscriber("{client_id}/#", client_id="$SYS").may_subscribe("$SYS/broker")
    assert subscriber("$SYS/{client_id}", client_id="$x").may_subscribe("$SYS/$x")


def test_a_name_that_looks_like_a_placeholder_stays_text():
    policy = publisher("d/{client_id}", client_id="{username}", username="ann")
    assert policy.may_publish("d/{username}")
    assert not policy.may_publish("d/ann")


def test_a_rule_without_the_name_it_needs_leaves_the_others():
    policy = publisher("u/{username}", "c/{client_id}", client_id="c1")
    assert policy.may_publish("c/c1")
    assert not policy.may_publish("u/")


def test_everything_needs_both_halves():
    assert not publisher("#").allows_everything
    assert not subscriber("#").allows_everything
    assert TopicPolicy(("a", "#"), ("b", "#")).allows_everything


@pytest.mark.parametrize(
    "rule", ["#", "a/{client_id}/#", "{username}", "a{b", "a/{not a name}", "$SYS/#"]
)
def test_usable_rules(rule):
    assert rule_problem(rule) is None


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("", "empty"),
        ("a#", "#"),
        ("a/{clientid}/b", "placeholder"),
        ("a/{}/b", "placeholder"),
        ("$share/g/a", r"\$share"),
        ("$share", r"\$share"),
        ("+{client_id}", r"\+"),
    ],
)
def test_unusable_rules(rule, problem):
    found = rule_problem(rule)
    assert found is not None
    assert problem.replace("\\", "") in found


names = st.text(alphabet="ab+#/$\x00{}", max_size=4)
rules = st.sampled_from(
    ["d/{client_id}", "d/{client_id}/#", "{client_id}", "{client_id}/x", "d/{username}/{client_id}"]
)


@given(rules, names, names, st.text(alphabet="abd+#/$x", min_size=1, max_size=8))
def test_whatever_the_names_a_rule_reaches_only_their_own_part_of_the_tree(
    rule, client_id, username, asked
):
    policy = TopicPolicy((rule,), (rule,), client_id=client_id, username=username)
    if not policy.may_subscribe(asked) and not policy.may_publish(asked):
        return
    # Allowed: then the names stand, unchanged and as whole levels, where the rule put them.
    asked_levels = asked.split("/")
    if asked_levels[0] == "$share":
        return
    for level, wanted in zip(asked_levels, rule.split("/"), strict=False):
        if wanted == "{client_id}":
            assert level == client_id
        elif wanted == "{username}":
            assert level == username
        elif wanted != "#":
            assert level == wanted
