"""The node's database: what is written survives, what is refused leaves no trace."""

import asyncio
import os
import sqlite3
import stat
import threading
from dataclasses import replace
from functools import partial

import pytest

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import TopicPermission, User, VhostPermission
from fluxmq.control import metadata, schema
from fluxmq.control.metadata import (
    FILE_NAME,
    ChangeError,
    MetadataError,
    MetadataStore,
    StoreThread,
)
from fluxmq.control.topology_rows import Write, pack
from fluxmq.ipc.messages import ERROR_EXISTS, ERROR_INVALID, ERROR_LIMIT, ERROR_NOT_FOUND
from tests.unit.auth.test_hash_upgrades import upgrade

HASH = hash_password("p", b"s" * 16, HashParameters(1, 64, 1))
OTHER_HASH = hash_password("q", b"s" * 16, HashParameters(1, 64, 1))
KEYS = StoredKeys(4096, b"s" * 16, b"k" * 32, b"K" * 32)
ANN = User("ann", HASH, KEYS, ("a/#", "ü"), ("#",), enabled=True)
BOB = User("bob", HASH, None, (), (), enabled=False)
TOPIC = TopicPermission("/", "logs", "^a", "")
EVE = User(
    "eve",
    HASH,
    None,
    (),
    (),
    True,
    ("administrator",),
    (VhostPermission("/", ".*", "", "^q"), VhostPermission("b", "", "", "")),
    (TOPIC, TopicPermission("b", "logs", "", "^b")),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / FILE_NAME


@pytest.fixture
def store(path):
    made = MetadataStore(path)
    yield made
    made.close()


def test_a_new_database_is_empty_private_and_at_revision_0(store, path):
    assert store.users().revision == 0
    assert store.users().users == ()
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_was_written_is_there_after_reopening(path):
    store = MetadataStore(path)
    store.add(BOB)
    store.add(EVE)
    users = store.add(ANN)
    store.close()
    assert (users.revision, users.users) == (3, (ANN, BOB, EVE))
    again = MetadataStore(path)
    assert again.users() == users
    again.close()


def test_every_change_raises_the_revision_and_returns_the_snapshot(store):
    store.add(ANN)
    assert store.set_password("ann", OTHER_HASH, None).users == (
        User("ann", OTHER_HASH, None, ANN.publish, ANN.subscribe, enabled=True),
    )
    (user,) = store.permit("ann", ("x",), None).users
    assert (user.publish, user.subscribe) == (("x",), ANN.subscribe)
    (user,) = store.permit("ann", None, ()).users
    assert (user.publish, user.subscribe) == (("x",), ())
    (user,) = store.alter("ann", enabled=False).users
    assert not user.enabled
    users = store.delete("ann")
    assert (users.revision, users.users) == (6, ())


def test_an_imported_hash_is_replaced_if_it_is_still_the_one_that_was_verified(store):
    """A password that an operator sets meanwhile wins."""
    made = upgrade("bob")
    store.add(ANN)
    store.add(replace(BOB, hash=made.verified))
    store.add(replace(EVE, hash=made.verified, scram=KEYS))
    of_ann, of_eve = replace(made, name="ann"), replace(made, name="eve", scram=None)
    users = store.upgrade_hashes((of_ann, made, of_eve, replace(made, name="nobody")))
    assert users.revision == 4
    assert users.users == (
        ANN,
        replace(BOB, hash=made.hash, scram=made.scram),
        replace(EVE, hash=made.hash, scram=KEYS),
    )
    for late in ((), (made,), (of_ann, replace(made, name="nobody"))):
        with pytest.raises(ChangeError) as caught:
            store.upgrade_hashes(late)
        assert caught.value.code == ERROR_NOT_FOUND
    assert store.users() == users


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda store: store.add(ANN), ERROR_EXISTS),
        (lambda store: store.add(User("", HASH, None, (), (), enabled=True)), ERROR_INVALID),
        (lambda store: store.set_password("eve", HASH, None), ERROR_NOT_FOUND),
        (lambda store: store.set_password("ann", "plain", None), ERROR_INVALID),
        (lambda store: store.permit("ann", ("a#",), None), ERROR_INVALID),
        (lambda store: store.permit("eve", (), ()), ERROR_NOT_FOUND),
        (lambda store: store.alter("eve", enabled=True), ERROR_NOT_FOUND),
        (lambda store: store.delete("eve"), ERROR_NOT_FOUND),
        (lambda store: store.alter("ann", tags=("a b",)), ERROR_INVALID),
        (lambda store: store.alter("eve", tags=()), ERROR_NOT_FOUND),
        (
            lambda store: store.set_permission("ann", VhostPermission("/", "(", "", "")),
            ERROR_INVALID,
        ),
        (
            lambda store: store.set_permission("eve", VhostPermission("/", "", "", "")),
            ERROR_NOT_FOUND,
        ),
        (lambda store: store.clear_permission("eve", "/"), ERROR_NOT_FOUND),
        (
            lambda store: store.set_topic_permission("ann", TopicPermission("/", "", "", "")),
            ERROR_INVALID,
        ),
        (lambda store: store.set_topic_permission("eve", TOPIC), ERROR_NOT_FOUND),
        (lambda store: store.clear_topic_permission("eve", "/", None), ERROR_NOT_FOUND),
    ],
)
def test_a_refused_change_leaves_no_trace(store, change, code):
    before = store.add(ANN)
    with pytest.raises(ChangeError) as caught:
        change(store)
    assert caught.value.code == code
    assert store.users() == before
    assert store.add(BOB).revision == before.revision + 1


VHOST = Write("vhost", pack(["/"]), pack({"name": "/"}), transient=False)


def test_permissions_are_for_virtual_hosts_that_exist(store):
    store.add(ANN)
    everything = VhostPermission("/", ".*", ".*", ".*")
    with pytest.raises(ChangeError, match="does not exist") as caught:
        store.set_permission("ann", VhostPermission("b", "", "", ""))
    assert caught.value.code == ERROR_NOT_FOUND
    with pytest.raises(ChangeError, match="does not exist"):
        store.set_topic_permission("ann", TopicPermission("b", "x", "", ""))
    # The first node will make this one, unless it made and lost it already.
    store.set_permission("ann", everything)
    store.seed(lambda: EVE, [])
    with pytest.raises(ChangeError, match="does not exist"):
        store.set_permission("ann", everything)
    store.write_topology([VHOST], 1)
    store.set_permission("ann", everything)


def test_tags_and_permissions_are_replaced_and_cleared(store):
    store.add(ANN)
    (user,) = store.alter("ann", tags=("a", "b")).users
    assert user.tags == ("a", "b")
    first, second = VhostPermission("/", "a", "b", "c"), VhostPermission("/", "d", "e", "f")
    store.set_permission("ann", first)
    (user,) = store.set_permission("ann", second).users
    assert user.permissions == (second,)
    (user,) = store.set_topic_permission("ann", TOPIC).users
    # Other changes leave them alone.
    (user,) = store.alter("ann", enabled=False).users
    assert (user.tags, user.permissions, user.topic_permissions) == (
        ("a", "b"),
        (second,),
        (TOPIC,),
    )
    (user,) = store.clear_permission("ann", "other").users
    assert user.permissions == (second,)
    (user,) = store.clear_permission("ann", "/").users
    assert user.permissions == ()


@pytest.mark.parametrize(
    ("vhost", "exchange", "left"),
    [("/", "logs", {("/", "x"), ("b", "logs")}), ("/", None, {("b", "logs")})],
)
def test_restrictions_are_lifted_for_one_exchange_or_all(store, vhost, exchange, left):
    store.add(ANN)
    store.write_topology([VHOST, VHOST._replace(key=pack(["b"]))], 1)
    for host, name in (("/", "logs"), ("/", "x"), ("b", "logs")):
        store.set_topic_permission("ann", TopicPermission(host, name, "", ""))
    (user,) = store.clear_topic_permission("ann", vhost, exchange).users
    assert {(each.vhost, each.exchange) for each in user.topic_permissions} == left


def test_the_number_of_permissions_is_bounded(store, monkeypatch):
    monkeypatch.setattr(metadata, "PERMISSIONS_MAX", 1)
    store.add(ANN)
    store.write_topology([VHOST._replace(key=pack([name])) for name in "ab"], 1)
    store.set_permission("ann", VhostPermission("a", "", "", ""))
    store.set_permission("ann", VhostPermission("a", "x", "", ""))
    before = store.users()
    with pytest.raises(ChangeError, match="limit") as caught:
        store.set_permission("ann", VhostPermission("b", "", "", ""))
    assert caught.value.code == ERROR_LIMIT
    assert store.users() == before


def test_a_user_who_is_added_again_has_no_old_permissions(store):
    store.add(EVE)
    store.delete("eve")
    (user,) = store.add(User("eve", HASH, None, (), (), enabled=True)).users
    assert (user.permissions, user.topic_permissions) == ((), ())


def test_a_database_of_the_first_schema_is_brought_up(path):
    database = sqlite3.connect(path)
    database.executescript(
        f"{schema.SCHEMA_1} PRAGMA application_id = {metadata.APPLICATION_ID};"
        "PRAGMA user_version = 1; UPDATE state SET revision = 7;"
    )
    database.execute(
        "INSERT INTO users (name, hash, publish, subscribe, enabled) VALUES (?, ?, '[\"a\"]', '[]', 1)",
        ("ann", HASH),
    )
    database.commit()
    database.close()
    store = MetadataStore(path)
    users = store.users()
    assert users.revision == 7
    assert users.users == (User("ann", HASH, None, ("a",), (), enabled=True),)
    assert (store.topology.rows(), store.topology.revision, store.seeded) == ([], 0, False)
    store.close()
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    database.close()


def test_the_first_node_makes_a_user_where_there_is_none_once(path):
    store = MetadataStore(path)
    store.seed(lambda: EVE, [VHOST])
    assert store.users().users == (EVE,)
    assert store.topology.rows() == [("vhost", ["/"], {"name": "/"})]
    store.delete("eve")
    store.write_topology([VHOST._replace(value=None)], 1)
    store.close()
    store = MetadataStore(path)
    store.seed(lambda: EVE, [VHOST])
    assert (store.users().users, store.topology.rows()) == ((), [])
    store.close()


def test_the_first_node_makes_no_user_beside_others(store):
    store.add(ANN)
    store.seed(lambda: EVE, [VHOST])
    assert store.users().users == (ANN,)
    assert store.topology.rows() == [("vhost", ["/"], {"name": "/"})]


DURABLE = Write("queue", pack(["/", "d"]), pack({"durable": True}), transient=False)
TRANSIENT = Write("queue", pack(["/", "t"]), pack({"durable": False}), transient=True)


def test_rows_of_the_topology_are_there_after_reopening(path):
    store = MetadataStore(path)
    assert store.write_topology([DURABLE, TRANSIENT], 5) is None
    store.write_topology([DURABLE._replace(value=pack(b"\xff"))], 6)
    store.close()
    store = MetadataStore(path)
    assert store.topology.revision == 6
    assert store.topology.rows() == [
        ("queue", ["/", "d"], b"\xff"),
        ("queue", ["/", "t"], {"durable": False}),
    ]
    store.close()


def test_what_ends_with_the_node_goes_when_the_next_one_starts(path):
    store = MetadataStore(path)
    assert store.begin("first")
    store.write_topology([DURABLE, TRANSIENT], 5)
    store.close()
    store = MetadataStore(path)
    assert not store.begin("first")
    assert len(store.topology.rows()) == 2
    assert store.begin("second")
    assert [key for _, key, _ in store.topology.rows()] == [["/", "d"]]
    assert not store.begin("second")
    store.close()


@pytest.mark.parametrize(
    ("writes", "synced"),
    [
        ([TRANSIENT], False),
        ([DURABLE], True),
        ([TRANSIENT, DURABLE], True),
        ([TRANSIENT._replace(value=None)], False),
        ([DURABLE._replace(value=None)], True),
        ([DURABLE._replace(key=pack("unknown"), value=None)], False),
    ],
)
def test_only_what_outlives_the_machine_is_synced(store, writes, synced):
    store.write_topology([DURABLE, TRANSIENT], 1)
    assert store.topology.durable(writes) == synced
    levels = []
    store._database.set_trace_callback(
        lambda text: (
            levels.append(store._database.execute("PRAGMA synchronous").fetchone()[0])
            if text == "COMMIT"
            else None
        )
    )
    store.write_topology(writes, 2)
    store._database.set_trace_callback(None)
    assert levels == [2 if synced else 1]
    assert store._database.execute("PRAGMA synchronous").fetchone() == (2,)


def test_permissions_go_with_their_virtual_host(store):
    store.add(EVE)
    users = store.write_topology([DURABLE], 1, dropped_vhosts=["/"])
    (user,) = users.users
    assert users.revision == 2
    assert [each.vhost for each in user.permissions] == ["b"]
    assert [each.vhost for each in user.topic_permissions] == ["b"]
    assert store.topology.revision == 1


def test_rows_that_cannot_be_written_leave_no_trace(store):
    store.write_topology([DURABLE], 1)
    with pytest.raises(sqlite3.IntegrityError):
        store.write_topology([TRANSIENT, Write("x", pack(1), pack(1), 2)], 2)  # type: ignore[arg-type]  # on purpose
    assert store.topology.revision == 1
    assert [key for _, key, _ in store.topology.rows()] == [["/", "d"]]


def test_a_damaged_row_is_reported(store):
    store.write_topology([DURABLE], 1)
    store._database.execute("UPDATE topology SET value = x'c1'")
    with pytest.raises(ValueError, match="msgpack"):
        store.topology.rows()


def test_the_number_of_users_is_bounded(store, monkeypatch):
    monkeypatch.setattr(metadata, "USERS_MAX", 1)
    store.add(ANN)
    with pytest.raises(ChangeError, match="limit") as caught:
        store.add(BOB)
    assert caught.value.code == ERROR_LIMIT


def test_the_size_of_all_users_together_is_bounded(store, monkeypatch):
    store.add(BOB)
    monkeypatch.setattr(metadata, "SNAPSHOT_BYTES_MAX", 1000)
    with pytest.raises(ChangeError, match="bytes") as caught:
        store.permit("bob", tuple("x" * 400 + str(n) for n in range(3)), None)
    assert caught.value.code == ERROR_LIMIT
    assert store.users().users == (BOB,)


def test_another_programs_database_is_refused_and_left_alone(path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    with pytest.raises(MetadataError, match="not a database of this broker"):
        MetadataStore(path)
    other = sqlite3.connect(path)
    assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    other.close()


def test_a_file_that_is_no_database_is_refused(path):
    path.write_bytes(b"hello " * 1000)
    with pytest.raises(MetadataError, match="not a database"):
        MetadataStore(path)


def test_a_newer_schema_is_refused(path):
    MetadataStore(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    database.close()
    with pytest.raises(MetadataError, match=f"schema {schema.VERSION + 1}"):
        MetadataStore(path)


@pytest.mark.parametrize("damage", ["hash = 'x'", "publish = '{'", "publish = '[1]'", "name = ''"])
def test_a_damaged_record_is_reported_with_its_name(path, damage):
    store = MetadataStore(path)
    store.add(ANN)
    store.close()
    database = sqlite3.connect(path)
    database.execute(f"UPDATE users SET {damage}")
    database.commit()
    database.close()
    store = MetadataStore(path)
    with pytest.raises(MetadataError, match="damaged"):
        store.users()
    store.close()


def test_the_tables_refuse_half_a_set_of_keys(path):
    store = MetadataStore(path)
    store.add(ANN)
    store.close()
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        database.execute("UPDATE users SET scram_salt = NULL")
    database.close()


def test_a_link_is_not_followed(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(OSError, match="symbolic"):
        MetadataStore(path)
    assert not (tmp_path / "elsewhere.db").exists()


def test_an_interrupted_change_is_rolled_back(store):
    store.add(ANN)

    def interrupted():
        with store._change() as database:
            database.execute("DELETE FROM users")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert store.users().users == (ANN,)
    assert store.users().revision == 1


def test_the_store_runs_on_one_thread_in_order():
    async def scenario():
        thread = StoreThread()
        seen = []

        def note(number):
            seen.append(number)
            return threading.get_ident()

        identities = await asyncio.gather(
            *(thread.run(partial(note, number)) for number in range(20))
        )
        thread.close()
        assert seen == list(range(20))
        assert len(set(identities)) == 1
        assert identities[0] != threading.get_ident()

    asyncio.run(scenario())


def test_changes_are_synced_and_logged_ahead(store, path):
    assert store._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._database.execute("PRAGMA synchronous").fetchone() == (2,)
    assert os.path.exists(f"{path}-wal")
