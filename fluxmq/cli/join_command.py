"""``fluxmqctl join`` makes a node part of a running cluster, and ``fluxmqctl leave`` has it leave.

Joining works on the files of the node, which is empty: it waits, or is not started yet. The cluster is
asked over the management interface of one of its nodes. Leaving is done by the running node, step by
step; the command can be run again if it was interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

import fluxmq
from fluxmq.cli.callers import BrokerCaller
from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.node import TargetNode
from fluxmq.ipc.cluster_nodes import (
    ADMIT_NODE,
    LEAVE,
    AdmitNode,
    ClusterNodes,
    Leave,
    Obstacles,
)
from fluxmq.ipc.clusters import (
    ADD,
    MEMBER_CHANGE,
    RAFT,
    REMOVE,
    TRANSFER,
    VOTER,
    MemberChange,
    RaftListing,
    RaftRequest,
    RaftRow,
    Transfer,
)
from fluxmq.ipc.messages import ERROR_AWAY
from fluxmq.ipc.node_messages import DESCRIBE_NODE, LISTENING, Listening, NodeDescription
from fluxmq.ipc.polling_client import CallError
from fluxmq.ipc.row_messages import (
    CLOSE_CONNECTIONS,
    LIST,
    SESSIONS,
    CloseConnections,
    Listed,
    ListRequest,
)
from fluxmq.settings.group_names import is_mirrored

if TYPE_CHECKING:
    from fluxmq.settings import Settings
    from fluxmq.settings.membership import ClusterNode

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

JOIN: Final = "join"
LEAVE_COMMAND: Final = "leave"
WAIT_SECONDS: Final = 60.0
"""Default time for each step of leaving."""
ANSWER_SECONDS: Final = 20.0
"""Time for a node to admit another, or to leave."""
POLL_SECONDS: Final = 0.2
GOODBYE: Final = "this node leaves its cluster"
"""Reason that clients are told."""
SESSIONS_NAMED: Final = 5


def add_parser(commands: Commands) -> None:
    """Add the commands to the command line."""
    text = "make this node, which is empty, part of a running cluster"
    join = commands.add_parser(
        JOIN,
        help=text,
        description=f"{text.capitalize()}. The node waits for it (cluster.join: true), or is not"
        " started yet; --config names its settings. --user is an administrator of the cluster.",
    )
    join.set_defaults(command=JOIN)
    join.add_argument(
        "cluster",
        metavar="URL",
        help="management interface of a node of the cluster: https://HOST[:15671]",
    )
    join.add_argument(
        "--address",
        metavar="HOST",
        help="name or address at which other nodes reach this one (default: those of its settings)",
    )
    text = "have this node leave its cluster for good, and stop"
    leave = commands.add_parser(
        LEAVE_COMMAND,
        help=text,
        description=f"{text.capitalize()}: refuse clients, hand over leaders and sessions, have other"
        " nodes take its copies of groups, leave these and etcd.",
    )
    leave.set_defaults(command=LEAVE_COMMAND)
    leave.add_argument(
        "--force",
        action="store_true",
        help="give up queues and sessions that only this node has",
    )
    leave.add_argument(
        "--shrink",
        action="store_true",
        help="let groups have one copy less, instead of having other nodes take this node's copies",
    )
    leave.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        default=WAIT_SECONDS,
        help="how long each step may take (default: %(default)s)",
    )


# --- joining -----------------------------------------------------------------------------------------


def join(node: TargetNode, options: argparse.Namespace) -> list[str]:
    """Have the cluster admit this node, and write the nodes of the cluster into its directory."""
    from fluxmq.cli import data_directory
    from fluxmq.cli.remote import RemoteCaller, RemoteNode
    from fluxmq.settings.membership import FILE_NAME, KnownNodes, encode_nodes
    from fluxmq.storage.directory import data_in
    from fluxmq.storage.files import Files

    settings = node.settings
    if settings is None:
        raise ExitError(EXIT_USAGE, "name the node's settings file: fluxmqctl --config FILE ...")
    cluster = settings.cluster
    if not (cluster.enabled and cluster.join):
        raise ExitError(
            EXIT_REFUSED,
            "set cluster.enabled and cluster.join to true in the node's settings, and name no other"
            " nodes there: the cluster names them",
        )
    data = data_in(str(node.data_dir))
    if FILE_NAME in data:
        raise ExitError(
            EXIT_REFUSED, f"this node has joined a cluster: {node.data_dir}/{FILE_NAME}"
        )
    if data:
        raise ExitError(
            EXIT_REFUSED,
            f"{node.data_dir} is not empty: a node that joins has no data of its own. Move what it"
            " needs to the cluster (fluxmqctl export_definitions), stop the node, and remove the"
            " directory",
        )
    addresses = addresses_of(settings, options.address or "")
    asked = AdmitNode(
        *(cluster.node_id, cluster.name, fluxmq.__version__),
        cluster.transport.tls_enabled,
        addresses,
    )
    remote = RemoteNode(options.cluster, options)
    try:
        with RemoteCaller(remote, max(options.timeout, ANSWER_SECONDS)) as caller:
            answer = ClusterNodes.from_body(caller.call(ADMIT_NODE, asked.to_body()))
    except CallError as refusal:
        raise ExitError(EXIT_REFUSED, f"{options.cluster}: {refusal}") from None
    node.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = str(node.data_dir / FILE_NAME)
    Files().write_whole(path, encode_nodes(KnownNodes(nodes=answer.nodes, sets=answer.sets)))
    others = sorted(n for n, each in answer.nodes.items() if n != cluster.node_id and not each.left)
    lines = [f"{cluster.node_id} is part of cluster {cluster.name}, with {', '.join(others)}"]
    if not data_directory.is_locked(node.data_dir):
        lines.append("start it now")
    return lines


def addresses_of(settings: Settings, host: str) -> ClusterNode:
    """Return the addresses of a node for others, by its settings, with another host if one is
    given."""
    from fluxmq.settings.clustering import DEFAULT_GROUP, address_of
    from fluxmq.settings.membership import ClusterNode

    def elsewhere(address: str) -> str:
        bare = host.removeprefix("[").removesuffix("]")
        port = address.rpartition(":")[2]
        return address if not host else f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"

    cluster = settings.cluster
    member = cluster.member
    url = "" if member is None else cluster.members(member)[cluster.node_id]
    return ClusterNode(
        transport=elsewhere(cluster.transport.bind_addr),
        raft=elsewhere(cluster.raft.bind_addr),
        groups={
            name: elsewhere(group.bind_addr)
            for name, group in cluster.raft.groups.items()
            if group.bind_addr is not None and name != DEFAULT_GROUP
        },
        etcd=url and f"{cluster.url_scheme}://{elsewhere(address_of(url))}",
    )


# --- leaving -----------------------------------------------------------------------------------------


def leave(node: TargetNode, options: argparse.Namespace) -> list[str]:
    """Have this node leave its cluster, and stop."""
    node.wait_at_least(ANSWER_SECONDS)
    with node.require() as caller:
        name = NodeDescription.from_body(caller.call(DESCRIBE_NODE, {})).name
        others = _check(caller, options)
        caller.call(LISTENING, Listening(accept=False).to_body())
        _say(f"{name} accepts no client connections any more")
        _part_from_clients(caller, options)
        for group in sorted(_rows_of(caller, name)):
            if is_mirrored(group):
                continue  # others lead it, and do without this node, once it has left
            if not options.shrink:
                move_copy(caller, group, others, options.wait)
            _until(partial(_leave_group, caller, group, name), options.wait, "is still a member of")
            _say(f"{name} is no longer a member of group {group!r}")
        caller.call(LEAVE, Leave(check=False, force=options.force).to_body())
    return [f"{name} has left its cluster, and stops; its data directory can be removed"]


def _check(caller: BrokerCaller, options: argparse.Namespace) -> tuple[str, ...]:
    """Exit if the node cannot leave; return the other nodes of the cluster."""
    body = Leave(check=True, force=options.force, moves=not options.shrink).to_body()
    found = Obstacles.from_body(caller.call(LEAVE, body))
    problems = [*found.obstacles, *(() if options.force else found.losses)]
    if problems:
        more = () if found.obstacles else ("or give them up with --force",)
        raise ExitError(EXIT_REFUSED, "\n".join(["this node may not leave now", *problems, *more]))
    return found.others


def _part_from_clients(caller: BrokerCaller, options: argparse.Namespace) -> None:
    """Close all connections, and wait until the clients' sessions have moved to other nodes."""
    closing = CloseConnections(None, None, GOODBYE, here=True)
    caller.call(CLOSE_CONNECTIONS, closing.to_body())
    try:
        _until(lambda: _sessions(caller), 0.0 if options.force else options.wait, "still has")
    except ExitError as late:
        if not options.force:
            text = f"{late}: their clients have not connected to another node. Give the sessions up"
            text += " with --force, or have this node serve again with resume_listeners"
            raise ExitError(late.code, text) from None


def _sessions(caller: BrokerCaller) -> str:
    """Return the sessions that are on this node, for people; empty for none."""
    wanted = ListRequest(SESSIONS, ("name",), here=True)
    listed = Listed.from_body(caller.call(LIST, wanted.to_body()))
    names = [str(row["name"]) for row in listed.rows]
    if not names:
        return ""
    more = ", and others" if len(names) > SESSIONS_NAMED or listed.place else ""
    return f"the sessions of {', '.join(names[:SESSIONS_NAMED])}{more}"


def _rows(caller: BrokerCaller) -> tuple[RaftRow, ...]:
    body = RaftRequest(everywhere=True).to_body()
    return RaftListing.from_body(caller.call(RAFT, body)).groups


def _rows_of(caller: BrokerCaller, name: str) -> dict[str, RaftRow]:
    """Return the groups of which a node is a member."""
    return {row.group: row for row in _rows(caller) if any(m.node == name for m in row.members)}


def successors(rows: Iterable[RaftRow], group: str, others: Iterable[str]) -> list[str]:
    """Return the nodes that can take over a copy of a group, those with the fewest copies first: those
    that have none of it. One that has one already and is no voter yet comes alone: it was begun."""
    copies: Counter[str] = Counter()
    members: dict[str, str] = {}
    for row in rows:
        copies.update(each.node for each in row.members)
        if row.group == group:
            members = {each.node: each.kind for each in row.members}
    begun = [node for node in others if members.get(node, VOTER) != VOTER]
    fit = [node for node in others if node not in members]
    return begun or sorted(fit, key=lambda node: (copies[node], node))


def move_copy(caller: BrokerCaller, group: str, others: tuple[str, ...], seconds: float) -> None:
    """Have another node take a copy of a group, if there is one without: it becomes a voter before this
    node leaves."""
    deadline = time.monotonic() + seconds
    candidates = successors(_rows(caller), group, others)
    if not candidates:
        _say(f"group {group!r} has one copy less: all other nodes have one")
        return
    while isinstance(node := _begin_copy(caller, group, candidates), list):
        # The group may be electing a leader, or a node may be coming back.
        if time.monotonic() >= deadline or all(each.code != ERROR_AWAY for each in node):
            reasons = "\n".join([*map(str, node), "let the group have one copy less with --shrink"])
            text = f"no node can take over the copy of group {group!r}:\n{reasons}"
            raise ExitError(EXIT_REFUSED, text)
        time.sleep(POLL_SECONDS)
    _until(partial(_not_voter, caller, group, node), seconds, "waits, before it leaves, for")
    _say(f"{node} has a copy of group {group!r}")


def _begin_copy(caller: BrokerCaller, group: str, candidates: list[str]) -> str | list[CallError]:
    """Add the first node that a group accepts as a member; return it, or the refusals of all."""
    problems = []
    for node in candidates:
        try:
            caller.call(MEMBER_CHANGE, MemberChange(group, node, ADD).to_body())
        except CallError as problem:
            if not _is_member(caller, group, node):
                problems.append(problem)
                continue
        return node
    return problems


def _is_member(caller: BrokerCaller, group: str, node: str) -> bool:
    return group in _rows_of(caller, node)


def _not_voter(caller: BrokerCaller, group: str, node: str) -> str:
    """Return what is still to come until a node is a voter of a group; empty if it is one."""
    row = _rows_of(caller, node).get(group)
    if row is not None and any(m.node == node and m.kind == VOTER for m in row.members):
        return ""
    return f"{node} to catch up with group {group!r}"


def _leave_group(caller: BrokerCaller, group: str, name: str) -> str:
    """Hand a group over if the node leads it, or else remove the node from it; return the group, and
    what is in the way, until it is no member any more."""
    row = _rows_of(caller, name).get(group)
    if row is None:
        return ""
    try:
        if row.leader == name:
            caller.call(TRANSFER, Transfer(group).to_body())
        else:
            caller.call(MEMBER_CHANGE, MemberChange(group, name, REMOVE).to_body())
    except CallError as problem:  # tried again, until the time is over
        return f"group {group!r}: {problem}"
    return f"group {group!r}"


def _until(problem: Callable[[], str], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while found := problem():
        if time.monotonic() >= deadline:
            raise ExitError(EXIT_REFUSED, f"this node {what} {found}")
        time.sleep(POLL_SECONDS)


def _say(line: str) -> None:
    """Print a line at once, before the command ends."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
