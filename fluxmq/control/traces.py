"""Virtual hosts that the node traces: decided here, told to every shard, forgotten by a restart.

Each node has its own, as in RabbitMQ. A shard that starts is told what is traced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fluxmq.control.peers import Peer, RequestError, answers_of
from fluxmq.ipc.messages import ERROR_LIMIT, ERROR_NOT_FOUND, Body, ControlMessage
from fluxmq.ipc.trace_messages import TRACED, TRACED_MAX, TracedVhosts, TraceRequest
from fluxmq.logs import get_logger
from fluxmq.routing.topology.topology import Topology

TELL_SECONDS: Final = 5.0
"""Time for shards to take a change."""

_log = get_logger(__name__)


class Traces:
    """The traced virtual hosts. Lives on control's loop; ``shards`` returns the connected ones."""

    def __init__(self, topology: Callable[[], Topology], shards: Callable[[], list[Peer]]) -> None:
        self._topology = topology
        self._shards = shards
        self._vhosts: set[str] = set()
        self._told: set[asyncio.Task[object]] = set()

    @property
    def _traced(self) -> TracedVhosts:
        return TracedVhosts(tuple(sorted(self._vhosts)))

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        wanted = TraceRequest.from_body(message.body)
        self._vhosts = {each for each in self._vhosts if self._topology().vhost(each) is not None}
        if wanted.vhost:
            self._change(wanted.vhost, wanted.on)
            await answers_of(
                self._shards(), TRACED, self._traced.to_body(), TELL_SECONDS, TracedVhosts
            )
        return self._traced.to_body()

    def _change(self, vhost: str, on: bool) -> None:
        if self._topology().vhost(vhost) is None:
            raise RequestError(ERROR_NOT_FOUND, f"virtual host {vhost!r} does not exist")
        if on and len(self._vhosts) >= TRACED_MAX and vhost not in self._vhosts:
            raise RequestError(ERROR_LIMIT, f"{TRACED_MAX} virtual hosts are traced already")
        _log.info("tracing %s", "on" if on else "off", extra={"vhost": vhost})
        (self._vhosts.add if on else self._vhosts.discard)(vhost)

    def greeted(self, shard: Peer) -> None:
        """Tell a shard what is traced; it traced that before if its connection was lost."""
        asked = answers_of([shard], TRACED, self._traced.to_body(), TELL_SECONDS, TracedVhosts)
        task = asyncio.get_running_loop().create_task(asked)
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    def gone(self, shard: Peer) -> None:
        """Ignore: nothing is kept for a shard."""
