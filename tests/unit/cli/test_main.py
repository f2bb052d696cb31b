"""fluxmqctl without a broker: users changed under the directory's lock, and what it says otherwise."""

import fcntl
import json
import os

import pytest

from fluxmq.auth.credentials import HashParameters, PasswordVerifier
from fluxmq.auth.scram import derive_keys
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
        self.password = tmp_path / "password"
        self.password.write_text("geheim\n")
        self.capsys = capsys

    def __call__(self, *arguments, code=0):
        assert cli.run(["--config", str(self.config), *arguments]) == code
        self.out, self.err = self.capsys.readouterr()
        return self.out

    def add(self, name, *arguments, code=0):
        return self(
            "user", "add", name, "--password-file", str(self.password), *arguments, code=code
        )

    def users(self):
        with opened_store(self.path) as store:
            return store.users()


@pytest.fixture
def ctl(tmp_path, capsys):
    return Ctl(tmp_path, capsys)


def test_the_first_user_is_made_before_the_first_start(ctl):
    assert "user 'ann' added" in ctl.add(
        "ann", "--publish", "a/#", "--publish", "b", "--subscribe", "#"
    )
    (user,) = ctl.users().users
    assert (user.name, user.publish, user.subscribe) == ("ann", ("a/#", "b"), ("#",))
    assert user.hash.startswith("$argon2id$v=19$m=64,t=1,p=1$")
    assert PasswordVerifier(HashParameters(1, 64, 1), b"d" * 16).verify(b"geheim", user.hash)
    assert derive_keys("geheim", user.scram.salt, user.scram.iterations) == user.scram
    assert ctl.path.stat().st_mode & 0o777 == 0o700
    assert "geheim" not in ctl.out + ctl.err


def test_a_user_without_permissions_is_told_so(ctl):
    assert "may not publish or subscribe" in ctl.add("ann")
    assert "may not" not in ctl.add("bob", "--subscribe", "#")


def test_all_changes(ctl):
    ctl.add("ann", "--publish", "a")
    ctl("user", "permit", "ann", "--publish", "x/{username}", "--subscribe", "y")
    assert ctl.users().users[0].publish == ("x/{username}",)
    ctl("user", "permit", "ann", "--no-publish")
    assert (ctl.users().users[0].publish, ctl.users().users[0].subscribe) == ((), ("y",))
    ctl("user", "disable", "ann")
    assert not ctl.users().users[0].enabled
    ctl("user", "enable", "ann")
    assert ctl.users().users[0].enabled
    before = ctl.users().users[0].hash
    ctl.password.write_text("neu")
    ctl("user", "passwd", "ann", "--password-file", str(ctl.password))
    assert ctl.users().users[0].hash != before
    ctl("user", "delete", "ann")
    assert ctl.users().users == ()
    assert ctl.users().revision == 7


def test_listing_for_people_and_programs(ctl):
    ctl.add("ann", "--publish", "a/#")
    ctl("user", "disable", "ann")
    ctl.add("bob", "--subscribe", "#")
    lines = ctl("user", "list").splitlines()
    assert [line.split() for line in lines] == [
        ["USER", "LOGIN", "PUBLISH", "SUBSCRIBE"],
        ["ann", "disabled", "a/#", "-"],
        ["bob", "enabled", "-", "#"],
    ]
    users = [json.loads(line) for line in ctl("user", "list", "--json").splitlines()]
    assert users[0] == {
        "name": "ann",
        "enabled": False,
        "scram": True,
        "publish": ["a/#"],
        "subscribe": [],
    }
    ctl("user", "delete", "ann")
    ctl("user", "delete", "bob")
    assert ctl("user", "list") == "there are no users\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["user", "delete", "eve"], "no user 'eve'"),
        (["user", "permit", "eve", "--publish", "a"], "no user 'eve'"),
        (["user", "permit", "ann", "--publish", "a#"], "#"),
        (["user", "permit", "ann", "--publish", "{clientid}"], "placeholder"),
        (["user", "permit", "ann", "--subscribe", "$share/g/a"], r"$share"),
    ],
)
def test_refusals_say_why_and_end_with_1(ctl, arguments, problem):
    ctl.add("ann")
    ctl(*arguments, code=1)
    assert problem in ctl.err
    assert ctl.err.startswith("fluxmqctl: ")


def test_names_rules_and_passwords_are_checked_before_anything_is_made(ctl):
    ctl.add(" ann", code=1)
    assert "space" in ctl.err
    ctl.add("ann", "--publish", "a#", code=1)
    ctl.password.write_text("")
    ctl.add("ann", code=1)
    assert "empty" in ctl.err
    assert not ctl.path.exists()


def test_a_name_that_is_taken(ctl):
    ctl.add("ann")
    ctl.add("ann", code=1)
    assert "exists already" in ctl.err


def test_permit_needs_something_to_permit(ctl):
    ctl("user", "permit", "ann", code=2)
    assert "--publish" in ctl.err


def test_without_a_broker_status_says_so_and_ends_with_3(ctl):
    ctl("status", code=3)
    assert f"no broker is running on {ctl.path}" in ctl.err


def test_without_a_data_directory_there_is_nothing_to_list(ctl):
    ctl("user", "list", code=1)
    assert "no data directory" in ctl.err
    ctl("user", "delete", "ann", code=1)
    assert not ctl.path.exists()


def test_a_locked_directory_without_an_answer_ends_with_4(ctl):
    ctl.add("ann")
    lock = os.open(ctl.path / "LOCK", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        ctl("status", code=4)
        assert "try again" in ctl.err
        ctl("user", "delete", "ann", code=4)
    finally:
        os.close(lock)
    assert len(ctl.users().users) == 1


def test_a_settings_file_with_problems_ends_with_2(ctl):
    ctl.config.write_text("storage: {data_dri: x}")
    ctl("status", code=2)
    assert "data_dri" in ctl.err


def test_the_data_directory_may_be_named_or_is_the_usual_one(ctl, tmp_path, monkeypatch, capsys):
    ctl.add("ann")
    assert cli.run(["--data-dir", str(ctl.path), "user", "list"]) == 0
    assert "ann" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert cli.run(["user", "list"]) == 0
    assert "ann" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["user"], ["dance"], ["user", "add"], ["--timeout", "0"]]
)
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: fluxmqctl" in capsys.readouterr().err


def test_help_and_version(capsys):
    for arguments, text in (
        (["user", "permit", "-h"], "{client_id}"),
        (["--version"], "fluxmqctl 0"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 0
        assert text in capsys.readouterr().out


def test_a_damaged_database_is_a_refusal(ctl):
    ctl.path.mkdir()
    (ctl.path / "meta.db").write_bytes(b"nonsense" * 100)
    ctl("user", "list", code=1)
    assert "meta.db" in ctl.err
