"""The node and the cluster over HTTP: overview, nodes, health checks, and what tools ask first."""

from __future__ import annotations

import asyncio
import math
import os
import resource
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from aiohttp import web

from fluxmq.cluster.sockets import AWAY_SECONDS
from fluxmq.control import procfs
from fluxmq.control.management.access import LOGIN_OF_REQUEST
from fluxmq.control.management.amqp_calls import AmqpCaller
from fluxmq.control.management.clients import MessagingClients
from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.objects import MessagingObjects
from fluxmq.control.management.parameters import Parameters
from fluxmq.control.management.rates import TOTALS, MessageRates, span_of
from fluxmq.control.management.requests import (
    ApiRoute,
    Ask,
    Call,
    Right,
    answer,
    bad_request,
    done,
    error_of,
    not_found,
)
from fluxmq.control.management.rows import rows_of
from fluxmq.control.management.versions import PRODUCT, VERSION
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.overview import Readiness
from fluxmq.control.peers import RequestError
from fluxmq.ipc.clusters import REBALANCE, RaftListing
from fluxmq.ipc.messages import STATUS, Body, ControlMessage, MessageError, NodeStatus
from fluxmq.ipc.node_messages import NODE_ROW, NodeRow
from fluxmq.ipc.row_messages import CHANNELS, CONSUMERS
from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.methods import (
    BasicPublish,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from fluxmq.routing.topology.arguments import EXCHANGE_TYPES
from fluxmq.routing.topology.records import QueueRecord
from fluxmq.routing.topology.topology import Topology
from fluxmq.settings.group_names import is_mirrored
from fluxmq.settings.schema import Settings

ALIVENESS_QUEUE: Final = "aliveness-test"
FLAGS: Final = ("quorum_queue", "stream_queue", "classic_mirrored_queue_version", "user_limits")
"""Feature flags that tools look for; everything is always enabled."""
ABSENT: Final = (
    *("federation-links", "federation-links/{vhost}"),
    *("shovels", "shovels/{vhost}"),
    *("stream/connections", "stream/connections/{vhost}"),
    *("stream/publishers", "stream/publishers/{vhost}"),
    *("stream/consumers", "stream/consumers/{vhost}"),
)
"""Lists of what does not exist here: federation, shovels, the stream protocol."""
NODE_SECONDS: Final = 2.0
"""Time for another node to answer."""
PORT_DIGITS_MAX: Final = 5
ENDANGERED_MAX: Final = 100
"""Queues that the answer of a health check names."""


class NodeView(NamedTuple):
    """The parts of the control process that the node is described by. ``others``: the names of the
    other nodes, which may change."""

    ask: Ask
    settings: Settings
    topology: Callable[[], Topology]
    readiness: Callable[[], Awaitable[Readiness]]
    replicas: Callable[[], Awaitable[RaftListing]] | None
    name: str
    others: Collection[str]

    @property
    def nodes(self) -> Sequence[str]:
        """The names of all nodes that there are now."""
        return sorted({self.name, *self.others})

    async def running(self) -> list[str]:
        """Return the nodes that this one is in contact with, and itself."""
        found = {self.name}
        if self.replicas is not None:
            groups = (await self.replicas()).groups
            found |= {each.node for group in groups for each in group.members if each.connected}
        return sorted(found)


class Overview:
    """Serves the routes."""

    def __init__(
        self,
        node: NodeView,
        objects: MessagingObjects,
        clients: MessagingClients,
        caller: AmqpCaller,
        rates: MessageRates,
        others: ControlOfNodes,
        parameters: Parameters,
    ) -> None:
        self._parameters = parameters
        self._node = node
        self._others = others
        self._objects = objects
        self._clients = clients
        self._caller = caller
        self._rates = rates

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        monitoring, admin = Right.MONITORING, Right.ADMINISTRATOR
        check = "health/checks"
        found = [
            ApiRoute("GET", "overview", self._overview),
            ApiRoute("GET", "whoami", self._whoami),
            ApiRoute("GET", "nodes", self._nodes, monitoring),
            ApiRoute("GET", "nodes/{name}", self._one, monitoring),
            ApiRoute("GET", "nodes/{name}/memory", self._memory, monitoring),
            ApiRoute("GET", "extensions", _list_of({"javascript": "dispatcher.js"})),
            ApiRoute("GET", "feature-flags", self._flags),
            ApiRoute("PUT", "feature-flags/{name}/enable", self._enable, admin),
            ApiRoute("GET", "deprecated-features", _list_of()),
            ApiRoute("GET", "deprecated-features/used", _list_of()),
            ApiRoute("GET", "aliveness-test/{vhost}", self._aliveness, monitoring, enters=True),
            ApiRoute("POST", "rebalance/queues", self._rebalance, admin),
            ApiRoute("GET", f"{check}/alarms", self._alarms),
            ApiRoute("GET", f"{check}/local-alarms", self._alarms),
            ApiRoute("GET", f"{check}/virtual-hosts", self._ready),
            ApiRoute("GET", f"{check}/ready-to-serve-clients", self._ready),
            ApiRoute("GET", f"{check}/is-in-service", self._ready),
            ApiRoute("GET", "healthchecks/node", self._ready),
            ApiRoute("GET", "healthchecks/node/{name}", self._ready),
            ApiRoute("GET", f"{check}/node-is-quorum-critical", self._quorum),
            ApiRoute("GET", f"{check}/node-is-mirror-sync-critical", self._mirrors),
            ApiRoute("GET", f"{check}/port-listener/{{port}}", self._port),
            ApiRoute("GET", f"{check}/protocol-listener/{{protocol}}", self._protocol),
        ]
        # Things that do not exist here are empty, not unknown, since tools ask for them.
        return found + [ApiRoute("GET", path, _list_of()) for path in ABSENT]

    # Overview

    async def _whoami(self, call: Call) -> web.Response:
        user = call.caller.user
        internal = LOGIN_OF_REQUEST.get() is None
        return answer({"name": user.name, "tags": list(user.tags), "is_internal_user": internal})

    async def _overview(self, call: Call) -> web.Response:
        topology = self._node.topology()
        vhosts = self._objects.vhosts(call)
        found: JsonRow = {
            "management_version": self._node.settings.amqp.product_version,
            "rabbitmq_version": self._node.settings.amqp.product_version,
            "product_name": PRODUCT,
            "product_version": VERSION,
            "rates_mode": "basic",
            "node": self._node.name,
            "cluster_name": self._parameters.cluster_name,
            "statistics_db_event_queue": 0,
            "erlang_version": "none",
            "disable_stats": False,
            "enable_queue_totals": False,
            "exchange_types": [
                {"name": each, "description": "", "enabled": True} for each in EXCHANGE_TYPES
            ],
            "listeners": self._listeners() if call.caller.has(Right.MONITORING) else [],
            "contexts": [{"node": self._node.name, **each} for each in self._contexts()],
        }
        connections, channels, consumers = await asyncio.gather(
            self._clients.seen(call),
            self._clients.seen(call, CHANNELS),
            rows_of(self._node.ask, CONSUMERS),
        )
        found["object_totals"] = {
            "connections": len(connections),
            "channels": len(channels),
            "consumers": sum(call.caller.sees(str(each.get("vhost"))) for each in consumers),
            "exchanges": sum(len(topology.exchanges(vhost)) for vhost in vhosts),
            "queues": sum(1 for vhost in vhosts for _ in topology.queues(vhost)),
        }
        rates = await self._rates.of_cluster(span_of(call))
        found["message_stats"] = rates.get("message_stats", {})
        found["churn_rates"] = rates.get("churn_rates", {})
        found["queue_totals"] = {name: rates[name] for name in TOTALS if name in rates}
        return answer(found)

    def _listeners(self) -> list[JsonRow]:
        """Return the listeners of this node, by RabbitMQ's names of protocols."""
        found = []
        for path, endpoint in self._node.settings.endpoints():
            host, _, port = endpoint.addr.rpartition(":")
            row = {
                "node": self._node.name,
                "protocol": PROTOCOLS.get(path, path),
                "ip_address": host.strip("[]") or "::",
                "port": int(port),
                "socket_opts": {},
                "tls": path.endswith(("tls", "https")),
            }
            found.append(row)
        return found

    def _contexts(self) -> list[JsonRow]:
        """Return the web services of this node."""
        return [
            {
                "description": CONTEXTS[path],
                "path": "/",
                "cowboy_opts": "[]",
                "ip": endpoint.host or "::",
                "port": str(endpoint.port),
                **({"ssl_opts": []} if path == "server.https" else {}),
            }
            for path, endpoint in self._node.settings.endpoints()
            if path in CONTEXTS
        ]

    async def _flags(self, _call: Call) -> web.Response:
        return answer(
            [
                {
                    "name": each,
                    "state": "enabled",
                    "stability": "stable",
                    "desc": "",
                    "doc_url": "",
                    "provided_by": "rabbit",
                }
                for each in FLAGS
            ]
        )

    async def _enable(self, call: Call) -> web.Response:
        """Do nothing: every feature flag is enabled."""
        if call.part("name") not in FLAGS:
            raise not_found(f"there is no feature flag {call.part('name')!r}")
        return done()

    async def _rebalance(self, _call: Call) -> web.Response:
        """Move leaders until no node leads much more than another; nothing to do on a node alone."""
        if self._node.replicas is not None:
            try:
                await self._node.ask(REBALANCE, {})
            except (RequestError, MessageError) as problem:
                raise error_of(problem) from problem
        return done()

    # Nodes

    async def answer(self, _message: ControlMessage) -> Body:
        """Tell another node of this one."""
        return NodeRow(await self._own()).to_body()

    async def _members(self) -> list[JsonRow]:
        own, running, answers = await asyncio.gather(
            self._own(),
            self._node.running(),
            self._others.ask_all(NODE_ROW, {}, NODE_SECONDS),
        )
        rows = [own]
        for name, told in zip(self._others.nodes, answers, strict=True):
            try:
                if isinstance(told, RequestError):
                    raise told
                rows.append({**NodeRow.from_body(told).row})
            except (RequestError, MessageError):
                # It does not run, or serves no management interface.
                rows.append(
                    {
                        "name": name,
                        "type": "disc",
                        "running": name in running,
                        "partitions": [],
                        "being_drained": False,  # not known, if it runs; tools want it
                    }
                )
        return rows

    async def _nodes(self, _call: Call) -> web.Response:
        return answer(await self._members())

    async def _one(self, call: Call) -> web.Response:
        for row in await self._members():
            if row["name"] == call.part("name"):
                return answer(row)
        raise not_found()

    async def _memory(self, call: Call) -> web.Response:
        """Answer as RabbitMQ where it knows no parts: the node's row has the sum."""
        if call.part("name") not in self._node.nodes:
            raise not_found()
        return answer({"memory": "not_available"})

    async def _own(self) -> JsonRow:
        status = NodeStatus.from_body(await self._node.ask(STATUS, {}))
        resources, data = status.resources, self._node.settings.storage.data_dir
        disk = os.statvfs(data)
        used = [procfs.read(each.pid) for each in status.processes if each.pid]
        files = [_open_files(each.pid) for each in status.processes if each.pid]
        return {
            "name": self._node.name,
            "type": "disc",
            "running": True,
            "being_drained": any(
                each.numbers and each.numbers.refusing for each in status.processes
            ),
            "partitions": [],
            "rabbitmq_version": self._node.settings.amqp.product_version,
            "os_pid": str(os.getppid()),
            "uptime": int(1000 * max((each.uptime for each in status.processes), default=0)),
            "processors": os.cpu_count() or 1,
            "run_queue": 0,
            "mem_used": sum(each.resident_bytes for each in used if each is not None),
            "mem_limit": resources.memory_high_watermark or resources.memory_available,
            "mem_alarm": "memory" in resources.alarms,
            "disk_free": disk.f_bavail * disk.f_frsize,
            "disk_free_limit": self._node.settings.storage.min_free_bytes,
            "disk_free_alarm": "disk" in resources.alarms,
            "fd_used": sum(files),
            "fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0] * max(len(files), 1),
            "sockets_used": sum(sum(each.connections) for each in status.processes),
            "sockets_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0] * max(len(files), 1),
            "proc_used": len(used),
            "proc_total": len(used),
            "rates_mode": "basic",
            "net_ticktime": math.ceil(AWAY_SECONDS),
            "contexts": self._contexts(),
            "enabled_plugins": ["rabbitmq_management", "rabbitmq_mqtt", "rabbitmq_prometheus"],
            "applications": [{"name": "fluxmq", "description": PRODUCT, "version": VERSION}],
            "exchange_types": [{"name": each, "enabled": True} for each in EXCHANGE_TYPES],
            "processes": [
                {
                    "name": f"{each.role}-{each.index}" if each.role == "shard" else each.role,
                    "pid": each.pid,
                    "core": each.core,
                    "state": each.state,
                    "ready": each.ready,
                    "restarts": each.restarts,
                    "connections": sum(each.connections),
                }
                for each in status.processes
            ],
        }

    # Health

    async def _alarms(self, _call: Call) -> web.Response:
        alarms = (await self._node.readiness()).alarms
        reason = f"resource alarms are in effect: {', '.join(alarms)}"
        told = [{"node": self._node.name, "resource": each} for each in alarms]
        return _checked(not alarms, reason, alarms=told)

    async def _ready(self, call: Call) -> web.Response:
        if call.parts.get("name", self._node.name) != self._node.name:
            raise not_found("ask that node itself")
        readiness = await self._node.readiness()
        problems = [
            f"{each.process}: {each.problem}" for each in readiness.processes if each.problem
        ]
        if readiness.control_problem is not None:
            problems.append(readiness.control_problem)
        return _checked(not problems, "; ".join(problems))

    async def _quorum(self, _call: Call) -> web.Response:
        """Fail if a group would lose its majority without this node."""
        if self._node.replicas is None:
            return _checked(True, "")
        critical = []
        for group in (await self._node.replicas()).groups:
            voters = [each for each in group.members if each.kind == "voter"]
            if is_mirrored(group.group):
                continue  # nobody votes there
            if not any(each.node == self._node.name for each in voters):
                continue
            left = [each for each in voters if each.connected and each.node != self._node.name]
            if len(left) <= len(voters) // 2:
                critical.append(group.group)
        reason = f"groups would lose their majority without this node: {', '.join(critical)}"
        queues = (each for each in self._node.topology().queues() if each.group in critical)
        return _checked(not critical, reason, queues=self._endangered(queues))

    async def _mirrors(self, _call: Call) -> web.Response:
        """Fail if mirrored queues would have no synchronised copy without this node."""
        if not self._node.others:
            return _checked(True, "")
        found = self._objects.without_mirrors()
        reason = "There are classic mirrored queues without online synchronised mirrors"
        return _checked(not found, reason, queues=self._endangered(found))

    def _endangered(self, queues: Iterable[QueueRecord]) -> list[JsonRow]:
        """Return the first of these queues, with RabbitMQ's words."""
        return [
            {
                "name": each.name,
                "readable_name": f"queue '{each.name}' in vhost '{each.vhost}'",
                "virtual_host": each.vhost,
                "type": each.type,
            }
            for each in islice(queues, ENDANGERED_MAX)
        ]

    async def _port(self, call: Call) -> web.Response:
        ports = [row["port"] for row in self._listeners()]
        text = call.part("port")
        if not (text.isascii() and text.isdigit() and len(text) <= PORT_DIGITS_MAX):
            raise bad_request("Invalid port")
        wanted = int(text)
        if wanted in ports:
            return answer({"status": "ok", "port": wanted})
        return _checked(False, f"no listener on port {wanted}", missing=wanted, ports=ports)

    async def _protocol(self, call: Call) -> web.Response:
        """Check several protocols, separated by commas."""
        protocols = sorted({row["protocol"] for row in self._listeners()})
        wanted = [_PROTOCOL_NAMES.get(each, each) for each in call.part("protocol").split(",")]
        missing = ",".join(each for each in wanted if each not in protocols)
        if not missing:
            return answer({"status": "ok", "protocols": protocols})
        reason = f"no listener for protocol {missing}"
        return _checked(False, reason, missing=missing, protocols=protocols)

    async def _aliveness(self, call: Call) -> web.Response:
        """Declare a queue, publish a message to it, and get that."""
        user, vhost = call.caller.user.name, call.vhost
        queue = f"{ALIVENESS_QUEUE}-{time.time_ns()}"
        await self._caller.execute(user, vhost, QueueDeclare(queue), QueueDeclareOk)
        try:
            publish = BasicPublish("", queue, mandatory=True)
            await self._caller.publish(user, vhost, publish, BasicProperties(), b"test_message")
            got = await self._caller.get(user, vhost, queue, 1, keep=False, reject=False)
        finally:
            await self._caller.execute(user, vhost, QueueDelete(queue), QueueDeleteOk)
        return _checked(len(got) == 1, "the message was not there")


PROTOCOLS: Final = {
    "server.amqp.tcp": "amqp",
    "server.amqp.tls": "amqp/ssl",
    "server.mqtt.tcp": "mqtt",
    "server.mqtt.tls": "mqtt/ssl",
    "server.mqtt.websocket": "http/web-mqtt",
    "server.mqtt.websocket_tls": "https/web-mqtt",
    "server.http": "http",
    "server.https": "https",
    "server.metrics": "http/prometheus",
}
CONTEXTS: Final = {
    "server.http": "RabbitMQ Management",
    "server.https": "RabbitMQ Management",
    "server.metrics": "RabbitMQ Prometheus",
}
"""Names of web services, by which tools for RabbitMQ know them."""
_PROTOCOL_NAMES: Final = {
    "amqp091": "amqp",
    "amqps": "amqp/ssl",
    "mqtts": "mqtt/ssl",
    "web-mqtt": "http/web-mqtt",
}


def _checked(well: bool, reason: str, **more: object) -> web.Response:
    if well:
        return answer({"status": "ok"})
    return answer({"status": "failed", "reason": reason, **more}, 503)


def _list_of(*rows: Mapping[str, Any]) -> Callable[[Call], Awaitable[web.Response]]:
    async def listed(_call: Call) -> web.Response:
        return answer(list(rows))

    return listed


def _open_files(pid: int) -> int:
    """Return the number of a process's open files; 0 if that cannot be read."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
