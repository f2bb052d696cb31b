"""Verbs about mirrored queues, named after rabbitmqctl's and rabbitmq-diagnostics', and warnings about
policies that mirror. They need a running broker.

``rows`` returns all rows of a list, and the shards that did not answer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson

from fluxmq.cli.exits import EXIT_REFUSED, ExitError
from fluxmq.cli.formats import said, table
from fluxmq.cli.node import TargetNode
from fluxmq.control.columns import LISTS
from fluxmq.ipc.mirror_messages import CANCEL_SYNC_QUEUE, SYNC_QUEUE, MirroredQueue, SyncState
from fluxmq.ipc.node_messages import DESCRIBE_NODE, NodeDescription
from fluxmq.ipc.row_messages import QUEUES, ListRequest, TableRow
from fluxmq.routing.topology.mirror_keys import (
    ALWAYS,
    BATCH_KEY,
    EXACTLY,
    MODE_KEY,
    ON_SHUTDOWN_KEY,
)

POLL_SECONDS: Final = 0.2
"""Time between two looks at a queue that is being synchronised."""
POLICIES: Final = "policies"

Rows = Callable[[TargetNode, ListRequest], tuple[list[TableRow], list[str]]]
Verb = Callable[[TargetNode, argparse.Namespace], list[str]]


def verbs(rows: Rows) -> dict[str, Verb]:
    """Return the verbs by name."""

    def mirroring(node: TargetNode) -> list[TableRow]:
        columns = LISTS[POLICIES].columns
        found, _missing = rows(node, ListRequest(POLICIES, columns))
        return [each for each in found if MODE_KEY in each["definition"]]

    def list_policies(node: TargetNode, options: argparse.Namespace) -> list[str]:
        found = list[Mapping[str, Any]](mirroring(node))
        title = "Listing policies with classic queue mirroring ..."
        return table(options, title, found, LISTS[POLICIES].columns)

    def check(node: TargetNode, options: argparse.Namespace) -> list[str]:
        found = mirroring(node)
        json = options.formatter == "json"
        if not found:
            passed = "Cluster reported no policies that enable classic queue mirroring"
            if json:
                return [orjson.dumps({"result": "ok"}).decode()]
            title = "Checking if cluster has any classic queue mirroring policy ..."
            return said(options, title) + ([] if options.silent else [passed])
        text = "\n".join(f"Policy {each['name']} enables classic queue mirroring" for each in found)
        if json:
            message = "Cluster reported policies enabling classic queue mirroring"
            failed = {"result": "error", POLICIES: found, "operator_policies": []}
            text = orjson.dumps({**failed, "message": message}).decode()
        raise ExitError(EXIT_REFUSED, text)

    def check_node(node: TargetNode, options: argparse.Namespace) -> list[str]:
        with node.require() as caller:
            described = NodeDescription.from_body(caller.call(DESCRIBE_NODE, {}))
        name = described.name
        found: list[TableRow] = []
        if described.nodes != (name,):
            columns = ("vhost", "name", "leader", "synchronised_mirror_nodes")
            every, _missing = rows(node, ListRequest(QUEUES, columns))
            alone = (each for each in every if each["synchronised_mirror_nodes"] == [])
            found = [each for each in alone if each["leader"] == name]
        return _checked_node(options, name, found, alone=described.nodes == (name,))

    return {
        "check_if_node_is_mirror_sync_critical": check_node,
        "sync_queue": _sync,
        "cancel_sync_queue": _cancel,
        "check_if_cluster_has_classic_queue_mirroring_policy": check,
        "list_policies_with_classic_queue_mirroring": list_policies,
    }


def _checked_node(
    options: argparse.Namespace, name: str, found: list[TableRow], *, alone: bool
) -> list[str]:
    """Return the lines of a check of a node that passed. Exits if it did not."""
    json = options.formatter == "json"
    if found:
        readable = [f"queue '{each['name']}' in vhost '{each['vhost']}'" for each in found]
        text = "\n".join(
            f"{each} would lose its only synchronised replica (master) if node {name} is stopped"
            for each in readable
        )
        if json:
            text = orjson.dumps(
                {
                    "result": "error",
                    "queues": [
                        {"readable_name": text, "name": each["name"], "virtual_host": each["vhost"]}
                        for text, each in zip(readable, found, strict=True)
                    ],
                    "message": f"Node {name} reported local classic mirrored queues without online"
                    " synchronised mirrors",
                }
            ).decode()
        raise ExitError(EXIT_REFUSED, text)
    if json:
        return [orjson.dumps({"result": "ok"}).decode()]
    passed = f"Node {name} reported no classic mirrored queues without online synchronised mirrors"
    if alone:
        passed = (
            f"Node {name} seems to be the only one in a single node cluster, the check does not"
            " apply"
        )
    title = (
        f"Checking if node {name} is critical for data safety of any classic mirrored queues ..."
    )
    return said(options, title) + ([] if options.silent else [passed])


def warnings_of(definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each thing to know about a policy that mirrors; none for another."""
    if MODE_KEY not in definition:
        return
    yield (
        "warning: mirrored classic queues are offered for compatibility; quorum queues are the better"
        " choice: declare queues with x-queue-type=quorum"
    )
    if definition[MODE_KEY] == EXACTLY and definition.get(ON_SHUTDOWN_KEY) == ALWAYS:
        yield (
            f'warning: {MODE_KEY} "{EXACTLY}" with {ON_SHUTDOWN_KEY} "{ALWAYS}" is dangerous: as nodes'
            " are stopped in turn, queues move to mirrors that are not synchronised, and lose messages"
        )
    if BATCH_KEY in definition:
        yield (
            f"warning: {BATCH_KEY}: the network has to carry a batch in less than cluster.net_ticktime, that"
            f" is {definition[BATCH_KEY]} times the size of a message; about 256KiB are sent at once"
        )


def _sync(node: TargetNode, options: argparse.Namespace) -> list[str]:
    """Have a queue's mirrors synchronised, and wait until they are."""
    begin = True
    while True:
        request = MirroredQueue(options.vhost, options.queue, begin)
        with node.require() as caller:
            state = SyncState.from_body(caller.call(SYNC_QUEUE, request.to_body()))
        if not state.syncing:
            return said(
                options, f"Synchronising queue '{options.queue}' in vhost '{options.vhost}' ..."
            )
        begin = False
        time.sleep(POLL_SECONDS)


def _cancel(node: TargetNode, options: argparse.Namespace) -> list[str]:
    request = MirroredQueue(options.vhost, options.queue)
    with node.require() as caller:
        state = SyncState.from_body(caller.call(CANCEL_SYNC_QUEUE, request.to_body()))
    title = f"Stopping synchronising queue '{options.queue}' in vhost '{options.vhost}' ..."
    return said(options, title) + ([] if state.syncing else ["not_syncing"])
