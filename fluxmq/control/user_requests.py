"""Requests about users: to the directory, and to the topology for their limits.

Limits are rows of the topology, which knows no users. They go with their user; those that a crash
left behind go when a user of that name is added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fluxmq.control.topology_service import TopologyService
from fluxmq.ipc.messages import USER_ADD, USER_DELETE, Body, ControlMessage
from fluxmq.ipc.user_messages import UserAdd, UserDelete
from fluxmq.routing.topology.changes import ClearUserLimits


class UserRequests:
    """Answers requests about users by ``directory``, and keeps their limits in step."""

    def __init__(
        self, directory: Callable[[ControlMessage], Awaitable[Body]], topology: TopologyService
    ) -> None:
        self._directory = directory
        self._topology = topology

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        body = await self._directory(message)
        if message.kind == USER_ADD:
            await self._clear(UserAdd.from_body(message.body).user.name)
        elif message.kind == USER_DELETE:
            await self._clear(UserDelete.from_body(message.body).name)
        return body

    async def _clear(self, name: str) -> None:
        if self._topology.topology.limits_of_user(name):
            await self._topology.change([(ClearUserLimits(name),)])
