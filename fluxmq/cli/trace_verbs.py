"""Verbs that switch the firehose on and off, named after rabbitmqctl's. They need a running
broker."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from fluxmq.cli.formats import said
from fluxmq.cli.node import TargetNode
from fluxmq.ipc.trace_messages import TRACE, TraceRequest


def _trace(node: TargetNode, vhost: str, on: bool) -> None:
    with node.require() as caller:
        caller.call(TRACE, TraceRequest(vhost, on).to_body())


def _trace_on(node: TargetNode, options: argparse.Namespace) -> list[str]:
    _trace(node, options.vhost, on=True)
    title = said(options, f'Starting tracing for vhost "{options.vhost}" ...')
    return title + said(options, f"Trace enabled for vhost {options.vhost}")


def _trace_off(node: TargetNode, options: argparse.Namespace) -> list[str]:
    _trace(node, options.vhost, on=False)
    title = said(options, f'Stopping tracing for vhost "{options.vhost}" ...')
    return title + said(options, f"Trace disabled for vhost {options.vhost}")


VERBS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], list[str]]]] = {
    "trace_on": _trace_on,
    "trace_off": _trace_off,
}
