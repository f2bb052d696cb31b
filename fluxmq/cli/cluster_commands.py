"""Commands about replicated groups: ``fluxmqctl raft``, ``members``, ``transfer``, ``rebalance``,
``can-stop``, ``audit``, ``grow``, ``shrink`` and ``forget_node``.

Each command takes a connection, its options and whether colours may be used, and returns the lines
to print.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

import orjson

from fluxmq.cli.callers import BrokerCaller
from fluxmq.cli.exits import EXIT_REFUSED, ExitError
from fluxmq.cli.queue_commands import ROLES, milliseconds
from fluxmq.cli.tables import TextTable, columns, grouped
from fluxmq.ipc.clusters import (
    ADD,
    AUDIT,
    CAN_STOP,
    DIFFERS,
    EQUAL,
    FORGET_NODE,
    LEARNER,
    MEMBER_CHANGE,
    RAFT,
    REBALANCE,
    REMOVE,
    TRANSFER,
    UNKNOWN,
    AuditListing,
    AuditRequest,
    ForgetNode,
    GroupOutcomes,
    MemberChange,
    MemberRow,
    RaftListing,
    RaftRequest,
    RaftRow,
    Transfer,
)

_NONE: Final = "-"
REPLICATED: Final = ("all", "quorum", "stream")
"""Types of queues whose leaders can move."""
PROGRESS_SECONDS: Final = 1.0
"""Time between two progress lines about a member that is catching up."""

_RAFT_COLUMNS: Final = columns(
    "GROUP, ROLE, #TERM, LEADER, VOTERS, LEARNERS, #COMMIT, #APPLIED, #LAST, "
    "#SNAPSHOT, #ELECTIONS, #FSYNC P99"
)
_MEMBER_COLUMNS: Final = columns("GROUP, NODE, PLACE, STATE, #MATCH, #LAG, #LAST CONTACT, SEEN BY")


def _listing(caller: BrokerCaller, group: str | None) -> RaftListing:
    wanted = RaftRequest(group or "", everywhere=group is not None)
    return RaftListing.from_body(caller.call(RAFT, wanted.to_body()))


def raft(caller: BrokerCaller, options: argparse.Namespace, colour: bool) -> list[str]:
    """Show the state of this node's replicated groups."""
    listing = _listing(caller, options.group)
    if options.json:
        return [orjson.dumps(listing.to_body()).decode()]
    return raft_lines(listing, colour=colour)


def raft_lines(listing: RaftListing, *, colour: bool) -> list[str]:
    """Return the table of groups, followed by remarks that do not fit into it."""
    table = TextTable(_RAFT_COLUMNS)
    for number, row in enumerate(listing.groups):
        table.colours[number, 1] = ROLES.get(row.role, "red")
        table.rows.append(
            [
                row.group,
                row.role,
                grouped(row.term),
                row.leader or _NONE,
                _nodes(row, learners=False),
                _nodes(row, learners=True),
                grouped(row.commit),
                grouped(row.applied),
                grouped(row.last),
                grouped(row.snapshot),
                grouped(row.elections),
                milliseconds(row.fsync_p99),
            ]
        )
    return _with_remarks(table, listing, colour=colour)


def _nodes(row: RaftRow, *, learners: bool) -> str:
    found = [member.node for member in row.members if (member.kind == LEARNER) is learners]
    return ",".join(sorted(found)) or _NONE


def members(caller: BrokerCaller, options: argparse.Namespace, colour: bool) -> list[str]:
    """Show the members of replicated groups."""
    listing = _listing(caller, options.group)
    if options.json:
        return [orjson.dumps(listing.to_body()).decode()]
    return member_lines(listing, colour=colour)


def member_lines(listing: RaftListing, *, colour: bool) -> list[str]:
    """Return the table of members, followed by remarks that do not fit into it."""
    table = TextTable(_MEMBER_COLUMNS)
    for row in listing.groups:
        for member in sorted(row.members, key=lambda each: each.node):
            text, paint = _state(member)
            table.colours[len(table.rows), 3] = paint
            table.rows.append(
                [
                    row.group,
                    member.node,
                    member.kind,
                    text,
                    _number(member.match),
                    _number(member.lag),
                    _NONE if member.contact == UNKNOWN else f"{member.contact} ms",
                    member.seen_by,
                ]
            )
    return _with_remarks(table, listing, colour=colour)


def _state(member: MemberRow) -> tuple[str, str]:
    if member.leads:
        return "leader", "green"
    if member.doubt:
        return "not trusted", "red"
    if not member.connected:
        return "not connected", "red"
    if not member.state:
        return "connected", "green"
    return member.state, "green" if member.state == "replicate" else "yellow"


def _number(count: int) -> str:
    return _NONE if count == UNKNOWN else grouped(count)


def _with_remarks(table: TextTable, listing: RaftListing, *, colour: bool) -> list[str]:
    remarks = [f"{row.group}: {row.problem}" for row in listing.groups if row.problem]
    remarks += [
        f"{row.group}: {member.node} {member.doubt}"
        for row in listing.groups
        for member in row.members
        if member.doubt
    ]
    remarks += [f"{row.group}: has no leader" for row in listing.groups if not row.leader]
    remarks += [f"{shard}: did not answer in time" for shard in listing.missing]
    if not listing.groups:
        return ["there are no replicated groups here", *remarks]
    return table.with_remarks(remarks, colour=colour)


def transfer(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Transfer a group's leadership to another node."""
    wanted = Transfer(options.group, options.node or "")
    answer = Transfer.from_body(caller.call(TRANSFER, wanted.to_body()))
    if options.node and answer.node != options.node:
        raise ExitError(EXIT_REFUSED, f"group {options.group!r} is now led by {answer.node}")
    return [f"group {options.group!r} is led by {answer.node}"]


def rebalance(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Spread leaders evenly over the nodes."""
    outcomes = GroupOutcomes.from_body(caller.call(REBALANCE, {}))
    if options.json:
        return [orjson.dumps(outcomes.to_body()).decode()]
    if not outcomes.rows:
        return ["leaders are spread evenly"]
    return _said(outcomes, "is led by")


def _said(outcomes: GroupOutcomes, what: str) -> list[str]:
    lines = [f"group {row.group!r} {what} {row.node}" for row in outcomes.rows if not row.problem]
    failed = [f"group {row.group!r}: {row.problem}" for row in outcomes.rows if row.problem]
    if failed:
        raise ExitError(EXIT_REFUSED, "\n".join([*lines, *failed]))
    return lines


def can_stop(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Report whether this node may stop; exit with 1 when a group would lose its quorum."""
    outcomes = GroupOutcomes.from_body(caller.call(CAN_STOP, {}))
    failed = [f"group {row.group!r}: {row.problem}" for row in outcomes.rows if row.problem]
    if options.json:
        lines = [orjson.dumps({"can_stop": not failed, **outcomes.to_body()}).decode()]
        if failed:
            _say(lines[0])
            raise SystemExit(EXIT_REFUSED)
        return lines
    if failed:
        raise ExitError(EXIT_REFUSED, "\n".join(["this node may not stop now", *failed]))
    return [f"this node may stop: {len(outcomes.rows)} groups keep their quorum without it"]


_AUDIT_COLUMNS: Final = columns("GROUP, NODE, PLACE, #INDEX, HASH, VERDICT")


def audit(caller: BrokerCaller, options: argparse.Namespace, colour: bool) -> list[str]:
    """Compare the copies of a group; exit with 1 when one differs."""
    wanted = AuditRequest(options.group)
    listing = AuditListing.from_body(caller.call(AUDIT, wanted.to_body()))
    lines = (
        [orjson.dumps(listing.to_body()).decode()]
        if options.json
        else audit_lines(listing, colour=colour)
    )
    if any(row.verdict == DIFFERS for row in listing.rows):
        _say("\n".join(lines))
        raise SystemExit(EXIT_REFUSED)
    return lines


def audit_lines(listing: AuditListing, *, colour: bool) -> list[str]:
    """Return the table of copies, followed by the reasons why some were not compared."""
    table = TextTable(_AUDIT_COLUMNS)
    for number, row in enumerate(listing.rows):
        table.colours[number, 5] = _VERDICTS.get(row.verdict, "yellow")
        table.rows.append(
            [
                listing.group,
                row.node,
                row.kind,
                grouped(row.index),
                row.rolling or _NONE,
                row.verdict,
            ]
        )
    remarks = [f"{row.node} was not compared: {row.problem}" for row in listing.rows if row.problem]
    return table.with_remarks(remarks, colour=colour)


_VERDICTS: Final = {EQUAL: "green", DIFFERS: "red"}


def grow(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Add a node to a group and wait until it is a voter."""
    wanted = MemberChange(options.group, options.node, ADD)
    caller.call(MEMBER_CHANGE, wanted.to_body())
    if options.no_wait:
        return [
            f"{options.node} is a learner of group {options.group!r} and becomes a voter when it has caught up"
        ]
    return [_until_voter(caller, options, time.sleep)]


def _say(line: str) -> None:
    """Print a line at once, before the command ends."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _until_voter(
    caller: BrokerCaller, options: argparse.Namespace, sleep: Callable[[float], None]
) -> str:
    deadline = time.monotonic() + options.wait
    said = ""
    while time.monotonic() < deadline:
        rows = _listing(caller, options.group).groups
        member = next(
            (each for row in rows for each in row.members if each.node == options.node), None
        )
        if member is not None and member.kind != LEARNER:
            return f"{options.node} is a voter of group {options.group!r}"
        if member is not None:
            lag, state = _number(member.lag), _state(member)[0]
            line = f"{options.node} is a learner, {lag} entries behind ({state})"
            if line != said:
                _say(line)
            said = line
        sleep(PROGRESS_SECONDS)
    raise ExitError(
        EXIT_REFUSED,
        f"{options.node} is not a voter of group {options.group!r} yet; it becomes one when it has caught up",
    )


def shrink(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Remove a node from a group."""
    wanted = MemberChange(options.group, options.node, REMOVE)
    caller.call(MEMBER_CHANGE, wanted.to_body())
    return [f"{options.node} is no longer a member of group {options.group!r}"]


def forget_node(caller: BrokerCaller, options: argparse.Namespace, _colour: bool) -> list[str]:
    """Remove a node from every group."""
    wanted = ForgetNode(options.node, options.force)
    return _said(
        GroupOutcomes.from_body(caller.call(FORGET_NODE, wanted.to_body())),
        "has no member any more:",
    )


Command = Callable[[BrokerCaller, argparse.Namespace, bool], list[str]]

COMMANDS: Final[dict[str, Command]] = {
    "raft": raft,
    "members": members,
    "transfer": transfer,
    "rebalance": rebalance,
    "can-stop": can_stop,
    "audit": audit,
    "grow": grow,
    "shrink": shrink,
    "forget_node": forget_node,
}

WAIT_SECONDS: Final = 600.0
"""Default time that `grow` waits for a member to catch up."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the command line."""

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(command=name)
        return added

    for name, text in (
        ("raft", "show this node's replicas of groups: role, term, leader, indexes"),
        (
            "members",
            "show the members of replicated groups: how far each is, and which nodes are in contact with it",
        ),
    ):
        listing = command(name, text)
        listing.add_argument("group", metavar="GROUP", nargs="?", help="one group (default: all)")
        listing.add_argument("--json", action="store_true", help="print one JSON object")
    comparing = command("audit", "compare the replicas of a group now (exit code 1 if one differs)")
    comparing.add_argument("group", metavar="GROUP", help="the group's name")
    comparing.add_argument("--json", action="store_true", help="print one JSON object")
    moving = command("transfer", "transfer the leadership of a replicated group")
    moving.add_argument("group", metavar="GROUP", help="the group's name")
    moving.add_argument(
        "node",
        metavar="NODE",
        nargs="?",
        help="node that is to lead (default: the most up-to-date voter)",
    )
    spreading = command(
        "rebalance", "spread the leaders of replicated groups evenly over the nodes"
    )
    spreading.add_argument(
        "type",
        metavar="TYPE",
        nargs="?",
        choices=REPLICATED,
        help="type of queues, as in RabbitMQ: all, quorum or stream; their groups have both",
    )
    stopping = command(
        "can-stop",
        "check whether a group would lose its quorum if this node stopped (exit code 1 if so)",
    )
    for each in (spreading, stopping):
        each.add_argument("--json", action="store_true", help="print one JSON object")
    growing = command(
        "grow", "add a node to a replicated group; it becomes a voter when it has caught up"
    )
    shrinking = command("shrink", "remove a node from a replicated group")
    for change in (growing, shrinking):
        change.add_argument("group", metavar="GROUP", help="the group's name")
        change.add_argument("node", metavar="NODE", help="a node that the settings name")
    growing.add_argument("--no-wait", action="store_true", help="do not wait until it is a voter")
    growing.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        default=WAIT_SECONDS,
        help="how long to wait until it is a voter (default: %(default)s)",
    )
    forgetting = command("forget_node", "remove a lost node from every replicated group")
    forgetting.add_argument("node", metavar="NODE", help="the node's name")
    forgetting.add_argument(
        "--force", action="store_true", help="even if the node is still in contact"
    )
