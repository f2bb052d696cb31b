"""Mutations of how groups are placed and moved."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_HANDOVER = "tests/unit/shards/queues/test_handover.py::"
OF_RELOCATION = "tests/unit/shards/test_relocate.py::"
OF_START = "tests/unit/supervisor/test_placing.py::"
OF_PLACING = "tests/unit/admin/test_placing.py::"

MUTATIONS = [
    Mutation(
        "released_before_its_snapshot",
        "A group is released only when a snapshot has everything.",
        "fluxmq/shards/queues/handover.py",
        "if group.failed or not group.idle or hosted.snapshot_index != group.applied_index:",
        "if group.failed or not group.idle:",
        OF_HANDOVER + "test_a_group_whose_checkpoint_fails_stays",
    ),
    Mutation(
        "placed_before_the_snapshot",
        "The placement is written when the group was released and received.",
        "fluxmq/admin/placing.py",
        "        await self._write(replace(self.placement, moving={move.group: move.target}))\n",
        "        await self._write(placement)\n",
        OF_PLACING + "test_nothing_is_decided_before_the_group_is_received",
    ),
    Mutation(
        "hard_state_left_behind",
        "A group that moves votes under the hard state it had.",
        "fluxmq/shards/queues/handover.py",
        "            wal.append_hard_state(number, coming.term, coming.vote, coming.commit)\n",
        "",
        OF_HANDOVER + "test_the_hard_state_goes_with_the_group",
    ),
    Mutation(
        "hard_state_left_in_the_old_log",
        "A group that a start moves votes under the hard state it had.",
        "fluxmq/shards/relocate.py",
        "        wal.append_hard_state(number, *group.hard_state)\n",
        "",
        OF_RELOCATION + "test_the_declared_hard_state_is_the_groups_own",
    ),
    Mutation(
        "log_forgotten_before_the_snapshot",
        "A log forgets a group only when a snapshot has all of it.",
        "fluxmq/shards/queues/strays.py",
        "    if last > held:\n",
        "    if False:\n",
        OF_HANDOVER + "test_a_placement_that_would_lose_entries_is_refused",
    ),
    Mutation(
        "moving_group_opened",
        "Nobody opens a group of which it is not decided where it is.",
        "fluxmq/shards/queues/wiring.py",
        " and not self.places.is_moving(name)\n        )",
        "\n        )",
        OF_HANDOVER + "test_a_shard_that_starts_leaves_a_moving_group_alone",
    ),
    Mutation(
        "overtaking",
        "What goes to the new shard directly waits for what goes by way of the old one.",
        "fluxmq/shards/queues/handover.py",
        "        if host is not None and host.owes(host.last_number):\n",
        "        if False:\n",
        OF_HANDOVER + "test_nothing_overtakes_what_goes_by_way_of_the_old_shard",
    ),
    Mutation(
        "given_up_and_forgotten",
        "A move that is given up opens the group where it was.",
        "fluxmq/shards/queues/handover.py",
        "{**dict.fromkeys(self.departed, self._shard), **before}",
        "before",
        OF_HANDOVER + "test_a_move_that_is_given_up_leaves_the_group_where_it_was",
    ),
    Mutation(
        "placement_before_the_logs",
        "A start writes the placement when groups have left the old logs.",
        "fluxmq/supervisor/placing.py",
        "    if moves or superfluous or found.moving:\n",
        "    write_placement(files, paths, wanted)\n    if moves or superfluous or found.moving:\n",
        OF_START + "test_logs_that_cannot_be_read_keep_the_placement",
    ),
    Mutation(
        "attached_too_early",
        "A consumer that comes before its group leads is attached when it does.",
        "fluxmq/shards/queues/consuming.py",
        "        if not self.failed and not self.keeper.leading and len(self._early) < EARLY_MAX:\n",
        "        if False:\n",
        OF_HANDOVER + "test_who_comes_before_the_group_leads_is_served_when_it_does",
    ),
]
