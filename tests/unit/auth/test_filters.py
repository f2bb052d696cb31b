"""Matching and covering, checked against every topic of a small world."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.auth.filters import covers, filter_problem, matches, shared_filter

# Levels that filters are made of, and one more that no filter names: what stands for the unlimited
# rest of the alphabet. Topics are two levels deeper than filters, which stands for any depth.
LEVELS = ("a", "", "$s")
TOPICS = [
    topic for depth in range(1, 6) for topic in itertools.product((*LEVELS, "z"), repeat=depth)
]
FILTERS = [
    (*levels, *end)
    for depth in range(4)
    for levels in itertools.product((*LEVELS, "+"), repeat=depth)
    for end in ((), ("#",))
    if levels or end
]


def naive_match(topic_filter, topic):
    """MQTT 5.0, 4.7, read aloud: the shortest way to say it, not the fastest."""
    if topic[0].startswith("$") and topic_filter[0] in ("+", "#"):
        return False
    if not topic_filter:
        return not topic
    if topic_filter == ("#",):
        return True
    if not topic:
        return False
    head, rest = topic_filter[0], topic_filter[1:]
    if head not in ("+", topic[0]):
        return False
    return naive_rest(rest, topic[1:])


def naive_rest(topic_filter, topic):
    if topic_filter == ("#",):
        return True
    if not topic_filter or not topic:
        return not topic_filter and not topic
    return topic_filter[0] in ("+", topic[0]) and naive_rest(topic_filter[1:], topic[1:])


def test_matching_agrees_with_the_definition_on_every_topic():
    for topic_filter in FILTERS:
        for topic in TOPICS:
            assert matches(topic_filter, topic) == naive_match(topic_filter, topic), (
                topic_filter,
                topic,
            )


def test_covering_is_exactly_the_inclusion_of_the_topics_matched():
    matched = {
        topic_filter: sum(
            1 << number for number, topic in enumerate(TOPICS) if matches(topic_filter, topic)
        )
        for topic_filter in FILTERS
    }
    for granted, requested in itertools.product(FILTERS, repeat=2):
        included = matched[requested] & ~matched[granted] == 0
        assert covers(granted, requested) == included, (granted, requested)


levels = st.sampled_from(["a", "b", "", "$s", "+"])
filters = st.tuples(st.lists(levels, min_size=1, max_size=6), st.booleans()).map(
    lambda made: (*made[0], *(("#",) if made[1] else ()))
)
topics = st.lists(st.sampled_from(["a", "b", "", "$s", "z"]), min_size=1, max_size=8).map(tuple)


@given(filters, filters, topics)
def test_what_a_covered_filter_matches_the_grant_matches(granted, requested, topic):
    if covers(granted, requested) and matches(requested, topic):
        assert matches(granted, topic)


@given(filters)
def test_every_filter_covers_itself(topic_filter):
    assert covers(topic_filter, topic_filter)


@given(filters, filters, filters)
def test_covering_is_transitive(first, second, third):
    if covers(first, second) and covers(second, third):
        assert covers(first, third)


@pytest.mark.parametrize(
    ("granted", "requested", "expected"),
    [
        ("#", "a/b", True),
        ("#", "#", True),
        ("#", "$SYS/#", False),
        ("$SYS/#", "$SYS/broker/+", True),
        ("+/#", "#", True),
        ("a/+/#", "a/#", False),
        ("a/#", "a", True),
        ("a/+", "a/#", False),
        ("a/b", "a/+", False),
        ("+", "$SYS", False),
        ("+/b", "a/b", True),
    ],
)
def test_examples(granted, requested, expected):
    assert covers(granted.split("/"), requested.split("/")) is expected


@pytest.mark.parametrize("text", ["a", "/", "+", "#", "a/+/b/#", "$SYS/#", "a//b", " ", "a/$b"])
def test_well_formed_filters(text):
    assert filter_problem(text) is None


@pytest.mark.parametrize("text", ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a\x00b", "##"])
def test_malformed_filters(text):
    assert filter_problem(text) is not None


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("$share/g/a/b", "a/b"),
        ("$share/g//", "/"),
        ("$share/g/#", "#"),
        ("$share/g", None),
        ("$share/g/", None),
        ("$share//a", None),
        ("$share/+/a", None),
        ("$share/g#/a", None),
        ("share/g/a", None),
    ],
)
def test_shared_filters(text, inner):
    assert shared_filter(text) == inner
