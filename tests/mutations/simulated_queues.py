"""Mutations of the Raft driver, of queues and of storage that the simulator notices within the seeds of CI.

Most of these rules have a test of their own; here they show what the simulator of whole nodes is awake for.
"""

from __future__ import annotations

from tests.mutations.mutation import Mutation

SEEDS = "tests/sim/test_queues.py::test_seeds_keep_every_promise"

MUTATIONS = [
    # The log
    Mutation(
        "simulated_queues_acknowledged_before_sync",
        "An entry is acknowledged when the log is synced, not when it is written.",
        "SharedLog.wrote",
        "self._next[group] = (index, term, number)",
        "self._next[group] = (index, term, number)\n        group.persisted(index, term, number)",
        SEEDS,
    ),
    Mutation(
        "simulated_queues_answers_before_sync",
        "What a follower answers leaves when the log is synced.",
        "RaftDriver._persist",
        "if self._durable < self._written:",
        "if False:",
        SEEDS,
    ),
    Mutation(
        "simulated_queues_tail_forgotten",
        "A group is recovered with every entry of the log behind its snapshot.",
        "_note_entries",
        "for entry in entries:",
        "for entry in entries[:-1]:",
        SEEDS,
    ),
    Mutation(
        "simulated_queues_applied_out_of_order",
        "Entries that were left unapplied are applied before later ones.",
        "RaftDriver.pump",
        "self._apply_rest()\n                        self._apply(ready.committed)",
        "self._apply(ready.committed)",
        SEEDS,
    ),
    # Checkpoints and snapshots
    Mutation(
        "simulated_queues_checkpoint_misses_a_queue",
        "A checkpoint has every queue of the group.",
        "DiskStores.unsynced",
        "for log in self.by_number.values():",
        "for log in list(self.by_number.values())[1:]:",
        SEEDS,
    ),
    Mutation(
        "simulated_queues_checkpoint_without_sync",
        "A checkpoint syncs the segments that it names.",
        "checkpoints:write",
        "part.sync()",
        "pass",
        SEEDS,
    ),
    Mutation(
        "simulated_queues_acknowledgement_forgotten",
        "What a consumer acknowledged stays settled when the group is restored.",
        "queues.groups:ConsumerGroup.unpack",
        "filter_, cursor)",
        "filter_, max(cursor - 1, 0))",
        SEEDS,
    ),
    Mutation(
        "simulated_queues_snapshot_name_not_synced",
        "The log goes on from a snapshot whose name is durable.",
        "open_group",
        "files.fsync_directory(directory)",
        "pass",
        "tests/sim/test_queues.py::test_a_log_does_not_go_on_from_a_snapshot_whose_name_is_not_durable",
    ),
    # Clients
    Mutation(
        "simulated_queues_retry_stored_again",
        "An append that is sent again takes effect once.",
        "Machine._append_once",
        "self._origins.note(identity)",
        "pass",
        SEEDS,
    ),
    Mutation(
        "simulated_queues_settlement_of_others",
        "A settlement takes effect for the messages that its consumer holds.",
        "queues.groups:ConsumerGroup.settle",
        "self.pending.acknowledge(first, last, holder)",
        "self.pending.acknowledge(first, last + 1, holder)",
        SEEDS,
    ),
]
