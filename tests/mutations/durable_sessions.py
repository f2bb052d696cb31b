"""Mutations of what sessions and retained messages promise to outlive."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

DURABLE = "fluxmq/shards/durable/"
OF_DURABLE = "tests/unit/shards/test_durable.py::"

MUTATIONS = [
    Mutation(
        "kept_before_answered",
        "A message for an absent persistent session is acknowledged when it is on disk.",
        "Undelivered.write",
        "journal.home.when_safe(self.safe)",
        "self.safe(0)",
        OF_DURABLE + "test_a_message_for_an_absent_client_is_answered_when_it_is_on_disk",
    ),
    Mutation(
        "committed_before_answered",
        "The store answers after the commit, not before.",
        "StateStore.when_safe",
        """else:
            self._waiting.append(done)""",
        """else:
            done(0)""",
        "tests/unit/storage/test_state_store.py::test_who_waits_is_answered_when_it_is_in_the_file",
    ),
    Mutation(
        "received_kept",
        "Identifiers of received QoS 2 messages are on disk before PUBREC [MQTT-4.3.3-10].",
        "CommitWaiter._write",
        "journal.received_rows.add(first, count)",
        "pass",
        OF_DURABLE + "test_a_repeated_qos_2_publish_is_known_after_a_restart",
    ),
    Mutation(
        "refused_is_forgotten",
        "A QoS 2 publish that was refused is new when it comes again, also for a client that had gone.",
        "CommitWaiter._close",
        "session.received.remove(first, count)",
        "pass",
        OF_DURABLE + "test_a_refused_qos_2_publish_is_new_when_it_comes_again",
    ),
    Mutation(
        "released_kept",
        "PUBREL is sent when the message's release is on disk: it is not sent again after a restart.",
        "SessionJournal.released",
        "self._then(partial(answer, part.pid, part.count))",
        "answer(part.pid, part.count)",
        OF_DURABLE + "test_a_message_released_before_the_restart_is_not_sent_again",
    ),
    Mutation(
        "numbers_used_again",
        "The number of a message that was received is not given to another while its row is there.",
        "DurableSessions._restored",
        "journal.number = max(journal.number, number + run.count)",
        "",
        OF_DURABLE + "test_numbers_of_messages_that_were_received_are_not_used_again",
    ),
    Mutation(
        "restored_identifiers",
        "Messages that were sent have their former packet identifiers after a restart, also where these begin anew.",
        "_resent_first",
        ", PACKET_ID_MAX + 1 - pid)",
        ")",
        OF_DURABLE + "test_identifiers_that_begin_anew_within_a_row_are_the_same_after_a_restart",
    ),
    Mutation(
        "ended_session_written",
        "Nothing is written of a session that has ended, or is another shard's, while its publish waited for a disk.",
        "CommitWaiter._write",
        "if journal.ended:",
        "if False:",
        OF_DURABLE + "test_nothing_is_written_of_a_session_that_has_ended_meanwhile",
    ),
    Mutation(
        "session_for_the_release_before",
        "Messages of QoS 2 go to another node one by one: one of the release before keeps each in a row.",
        "_singly",
        "if inflight.qos < 2:",
        "if inflight.qos:",
        OF_DURABLE + "test_messages_of_qos_2_leave_for_another_node_one_by_one",
    ),
    Mutation(
        "settled_out_of_order",
        "A QoS 2 message that was received is not sent again after a restart, whatever its row's others are.",
        "Undelivered.released",
        "settled.add(first, count)",
        "pass",
        OF_DURABLE + "test_messages_received_out_of_order_are_not_sent_again",
    ),
    Mutation(
        "retained_kept",
        "A retained publish is acknowledged when its home has it on disk.",
        "OnDisk.keep",
        "self._store.when_safe(done)",
        "done(0)",
        OF_DURABLE + "test_a_retained_message_is_answered_when_its_home_has_it",
    ),
    Mutation(
        "deletion_stays",
        "A deletion that the topic's home has not confirmed is told to it again.",
        "RetainedRows.unconfirmed",
        "for entry in list(self._unconfirmed[peer].values()):",
        "for entry in list[_Unconfirmed]():",
        OF_DURABLE + "test_a_deletion_made_while_the_home_is_down_is_not_undone",
    ),
    Mutation(
        "identifiers_follow_numbers",
        "A message sent again after a restart has the packet identifier it had [MQTT-4.4.0-1].",
        "SessionDelivery.free_for",
        "pid = inflight.base % PACKET_ID_MAX + 1",
        "pid = (inflight.base + 7) % PACKET_ID_MAX + 1",
        OF_DURABLE + "test_unanswered_messages_come_again_with_dup_and_their_identifiers",
    ),
    Mutation(
        "down_is_waited_for",
        "What is published while a shard is down is kept for its persistent sessions.",
        "RouteTable.drop_shard",
        "if self._tree.get(topic_filter, shard) is KEPT:",
        "if False:",
        OF_DURABLE + "test_what_is_published_while_a_shard_is_down_reaches_its_sessions",
    ),
    Mutation(
        "copied_before_removed",
        "Rows that move to another shard are removed when they are there.",
        "_move",
        """files.reach("state.move")
    apply(source, here)""",
        "",
        "tests/unit/storage/test_state_store.py::test_rows_move_home",
    ),
    Mutation(
        "share_kept",
        "A shared group's part for persistent members of another shard is acknowledged when it is safe there.",
        "SharedSubscription._offer",
        "bool(run.qos) and target in self.kept_at",
        "False",
        OF_DURABLE + "test_a_share_for_another_shard_is_answered_when_it_is_on_disk_there",
    ),
    Mutation(
        "members_come_back",
        "Persistent members of a shared group are dealt their part while their shard is down.",
        "GroupTable.drop_shard",
        """return kept

        for core""",
        """return 0

        for core""",
        OF_DURABLE + "test_a_share_published_while_its_members_shard_is_down_waits_for_it",
    ),
    Mutation(
        "passed_on_safely",
        "What a member of a shared group leaves stays on its disk until another member has it safe.",
        "GroupTable.hand_over",
        "self._pass_on(inflight)",
        "self._pass_on(inflight)\n            if inflight.settle is not None:\n                inflight.settle.acknowledged(inflight.base, inflight.count)",
        OF_DURABLE + "test_what_a_member_leaves_is_its_own_until_another_has_it_safe",
    ),
    Mutation(
        "no_session_in_vain",
        "No session is begun that is to outlive its connection and cannot be kept.",
        "new_session.refusal",
        "refusal = broker.sessions.refuses_to_keep(connect.client_id) if kept else 0",
        "refusal = 0",
        OF_DURABLE + "test_no_session_is_begun_that_cannot_be_kept",
    ),
    Mutation(
        "repeats_known",
        "A QoS 2 message that another shard sends again after a restart is not kept a second time.",
        "Receipts.has",
        "refused < source.number <= last",
        "False",
        OF_DURABLE + "test_a_qos_2_message_sent_again_to_a_restarted_shard_arrives_once",
    ),
    Mutation(
        "refused_is_no_repeat",
        "A QoS 2 message that was refused is new when another shard sends it again.",
        "Receipts.note.below",
        "below = max(below, number) if refused else below",
        "",
        OF_DURABLE
        + "test_a_qos_2_message_that_was_refused_before_the_restart_is_not_taken_for_a_repetition",
    ),
    Mutation(
        "end_of_a_session_after_the_next_one",
        "What ends on one shard is written before what begins on another.",
        "SessionTakeover.freeze",
        "self._durable.flush(client_id)",
        "pass",
        "tests/unit/shards/test_node_model.py::test_everybody_gets_what_they_are_owed",
    ),
]
