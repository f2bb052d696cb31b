"""The beginning of a cluster's topology and users in etcd.

Nodes say what they have, under a lease. The one whose copy has seen most changes begins with it, or
with the defaults if none has anything.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Final

from fluxmq.auth.users import User
from fluxmq.control.etcd.client import EtcdClient
from fluxmq.control.etcd.messages import Created, Get, Put, end_of, key_part, name_of
from fluxmq.control.etcd.metadata_copy import NOTHING, CopyState, MetadataCopy
from fluxmq.control.etcd.metadata_keys import ROOT, MetadataRoot, operations_of
from fluxmq.control.metadata import StoreThread
from fluxmq.control.topology_rows import pack, unpack
from fluxmq.logs import get_logger

JOINING: Final = b"/fluxmq/joining/"
"""Prefix of the keys by which nodes say what they have."""
JOINING_SECONDS: Final = 30
"""Lease of such a key."""
SEED_SECONDS: Final = 3.0
"""Time for all nodes to say what they have."""
SEED_ANYWAY_SECONDS: Final = 15.0
"""Time after which a node begins although another one ought to have."""
LOOK_SECONDS: Final = 0.05
"""Interval at which a node looks what others have said."""

_log = get_logger(__name__)


class MetadataSeed:
    """This node's part in it. ``size``: number of nodes; ``first`` makes the first user."""

    def __init__(
        self,
        node: str,
        size: int,
        copy: MetadataCopy,
        thread: StoreThread,
        first: Callable[[], User],
    ) -> None:
        self._node = node
        self._size = size
        self._copy = copy
        self._thread = thread
        self._first = first

    async def plant(self, client: EtcdClient, state: CopyState) -> None:
        """Begin, unless another node does. Raises EtcdError, ValueError or sqlite3.Error."""
        if not await self._turn(client, state.age):
            return
        decision = await self._thread.run(lambda: self._copy.beginning(state, self._first))
        assert decision.users is not None, "there is a first user"
        # Above the revisions of copies that have queues in nodes' memory, too.
        root = MetadataRoot(
            state.root.topology + 1,
            decision.users.revision + 1,
            state.root.cluster or secrets.randbits(62) + 1,
        )
        await self._thread.run(lambda: self._copy.belong(root.cluster))
        done = await client.transact((Created(ROOT, 0),), operations_of(decision, root))
        if done.succeeded:
            _log.info("cluster bootstrapped", extra={"with_own": state.age != NOTHING})

    async def _turn(self, client: EtcdClient, age: int) -> bool:
        """Say what this node has; return whether it begins, or False once another one has."""
        lease = await client.grant(JOINING_SECONDS)
        put = Put(JOINING + key_part(self._node), pack(age), lease)
        await client.transact((), (put,))
        begun = time.monotonic()
        while True:
            wanted = Get(ROOT), Get(JOINING, end_of(JOINING))
            found, joining = (await client.transact((), wanted)).entries
            if found:
                return False
            ages = {name_of(each.key.removeprefix(JOINING)): unpack(each.value) for each in joining}
            waited = time.monotonic() - begun
            most = max(ages, key=lambda node: (ages[node], node), default=self._node)
            complete = len(ages) >= self._size or waited >= SEED_SECONDS
            if (complete and most == self._node) or waited >= SEED_ANYWAY_SECONDS:
                return True
            await asyncio.sleep(LOOK_SECONDS)
