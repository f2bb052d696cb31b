"""Verbs about a node as a whole, named after rabbitmqctl's and rabbitmq-diagnostics': what it is, whether
it is well, and leaving it without harm.

Each takes the node and its options and returns the lines to print. A check that fails exits with 1; as
``rabbitmq-diagnostics``, with that program's code.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from fluxmq.cli.exits import EXIT_NO_ANSWER, EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.formats import said
from fluxmq.cli.node import TargetNode
from fluxmq.ipc.clusters import CAN_STOP, RAFT, TRANSFER, GroupOutcomes, RaftListing, Transfer
from fluxmq.ipc.node_messages import (
    DESCRIBE_NODE,
    LISTENING,
    SETTINGS,
    ListenerRow,
    Listening,
    NodeDescription,
    SettingsText,
)
from fluxmq.ipc.polling_client import CallError

POLL_SECONDS: Final = 0.2
"""Time between two looks at a node that is starting or being drained."""
PORT_SECONDS: Final = 5.0
"""Time for a connection to a listener."""
SOFTWARE: Final = 70
"""Exit code of rabbitmqctl for a failed node_health_check."""

_PROTOCOLS: Final[Mapping[str, tuple[str, str]]] = {
    "server.amqp.tcp": ("amqp", "AMQP 0-9-1"),
    "server.amqp.tls": ("amqp/ssl", "AMQP 0-9-1 over TLS"),
    "server.mqtt.tcp": ("mqtt", "MQTT"),
    "server.mqtt.tls": ("mqtt/ssl", "MQTT over TLS"),
    "server.mqtt.websocket": ("http/web-mqtt", "MQTT over WebSockets"),
    "server.http": ("http", "HTTP API"),
    "server.https": ("https", "HTTP API over TLS (HTTPS)"),
    "server.metrics": ("http/prometheus", "Prometheus exporter API over HTTP"),
}
"""RabbitMQ's names of the protocols and purposes of listeners."""
_ALIASES: Final = {
    **dict.fromkeys(("amqp091", "amqp0.9.1", "amqp0-9-1", "amqp0_9_1"), "amqp"),
    "amqps": "amqp/ssl",
    **dict.fromkeys(("mqtt3.1", "mqtt3.1.1", "mqtt31", "mqtt311"), "mqtt"),
    **dict.fromkeys(("mqtts", "mqtt+tls", "mqtt+ssl"), "mqtt/ssl"),
    **dict.fromkeys(("management", "management_ui", "http_api", "ui"), "http"),
    **dict.fromkeys(("webmqtt", "web-mqtt", "web_mqtt"), "http/web-mqtt"),
}
_ALARMS: Final = {"memory": "Memory", "disk": "Free disk space"}


def described(node: TargetNode) -> NodeDescription:
    """Return the node's description. Exits when no broker runs."""
    with node.require() as caller:
        return NodeDescription.from_body(caller.call(DESCRIBE_NODE, {}))


def protocol(row: ListenerRow) -> str:
    """Return RabbitMQ's name for a listener's protocol."""
    return _PROTOCOLS.get(row.path, (row.path, ""))[0]


def listener_lines(rows: Iterable[ListenerRow], node: str = "") -> list[str]:
    """Return a line for each listener; with the name of its node, if that is given."""
    lines = []
    for row in rows:
        host = row.host or "::"
        interface = f"[{host}]" if ":" in host else host
        name, purpose = _PROTOCOLS.get(row.path, (row.path, row.path))
        where = f"Node: {node}, interface" if node else "Interface"
        lines.append(
            f"{where}: {interface}, port: {row.port}, protocol: {name}, purpose: {purpose}"
        )
    return lines


def alarm_lines(found: NodeDescription) -> list[str]:
    """Return a line for each alarm."""
    return [f"{_ALARMS.get(each, each)} alarm on node {found.name}" for each in found.alarms]


def listener_maps(rows: Iterable[ListenerRow]) -> list[dict[str, Any]]:
    """Return listeners as RabbitMQ's JSON has them."""
    return [
        {
            "interface": row.host or "::",
            "port": row.port,
            "protocol": protocol(row),
            "purpose": _PROTOCOLS.get(row.path, ("", row.path))[1],
        }
        for row in rows
    ]


def as_json(options: argparse.Namespace) -> bool:
    """Return whether the answer is to be JSON."""
    return getattr(options, "formatter", "") == "json"


def _object(**fields: Any) -> list[str]:
    return [orjson.dumps(fields).decode()]


def _passed(
    options: argparse.Namespace, found: NodeDescription, title: str, text: str
) -> list[str]:
    """Return the lines of a check that passed."""
    if as_json(options):
        return _object(result="ok", node=found.name, message=text)
    return said(options, title) + ([] if options.silent else [text])


def _failed(
    options: argparse.Namespace, found: NodeDescription, text: str, **more: Any
) -> ExitError:
    """Return the error for a check that failed."""
    if as_json(options):
        return ExitError(
            EXIT_REFUSED, _object(result="error", node=found.name, message=text, **more)[0]
        )
    return ExitError(EXIT_REFUSED, text)


# What there is


def _listeners(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    if as_json(options):
        return _object(result="ok", node=found.name, listeners=listener_maps(found.listeners))
    title = f"Asking node {found.name} to report its protocol listeners ..."
    return said(options, title) + listener_lines(found.listeners)


def _server_version(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    if as_json(options):
        return _object(result="ok", value=found.compatible_version, product_version=found.version)
    title = f"Asking node {found.name} for its RabbitMQ version..."
    return [*said(options, title), found.compatible_version]


def _environment(node: TargetNode, options: argparse.Namespace) -> list[str]:
    with node.require() as caller:
        text = SettingsText.from_body(caller.call(SETTINGS, {})).text
        name = NodeDescription.from_body(caller.call(DESCRIBE_NODE, {})).name
    if as_json(options):
        import yaml  # no other verb needs it

        return [orjson.dumps(yaml.safe_load(text)).decode()]
    return [*said(options, f"Application environment of node {name} ..."), text.rstrip("\n")]


def _cluster_status(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    product = f"FluxMQ {found.version} (RabbitMQ {found.compatible_version})"
    if as_json(options):
        return _object(
            cluster_name=found.name,
            disk_nodes=found.nodes,
            ram_nodes=[],
            running_nodes=found.running,
            alarms=[
                {"type": "resource_limit", "resource": each, "node": found.name}
                for each in found.alarms
            ],
            partitions={},
            listeners={found.name: listener_maps(found.listeners)},
            versions={
                found.name: {
                    "rabbitmq_name": "FluxMQ",
                    "rabbitmq_version": found.compatible_version,
                    "product_version": found.version,
                }
            },
        )
    lines = [
        *said(options, f"Cluster status of node {found.name} ..."),
        *("Basics", "", f"Cluster name: {found.name}"),
        *("", "Disk Nodes", "", *found.nodes),
        *("", "Running Nodes", "", *found.running),
        *("", "Versions", "", f"{found.name}: {product}"),
        *("", "Alarms", "", *(alarm_lines(found) or ["(none)"])),
        *("", "Network Partitions", "", "(none)"),
        *("", "Listeners", "", *(listener_lines(found.listeners, found.name) or ["(none)"])),
    ]
    missing = [each for each in found.nodes if each not in found.running]
    if missing:
        node.complaints.append(f"not in contact with {', '.join(missing)}")
    return lines


def _alarms(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    lines = alarm_lines(found)
    if as_json(options):
        return _object(result="ok", node=found.name, alarms=lines)
    title = f"Asking node {found.name} to report any known resource alarms ..."
    return said(options, title) + (
        lines or [f"Node {found.name} reported no alarms, local or clusterwide"]
    )


# Checks


def _ready(found: NodeDescription) -> str:
    """Return a sentence about whether the node serves clients."""
    if not found.problems:
        return f"RabbitMQ on node {found.name} is fully booted and running"
    problems = "; ".join(found.problems)
    return f"RabbitMQ on node {found.name} is not running or has not fully booted yet: {problems}"


def _is_running(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    if as_json(options):
        return _object(result=not found.problems, message=_ready(found))
    return [*said(options, f"Asking node {found.name} for its status ..."), _ready(found)]


def _check_running(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    if found.problems:
        raise _failed(options, found, _ready(found))
    title = f"Checking if RabbitMQ is running on node {found.name} ..."
    return _passed(options, found, title, _ready(found))


def _node_health_check(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    problems = [*found.problems, *alarm_lines(found)]
    if problems:
        text = f"Error: health check failed. Message: {'; '.join(problems)}"
        raise ExitError(EXIT_REFUSED, text, SOFTWARE)
    title = f"Checking health of node {found.name} ..."
    return _passed(options, found, title, "Health check passed")


def _check_alarms(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    lines = alarm_lines(found)
    if lines:
        raise _failed(options, found, "\n".join(lines), local=lines)
    kind = (
        "local alarms"
        if options.command == "check_local_alarms"
        else "alarms, local or clusterwide"
    )
    title = f"Asking node {found.name} to report any local resource alarms ..."
    return _passed(options, found, title, f"Node {found.name} reported no {kind}")


def _check_quorum(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    problems = _quorum_problems(node) if found.clustered else []
    if problems:
        raise _failed(options, found, "\n".join(problems), queues=problems)
    title = f"Checking if node {found.name} is critical for quorum of any quorum queues ..."
    text = f"Node {found.name} reported no quorum queues with minimum quorum"
    return _passed(options, found, title, text)


def _quorum_problems(node: TargetNode) -> list[str]:
    with node.require() as caller:
        outcomes = GroupOutcomes.from_body(caller.call(CAN_STOP, {})).rows
    return [f"group {each.group!r}: {each.problem}" for each in outcomes if each.problem]


def _check_virtual_hosts(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    if found.problems:
        down = "; ".join(found.problems)
        raise _failed(options, found, f"Some virtual hosts on node {found.name} are down:\n{down}")
    title = f"Checking if all vhosts are running on node {found.name} ..."
    return _passed(options, found, title, f"Node {found.name} reported all vhosts as running")


def _check_port_listener(node: TargetNode, options: argparse.Namespace) -> list[str]:
    if not options.port.isdecimal():
        raise ExitError(EXIT_USAGE, f"{options.port!r} is not the number of a port")
    found = described(node)
    ports = sorted({row.port for row in found.listeners})
    if int(options.port) not in ports:
        raise _failed(
            options,
            found,
            f"No listener for port {options.port} is active on node {found.name}. Found listeners"
            f" that use the following ports: {', '.join(map(str, ports))}",
            missing=int(options.port),
            ports=ports,
        )
    title = f"Asking node {found.name} if there's an active listener on port {options.port} ..."
    text = f"A listener for port {options.port} is running on node {found.name}."
    return _passed(options, found, title, text)


def _check_protocol_listener(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    wanted = _ALIASES.get(options.protocol.lower(), options.protocol.lower())
    protocols = sorted({protocol(row) for row in found.listeners})
    if wanted not in protocols:
        raise _failed(
            options,
            found,
            f"No listener for protocol {wanted} is active on node {found.name}. Found listeners for"
            f" the following protocols: {', '.join(protocols)}",
            missing=wanted,
            protocols=protocols,
        )
    title = f"Asking node {found.name} if there's an active listener for protocol {wanted} ..."
    text = f"A listener for protocol {wanted} is running on node {found.name}."
    return _passed(options, found, title, text)


def _check_port_connectivity(node: TargetNode, options: argparse.Namespace) -> list[str]:
    found = described(node)
    failed = [row for row in found.listeners if not _connects(address_of(node, row))]
    if failed:
        text = f"Connection to ports of the following listeners on node {found.name} failed: "
        lines = "\n".join([text, *listener_lines(failed)])
        raise _failed(options, found, lines, failures=listener_maps(failed))
    ports = ", ".join(map(str, sorted({row.port for row in found.listeners})))
    title = f"Testing TCP connections to all active listeners on node {found.name} ..."
    text = f"Successfully connected to ports {ports} on node {found.name}."
    return _passed(options, found, title, text)


def address_of(node: TargetNode, row: ListenerRow) -> tuple[str, int]:
    """Return the address under which a listener can be reached from here."""
    if node.host is not None:
        return node.host, row.port
    if row.host in ("", "0.0.0.0", "::", "*"):
        return "localhost", row.port
    return row.host, row.port


def _connects(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, PORT_SECONDS).close()
    except OSError:
        return False
    return True


# Starting and leaving


def _await_startup(node: TargetNode, options: argparse.Namespace) -> list[str]:
    name = await_ready(node, options.wait)
    return said(options, f"Node {name} is fully booted and running")


def await_ready(node: TargetNode, seconds: float, lives: Callable[[], bool] = lambda: True) -> str:
    """Wait until the node serves clients, as long as it `lives`; return its name. Exits when the time
    is over."""
    deadline = time.monotonic() + seconds
    problem = "no broker is running"
    while True:
        try:
            caller = node.connect()
            if caller is not None:
                with caller:
                    found = NodeDescription.from_body(caller.call(DESCRIBE_NODE, {}))
                if not found.problems:
                    return found.name
                problem = "; ".join(found.problems)
        except ExitError as away:
            if away.code != EXIT_NO_ANSWER:
                raise
            problem = str(away)
        except (CallError, OSError) as away:
            problem = str(away) or "no answer in time"
        if time.monotonic() >= deadline or not lives():
            raise ExitError(EXIT_NO_ANSWER, f"not ready after {seconds:g} s: {problem}")
        time.sleep(POLL_SECONDS)


def _set_listening(node: TargetNode, options: argparse.Namespace) -> list[str]:
    accept = options.command == "resume_listeners"
    found = _listen(node, accept)
    if accept:
        text = f"Will resume client connection listeners on node {found.name}."
        return said(options, text + " The node will now accept client connections")
    text = f"Will suspend client connection listeners on node {found.name}."
    return said(options, text + " The node will no longer accept client connections!")


def _listen(node: TargetNode, accept: bool) -> NodeDescription:
    with node.require() as caller:
        caller.call(LISTENING, Listening(accept).to_body())
        return NodeDescription.from_body(caller.call(DESCRIBE_NODE, {}))


def _drain(node: TargetNode, options: argparse.Namespace) -> list[str]:
    """Refuse new clients, hand over what the node leads, and wait until it may stop."""
    deadline = time.monotonic() + options.wait
    found = _listen(node, accept=False)
    lines = said(options, f"Node {found.name} accepts no client connections any more")
    if not found.clustered:
        return lines + said(options, "It is no member of a cluster, and may stop")
    said_before = ""
    while True:
        led, problems = _hand_over(node, found.name)
        if not led and not problems:
            done = "It leads no group that another node could lead, and may stop"
            return lines + said(options, done)
        now = "; ".join([f"still leads {', '.join(led)}"] * bool(led) + list(problems))
        if now != said_before and not (options.quiet or options.silent):
            sys.stdout.write(f"{now}\n")
            sys.stdout.flush()
        said_before = now
        if time.monotonic() >= deadline:
            raise ExitError(EXIT_REFUSED, f"not drained after {options.wait:g} s: {now}")
        time.sleep(POLL_SECONDS)


def _hand_over(node: TargetNode, name: str) -> tuple[list[str], Sequence[str]]:
    """Transfer the leadership of this node's groups; return those that it led until now although others
    could, and why it may not stop."""
    from fluxmq.settings.group_names import is_mirrored  # takes long to load

    with node.require() as caller:
        rows = RaftListing.from_body(caller.call(RAFT, {})).groups
        led = [
            row.group
            for row in rows
            if row.leader == name
            and row.shard >= 0
            and not is_mirrored(row.group)  # handed over as the node stops
            and _has_heir(row.members, name)
        ]
        for group in led:
            try:
                caller.call(TRANSFER, Transfer(group).to_body())
            except CallError:
                continue  # tried again, until the time is over
    return led, _quorum_problems(node)


def _has_heir(members: Iterable[Any], name: str) -> bool:
    return any(each.kind == "voter" and each.node != name and each.connected for each in members)


VERBS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], list[str]]]] = {
    "alarms": _alarms,
    "await_startup": _await_startup,
    "check_alarms": _check_alarms,
    "check_if_node_is_quorum_critical": _check_quorum,
    "check_local_alarms": _check_alarms,
    "check_port_connectivity": _check_port_connectivity,
    "check_port_listener": _check_port_listener,
    "check_protocol_listener": _check_protocol_listener,
    "check_running": _check_running,
    "check_virtual_hosts": _check_virtual_hosts,
    "cluster_status": _cluster_status,
    "drain": _drain,
    "environment": _environment,
    "is_running": _is_running,
    "listeners": _listeners,
    "node_health_check": _node_health_check,
    "resume_listeners": _set_listening,
    "server_version": _server_version,
    "suspend_listeners": _set_listening,
}
