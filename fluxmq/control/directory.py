"""The node's users: changes go to disk, then to every shard, and are answered when all confirmed.

Holds the snapshot in force, replaced by revision. A shard gets it when it says hello; after a
change every connected shard gets the new one. The caller of a change learns which live shards did
not confirm within `CONFIRM_SECONDS`; they get the snapshot when they reconnect, because hello
always brings it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from msgspec.structs import replace

from fluxmq.control.metadata import ChangeError, MetadataStore, StoreThread
from fluxmq.control.peers import Peer, PeerError, RequestError
from fluxmq.control.revision_barrier import RevisionBarrier
from fluxmq.ipc.messages import (
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    USER_ADD,
    USER_DELETE,
    USER_ENABLE,
    USER_LIST,
    USER_PASSWORD,
    USER_PERMIT,
    USER_UPGRADE,
    USERS,
    Body,
    ControlMessage,
    MessageBody,
    MessageError,
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
    UserHashWanted,
    UserTags,
)
from fluxmq.ipc.user_messages import (
    Confirmed,
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
)
from fluxmq.logs import get_logger

# Time the caller of a change waits for live shards.
CONFIRM_SECONDS: Final = 2.0
# Time for a shard to confirm before the snapshot is sent again: longer than any stall it survives.
PUSH_SECONDS: Final = 30.0

_log = get_logger(__name__)


_CHANGES: Final[dict[str, tuple[type[MessageBody], Callable[[MetadataStore, Any], Users]]]] = {
    USER_ADD: (UserAdd, lambda store, to: store.add(to.user)),
    USER_PASSWORD: (UserPassword, lambda store, to: store.set_password(to.name, to.hash, to.scram)),
    USER_PERMIT: (UserPermit, lambda store, to: store.permit(to.name, to.publish, to.subscribe)),
    USER_ENABLE: (UserEnable, lambda store, to: store.alter(to.name, enabled=to.enabled)),
    USER_DELETE: (UserDelete, lambda store, to: store.delete(to.name)),
    USER_UPGRADE: (UserUpgrade, lambda store, to: store.upgrade_hashes(to.upgrades)),
    USER_TAGS: (UserTags, lambda store, to: store.alter(to.name, tags=to.tags)),
    PERMISSION_SET: (
        PermissionSet,
        lambda store, to: store.set_permission(to.name, to.permission),
    ),
    TOPIC_PERMISSION_SET: (
        TopicPermissionSet,
        lambda store, to: store.set_topic_permission(to.name, to.permission),
    ),
    PERMISSION_CLEAR: (
        PermissionClear,
        lambda store, to: store.clear_permission(to.name, to.vhost),
    ),
    TOPIC_PERMISSION_CLEAR: (
        PermissionClear,
        lambda store, to: store.clear_topic_permission(to.name, to.vhost, to.exchange),
    ),
}
"""Changes by kind: the request's body, and what it does to the store."""
KINDS: Final = frozenset({USER_LIST, USER_HASH, *_CHANGES})


def change_of(message: ControlMessage) -> Callable[[MetadataStore], Users]:
    """Return the change that a request asks for. Raises MessageError or RequestError."""
    found = _CHANGES.get(message.kind)
    if found is None:
        raise RequestError(ERROR_UNKNOWN_KIND, f"{message.kind} is not supported here")
    body, make = found
    asked = body.from_body(message.body)
    return lambda store: make(store, asked)


class Directory:
    """The users of the node. Lives on control's loop; the store lives on its own thread.

    `shards` returns the connected shards, `live` the names of those that serve (by the process
    table, which also knows shards that are not connected).
    """

    def __init__(
        self,
        store: MetadataStore,
        thread: StoreThread,
        users: Users,
        shards: Callable[[], list[Peer]],
        live: Callable[[], list[str]],
    ) -> None:
        self._store = store
        self._thread = thread
        self._shards = shards
        self._users = users
        self.decide: Callable[[ControlMessage], Awaitable[int]] | None = None
        """In a cluster: commits a change and returns its revision, which this node has reached by
        then."""
        self.revision_barrier = RevisionBarrier(live, self._held)
        self._taken = asyncio.Event()
        # At most one push per shard is in progress; it ends when the shard has the snapshot in
        # force.
        self._pushes: dict[Peer, asyncio.Task[None]] = {}

    @property
    def users(self) -> Users:
        """Snapshot in force."""
        return self._users

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request about users. Raises RequestError or MessageError."""
        if message.kind == USER_LIST:
            summaries = tuple(UserSummary.of(user) for user in self._users.users)
            return UserListing(self._users.revision, summaries).to_body()
        if message.kind == USER_HASH:
            return self._hash(UserHashWanted.from_body(message.body).name).to_body()
        revision = await (self._change if self.decide is None else self.decide)(message)
        _log.info("users changed", extra={"change": message.kind, "revision": revision})
        unconfirmed = await self.revision_barrier.missing(revision, CONFIRM_SECONDS)
        return UserChanged(revision, unconfirmed).to_body()

    async def _change(self, message: ControlMessage) -> int:
        change = change_of(message)
        try:
            users = await self._thread.run(lambda: change(self._store))
        except ChangeError as refusal:
            raise RequestError(refusal.code, str(refusal)) from refusal
        self.take(users)
        return users.revision

    async def reached(self, revision: int) -> None:
        """Return when the snapshot in force has this revision or a later one."""
        while self._users.revision < revision:
            self._taken.clear()
            await self._taken.wait()

    def replace(self, users: Users) -> None:
        """Replace the snapshot whatever its revision: this node had users of its own before."""
        self._users = replace(self._users, revision=-1)
        self.take(users)

    def take(self, users: Users) -> None:
        """Put a newer snapshot in force and push it to every shard without waiting."""
        if users.revision > self._users.revision:
            self._users = users
            self._taken.set()
            for shard in self._shards():
                self.push(shard)
            self.revision_barrier.confirmed()

    def _hash(self, name: str) -> UserHash:
        for user in self._users.users:
            if user.name == name:
                return UserHash(user.hash, user.enabled)
        raise RequestError(ERROR_NOT_FOUND, f"there is no user {name!r}")

    def push(self, shard: Peer) -> None:
        """Push the snapshot in force to a shard and note its confirmation."""
        if shard not in self._pushes:
            self._pushes[shard] = asyncio.get_running_loop().create_task(self._push(shard))

    async def _push(self, shard: Peer) -> None:
        """Send the snapshot in force until the shard has it, refuses it, or is gone.

        A shard that lags gets the newest snapshot, not each one it missed. The task leaves the
        table in the same step as its last look at the revision: a change in between would be lost.
        """
        try:
            while shard.users_revision < self._users.revision:
                if not await self._sent(shard, self._users):
                    return
                self.revision_barrier.confirmed()
        finally:
            del self._pushes[shard]

    async def _sent(self, shard: Peer, users: Users) -> bool:
        """Send one snapshot and note the shard's revision; return whether to continue."""
        try:
            body = await shard.ask(USERS, users.to_body(), PUSH_SECONDS)
            shard.users_revision = Confirmed.from_body(body).revision
        except TimeoutError:
            _log.warning(
                "shard did not acknowledge the users revision in time", extra=_about(shard, users)
            )
        except (PeerError, MessageError) as problem:
            _log.warning("shard refused the users update: %s", problem, extra=_about(shard, users))
            return False
        else:
            if shard.users_revision < users.revision:
                # Repeating would never end; the next change tries again.
                _log.warning(
                    "shard acknowledged an older users revision", extra=_about(shard, users)
                )
                return False
        return True

    def _held(self) -> dict[str, int]:
        return {shard.name: shard.users_revision for shard in self._shards()}


def _about(shard: Peer, users: Users) -> dict[str, object]:
    return {"shard": shard.name, "revision": users.revision}
