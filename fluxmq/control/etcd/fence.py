"""Requests to etcd of which none can be carried out after a later one.

A request that got no answer in time may still be on its way, and could undo what is asked for after
it. So each is made on the condition that the fence, a key of this node's own, is of a known
revision. After a failure the fence is put anew, and nothing that was sent before can succeed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.etcd.messages import (
    Changed,
    Compare,
    EtcdTransaction,
    Get,
    Operation,
    Put,
    TransactionResult,
)

PREFIX: Final = b"/fluxmq/fences/"
ATTEMPTS_MAX: Final = 3
"""Attempts of a request, if others of this node fail and renew the fence meanwhile."""
FLAT_MIN: Final = 16
"""Conditional parts from which on it pays to try all as one: for a server that costs a third less
than a transaction each, and a part whose condition does not hold costs another request."""


class Fence:
    """Makes the requests of one part of a node, whose ``name`` it has in common with no other."""

    def __init__(self, client: EtcdClient, name: str) -> None:
        self._client = client
        self._key = PREFIX + name.encode()
        self._putting = asyncio.Lock()
        self._revision = 0
        """The key's revision; 0 while it has to be put anew."""

    async def transact(self, operations: tuple[Operation, ...]) -> TransactionResult:
        """Carry out operations. Raises EtcdError, after which they may have been carried out, and
        are not later than what is requested next."""
        return await self._transact((), operations)

    async def each(self, parts: Sequence[EtcdTransaction]) -> list[TransactionResult]:
        """Carry out conditional parts, whose keys all differ; return the result of each, with the
        revision of all. Raises EtcdError as ``transact``, and ValueError."""
        if len(parts) >= FLAT_MIN:
            compares = tuple(compare for part in parts for compare in part.compares)
            operations = tuple(operation for part in parts for operation in part.success)
            result = await self._transact(compares, operations)
            if result.succeeded:
                return [TransactionResult(True, result.revision)] * len(parts)
        if not parts:
            return []
        result = await self._transact((), tuple(parts))
        if len(result.nested) != len(parts):
            raise ValueError("the server has answered something else")
        return [each._replace(revision=result.revision) for each in result.nested]

    async def _transact(
        self, compares: tuple[Compare, ...], operations: tuple[Operation, ...]
    ) -> TransactionResult:
        """Carry out operations if all comparisons hold."""
        for _ in range(ATTEMPTS_MAX):
            async with self._putting:
                if not self._revision:
                    put = await self._client.transact((), (Put(self._key, b""),))
                    self._revision = put.revision
            revision = self._revision
            conditions = Changed(self._key, revision), *compares
            otherwise = (Get(self._key),) if compares else ()
            try:
                result = await self._client.transact(conditions, operations, otherwise)
            except EtcdError:
                self._forget(revision)
                raise
            if result.succeeded:
                return result
            found = [entry.revision for part in result.entries for entry in part]
            if compares and found == [revision]:
                return result
            self._forget(revision)
        raise EtcdError("other requests of this node fail all the time")

    def _forget(self, revision: int) -> None:
        """Put the key anew before the next request, unless another one has seen to it."""
        if self._revision == revision:
            self._revision = 0
