"""What users may do in virtual hosts: patterns over names, and over routing keys of topic exchanges."""

import pytest

from fluxmq.auth import permissions
from fluxmq.auth.permissions import Permissions, permissions_of
from fluxmq.auth.users import TopicPermission, User, VhostPermission

OPERATIONS = ("configure", "write", "read")


def permitted(configure="", write="", read="", *topics, client_id=""):
    return Permissions("ann", VhostPermission("/", configure, write, read), topics, client_id)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (".*", "anything", True),
        (".*", "", True),
        ("", "q", False),
        ("", "", False),
        ("^$", "q", False),
        ("q", "a q b", True),
        ("^ann-.*", "ann-1", True),
        ("^ann-.*", "bob-1", False),
        ("^(?!amq\\.)", "amq.topic", False),
        ("^amq\\.default$", "", True),
        ("(", "(", False),
    ],
)
def test_each_pattern_decides_about_its_operation_alone(operation, pattern, name, expected):
    granted = permitted(**{operation: pattern})
    # The second answer is one that was kept.
    for _ in range(2):
        answers = {each: getattr(granted, each)(name) for each in OPERATIONS}
        assert answers == {each: expected and each == operation for each in OPERATIONS}


@pytest.mark.parametrize(
    ("write", "read", "key", "answers"),
    [
        ("^a", "^b", "a.x", (True, False)),
        ("^a", "^b", "b.x", (False, True)),
        ("", "", "a", (False, False)),
        ("", "", "", (True, True)),
        ("(", "(", "a", (False, False)),
        (r"^{username}\.", "^{vhost}$", "ann.x", (True, False)),
        (r"^{username}\.", "^{vhost}$", "/", (False, True)),
        ("^{client_id}$", "^x{client_id}", "a.b", (True, False)),
        ("^{client_id}$", "^x{client_id}", "aXb", (False, False)),
        ("^{other}", "{3}", "a", (False, False)),
    ],
)
def test_routing_keys_of_topic_exchanges(write, read, key, answers):
    topic = TopicPermission("/", "logs", write, read)
    granted = permitted(".*", ".*", ".*", topic, client_id="a.b")
    assert (granted.topic_write("logs", key), granted.topic_read("logs", key)) == answers
    # Other exchanges, and this one in another virtual host, are not restricted.
    assert granted.topic_write("others", key)
    elsewhere = permitted("", "", "", TopicPermission("other", "logs", "", ""))
    assert elsewhere.topic_write("logs", key)
    assert elsewhere.topic_read("logs", key)


def test_a_client_without_an_id_is_not_granted_everything():
    granted = permitted(".*", ".*", ".*", TopicPermission("/", "logs", "^{client_id}", ""))
    assert not granted.topic_write("logs", "x")
    assert not granted.topic_write("logs", "")


def test_names_chosen_by_a_client_do_not_widen_a_grant():
    topic = TopicPermission("/", "logs", "^{client_id}$", "")
    granted = permitted(".*", ".*", ".*", topic, client_id=".*|")
    assert granted.topic_write("logs", ".*|")
    assert not granted.topic_write("logs", "secret")


def test_a_user_without_a_record_for_a_virtual_host_may_not_enter_it():
    user = User("ann", "", None, (), (), True, (), (VhostPermission("a", ".*", "", ""),))
    assert permissions_of(user, "/") is None
    granted = permissions_of(user, "a")
    assert granted is not None
    assert granted.configure("q")
    assert not granted.read("q")


def test_answers_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(permissions, "ANSWERS_MAX", 10)
    granted = permitted("^1", "^2")
    for number in range(1000):
        assert granted.configure(str(number)) == str(number).startswith("1")
        assert len(granted._answers) <= 10
