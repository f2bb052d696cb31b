"""Mutations of how groups are placed and moved."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_HANDOVER = "tests/unit/engine/test_handover.py::"
OF_PINNING = "tests/unit/replication/test_pinning.py::"
OF_RELOCATION = "tests/unit/shards/test_relocate.py::"
OF_START = "tests/unit/supervisor/test_group_placement.py::"
OF_PLACING = "tests/unit/control/test_placements.py::"

MUTATIONS = [
    Mutation(
        "kept_requests_overtaken",
        "Requests kept while a group was away go before those that other shards forward later.",
        "NodeGroups.arrived",
        "client.retry()",
        "pass",
        OF_HANDOVER + "test_nothing_overtakes_what_is_kept_when_the_group_is_back",
    ),
    Mutation(
        "released_before_its_snapshot",
        "A group is released only when a snapshot has everything it has applied.",
        "Handovers._come_to_rest",
        "if group.failed or not group.idle or hosted.snapshot_index != group.applied_index:",
        "if group.failed or not group.idle:",
        OF_HANDOVER + "test_a_group_whose_checkpoint_fails_stays",
    ),
    Mutation(
        "placed_before_the_snapshot",
        "The placement is written when the group was released and received.",
        "Placements._move",
        "await self._write(replace(self.placement, moving={move.group: move.target}))",
        "await self._write(placement)",
        OF_PLACING + "test_nothing_is_decided_before_the_group_is_received",
    ),
    Mutation(
        "hard_state_left_behind",
        "A group that moves votes under the hard state it had.",
        "begin_copy",
        "wal.append_hard_state(number, position.term, position.vote, position.commit)",
        "",
        OF_HANDOVER + "test_the_hard_state_goes_with_the_group",
    ),
    Mutation(
        "hard_state_left_in_the_old_log",
        "A group that a start moves votes under the hard state it had.",
        "Relocation._copy.position",
        "*wal.hard_state(number), *wal.checkpoint(number), wal.last_index(number)",
        "1, 0, 0, *wal.checkpoint(number), wal.last_index(number)",
        OF_RELOCATION + "test_the_declared_hard_state_is_the_groups_own",
    ),
    Mutation(
        "log_forgotten_before_the_snapshot",
        "A log forgets a group only when a snapshot has all of it.",
        "orphaned_groups:forget",
        "if last > held:",
        "if False:",
        OF_HANDOVER + "test_a_placement_that_would_lose_entries_is_refused",
    ),
    Mutation(
        "tail_left_behind",
        "What a follower has acknowledged and not applied moves with it.",
        "Handovers._take_in",
        "for piece in in_pieces(entries):",
        "for piece in in_pieces(entries[:-1]):",
        OF_PINNING + "test_what_a_follower_acknowledged_moves_with_it",
    ),
    Mutation(
        "vote_left_behind",
        "A member that has written nothing since its start keeps its vote when it moves.",
        "_position",
        (
            "term, vote, _ = wal.hard_state(number)\n"
            '    assert (term, vote) == (status.term, status.vote), "the vote that was given moves"'
        ),
        "term, vote = hosted.driver.hard_state",
        OF_PINNING + "test_a_vote_moves_that_nothing_was_written_behind",
    ),
    Mutation(
        "appends_taken_while_leaving",
        "A member that leaves takes no entries when its log is read.",
        "RaftDriver.step",
        """if self.halted:
            return  # as if lost: the sender retries""",
        "",
        OF_PINNING + "test_a_follower_leaves_under_load",
    ),
    Mutation(
        "copy_without_a_mark",
        "A log says of a copy that was received that it does not hold yet.",
        "begin_copy",
        """mark(wal, group)
    if group in wal.groups():""",
        "if group in wal.groups():",
        OF_PINNING + "test_a_copy_that_was_not_decided_for_is_thrown_away",
    ),
    Mutation(
        "released_without_a_mark",
        "A log that has let a group go may forget it when it is placed elsewhere.",
        "Handovers._hand_out",
        "mark(hosted.shared.wal, name)",
        "",
        OF_PINNING + "test_the_old_shard_forgets_what_moved",
    ),
    Mutation(
        "mark_kept",
        "A log that a group is opened from holds, whatever it was before.",
        "arrive",
        """unmark(wal, group)
    path""",
        "path",
        OF_PINNING + "test_a_copy_that_was_not_decided_for_is_thrown_away",
    ),
    Mutation(
        "relocated_without_its_entries",
        "A start with other shards moves every entry behind the checkpoint.",
        "Relocation._copy",
        "for piece in in_pieces(wal.written(number)):",
        "for piece in []:",
        OF_PINNING + "test_a_replicated_group_changes_its_shard_between_starts",
    ),
    Mutation(
        "moving_group_opened",
        "Nobody opens a group of which it is not decided where it is.",
        "Queues.groups_here",
        """and not self.places.is_moving(name)
        )""",
        ")",
        OF_HANDOVER + "test_a_shard_that_starts_leaves_a_moving_group_alone",
    ),
    Mutation(
        "overtaking",
        "What goes to the new shard directly waits for what goes by way of the old one.",
        "GroupClient.target",
        "if self.of_node and any(each.sent > 0 for each in self._appends.values()):",
        "if False:",
        OF_HANDOVER + "test_nothing_overtakes_what_goes_by_way_of_the_old_shard",
    ),
    Mutation(
        "given_up_and_forgotten",
        "A move that is given up opens the group where it was.",
        "Handovers._on_placement",
        "{**dict.fromkeys(self._leaving, self._shard), **before}",
        "before",
        OF_HANDOVER + "test_a_move_that_is_given_up_leaves_the_group_where_it_was",
    ),
    Mutation(
        "placement_before_the_logs",
        "A start writes the placement when groups have left the old logs.",
        "place",
        "if moves or superfluous or found.moving:",
        """write_placement(files, paths, wanted)
    if moves or superfluous or found.moving:""",
        OF_START + "test_logs_that_cannot_be_read_keep_the_placement",
    ),
    Mutation(
        "attached_too_early",
        "A consumer that comes before its group leads is attached when it does.",
        "GroupRequests.attach",
        "if not self.failed and not self.driver.leading and len(self._early) < EARLY_MAX:",
        "if False:",
        OF_HANDOVER + "test_who_comes_before_the_group_leads_is_served_when_it_does",
    ),
]
