"""Verbs about runtime parameters and global parameters, named after rabbitmqctl's. They need a
running broker.

``change`` makes a change of the topology; it exits when that is refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import orjson

from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.formats import said
from fluxmq.cli.node import TargetNode
from fluxmq.routing.topology.changes import Change, ClearGlobalParameter, SetGlobalParameter
from fluxmq.routing.topology.parameters import CLUSTER_NAME, clearing, setting
from fluxmq.routing.topology.records import GlobalParameter
from fluxmq.routing.topology.refusals import Refusal

RABBITMQ_REFUSED = 70
"""Exit code of rabbitmqctl for a text of its broker's."""
Changing = Callable[[TargetNode, Change], None]
Verb = Callable[[TargetNode, argparse.Namespace], list[str]]


def verbs(change: Changing) -> dict[str, Verb]:
    """Return the verbs by name."""

    def set_parameter(node: TargetNode, options: argparse.Namespace) -> list[str]:
        value = _json(options.value)
        try:
            wanted = setting(options.vhost, options.component, options.name, value)
        except Refusal as refusal:
            raise ExitError(EXIT_REFUSED, refusal.text, RABBITMQ_REFUSED) from refusal
        change(node, wanted)
        return said(
            options,
            f'Setting runtime parameter "{options.name}" for component "{options.component}" to'
            f' "{options.value}" in vhost "{options.vhost}" ...',
        )

    def clear_parameter(node: TargetNode, options: argparse.Namespace) -> list[str]:
        try:
            wanted = clearing(options.vhost, options.component, options.name)
        except Refusal as refusal:
            raise ExitError(EXIT_REFUSED, refusal.text, RABBITMQ_REFUSED) from refusal
        change(node, wanted)
        return said(
            options,
            f'Clearing runtime parameter "{options.name}" for component "{options.component}" on'
            f' vhost "{options.vhost}" ...',
        )

    def set_global_parameter(node: TargetNode, options: argparse.Namespace) -> list[str]:
        _set_global(node, options.name, _json(options.value))
        title = f'Setting global runtime parameter "{options.name}" to "{options.value}" ...'
        return said(options, title)

    def clear_global_parameter(node: TargetNode, options: argparse.Namespace) -> list[str]:
        change(node, ClearGlobalParameter(options.name))
        return said(options, f'Clearing global runtime parameter "{options.name}" ...')

    def set_cluster_name(node: TargetNode, options: argparse.Namespace) -> list[str]:
        _set_global(node, CLUSTER_NAME, options.name)
        return said(options, f"Setting cluster name to {options.name} ...")

    def _set_global(node: TargetNode, name: str, value: Any) -> None:
        change(node, SetGlobalParameter(GlobalParameter(name, orjson.dumps(value).decode())))

    return {
        "set_parameter": set_parameter,
        "clear_parameter": clear_parameter,
        "set_global_parameter": set_global_parameter,
        "clear_global_parameter": clear_global_parameter,
        "set_cluster_name": set_cluster_name,
    }


def _json(text: str) -> Any:
    """Parse a value from the command line. Exits when it is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        sentence = f"Could not parse JSON document: {error}"
        raise ExitError(EXIT_USAGE, sentence, RABBITMQ_REFUSED) from None
