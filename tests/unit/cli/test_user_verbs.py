"""Verbs about users without a broker: named and printed as rabbitmqctl's."""

import io
import json
import sys

import pytest

from fluxmq.auth.users import TopicPermission, VhostPermission
from fluxmq.cli import main as cli
from fluxmq.cli.data_directory import opened_store

SETTINGS = """
server: {mqtt: {tcp: {addr: "127.0.0.1:1883"}}}
storage: {data_dir: "%s"}
auth: {argon2: {time_cost: 1, memory_cost: 64KiB}}
"""


class Ctl:
    """Runs commands on one data directory and keeps what they printed."""

    def __init__(self, tmp_path, capsys):
        self.path = tmp_path / "data"
        self.config = tmp_path / "node.yaml"
        self.config.write_text(SETTINGS % self.path)
        self.capsys = capsys

    def __call__(self, *arguments, code=0):
        assert cli.run(["--config", str(self.config), *arguments]) == code
        self.out, self.err = self.capsys.readouterr()
        return self.out.splitlines()

    def json(self, *arguments):
        return json.loads("\n".join(self(*arguments, "--formatter", "json")))

    def user(self, name):
        with opened_store(self.path) as store:
            return next(each for each in store.users().users if each.name == name)


@pytest.fixture
def ctl(tmp_path, capsys):
    made = Ctl(tmp_path, capsys)
    made("add_user", "ann", "geheim")
    return made


def test_adding_changing_and_deleting(ctl):
    assert ctl("authenticate_user", "ann", "geheim")[-1] == "Success"
    ctl("authenticate_user", "ann", "falsch", code=1)
    assert "not authenticated" in ctl.err
    ctl("authenticate_user", "eve", "geheim", code=1)
    assert ctl("change_password", "ann", "neu") == ['Changing password for user "ann" ...']
    ctl("authenticate_user", "ann", "geheim", code=1)
    ctl("authenticate_user", "ann", "neu")
    ctl("user", "disable", "ann")
    ctl("authenticate_user", "ann", "neu", code=1)
    ctl("add_user", "ann", "x", code=1)
    assert "exists already" in ctl.err
    assert ctl("delete_user", "ann", "-q") == []
    ctl("delete_user", "ann", code=1)
    assert "no user" in ctl.err
    ctl("add_user", " x", "y", code=1)
    assert "space" in ctl.err


def test_passwords_come_from_standard_input_or_a_file(ctl, tmp_path, monkeypatch):
    class Input:
        def __init__(self, data):
            self.buffer = io.BytesIO(data)

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stdin", Input(b"hereby\n"))
    ctl("add_user", "bob")
    ctl("authenticate_user", "bob", "hereby")
    file = tmp_path / "password"
    file.write_text("filed\n")
    ctl("change_password", "bob", "--password-file", str(file))
    ctl("authenticate_user", "bob", "filed")


def test_tags(ctl):
    ctl("set_user_tags", "ann", "administrator", "x")
    assert ctl.user("ann").tags == ("administrator", "x")
    assert ctl("list_users") == ["Listing users ...", "user\ttags", "ann\t[administrator, x]"]
    assert ctl("list_users", "-q") == ["user\ttags", "ann\t[administrator, x]"]
    assert ctl("list_users", "-s") == ["ann\t[administrator, x]"]
    assert ctl("list_users", "-q", "--no-table-headers") == ["ann\t[administrator, x]"]
    assert ctl.json("list_users") == [{"user": "ann", "tags": ["administrator", "x"]}]
    assert ctl("list_users", "--formatter", "csv") == [
        '"user","tags"',
        '"ann","[administrator, x]"',
    ]
    ctl("set_user_tags", "ann")
    assert ctl.user("ann").tags == ()
    ctl("set_user_tags", "ann", "a b", code=1)
    assert "tag" in ctl.err


def test_permissions(ctl):
    ctl("set_permissions", "ann", "^ann-.*", "", ".*")
    assert ctl.user("ann").permissions == (VhostPermission("/", "^ann-.*", "", ".*"),)
    row = {"configure": "^ann-.*", "write": "", "read": ".*"}
    assert ctl.json("list_permissions") == [{"user": "ann", **row}]
    assert ctl.json("list_user_permissions", "ann") == [{"vhost": "/", **row}]
    assert ctl.json("list_permissions", "-p", "other") == []
    ctl("set_permissions", "-p", "other", "ann", "", "", "", code=1)
    assert "virtual host 'other' does not exist" in ctl.err
    ctl("set_permissions", "ann", "(", "", "", code=1)
    assert "missing )" in ctl.err
    ctl("set_permissions", "eve", "", "", "", code=1)
    ctl("clear_permissions", "ann")
    assert ctl.user("ann").permissions == ()
    ctl("list_user_permissions", "eve", code=1)
    assert "no user" in ctl.err


def test_topic_permissions(ctl):
    ctl("set_topic_permissions", "ann", "amq.topic", r"^{username}\.", ".*")
    topic = TopicPermission("/", "amq.topic", r"^{username}\.", ".*")
    assert ctl.user("ann").topic_permissions == (topic,)
    row = {"exchange": "amq.topic", "write": r"^{username}\.", "read": ".*"}
    assert ctl.json("list_topic_permissions") == [{"user": "ann", **row}]
    assert ctl.json("list_user_topic_permissions", "ann") == [{"vhost": "/", **row}]
    ctl("clear_topic_permissions", "ann", "other")
    assert ctl.user("ann").topic_permissions == (topic,)
    ctl("clear_topic_permissions", "ann")
    assert ctl.user("ann").topic_permissions == ()


def test_users_of_mqtt_and_of_verbs_are_the_same(ctl):
    ctl("user", "permit", "ann", "--publish", "a/#")
    ctl("set_user_tags", "ann", "x")
    user = ctl.user("ann")
    assert (user.publish, user.tags) == (("a/#",), ("x",))
    assert "a/#" in "\n".join(ctl("user", "list"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("list_queues",),
        ("list_vhosts",),
        ("add_vhost", "b"),
        ("set_policy", "p", "^q", '{"max-length": 1}'),
        ("purge_queue", "q"),
        ("close_connection", "1", "x"),
        ("explain-policy", "q"),
    ],
)
def test_what_needs_a_broker_says_so(ctl, arguments):
    ctl(*arguments, code=3)
    assert "no broker is running" in ctl.err
