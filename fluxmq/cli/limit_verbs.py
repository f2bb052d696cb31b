"""Verbs about limits of users, named after rabbitmqctl's. They need a running broker.

``change`` makes a change of the topology; it exits when that is refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from fluxmq.cli.exits import EXIT_REFUSED, ExitError
from fluxmq.cli.formats import said
from fluxmq.cli.node import TargetNode
from fluxmq.routing.topology.changes import ClearUserLimits, SetUserLimits

ALL = "all"


def set_user_limits(
    node: TargetNode,
    options: argparse.Namespace,
    limits: dict[str, Any],
    change: Callable[[TargetNode, SetUserLimits], None],
) -> list[str]:
    """Set limits of a user."""
    _check_user(node, options.user)
    change(node, SetUserLimits(options.user, limits))
    return said(options, f'Setting user limits to "{options.limits}" for user "{options.user}" ...')


def clear_user_limits(
    node: TargetNode,
    options: argparse.Namespace,
    change: Callable[[TargetNode, ClearUserLimits], None],
) -> list[str]:
    """Remove one limit of a user, or all."""
    _check_user(node, options.user)
    every = options.limit == ALL
    change(node, ClearUserLimits(options.user, "" if every else options.limit))
    what = "all limits" if every else f'"{options.limit}" limit'
    return said(options, f'Clearing {what} for user "{options.user}" ...')


def _check_user(node: TargetNode, name: str) -> None:
    if all(each.name != name for each in node.users()):
        raise ExitError(EXIT_REFUSED, f"there is no user {name!r}")
