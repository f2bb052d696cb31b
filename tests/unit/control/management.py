"""A management interface over a topology and users in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fluxmq.auth.users import User, VhostPermission
from fluxmq.control.listings import Listings
from fluxmq.control.management.api import ManagementApi
from fluxmq.control.management.overview import NodeView
from fluxmq.control.mirrors import MirrorStates, not_mirrored
from fluxmq.control.overview import Readiness
from fluxmq.control.peers import RequestError
from fluxmq.ipc.clusters import RaftListing
from fluxmq.ipc.messages import ERROR_UNKNOWN_KIND, Body
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings import Settings


def user(name: str, *tags: str, vhosts: Sequence[str] = (), stored: str = "-") -> User:
    """A user with all permissions in virtual hosts."""
    permissions = tuple(VhostPermission(each, ".*", ".*", ".*") for each in vhosts)
    return User(name, stored, None, (), (), True, tags, permissions)


def make_api(
    users: Sequence[User] = (),
    topology: Topology | None = None,
    replicas: Callable[[], Awaitable[RaftListing]] | None = None,
    alarms: tuple[str, ...] = (),
    mirrors: MirrorStates = not_mirrored,
    others: Sequence[str] = (),
) -> ManagementApi:
    """The interface of a node without shards, whose control process answers nothing else."""

    async def ask(kind: str, _body: Body) -> Body:
        raise RequestError(ERROR_UNKNOWN_KIND, kind)

    async def ready() -> Readiness:
        return Readiness((), None, alarms)

    found, settings = topology or Topology(), Settings()
    node = NodeView(ask, settings, lambda: found, ready, replicas, "node1", others)
    listings = Listings(lambda: found, list, node="node1", mirrors=mirrors)
    return ManagementApi(node, lambda: tuple(users), lambda: settings, listings, list)
