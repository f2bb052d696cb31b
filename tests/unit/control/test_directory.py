"""Users from the database to the shards, over real sockets, confirmed or not."""

import asyncio
import contextlib
import os
from dataclasses import replace

import pytest
import uvloop

from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.users import TopicPermission, User, VhostPermission
from fluxmq.control import directory
from fluxmq.control.directory import Directory
from fluxmq.control.metadata import FILE_NAME, MetadataStore, StoreThread
from fluxmq.control.peers import ControlListener, RequestError, Service
from fluxmq.ipc import unix_socket
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.messages import (
    ERROR_EXISTS,
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    USER_ADD,
    USER_DELETE,
    USER_ENABLE,
    USER_LIST,
    USER_PASSWORD,
    USER_PERMIT,
    USER_UPGRADE,
    ControlMessage,
    MessageError,
    ProcessHello,
    ProcessNumbers,
)
from fluxmq.ipc.permission_messages import (
    PERMISSION_CLEAR,
    PERMISSION_SET,
    TOPIC_PERMISSION_CLEAR,
    TOPIC_PERMISSION_SET,
    USER_HASH,
    USER_TAGS,
    PermissionClear,
    PermissionSet,
    TopicPermissionSet,
    UserHash,
    UserTags,
)
from fluxmq.ipc.user_messages import (
    UserAdd,
    UserChanged,
    UserDelete,
    UserEnable,
    UserListing,
    UserPassword,
    UserPermit,
    UserUpgrade,
)
from tests.unit.auth.test_hash_upgrades import upgrade

HASH = hash_password("p", b"s" * 16, HashParameters(1, 64, 1))
ANN = User("ann", HASH, None, ("a/#",), ("#",), enabled=True)


class Node:
    """A directory with its database and control socket, and the shards that connect to it."""

    def __init__(self, path):
        self.path = path
        self.live = []
        self.snapshots = {}
        self.tasks = []

    async def __aenter__(self):
        self.thread = StoreThread()
        self.store = await self.thread.run(lambda: MetadataStore(self.path / FILE_NAME))
        users = await self.thread.run(self.store.users)
        self.listener = ControlListener(
            Service(self._refuse, self._greeted, lambda _: None), os.geteuid()
        )
        self.directory = Directory(
            self.store, self.thread, users, lambda: self.listener.processes, lambda: self.live
        )
        await self.listener.start(unix_socket.bind(self.path / "s"))
        return self

    async def __aexit__(self, *_exception):
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.listener.stop()
        await self.thread.run(self.store.close)
        self.thread.close()

    def _greeted(self, peer):
        self.directory.push(peer)

    async def _refuse(self, message):
        raise RequestError(ERROR_UNKNOWN_KIND, message.kind)

    async def shard(self, index, take=None):
        """Connect a shard; `take` is what it does with a snapshot, by default remember it."""
        taken = self.snapshots.setdefault(index, [])
        handlers = Handlers(lambda: (), ProcessNumbers, take or taken.append)
        client = ControlClient(self.path / "s", ProcessHello("shard", index, 1), handlers)
        self.tasks.append(asyncio.create_task(client.run()))
        self.live.append(f"shard-{index}")
        await until(lambda: client.users_revision >= 0 or take)
        return client

    async def ask(self, kind, request):
        return UserChanged.from_body(
            await self.directory.answer(ControlMessage(kind, 1, request.to_body()))
        )


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


def run(tmp_path, scenario):
    async def main():
        async with asyncio.timeout(30), Node(tmp_path) as node:
            await scenario(node)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_change_reaches_every_shard_before_it_is_answered(tmp_path):
    async def scenario(node):
        first, second = await node.shard(0), await node.shard(1)
        assert await node.ask(USER_ADD, UserAdd(ANN)) == UserChanged(1, ())
        assert first.users_revision == second.users_revision == 1
        assert node.snapshots[0][-1].users == (ANN,)
        assert node.directory.users.users == (ANN,)

    run(tmp_path, scenario)


def test_every_kind_of_change(tmp_path):
    async def scenario(node):
        await node.shard(0)
        other = hash_password("q", b"s" * 16, HashParameters(1, 64, 1))
        requests = [
            (USER_ADD, UserAdd(ANN)),
            (USER_PASSWORD, UserPassword("ann", other, None)),
            (USER_PERMIT, UserPermit("ann", None, ("x",))),
            (USER_ENABLE, UserEnable("ann", enabled=False)),
        ]
        for revision, (kind, request) in enumerate(requests, 1):
            assert await node.ask(kind, request) == UserChanged(revision, ())
        expected = User("ann", other, None, ("a/#",), ("x",), enabled=False)
        assert node.snapshots[0][-1].users == (expected,)
        listing = UserListing.from_body(
            await node.directory.answer(ControlMessage(USER_LIST, 1, {}))
        )
        assert [(user.name, user.enabled) for user in listing.users] == [("ann", False)]
        assert await node.ask(USER_DELETE, UserDelete("ann")) == UserChanged(5, ())
        assert node.snapshots[0][-1].users == ()

    run(tmp_path, scenario)


def test_tags_and_permissions_reach_the_shards(tmp_path):
    permission = VhostPermission("/", "^a", "", ".*")
    topic = TopicPermission("/", "logs", "^a", "")
    given, restricted = PermissionSet("ann", permission), TopicPermissionSet("ann", topic)

    async def scenario(node):
        await node.shard(0)
        requests = [
            (USER_ADD, UserAdd(ANN)),
            (USER_TAGS, UserTags("ann", ("administrator",))),
            (PERMISSION_SET, given),
            (TOPIC_PERMISSION_SET, restricted),
        ]
        for kind, request in requests:
            await node.ask(kind, request)
        (user,) = node.snapshots[0][-1].users
        assert (user.tags, user.permissions) == (("administrator",), (permission,))
        assert user.topic_permissions == (topic,)
        await node.ask(PERMISSION_CLEAR, PermissionClear("ann", "/"))
        await node.ask(TOPIC_PERMISSION_CLEAR, PermissionClear("ann", "/", "logs"))
        (user,) = node.snapshots[0][-1].users
        assert (user.permissions, user.topic_permissions) == ((), ())

    run(tmp_path, scenario)


def test_an_imported_hash_is_replaced_unless_another_password_was_set(tmp_path):
    made = upgrade("ann")
    request = UserUpgrade((made,))

    async def scenario(node):
        await node.shard(0)
        await node.ask(USER_ADD, UserAdd(replace(ANN, hash=made.verified)))
        assert await node.ask(USER_UPGRADE, request) == UserChanged(2, ())
        assert node.snapshots[0][-1].users == (replace(ANN, hash=made.hash, scram=made.scram),)
        await node.ask(USER_PASSWORD, UserPassword("ann", made.verified, None))
        await node.ask(USER_PASSWORD, UserPassword("ann", HASH, None))
        with pytest.raises(RequestError) as caught:
            await node.ask(USER_UPGRADE, request)
        assert caught.value.code == ERROR_NOT_FOUND
        assert node.directory.users.users == (ANN,)
        assert node.directory.users.revision == 4
        forged = UserUpgrade((replace(made, hash=HASH),))
        with pytest.raises(MessageError, match="not made from"):
            await node.ask(USER_UPGRADE, forged)

    run(tmp_path, scenario)


def test_the_hash_is_told_to_who_asks_for_it(tmp_path):
    async def scenario(node):
        await node.ask(USER_ADD, UserAdd(ANN))
        body = await node.directory.answer(ControlMessage(USER_HASH, 1, {"name": "ann"}))
        assert UserHash.from_body(body) == UserHash(HASH, enabled=True)
        with pytest.raises(RequestError) as caught:
            await node.directory.answer(ControlMessage(USER_HASH, 1, {"name": "eve"}))
        assert caught.value.code == ERROR_NOT_FOUND

    run(tmp_path, scenario)


def test_refusals_carry_their_code_and_change_nothing(tmp_path):
    async def scenario(node):
        await node.ask(USER_ADD, UserAdd(ANN))
        for kind, request, code in (
            (USER_ADD, UserAdd(ANN), ERROR_EXISTS),
            (USER_DELETE, UserDelete("eve"), ERROR_NOT_FOUND),
        ):
            with pytest.raises(RequestError) as caught:
                await node.ask(kind, request)
            assert caught.value.code == code
        with pytest.raises(MessageError):
            await node.directory.answer(ControlMessage(USER_ADD, 1, {"user": {}}))
        with pytest.raises(RequestError) as caught:
            await node.directory.answer(ControlMessage("user_dance", 1, {}))
        assert caught.value.code == ERROR_UNKNOWN_KIND
        assert node.directory.users.revision == 1

    run(tmp_path, scenario)


def test_shards_that_do_not_confirm_in_time_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "CONFIRM_SECONDS", 0.2)

    async def scenario(node):
        await node.shard(0)
        node.live.append("shard-7")  # serves, but has no control connection
        assert await node.ask(USER_ADD, UserAdd(ANN)) == UserChanged(1, ("shard-7",))

    run(tmp_path, scenario)


def test_a_change_waits_for_a_shard_that_connects_meanwhile(tmp_path):
    async def scenario(node):
        node.live.append("shard-0")
        change = asyncio.create_task(node.ask(USER_ADD, UserAdd(ANN)))
        await until(lambda: node.directory.users.revision == 1)
        client = await node.shard(0)
        assert await change == UserChanged(1, ())
        assert client.users_revision == 1

    run(tmp_path, scenario)


def test_a_shard_that_says_hello_gets_the_users_at_once(tmp_path):
    async def scenario(node):
        await node.ask(USER_ADD, UserAdd(ANN))
        await node.shard(0)
        assert [users.users for users in node.snapshots[0]] == [(ANN,)]

    run(tmp_path, scenario)


def test_many_changes_at_once_leave_every_shard_with_the_last(tmp_path):
    async def scenario(node):
        clients = [await node.shard(0), await node.shard(1)]
        users = [User(f"u{n}", HASH, None, (), (), enabled=True) for n in range(30)]
        answers = await asyncio.gather(*(node.ask(USER_ADD, UserAdd(user)) for user in users))
        assert sorted(answer.revision for answer in answers) == list(range(1, 31))
        assert all(answer.unconfirmed == () for answer in answers)
        assert [client.users_revision for client in clients] == [30, 30]
        assert len(node.snapshots[0][-1].users) == 30

    run(tmp_path, scenario)


def test_a_shard_that_confirms_late_is_noted_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "CONFIRM_SECONDS", 0.05)

    async def scenario(node):
        client = await node.shard(0)
        (peer,) = node.listener.processes
        ask, late = peer.ask, asyncio.Event()

        async def slow(*arguments):
            body = await ask(*arguments)
            await late.wait()
            return body

        peer.ask = slow
        assert await node.ask(USER_ADD, UserAdd(ANN)) == UserChanged(1, ("shard-0",))
        late.set()
        await until(lambda: peer.users_revision == 1)
        assert client.users_revision == 1

    run(tmp_path, scenario)


def test_a_shard_that_does_not_answer_is_asked_again_with_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "CONFIRM_SECONDS", 0.05)
    monkeypatch.setattr(directory, "PUSH_SECONDS", 0.1)

    async def scenario(node):
        await node.shard(0)
        (peer,) = node.listener.processes
        ask, asked = peer.ask, []

        async def deaf_at_first(kind, body, seconds):
            asked.append(body["revision"])
            if len(asked) == 1:
                raise TimeoutError
            return await ask(kind, body, seconds)

        peer.ask = deaf_at_first
        bob = User("bob", HASH, None, (), (), enabled=True)
        await asyncio.gather(node.ask(USER_ADD, UserAdd(ANN)), node.ask(USER_ADD, UserAdd(bob)))
        await until(lambda: peer.users_revision == 2)
        assert asked[-1] == 2
        assert len(node.snapshots[0][-1].users) == 2

    run(tmp_path, scenario)


def test_a_shard_that_confirms_less_than_it_was_sent_is_not_asked_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "CONFIRM_SECONDS", 0.1)

    async def scenario(node):
        await node.shard(0)
        (peer,) = node.listener.processes
        asked = []

        async def behind(_kind, body, _seconds):
            asked.append(body["revision"])
            return {"revision": 0}

        peer.ask = behind
        assert await node.ask(USER_ADD, UserAdd(ANN)) == UserChanged(1, ("shard-0",))
        assert asked == [1]

    run(tmp_path, scenario)
