"""Mutations of what waits for the sync where messages are delivered before it."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

TESTS = "tests/unit/engine/test_before_sync.py::"
OF_CHOICE = "tests/unit/shards/amqp/test_groups.py::"

MUTATIONS = [
    Mutation(
        "before_sync_confirmed",
        "Publishers are confirmed after the sync, however early their messages are delivered.",
        "ReplicationGroup.apply",
        """if ahead.is_ahead(index):
            ahead.hold(index, answers, applied.results)
        else:""",
        "if True:",
        TESTS + "test_a_message_is_delivered_before_its_sync_and_confirmed_after_it",
    ),
    Mutation(
        "before_sync_of_its_own_write",
        "A confirmation waits for the sync of its own entry, not for any sync.",
        "AheadOfSync.synced",
        "while self._waiting and self._waiting[0][0] <= index:",
        "while self._waiting:",
        TESTS + "test_each_write_is_confirmed_by_its_own_sync",
    ),
    Mutation(
        "before_sync_others",
        "Messages of queues that did not ask for it are delivered after their sync.",
        "AheadOfSync._runs_ahead",
        "queue.closed or queue.is_stream or queue.name not in self.names",
        "queue.closed or queue.is_stream",
        TESTS + "test_an_entry_with_another_queues_commands_waits_and_so_do_later_ones",
    ),
    Mutation(
        "before_sync_last_only",
        "An entry waits if any of its commands has to.",
        "AheadOfSync.lets_through",
        """if not self._runs_ahead(queue_id):
                    return False""",
        """if not self._runs_ahead(queue_id):
                    continue""",
        TESTS + "test_an_entry_with_another_queues_commands_waits_and_so_do_later_ones",
    ),
    Mutation(
        "before_sync_rejected",
        "What may be dead-lettered waits for the sync: a message that takes the place of a lost one is no duplicate.",
        "only_queue_of",
        "kind == _SETTLE and verb == _ACK",
        "kind == _SETTLE",
        TESTS + "test_dead_letters_wait_for_the_sync",
    ),
    Mutation(
        "before_sync_expired",
        "A claim that passes over expired messages waits for the sync.",
        "only_queue_of",
        "return NO_QUEUE if others else int(queue_id)",
        "return int(queue_id)",
        TESTS + "test_messages_that_expire_wait_for_the_sync",
    ),
    Mutation(
        "before_sync_displaced",
        "A queue that dead-letters what exceeds its length does not run ahead.",
        "AheadOfSync._runs_ahead",
        "if queue.bounded and queue.config.dead_letter:",
        "if False:",
        TESTS + "test_a_queue_that_dead_letters_beyond_its_length_waits",
    ),
    Mutation(
        "before_sync_abroad",
        "Consumers on other nodes, which outlive a crash, get synced messages only.",
        "AheadOfSync._runs_ahead",
        "return not any(each.terms.abroad for each in self._consumers.consumers_of(queue_id))",
        "return True",
        TESTS + "test_a_consumer_on_another_node_gets_synced_messages_only",
    ),
    Mutation(
        "before_sync_head",
        "Readers of the files are not shown what is not synced.",
        "QueueLog._move_head",
        "self._recovering or self.ahead or not self._head_moved",
        "self._recovering or not self._head_moved",
        TESTS + "test_readers_of_the_files_are_not_shown_what_is_not_synced",
    ),
    Mutation(
        "before_sync_head_in_a_cut",
        "A log that loses what was not synced is no damage.",
        "AheadOfSync._fall_behind",
        "self._stores[queue_id].ahead = True",
        "pass",
        "tests/unit/engine/test_before_sync_cuts.py::test_a_power_cut_takes_back_only_what_nobody_was_told_of",
    ),
    Mutation(
        "before_sync_segments",
        "Segments stay until it is synced that nobody needs them.",
        "QueueLog.trim",
        """if not self.ahead:
                self._clear_away()""",
        "self._clear_away()",
        TESTS + "test_segments_stay_until_it_is_synced_that_nobody_needs_them",
    ),
    Mutation(
        "before_sync_cut",
        "A cut that had to wait for space removes nothing while entries are not synced.",
        "QueueLog.cut",
        """if self.ahead:
            return""",
        "",
        "tests/unit/storage/test_queue_log_faults.py"
        "::test_a_cut_that_waits_for_descriptors_removes_nothing_of_a_log_that_is_ahead",
    ),
    Mutation(
        "before_sync_catches_up",
        "Files catch up although there is always a sync in flight.",
        "ReplicationGroup._need_not_wait",
        "return ahead.wanted and not ahead.settling and",
        "return ahead.wanted and",
        TESTS + "test_the_files_catch_up_while_there_is_always_a_sync_in_flight",
    ),
    Mutation(
        "before_sync_failed",
        "Whoever waits for a sync that fails is answered.",
        "ReplicationGroup._end",
        "answers = self.answers.ahead.end()",
        "answers = []",
        TESTS + "test_a_failed_log_refuses_all_that_waited_for_it",
    ),
    Mutation(
        "before_sync_idle",
        "A group is not idle while answers wait for a sync.",
        "ReplicationGroup.idle",
        "and self.answers.ahead.idle",
        "",
        TESTS + "test_a_group_is_busy_while_answers_wait",
    ),
    Mutation(
        "before_sync_replicated",
        "A replicated queue refuses to deliver before the sync.",
        "GroupChoice.of",
        "if queue.arguments.get(BEFORE_SYNC_KEY):",
        "if False:",
        OF_CHOICE + "test_a_replicated_queue_does_not_deliver_before_the_sync",
    ),
    Mutation(
        "before_sync_alone",
        "Only a group of one member applies entries before their sync.",
        "ReplicationGroup.join",
        "self.answers.ahead.alone = not replicated",
        "self.answers.ahead.alone = True",
        TESTS + "test_a_group_with_other_members_never_runs_ahead",
    ),
]
