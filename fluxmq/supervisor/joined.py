"""The start of a node whose cluster names its nodes: it may have to join first, or have left.

With ``cluster.join``, a node never begins a cluster of its own. While its data directory is empty it
waits for ``fluxmqctl join``, which asks the cluster to admit the node, and writes the cluster's nodes
into the directory.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

from fluxmq import logs
from fluxmq import settings as configuration
from fluxmq.model.errors import FluxmqError
from fluxmq.settings import Settings
from fluxmq.settings.membership import FILE_NAME, effective, read_nodes
from fluxmq.storage.directory import data_in

LOOK_SECONDS: Final = 0.25
"""Interval at which a node that waits looks whether it has joined."""

_log = logs.get_logger("fluxmq.supervisor")


class NotJoinedError(FluxmqError):
    """The node cannot start as a member of its cluster."""


def joined(settings: Settings, data_dir: Path, workers: int) -> Settings:
    """Return the settings with the nodes that the cluster has; wait until this node has joined it,
    if it has to. Raises NotJoinedError; ends the process if it is to stop meanwhile."""
    try:
        if settings.cluster.enabled and settings.cluster.join:
            _wait(data_dir)
        known = read_nodes(data_dir)
    except ValueError as problem:
        raise NotJoinedError(str(problem)) from problem
    if known.left:
        raise NotJoinedError(
            f"{data_dir}: this node has left its cluster; to have it join one again, remove this"
            " directory, set cluster.join: true, and run fluxmqctl join"
        )
    found = effective(settings, known.nodes, known.sets)
    if found.cluster != settings.cluster:
        refusals = configuration.refusals(found, workers)
        if refusals:
            raise NotJoinedError("\n".join(refusals))
    return found


def _wait(data_dir: Path) -> None:
    """Wait until there is a file with the cluster's nodes. Raises NotJoinedError."""
    path = data_dir / FILE_NAME
    if path.exists():
        return
    data = data_in(str(data_dir))
    if data:
        raise NotJoinedError(
            f"{data_dir}: cluster.join is true, and this node has data ({', '.join(data[:5])}) and"
            f" has joined no cluster: remove the directory, or copy {FILE_NAME} into it from another"
            " node if it was put back from a backup; or set cluster.join: false"
        )
    ends = {signal.SIGTERM, signal.SIGINT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        _log.warning("waiting for fluxmqctl join", extra={"data_dir": str(data_dir)})
        while not path.exists():
            if signal.sigtimedwait(ends, LOOK_SECONDS) is not None:
                sys.exit(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _log.info("joined")
