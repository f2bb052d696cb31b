"""The programs of a node's processes, and the image that they start from.

The supervisor imports what its children run before it forks them: they share these pages, and a
killed shard serves again after the time of a fork and of its recovery. The image grows in two
steps. The first has what all roles use; the control process starts from it, and itself imports the
web server and the decisions about users and topology, which no other process needs. Meanwhile the
supervisor imports the rest of what shards and the acceptor run.

Imports stand in functions because their moment matters, and all of them here, because the
supervisor calls no other package that runs as a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fluxmq.ipc.launch import Launch


@dataclass(frozen=True, slots=True)
class Program:
    """``load`` imports, in the supervisor, what children share (True: on a node of a cluster);
    ``run`` is the child."""

    load: Callable[[bool], None]
    run: Callable[[Launch], None]


def load_common(clustered: bool) -> None:
    """Import the modules that all roles use."""
    # Its threads would be left behind by a fork, and nothing here multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with _importing():
        import uvloop  # noqa: F401

        import fluxmq.ipc.backups
        import fluxmq.ipc.memory
        import fluxmq.ipc.row_messages
        import fluxmq.ipc.topology_messages
        import fluxmq.ipc.user_messages
        import fluxmq.storage.backup
        import fluxmq.storage.inspect  # noqa: F401


def load_rest(clustered: bool) -> None:
    """Import the other modules of shards and the acceptor."""
    load_common(clustered)
    with _importing():
        import fluxmq.shards.span_recorder
        import fluxmq.shards.worker
        import fluxmq.supervisor.acceptor

        if clustered:
            import fluxmq.engine.group_clients
            import fluxmq.shards.publish_links  # noqa: F401


def run_shard(launch: Launch) -> None:
    """Run a shard."""
    from fluxmq.shards.worker import main

    main(launch)


def run_acceptor(launch: Launch) -> None:
    """Run the acceptor."""
    from fluxmq.supervisor.acceptor import main

    main(launch)


def run_control(launch: Launch) -> None:
    """Import and run the control process."""
    with _importing():
        from fluxmq.control.process import main

    main(launch)


def run_etcd(launch: Launch) -> None:
    """Become the member of etcd."""
    from fluxmq.supervisor.etcd import run

    run(launch)


PROGRAMS: Mapping[str, Program] = {
    "shard": Program(load_rest, run_shard),
    "acceptor": Program(load_rest, run_acceptor),
    "control": Program(load_common, run_control),
    "etcd": Program(load_common, run_etcd),
}
"""The program of each role."""


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Keep the collector away meanwhile, as imports leave hardly any garbage, and from what is
    there afterwards: its marks would take shared pages apart."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
