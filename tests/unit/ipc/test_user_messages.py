"""Messages about users: there and back, and records a shard must never get."""

from dataclasses import replace

import pytest

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import TopicPermission, User, VhostPermission
from fluxmq.ipc.messages import ERROR_INVALID, MessageError
from fluxmq.ipc.user_messages import (
    UPGRADES_MAX,
    USERS_MAX,
    Confirmed,
    Hashing,
    UserAdd,
    UserChanged,
    UserDelete,
    UserEnable,
    UserListing,
    UserPassword,
    UserPermit,
    Users,
    UserSummary,
    UserUpgrade,
    user_to_body,
)
from tests.unit.auth.test_hash_upgrades import upgrade
from tests.unit.ipc.travelling import travelled

HASH = hash_password("p", b"s" * 16, HashParameters(1, 64, 1))
KEYS = StoredKeys(4096, b"s" * 16, b"k" * 32, b"K" * 32)
ANN = User("ann", HASH, KEYS, ("a/#", "u/{username}"), ("#",), enabled=True)
BOB = User("bob", HASH, None, (), (), enabled=False)
EVE = User(
    "eve",
    HASH,
    None,
    (),
    (),
    enabled=True,
    tags=("administrator", "x"),
    permissions=(VhostPermission("/", "", "^q", ".*"), VhostPermission("b", "a", "b", "c")),
    topic_permissions=(TopicPermission("/", "amq.topic", "^{username}", ""),),
)


@pytest.mark.parametrize(
    "value",
    [
        Users(7, (ANN, BOB, EVE)),
        Users(0, ()),
        Confirmed(3),
        UserAdd(ANN),
        UserAdd(EVE),
        UserPassword("ann", HASH, KEYS),
        UserPassword("ann", HASH, None),
        UserUpgrade((upgrade("ann"), replace(upgrade("bob"), scram=None))),
        UserPermit("ann", ("a",), None),
        UserPermit("ann", None, ()),
        UserEnable("ann", enabled=False),
        UserDelete("ann"),
        UserChanged(8, ("shard-1",)),
        UserListing(8, (UserSummary.of(ANN), UserSummary.of(EVE))),
        Hashing(HashParameters(2, 1024, 2)),
    ],
)
def test_there_and_back(value):
    assert type(value).from_body(travelled(value.to_body())) == value


def test_a_listing_has_neither_hash_nor_keys():
    text = repr(UserListing(1, (UserSummary.of(ANN),)).to_body())
    assert HASH not in text
    assert "kkkk" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": 5},
        {"hash": "plain text"},
        {"hash": None},
        {"publish": ["a#"]},
        {"publish": "a"},
        {"subscribe": [1]},
        {"subscribe": ["a"] * 200},
        {"enabled": 1},
        {"scram": {}},
        {"scram": {"iterations": 1, "salt": b"s" * 16, "stored_key": b"", "server_key": b""}},
        {"scram": "x"},
        {"tags": "administrator"},
        {"tags": ["a b"]},
        {"permissions": ["x"]},
        {"permissions": [{"vhost": "/", "configure": "", "write": ""}]},
        {"permissions": [{"vhost": "", "configure": "", "write": "", "read": ""}]},
        {"topic_permissions": [{"vhost": "/", "exchange": "", "write": "", "read": ""}]},
    ],
)
def test_a_record_that_is_not_usable_is_refused_whole(changes):
    body = {"revision": 1, "users": [user_to_body(BOB), {**user_to_body(ANN), **changes}]}
    with pytest.raises(MessageError):
        Users.from_body(body)


def test_what_a_person_may_have_caused_is_marked_invalid():
    with pytest.raises(MessageError, match="filter") as caught:
        UserAdd.from_body({"user": {**user_to_body(ANN), "publish": ["a#"]}})
    assert caught.value.code == ERROR_INVALID
    with pytest.raises(MessageError, match="hash") as caught:
        UserPassword.from_body({"name": "ann", "hash": "x", "scram": None})
    assert caught.value.code == ERROR_INVALID
    with pytest.raises(MessageError, match="memory_cost") as caught:
        Hashing.from_body({"parameters": {"time_cost": 1, "memory_cost_kib": 1, "parallelism": 1}})
    assert caught.value.code == ERROR_INVALID


def test_a_change_replaces_as_many_hashes_as_may_be():
    body = UserUpgrade((upgrade("ann"),) * UPGRADES_MAX).to_body()
    assert len(UserUpgrade.from_body(body).upgrades) == UPGRADES_MAX
    body["upgrades"] *= 2
    with pytest.raises(MessageError, match="upgrades"):
        UserUpgrade.from_body(body)


def test_a_pattern_that_cannot_be_used_is_refused_when_entered_and_grants_nothing_later():
    permission = {"vhost": "/", "configure": "(", "write": "", "read": ""}
    body = {**user_to_body(ANN), "permissions": [permission]}
    with pytest.raises(MessageError, match="missing") as caught:
        UserAdd.from_body({"user": body})
    assert caught.value.code == ERROR_INVALID
    (user,) = Users.from_body({"revision": 1, "users": [body]}).users
    assert user.permissions == (VhostPermission("/", "(", "", ""),)


def test_a_snapshot_is_bounded():
    with pytest.raises(MessageError, match=r"Users\.users"):
        Users.from_body({"revision": 1, "users": [None] * (USERS_MAX + 1)})
