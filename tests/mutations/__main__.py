"""Try mutations: `python -m tests.mutations`, or only those named.

Prints a line for each and ends with 1 when some mutation went unnoticed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.mutations import (
    amqp10,
    amqp_hot,
    appointed,
    batches,
    before_sync,
    clocks,
    cluster,
    divergent_mirrors,
    doors,
    durable_sessions,
    etcd,
    heartbeats,
    hot_path,
    limits,
    logins,
    management,
    memory,
    metadata,
    migrations,
    mirrors,
    moving_sessions,
    node_publish,
    placement,
    processes,
    queue_doors,
    queues,
    raft,
    recovery,
    retained,
    segments,
    sessions,
    shard_queues,
    simulated_queues,
    simulated_sessions,
    simulation,
    spark,
    surface,
    transport,
    wal,
)
from tests.mutations.mutation import attempt, copy_tree, run_tests

MUTATIONS = [
    *amqp10.MUTATIONS,
    *amqp_hot.MUTATIONS,
    *appointed.MUTATIONS,
    *batches.MUTATIONS,
    *before_sync.MUTATIONS,
    *clocks.MUTATIONS,
    *cluster.MUTATIONS,
    *divergent_mirrors.MUTATIONS,
    *doors.MUTATIONS,
    *durable_sessions.MUTATIONS,
    *heartbeats.MUTATIONS,
    *hot_path.MUTATIONS,
    *limits.MUTATIONS,
    *logins.MUTATIONS,
    *memory.MUTATIONS,
    *metadata.MUTATIONS,
    *migrations.MUTATIONS,
    *mirrors.MUTATIONS,
    *etcd.MUTATIONS,
    *management.MUTATIONS,
    *moving_sessions.MUTATIONS,
    *retained.MUTATIONS,
    *node_publish.MUTATIONS,
    *placement.MUTATIONS,
    *processes.MUTATIONS,
    *queue_doors.MUTATIONS,
    *queues.MUTATIONS,
    *raft.MUTATIONS,
    *recovery.MUTATIONS,
    *segments.MUTATIONS,
    *sessions.MUTATIONS,
    *shard_queues.MUTATIONS,
    *simulated_queues.MUTATIONS,
    *simulated_sessions.MUTATIONS,
    *simulation.MUTATIONS,
    *spark.MUTATIONS,
    *surface.MUTATIONS,
    *transport.MUTATIONS,
    *wal.MUTATIONS,
]


def main(names: list[str]) -> int:
    """Try the named mutations, or all."""
    unknown = set(names) - {each.name for each in MUTATIONS}
    if unknown:
        print("unknown:", ", ".join(sorted(unknown)))
        return 2
    chosen = [each for each in MUTATIONS if not names or each.name in names]
    stale = {each.name: each.complaints() for each in chosen if each.complaints()}
    for name, complaints in stale.items():
        print(f"{name}: {'; '.join(complaints)}")
    if stale:
        return 2
    unnoticed = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy_tree(root)
        code, output = run_tests(root, sorted({each.test for each in chosen}))
        if code != 0:
            print("without any mutation:", output, sep="\n")
            return 2
        for each in chosen:
            started = time.monotonic()
            verdict = attempt(each, root)
            unnoticed += not verdict.noticed
            word = "noticed" if verdict.noticed else "NOT NOTICED"
            print(
                f"{each.name}: {word} ({time.monotonic() - started:.1f} s): {each.rule}", flush=True
            )
            if not verdict.noticed:
                print(verdict.output)
    print(f"{len(chosen) - unnoticed} of {len(chosen)} noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
