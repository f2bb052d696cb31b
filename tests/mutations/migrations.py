"""Mutations of what moving a queue to another group promises: one owner, nothing lost, nothing twice, order."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_MACHINE = "tests/unit/queues/test_migration.py::"
OF_GATES = "tests/unit/engine/test_migration_fence.py::"
OF_HOSTS = "tests/unit/engine/test_moving_queue.py::"
OF_MOVES = "tests/unit/shards/amqp/test_migrations.py::"
OF_LIMITS = "tests/unit/shards/amqp/test_sync_limits.py::"
OF_ROWS = "tests/unit/routing/topology/test_migrations.py::"
OF_TYPES = "tests/unit/routing/topology/test_type_changes.py::"

MUTATIONS = [
    Mutation(
        "migration_declared_half",
        "What has not arrived whole is not the queue.",
        "activate",
        "if move is None or not move.installed:",
        "if move is None:",
        OF_MACHINE + "test_what_has_not_arrived_whole_is_not_the_queue",
    ),
    Mutation(
        "migration_taken_while_fenced",
        "A fenced queue takes and gives nothing.",
        "Machine._cold",
        "if queue.closed and kind not in migration.WHILE_CLOSED:",
        "if False:",
        OF_MACHINE + "test_a_fenced_queue_takes_and_gives_nothing_until_it_is_opened",
    ),
    Mutation(
        "migration_stale_state",
        "What was installed is not replaced by what was true before.",
        "migration:install",
        "if fence_number < move.installed:",
        "if False:",
        OF_MACHINE + "test_what_was_installed_is_not_replaced_by_what_was_true_before",
    ),
    Mutation(
        "migration_incomplete_install",
        "What was installed counts only while nothing has come since.",
        "take_in",
        "move.installed = 0",
        "",
        OF_MACHINE + "test_more_than_was_installed_makes_it_incomplete_again",
    ),
    Mutation(
        "migration_identities_left_behind",
        "An append that had taken effect before the fence is not stored again in the other group.",
        "migration:install",
        "move.came_with = came_with",
        "",
        OF_MACHINE
        + "test_an_append_that_had_taken_effect_before_the_fence_is_not_stored_again_there",
    ),
    Mutation(
        "migration_order_after_fence",
        "Nothing passes an append that was held up.",
        "MigrationFence.holds",
        "if identity.number > first and identity.floor <= first:",
        "if False:",
        OF_GATES + "test_nothing_passes_an_append_that_was_held_up",
    ),
    Mutation(
        "migration_renamed_appends",
        "What is not answered moves under the name it had.",
        "GroupClient._take_over",
        "self._appends = dict(sorted({**self._appends, **appends}.items()))",
        "self._appends.update({next(self._numbers): each for each in appends.values()})",
        OF_HOSTS + "test_what_is_not_answered_moves_with_its_queue_in_order_and_under_its_names",
    ),
    Mutation(
        "migration_opened_undecided",
        "A queue is not opened while the decision that was asked for may stand.",
        "OutgoingMove._decide.decided",
        """self._fenced_at = None
                self._fail(refusal.text)""",
        "self._fail(refusal.text)",
        OF_MOVES + "test_a_move_whose_decision_is_lost_is_gone_on_with",
    ),
    Mutation(
        "migration_late_decision",
        "What was asked for before a queue was opened again is no reason to decide.",
        "OutgoingMove._install.installed",
        "elif migration.fenced_at(state) == fence:",
        "else:",
        OF_MOVES + "test_a_queue_that_waits_for_too_long_is_opened_and_moved_later",
    ),
    Mutation(
        "migration_sync_batch",
        "A part of a stored batch goes on where the last one ended.",
        "OutgoingMove._copy",
        "first = self.position - batch.base_offset",
        "first = 0",
        OF_LIMITS + "test_no_more_messages_are_sent_to_mirrors_than_a_batch_holds",
    ),
    Mutation(
        "migration_sync_rate",
        "Mirrors get no more bytes than the rate allows.",
        "CopyWindow.room",
        "if paced and self._rate.wait(now):",
        "if False:",
        OF_LIMITS + "test_mirrors_get_no_more_bytes_than_the_rate_allows",
    ),
    Mutation(
        "migration_cleared_unheard",
        "What arrived is given up only when the topology here is as new as that.",
        "QueueMigrations._clear.current",
        "if refusal is not None or gone or self._belongs(group, state):",
        "if refusal is not None or gone:",
        OF_MOVES + "test_what_arrived_is_given_up_only_when_it_is_certain_that_it_may",
    ),
    Mutation(
        "migration_finished_after_abort",
        "An aborted move cannot be finished.",
        "finished",
        "if not queue.moving_to or queue.migration != migration:",
        "if not queue.moving_to:",
        OF_ROWS + "test_an_aborted_move_cannot_be_finished",
    ),
    Mutation(
        "type_of_the_source_installed",
        "A queue is of the type that its row names in the group that its row names.",
        "OutgoingMove._install",
        "origins, becomes)",
        "origins)",
        OF_MOVES + "test_a_classic_queue_becomes_a_quorum_queue_whoever_leads_it_meanwhile",
    ),
    Mutation(
        "type_changed_by_itself",
        "A queue changes its type in the same step as its group.",
        "finished",
        "as_quorum(arrived) if queue.becomes else arrived",
        "arrived",
        OF_TYPES + "test_the_type_changes_with_the_group",
    ),
    Mutation(
        "type_changed_after_an_abort",
        "What a move that was aborted should have changed is forgotten.",
        "migrations:aborted",
        'migration="", becomes=""',
        'migration=""',
        OF_TYPES + "test_a_change_that_is_aborted_leaves_nothing_behind",
    ),
    Mutation(
        "deliveries_counted_on",
        "A message is not dead at once because its queue has a delivery limit from now on.",
        "Ledger.pack",
        "anew and state.attempts > 1",
        "False",
        OF_MACHINE + "test_a_queue_of_another_type_counts_deliveries_anew",
    ),
    Mutation(
        "quorum_queue_called_classic",
        "A quorum queue is not taken for a classic one by its declarers, unless it was one.",
        "may_be_called_classic",
        "current.arguments.get(DECLARED_KEY) == CLASSIC",
        "True",
        OF_TYPES + "test_a_queue_that_was_declared_as_a_quorum_queue_is_no_classic_one",
    ),
    Mutation(
        "consumer_cancelled_as_of_a_classic_queue",
        "A consumer of a queue that has become a quorum queue follows each leader.",
        "LeaderHandle.follow",
        "stays and self._wanted.cancel_on_failover",
        "False",
        "tests/unit/engine/test_group_client.py::"
        "test_a_consumer_of_a_queue_that_has_become_a_quorum_queue_is_not_cancelled_by_a_failover",
    ),
    Mutation(
        "type_changed_beside_old_nodes",
        "No queue changes its type while a node cannot read its row.",
        "TypeChanges.group",
        "if not self._able():",
        "if False:",
        "tests/unit/control/test_quorum_groups.py::"
        "test_nodes_that_cannot_read_the_row_have_to_be_replaced_first",
    ),
]
