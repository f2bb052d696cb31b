"""The members of the cluster's etcd: one that has lost its directory is removed and admitted again.

It has forgotten its votes, so it waits (`fluxmq.supervisor.etcd_members`) until another node's
control process, whose member runs, has done that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from fluxmq.control.etcd.client import EtcdClient, EtcdError
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_INVALID, Body, ControlMessage
from fluxmq.ipc.node_messages import ADMIT_MEMBER, AdmitMember
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample

ASK_SECONDS: Final = 6.0
"""Time for another node to answer: for three requests to etcd."""
RETRY_SECONDS: Final = 0.5
"""Pause between two attempts."""

_log = get_logger(__name__)


class EtcdMembership:
    """This node's part in it. ``urls`` returns addresses of the members for each other, by node;
    ``data_dir``: the directory of this node's member."""

    def __init__(
        self,
        client: EtcdClient,
        node: str,
        urls: Callable[[], Mapping[str, str]],
        data_dir: Path,
        nodes: ControlOfNodes,
    ) -> None:
        self._client = client
        self._node = node
        self._urls = urls
        self._data_dir = data_dir
        self._nodes = nodes
        self._task: asyncio.Task[None] | None = None
        self._said = RateLimited(_log, per_second=0.1, burst=3)
        self.admitted = 0

    def start(self) -> None:
        """Have this node's member admitted, if it has no directory."""
        self._task = asyncio.get_running_loop().create_task(self._join())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._client.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        yield "fluxmq_etcd_members_admitted_total", {}, float(self.admitted)

    async def _join(self) -> None:
        """Ask the other nodes until the member has a directory; outermost frame of its task."""
        await asyncio.sleep(RETRY_SECONDS)
        while not (self._data_dir / "member").is_dir():
            for node in self._nodes.nodes:
                try:
                    body = AdmitMember(self._node).to_body()
                    await self._nodes.ask(node, ADMIT_MEMBER, body, ASK_SECONDS)
                    break
                except RequestError as problem:
                    self._said.event(
                        logging.INFO, "admission", "this node's member of etcd: %s", problem
                    )
            await asyncio.sleep(RETRY_SECONDS)

    async def answer(self, message: ControlMessage) -> Body:
        """Admit another node's member. Raises RequestError or MessageError."""
        node = AdmitMember.from_body(message.body).node
        url = self._urls().get(node)
        if url is None or node == self._node:
            raise RequestError(
                ERROR_INVALID,
                f"{node} has no member in cluster.etcd.initial_cluster, and has not joined",
            )
        try:
            known = [each for each in await self._client.members() if url in each.urls]
            if known and not known[0].started:
                return {}  # it may start
            for member in known:
                await self._client.remove_member(member.number)
            await self._client.add_member(url)
        except (EtcdError, ValueError) as problem:
            raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem
        self.admitted += 1
        _log.warning("member of etcd without its directory: admitted again", extra={"node": node})
        return {}


async def remove_member(client: EtcdClient, node: str, url: str = "") -> None:
    """Remove the member of a node that is gone for good, if it has one; ``url``: its address for
    other members, for one that has never started. Raises RequestError."""
    try:
        for member in await client.members():
            if member.name == node or (not member.name and url and url in member.urls):
                await client.remove_member(member.number)
    except (EtcdError, ValueError) as problem:
        raise RequestError(ERROR_FAILED, f"etcd: {problem}") from problem
