"""The control process's part in the backup of one queue: finds the shard that leads it, and declares
a queue that is restored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import orjson

from fluxmq.control.peers import AnsweredError, Peer, PeerError, RequestError, forwarded
from fluxmq.ipc.definition_messages import IMPORT_DEFINITIONS, DefinitionsText
from fluxmq.ipc.messages import (
    ERROR_AWAY,
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    Body,
    ControlMessage,
    MessageError,
)
from fluxmq.ipc.queue_backups import (
    DEFINITION_BYTES_MAX,
    QUEUE_POSITION,
    RESTORE_BATCH,
    RESTORE_QUEUE,
    QueuePlace,
    QueuePosition,
    RestoreBatch,
    RestoreQueue,
)
from fluxmq.ipc.row_messages import AffectedCount
from fluxmq.routing.topology.records import QUEUE, QueueRecord
from fluxmq.routing.topology.topology import Topology

KINDS: Final = frozenset({QUEUE_POSITION, RESTORE_QUEUE, RESTORE_BATCH})
POSITION_SECONDS: Final = 10.0
"""Time for a shard to write a queue's latest messages to its files."""
APPEND_SECONDS: Final = 60.0
"""Time for a shard to append a batch: its queue's `ack_timeout`, and some more."""
DECLARED_SECONDS: Final = 15.0
"""Time for a new queue's group to make it on every member."""
AGAIN_SECONDS: Final = 0.05


class QueueBackupRequests:
    """Serves the requests on control's loop. ``answer`` has this process answer one of its others."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        shards: Callable[[], list[Peer]],
        answer: Callable[[ControlMessage], Awaitable[Body]],
    ) -> None:
        self._topology = topology
        self._shards = shards
        self._others = answer

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        match message.kind:
            case "queue_position":
                return (await self._position(QueuePlace.from_body(message.body))).to_body()
            case "restore_queue":
                return (await self._restore(RestoreQueue.from_body(message.body))).to_body()
            case "restore_batch":
                RestoreBatch.from_body(message.body)
                return await self._by_a_shard(RESTORE_BATCH, message.body)
        raise RequestError(ERROR_UNKNOWN_KIND, f"{message.kind} is not supported here")

    # Backup

    async def _position(self, wanted: QueuePlace) -> QueuePosition:
        queue = self._topology().queue(wanted.vhost, wanted.name)
        if queue is None:
            text = f"no queue '{wanted.name}' in vhost '{wanted.vhost}'"
            raise RequestError(ERROR_NOT_FOUND, text)
        if not queue.durable:
            text = f"queue '{wanted.name}' is not durable: it has no files to copy"
            raise RequestError(ERROR_INVALID, text)
        for shard in self._shards():
            try:
                body = await shard.ask(QUEUE_POSITION, wanted.to_body(), POSITION_SECONDS)
            except AnsweredError as refusal:
                if refusal.failure.code != ERROR_NOT_FOUND:
                    text = f"{shard.name}: {refusal.failure.text}"
                    raise RequestError(refusal.failure.code, text) from refusal
                continue
            except (PeerError, TimeoutError) as problem:
                text = f"{shard.name}: {str(problem) or 'no answer in time'}"
                raise RequestError(ERROR_FAILED, text) from problem
            found = QueuePosition.from_body(body)
            definition = orjson.dumps(self._definition(queue))
            if len(definition) > DEFINITION_BYTES_MAX:
                raise RequestError(ERROR_FAILED, f"queue '{wanted.name}' has too many bindings")
            return QueuePosition(found.group, found.internal, found.state, definition)
        raise RequestError(
            ERROR_NOT_FOUND,
            f"queue '{wanted.name}' is led by another node, or has no leader: list_queues name leader"
            " names the node to run this on",
        )

    def _definition(self, queue: QueueRecord) -> dict[str, object]:
        from fluxmq.control.management.rows import binding_definition, queue_row  # loads HTTP

        bindings = self._topology().bindings_to(queue.vhost, QUEUE, queue.name)
        return {"queues": [queue_row(queue)], "bindings": list(map(binding_definition, bindings))}

    # Restore

    async def _restore(self, wanted: RestoreQueue) -> AffectedCount:
        """Declare a queue and count its messages."""
        known = self._topology().queue(wanted.vhost, wanted.name)
        if known is None:
            await self._others(
                ControlMessage(IMPORT_DEFINITIONS, 0, DefinitionsText(wanted.definition).to_body())
            )
        else:
            self._compare(known, wanted)
        asked = RestoreQueue(wanted.vhost, wanted.name)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DECLARED_SECONDS
        while True:
            try:
                body = await self._by_a_shard(RESTORE_QUEUE, asked.to_body())
            except RequestError as problem:
                if problem.code != ERROR_AWAY or loop.time() > deadline:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            return AffectedCount.from_body(body)

    def _compare(self, known: QueueRecord, wanted: RestoreQueue) -> None:
        """Raise RequestError if a queue of this name is another one."""
        try:
            (given,) = orjson.loads(wanted.definition)["queues"]
            was = {key: given[key] for key in ("type", "durable", "auto_delete", "arguments")}
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as problem:
            raise MessageError(f"no definition of a queue: {problem!r}") from problem
        from fluxmq.control.management.rows import queue_row

        row = queue_row(known)
        different = [key for key, value in was.items() if row[key] != value]
        if different or known.exclusive:
            what = ", ".join(different) or "exclusive"
            text = (
                f"queue '{known.name}' exists in vhost '{known.vhost}' with other properties ({what}):"
                " delete it, or restore to another name"
            )
            raise RequestError(ERROR_INVALID, text)

    async def _by_a_shard(self, kind: str, body: Body) -> Body:
        """Have a shard answer; any can, wherever the queue is."""
        shards = sorted(self._shards(), key=lambda shard: shard.name)
        if not shards:
            raise RequestError(ERROR_AWAY, "no shard is connected")
        return await forwarded(shards[0], kind, body, APPEND_SECONDS)
