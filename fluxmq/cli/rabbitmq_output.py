"""Commands whose output is another under RabbitMQ's names than fluxmqctl's own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import orjson

import fluxmq
from fluxmq.cli.main import verb_of
from fluxmq.cli.node import TargetNode
from fluxmq.ipc.messages import STATUS, NodeStatus
from fluxmq.ipc.node_messages import DESCRIBE_NODE, NodeDescription

_GB: Final = 1_000_000_000
_DONE: Final = (
    "Done. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help"
    " set_permissions' to learn more."
)


def _write(node: TargetNode, lines: Sequence[str]) -> None:
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    for complaint in node.complaints:
        sys.stderr.write(complaint + "\n")


def _banner(options: argparse.Namespace, text: str) -> list[str]:
    quiet = options.quiet or options.silent or options.formatter in ("json", "csv")
    return [] if quiet else [text]


def _result(options: argparse.Namespace, text: str) -> list[str]:
    """Return a sentence that is printed even if headings are not."""
    if options.formatter == "json":
        return [orjson.dumps({"message": text}).decode()]
    return [text]


def _silently(node: TargetNode, options: argparse.Namespace) -> None:
    """Run a command whose own sentences are not wanted."""
    quiet = argparse.Namespace(**{**vars(options), "quiet": True})
    verb_of(options.command)(node, quiet)


def _said(banner: str, result: str = "") -> Callable[[argparse.Namespace], None]:
    """Return a command that prints a heading, and a result; both may name options in braces."""

    def run(options: argparse.Namespace) -> None:
        node = TargetNode(options)
        _silently(node, options)
        lines = _banner(options, banner.format_map(vars(options))) if banner else []
        _write(node, lines + (_result(options, result) if result else []))

    return run


def _add_user(options: argparse.Namespace) -> None:
    node = TargetNode(options)
    _silently(node, options)
    banner = f'Adding user "{options.user}" ...'
    _write(node, _banner(options, banner) + _banner(options, _DONE))


def _list_queues(options: argparse.Namespace) -> None:
    node = TargetNode(options)
    lines = verb_of(options.command)(node, options)
    _write(node, _banner(options, f"Timeout: {options.timeout} seconds ...") + lines)


def _list_policies(options: argparse.Namespace) -> None:
    """Show definitions as text, also in JSON."""
    node = TargetNode(options)
    lines = verb_of(options.command)(node, options)
    if options.formatter == "json":
        rows = orjson.loads(lines[0])
        for row in rows:
            row["definition"] = orjson.dumps(row["definition"]).decode()
        lines = [orjson.dumps(rows).decode()]
    _write(node, lines)


def _list_vhost_limits(options: argparse.Namespace) -> None:
    """Of one virtual host, print the limits alone, as a JSON object."""
    node = TargetNode(options)
    if options.everywhere:
        lines = verb_of(options.command)(node, options)
        _write(node, lines)
        return
    plain = {**vars(options), "formatter": "json", "quiet": True, "silent": True}
    (text,) = verb_of(options.command)(node, argparse.Namespace(**plain))
    found = orjson.loads(text)
    shown = [orjson.dumps(each["limits"] or {}).decode() for each in found]
    title = f'Listing limits for vhost "{options.vhost}" ...'
    _write(node, _banner(options, title) + (shown or [""]))


def _delete_queue(options: argparse.Namespace) -> None:
    node = TargetNode(options)
    lines = verb_of(options.command)(node, options)
    conditions = ["if queue is empty "] * options.if_empty + [
        "if queue is unused "
    ] * options.if_unused
    banner = (
        f"Deleting queue '{options.queue}' on vhost '{options.vhost}' {'and '.join(conditions)}..."
    )
    _write(node, _banner(options, banner) + lines[1:])


def _close_all(options: argparse.Namespace) -> None:
    node = TargetNode(options)
    (line,) = verb_of(options.command)(node, argparse.Namespace(**{**vars(options), **_LOUD}))
    banner = f"Closing all connections in vhost {options.vhost}, reason: {options.reason}..."
    if options.everywhere:
        banner = f"Closing all connections (across all vhosts), reason: {options.reason}..."
    count = line.split()[1]
    _write(node, _banner(options, banner) + _result(options, f"Closed {count} connections"))


_LOUD: Final = {"quiet": False, "silent": False, "formatter": "table"}


def _ping(options: argparse.Namespace) -> None:
    node = TargetNode(options)
    _silently(node, options)
    _write(node, _result(options, "Ping succeeded"))


def _export(options: argparse.Namespace) -> None:
    node = TargetNode(options)
    _silently(node, options)
    banner = f'Exporting definitions in JSON to a file at "{options.file}" ...'
    _write(node, [] if options.file == "-" else _banner(options, banner))


def _import(options: argparse.Namespace) -> None:
    node = TargetNode(options)
    _silently(node, options)
    source = "standard input" if options.file == "-" else f'a file at "{options.file}"'
    lines = _banner(options, f"Importing definitions in JSON from {source} ...")
    _write(node, lines + _banner(options, "Successfully imported the definitions"))


def _version(options: argparse.Namespace) -> None:
    sys.stdout.write(f"{fluxmq.__version__}\n")


def _status(options: argparse.Namespace) -> None:
    from fluxmq.cli.health_verbs import alarm_lines, listener_lines, listener_maps

    node = TargetNode(options)
    with node.require() as caller:
        found = NodeDescription.from_body(caller.call(DESCRIBE_NODE, {}))
        status = NodeStatus.from_body(caller.call(STATUS, {}))
    uptime = int(max((each.uptime for each in status.processes), default=0))
    connections = sum(each.numbers.connections for each in status.processes if each.numbers)
    memory = status.resources
    if options.formatter == "json":
        found_object = {
            "pid": found.pid,
            "os": os.uname().sysname if node.host is None else "",
            "product_name": "FluxMQ",
            "product_version": found.version,
            "rabbitmq_version": found.compatible_version,
            "uptime": uptime,
            "is_under_maintenance": False,
            "alarms": [
                {"type": "resource_limit", "resource": each, "node": found.name}
                for each in found.alarms
            ],
            "active_plugins": [],
            "data_directory": found.data_dir,
            "disk_free": found.disk_free,
            "disk_free_limit": found.disk_free_limit,
            "memory": {"total": {"rss": memory.memory_held}},
            "vm_memory_high_watermark_limit": memory.memory_high_watermark,
            "listeners": listener_maps(found.listeners),
            "totals": {
                "connection_count": connections,
                "queue_count": found.queues,
                "virtual_host_count": found.vhosts,
            },
        }
        _write(node, [orjson.dumps(found_object).decode()])
        return
    _write(
        node,
        [
            *_banner(options, f"Status of node {found.name} ..."),
            *("Runtime", "", f"OS PID: {found.pid}", f"Uptime (seconds): {uptime}"),
            *("Product name: FluxMQ", f"Product version: {found.version}"),
            *(f"RabbitMQ version: {found.compatible_version}", f"Node name: {found.name}"),
            *("", "Data directory", "", f"Node data directory: {found.data_dir}"),
            *("", "Alarms", "", *(alarm_lines(found) or ["(none)"])),
            *("", "Memory", "", f"Total memory used: {_gigabytes(memory.memory_held)} gb"),
            f"Memory high watermark: {_gigabytes(memory.memory_high_watermark)} gb",
            *("", "Free Disk Space", ""),
            f"Low free disk space watermark: {_gigabytes(found.disk_free_limit)} gb",
            f"Free disk space: {_gigabytes(found.disk_free)} gb",
            *("", "Totals", "", f"Connection count: {connections}"),
            *(f"Queue count: {found.queues}", f"Virtual host count: {found.vhosts}"),
            *("", "Listeners", "", *(listener_lines(found.listeners) or ["(none)"])),
        ],
    )


def _gigabytes(size: int) -> float:
    return round(size / _GB, 4)


OUTPUT: Final[dict[str, Callable[[argparse.Namespace], None]]] = {
    "add_user": _add_user,
    "authenticate_user": _said('Authenticating user "{user}" ...', "Success"),
    "await_startup": _said(""),
    "clear_operator_policy": _said('Clearing operator policy "{name}" on vhost "{vhost}" ...'),
    "close_all_connections": _close_all,
    "close_connection": _said("Closing connection {pid}, reason: {reason}..."),
    "delete_queue": _delete_queue,
    "export_definitions": _export,
    "import_definitions": _import,
    "list_operator_policies": _list_policies,
    "list_policies": _list_policies,
    "list_queues": _list_queues,
    "list_vhost_limits": _list_vhost_limits,
    "ping": _ping,
    "purge_queue": _said("Purging queue '{queue}' in vhost '{vhost}' ..."),
    "status": _status,
    "version": _version,
}
"""Commands by name; all others print what fluxmqctl prints."""
