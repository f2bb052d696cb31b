"""The management interface as a whole: its routes below ``/api``, who may use which, and its pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from aiohttp import web

from fluxmq.auth.login_throttle import guessing_limits
from fluxmq.auth.users import User
from fluxmq.control.listings import Listings
from fluxmq.control.management.access import REALM, ManagementAccess
from fluxmq.control.management.administration import Administration
from fluxmq.control.management.amqp_calls import AmqpCaller
from fluxmq.control.management.certificate_expiry import CertificateExpiry
from fluxmq.control.management.clients import MessagingClients
from fluxmq.control.management.control_requests import control_routes
from fluxmq.control.management.declared_groups import DeclaringNode
from fluxmq.control.management.definitions import Definitions
from fluxmq.control.management.events import EventStreams
from fluxmq.control.management.group_routes import GroupRoutes
from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.mqtt_routes import MqttRoutes
from fluxmq.control.management.node_routes import NodeRoutes
from fluxmq.control.management.objects import MessagingObjects
from fluxmq.control.management.openapi import document
from fluxmq.control.management.overview import NodeView, Overview
from fluxmq.control.management.page_files import add_pages
from fluxmq.control.management.parameters import Parameters
from fluxmq.control.management.rates import MessageRates
from fluxmq.control.management.requests import (
    PREFIX,
    ApiError,
    ApiRoute,
    Call,
    Caller,
    CallPlace,
    Right,
    answer,
    error_of,
    not_authorised,
)
from fluxmq.control.management.user_limits import UserLimitRoutes
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.password_hashes import parameters_of
from fluxmq.control.peers import Peer, RequestError
from fluxmq.control.traffic import TrafficSampler
from fluxmq.ipc.messages import MessageError
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.routing.topology.arguments import CONSUMER_TIMEOUT_KEY
from fluxmq.routing.topology.effective import effective
from fluxmq.routing.topology.names import DEFAULT_VHOST
from fluxmq.settings.schema import Settings

FLOWERS_ROUTE: Final = ("GET", "queues/{vhost}")
"""Flower does not encode the virtual host `/`, and asks for `queues//`."""

_log = get_logger(__name__)


class ManagementApi:
    """Serves the routes. ``current`` returns the settings in force."""

    def __init__(
        self,
        node: NodeView,
        users: Callable[[], tuple[User, ...]],
        current: Callable[[], Settings],
        listings: Listings,
        shards: Callable[[], list[Peer]],
    ) -> None:
        settings = node.settings
        self.access = ManagementAccess(
            users,
            lambda: parameters_of(current()),
            guessing_limits(settings.auth.failed_logins),
            lambda: current().auth,
            node.ask,
        )
        caller = AmqpCaller(shards)
        self.sampler = TrafficSampler(shards)
        others = ControlOfNodes(node.others, shards)
        self.rates = MessageRates(self.sampler, node.name, others)
        objects = MessagingObjects(
            *(node.topology, listings, caller, self.rates, node.name, node.ask)
        )
        clients = MessagingClients(node.ask, partial(_consumer_timeout, node))
        administration = Administration(
            *(
                node.ask,
                node.topology,
                users,
                lambda: parameters_of(current()),
                objects,
                node.running,
            )
        )
        groups = DeclaringNode(current, node.replicas)
        parameters = Parameters(node.topology, administration, objects, node.name)
        self.definitions = Definitions(
            *(node.topology, users, administration, parameters, groups),
            settings.amqp.product_version,
        )
        limits = UserLimitRoutes(node.topology, administration)
        self.overview = overview = Overview(
            *(node, objects, clients, caller, self.rates, others), parameters
        )
        self.routes: list[ApiRoute] = [
            *overview.routes(),
            *CertificateExpiry(node).routes(),
            *objects.routes(),
            *clients.routes(),
            *administration.routes(),
            *limits.routes(),
            *parameters.routes(),
            *self.definitions.routes(),
            *control_routes(node.ask),
            *GroupRoutes(node.ask, clustered=node.replicas is not None).routes(),
            *MqttRoutes(node.ask, shards).routes(),
            *NodeRoutes(node.ask).routes(),
            ApiRoute("GET", "openapi.json", self._describe),
        ]
        self.streams = EventStreams(
            lambda: self.routes,
            lambda route, caller, place: check_rights(route, caller, place.parts),
            self.access.caller,
        )
        self.routes += self.streams.routes()
        self._said = RateLimited(_log, per_second=0.2, burst=5)

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        for route in self.routes:
            handler = partial(self._serve, route)
            # A slash at the end means nothing to RabbitMQ, and some clients send one.
            for path in (route.path, f"{route.path}/"):
                router.add_route(route.method, PREFIX + path, handler)
            if (route.method, route.path) == FLOWERS_ROUTE:
                default = partial(self._serve, route, parts={"vhost": DEFAULT_VHOST})
                router.add_get(f"{PREFIX}queues//", default)
        add_pages(router)

    def start(self) -> None:
        """Begin to sample rates."""
        self.sampler.start()

    async def stop(self) -> None:
        """End; called once."""
        await self.sampler.stop()

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of event streams."""
        yield "fluxmq_http_event_streams", {}, self.streams.open_now
        yield "fluxmq_http_refused_total", {"reason": "streams"}, self.streams.refused

    async def _serve(
        self, route: ApiRoute, request: web.Request, parts: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """Answer a request; ``parts``: those of a path that does not have them itself."""
        place = None if parts is None else CallPlace(route.path, parts, request.query)
        try:
            _check_origin(request)
            call = Call(request, await self.access.caller(request), place)
            check_rights(route, call.caller, call.parts)
            return await route.handler(call)
        except ApiError as problem:
            return self._refused(problem, request)
        except (RequestError, MessageError) as problem:
            return self._refused(error_of(problem), request)

    async def refuses(self, request: web.Request, right: Right) -> web.Response | None:
        """Return the answer to a user without a right; None to one who has it."""
        try:
            check_rights(
                ApiRoute("GET", "", _nothing, right), await self.access.caller(request), {}
            )
        except ApiError as problem:
            return self._refused(problem, request)
        return None

    async def _describe(self, _call: Call) -> web.Response:
        return answer(document(self.routes))

    def _refused(self, problem: ApiError, request: web.Request) -> web.Response:
        found = answer({"error": problem.error, "reason": problem.reason}, problem.status)
        if problem.status == 503:
            self._said.event(logging.WARNING, problem.error, "management: %s", problem.reason)
        if problem.status == 401:
            # A browser would ask for a password itself, although a page has a form for it.
            if "X-Requested-With" not in request.headers:
                found.headers["WWW-Authenticate"] = REALM
            self._said.event(
                logging.INFO, "refused", "management: %s", problem.reason, path=request.path
            )
        return found


def _check_origin(request: web.Request) -> None:
    """Check that no other site's page changes something with a password that the browser remembers.
    Raises ApiError 403.

    Source: Fetch Metadata Request Headers (W3C), section 2.3.
    """
    site = request.headers.get("Sec-Fetch-Site", "none")
    if request.method not in ("GET", "HEAD") and site not in ("none", "same-origin"):
        raise ApiError(403, "forbidden", "pages of other sites may not change anything here")


def check_rights(route: ApiRoute, caller: Caller, parts: Mapping[str, str]) -> None:
    """Check that a user may use a route. Raises ApiError 401."""
    if not caller.has(route.right):
        raise not_authorised(f"Not {route.right.name.lower()}")
    vhost = parts.get("vhost")
    if vhost is None or (route.right is Right.ADMINISTRATOR and not route.enters):
        return
    administers = caller.has(Right.ADMINISTRATOR) and route.right >= Right.POLICYMAKER
    allowed = caller.enters(vhost) or administers if route.enters else caller.sees(vhost)
    if not allowed:
        raise not_authorised("User not authorised to access virtual host")


def _consumer_timeout(node: NodeView, row: JsonRow) -> int:
    """Return the consumer timeout in milliseconds that a shard applies: the consumer's own, its
    queue's, or the node's."""
    own = (row.get("arguments") or {}).get(CONSUMER_TIMEOUT_KEY)
    if isinstance(own, int):
        return own
    topology = node.topology()
    queue = topology.queue(str(row.get("vhost")), str(row.get("queue_name")))
    usual = round(1000 * node.settings.amqp.consumer_timeout)
    found = usual if queue is None else effective(topology, queue).get("consumer-timeout", usual)
    return int(found)


async def _nothing(_call: Call) -> web.StreamResponse:
    return web.Response()
