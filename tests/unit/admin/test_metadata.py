"""The node's database: what is written survives, what is refused leaves no trace."""

import asyncio
import os
import sqlite3
import stat
import threading

import pytest

from fluxmq.admin import metadata
from fluxmq.admin.metadata import (
    FILE_NAME,
    ChangeError,
    MetadataError,
    MetadataStore,
    StoreThread,
)
from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import User
from fluxmq.control.messages import ERROR_EXISTS, ERROR_INVALID, ERROR_LIMIT, ERROR_NOT_FOUND

HASH = hash_password("p", b"s" * 16, HashParameters(1, 64, 1))
OTHER_HASH = hash_password("q", b"s" * 16, HashParameters(1, 64, 1))
KEYS = StoredKeys(4096, b"s" * 16, b"k" * 32, b"K" * 32)
ANN = User("ann", HASH, KEYS, ("a/#", "ü"), ("#",), enabled=True)
BOB = User("bob", HASH, None, (), (), enabled=False)


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
    users = store.add(ANN)
    store.close()
    assert (users.revision, users.users) == (2, (ANN, BOB))
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
    (user,) = store.enable("ann", enabled=False).users
    assert not user.enabled
    users = store.delete("ann")
    assert (users.revision, users.users) == (6, ())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda store: store.add(ANN), ERROR_EXISTS),
        (lambda store: store.add(User("", HASH, None, (), (), enabled=True)), ERROR_INVALID),
        (lambda store: store.set_password("eve", HASH, None), ERROR_NOT_FOUND),
        (lambda store: store.set_password("ann", "plain", None), ERROR_INVALID),
        (lambda store: store.permit("ann", ("a#",), None), ERROR_INVALID),
        (lambda store: store.permit("eve", (), ()), ERROR_NOT_FOUND),
        (lambda store: store.enable("eve", enabled=True), ERROR_NOT_FOUND),
        (lambda store: store.delete("eve"), ERROR_NOT_FOUND),
    ],
)
def test_a_refused_change_leaves_no_trace(store, change, code):
    before = store.add(ANN)
    with pytest.raises(ChangeError) as caught:
        change(store)
    assert caught.value.code == code
    assert store.users() == before
    assert store.add(BOB).revision == before.revision + 1


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
    database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(MetadataError, match="schema 2"):
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
            *(thread.run(lambda number=number: note(number)) for number in range(20))
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
