"""What a user's name, rules and record must look like."""

import pytest

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.users import (
    NAME_BYTES_MAX,
    RULE_BYTES_MAX,
    RULES_MAX,
    TAGS_MAX,
    TopicPermission,
    User,
    VhostPermission,
    name_problem,
    permission_problem,
    rules_problem,
    tags_problem,
    user_problem,
)

HASH = hash_password("p", b"s" * 16, HashParameters(1, 64, 1))


@pytest.mark.parametrize(
    "name", ["ann", "ann smith", "ann@example.org", "Größe", "x" * 256, "a/+#"]
)
def test_usable_names(name):
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ann",
        "ann ",
        "a\nb",
        "a\x00",
        "x" * (NAME_BYTES_MAX + 1),
        "\u2168",
        "e\u0301",
        "\ud800",
    ],
)
def test_unusable_names(name):
    assert name_problem(name) is not None


def test_rules_are_bounded_in_number_and_length():
    assert rules_problem(["a"] * RULES_MAX) is None
    assert "more than" in (rules_problem(["a"] * (RULES_MAX + 1)) or "")
    assert rules_problem(["a" * RULE_BYTES_MAX]) is None
    assert "longer" in (rules_problem(["a" * (RULE_BYTES_MAX + 1)]) or "")
    assert "#" in (rules_problem(["ok", "a#"]) or "")


def test_a_record_is_checked_as_a_whole():
    def user(**changes):
        record = {
            "name": "ann",
            "hash": HASH,
            "scram": None,
            "publish": ("a/#",),
            "subscribe": (),
            "enabled": True,
        }
        return User(**{**record, **changes})

    assert user_problem(user()) is None
    assert "name" in (user_problem(user(name="")) or "")
    assert "hash" in (user_problem(user(hash="plain")) or "")
    assert "filter" in (user_problem(user(publish=("a#",))) or "")
    assert "filter" in (user_problem(user(subscribe=("a#",))) or "")
    assert "tag" in (user_problem(user(tags=("a b",))) or "")
    permission, topic = VhostPermission("/", "", ".*", "^q"), TopicPermission("/", "x", "", "")
    assert user_problem(user(permissions=(permission,), topic_permissions=(topic,))) is None
    assert "twice" in (user_problem(user(permissions=(permission, permission))) or "")
    assert "twice" in (user_problem(user(topic_permissions=(topic, topic))) or "")
    assert "missing" in (user_problem(user(permissions=(VhostPermission("/", "(", "", ""),))) or "")
    many = tuple(VhostPermission(str(number), "", "", "") for number in range(257))
    assert "more than 256" in (user_problem(user(permissions=many)) or "")


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ((), None),
        (("administrator", "größe"), None),
        (("a",) * 2, "twice"),
        (("",), "word"),
        (("a b",), "word"),
        (("a,b",), "word"),
        (("a\x00",), "word"),
        (("a" * 64,), None),
        (("a" * 65,), "word"),
        (tuple(map(str, range(TAGS_MAX))), None),
        (tuple(map(str, range(TAGS_MAX + 1))), "more than"),
    ],
)
def test_tags(tags, problem):
    found = tags_problem(tags)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize(
    ("permission", "problem"),
    [
        (VhostPermission("/", ".*", "", "^a"), None),
        (VhostPermission("", "", "", ""), "virtual host"),
        (VhostPermission("x" * 255, "", "", ""), None),
        (VhostPermission("x" * 256, "", "", ""), "virtual host"),
        (VhostPermission("/", "(", "", ""), "'('"),
        (VhostPermission("/", "", "(", ""), "'('"),
        (VhostPermission("/", "", "", "("), "'('"),
        (TopicPermission("/", "x", "a", "^{username}"), None),
        (TopicPermission("/", "", "", ""), "exchange"),
        (TopicPermission("/", "x" * 256, "", ""), "exchange"),
        (TopicPermission("/", "x", "(", ""), "'('"),
        (TopicPermission("/", "x", "", "(?=a)"), "perl operator"),
    ],
)
def test_permissions_are_checked(permission, problem):
    found = permission_problem(permission)
    assert found is None if problem is None else problem in (found or "")
