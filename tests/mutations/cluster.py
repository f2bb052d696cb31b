"""Mutations of what a cluster promises: nothing before it is durable, nothing twice, nothing out of order, nothing by nobody.

Longer than 500 lines because it is a table."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

FOLDER = "tests/unit/replication/"
ENGINE = "tests/unit/engine/"
OF_COPIES = ENGINE + "test_replica_client.py::"
OF_HOSTS = ENGINE + "test_group_client.py::"
OF_INCARNATIONS = FOLDER + "test_incarnation.py::"
OF_SPREAD = FOLDER + "test_spread.py::"
OF_AUDIT = FOLDER + "test_requested_audit.py::"
OF_KEEPING = FOLDER + "test_keeping.py::"
OF_DAMAGES = FOLDER + "test_damages.py::"
OF_OFFERS = FOLDER + "test_snapshot_offers.py::"
OF_SCRUBS = FOLDER + "test_scrub.py::"
OF_OUTBOX = ENGINE + "test_outbox.py::"
OF_CALLS = "tests/unit/replication/test_snapshot_calls.py::"
OF_SETS = "tests/unit/settings/test_membership.py::"

MUTATIONS = [
    Mutation(
        "outbox_in_a_replicated_group",
        "Outboxes are kept by groups that this node has to itself.",
        "GroupClients.leads",
        " and not group.replicated",
        "",
        ENGINE
        + "test_group_clients.py::test_a_replicated_group_whose_name_begins_like_a_local_one_keeps_no_outbox",
    ),
    Mutation(
        "cluster_answer_before_persistence",
        "A member answers others when what it promises is on its disk.",
        "RaftDriver._persist",
        "if self._durable < self._written:",
        "if False:",
        OF_KEEPING + "test_a_follower_promises_nothing_before_its_disk_has_it",
    ),
    Mutation(
        "cluster_vote_before_persistence",
        "A vote leaves when it is on disk.",
        "RaftDriver._persist",
        "if self._durable < self._written:",
        "if self._durable < self._written and ready.entries:",
        OF_KEEPING + "test_a_vote_leaves_when_it_is_on_disk",
    ),
    Mutation(
        "cluster_crowded_log_takes_entries",
        "A follower drops entries while too much waits to be written to its log.",
        "RaftDriver.step.step",
        "if message.entries and self._shared.wal.above_high_watermark:",
        "if False:",
        OF_KEEPING + "test_a_follower_whose_log_takes_no_more_drops_entries_and_catches_up",
    ),
    Mutation(
        "cluster_left_behind_goes_on",
        "A member that was left behind when a copy was declared the truth takes part no more.",
        "Acquaintances.take",
        "if met.forced[0] > self.record.forced[0]:",
        "if False:",
        OF_INCARNATIONS
        + "test_who_was_left_behind_is_superseded_by_the_copy_that_was_declared_the_truth",
    ),
    Mutation(
        "cluster_left_behind_is_readmitted",
        "A member that was left behind is not readmitted with the log that it has.",
        "Acquaintances._may_be_readmitted",
        """if met.forced != self.record.forced:
            return False""",
        "",
        OF_INCARNATIONS
        + "test_who_was_left_behind_is_superseded_by_the_copy_that_was_declared_the_truth",
    ),
    Mutation(
        "cluster_early_for_all",
        "Only queues that ask for it are answered before the commit.",
        "is_early",
        "return isinstance(done, Append) and done.wish.early",
        "return isinstance(done, Append)",
        OF_KEEPING + "test_mode_async_answers_with_the_leaders_own_write",
    ),
    Mutation(
        "cluster_early_where_refused",
        "A queue that may refuse is answered when it is known whether it does.",
        "WaitingAnswers.marked",
        "wish = wish._replace(early=False)",
        "pass",
        OF_KEEPING + "test_a_queue_that_may_refuse_is_not_answered_early",
    ),
    Mutation(
        "cluster_in_sync_ignored",
        "min_in_sync_replicas hold an answer back.",
        "WaitingAnswers.answer",
        "if not members or index <= self.in_sync(members):",
        "if True:",
        OF_KEEPING + "test_min_in_sync_replicas_hold_the_answers_of_their_queues_only",
    ),
    Mutation(
        "cluster_held_answer_positive",
        "What too few members held when leadership was lost is not acknowledged.",
        "WaitingAnswers.end",
        """for answers in waiting.values():
            for _, done, _ in answers:
                done(result)""",
        """for answers in waiting.values():
            for _, done, found in answers:
                done(found)""",
        OF_KEEPING + "test_a_held_answer_of_a_leader_that_is_no_longer_is_never_positive",
    ),
    Mutation(
        "cluster_moved_is_success",
        "That nobody knows what became of an append is no success.",
        "GroupClient._answered",
        """if reason == Outcome.MOVED and append.retried:
            append.sent = 0""",
        """if reason == Outcome.MOVED:
            reason = 0
        if reason == Outcome.MOVED:
            append.sent = 0""",
        OF_HOSTS + "test_an_answer_of_nobody_knows_is_no_success_and_no_refusal",
    ),
    Mutation(
        "cluster_timeout_is_success",
        "A timeout is a refusal.",
        "GroupClient._give_up",
        "append.done(Outcome.FAILED)",
        "append.done(0)",
        OF_HOSTS + "test_a_timeout_is_a_refusal_and_each_queue_has_its_own",
    ),
    Mutation(
        "cluster_sent_again_out_of_order",
        "What a former leader has not answered goes before what is newer.",
        "GroupClient.leader_changed",
        """for append in self._appends.values():
                append.sent = 0
            self._unsent = len(self._appends)""",
        "pass",
        OF_HOSTS + "test_what_a_former_leader_has_not_answered_goes_before_what_is_newer",
    ),
    Mutation(
        "cluster_overtaken",
        "Nothing overtakes an append that came back.",
        "GroupClient._send_again",
        """if self._unsent >= unsent:
                return""",
        """if False:
                return""",
        OF_HOSTS + "test_nothing_overtakes_what_came_back_at_once",
    ),
    Mutation(
        "cluster_sent_again_as_another",
        "An append that is sent again has the identity it had.",
        "GroupClient._send",
        "identity = Identity(self._origin, number, min(floor, number), self._route.term)",
        "identity = Identity(self._origin, number + sending, floor, self._route.term)",
        OF_HOSTS + "test_it_is_sent_again_with_the_identity_it_had",
    ),
    Mutation(
        "cluster_settled_by_nobody",
        "A settlement fails while nobody leads.",
        "LeaderHandle.settle",
        "self._handle.settle(verb, ranges, delay, reason, _telling(done))\n        elif done is not None:\n            done(Outcome.FAILED)",
        "self._handle.settle(verb, ranges, delay, reason, _telling(done))\n        elif done is not None:\n            done(0)",
        OF_HOSTS + "test_a_consumer_follows_the_leader_and_settles_only_there",
    ),
    Mutation(
        "cluster_older_term",
        "Of several who say that they lead the one of the greatest term is believed.",
        "Leaders.leads",
        "if term > leader.term or (term == leader.term and leader.peer is None):",
        "if True:",
        OF_HOSTS + "test_the_greatest_term_is_believed",
    ),
    Mutation(
        "cluster_taken_before_it_is_there",
        "A message that was taken is delivered before it is said to be there.",
        "ReplicaPort.taken",
        "if found and self._told:",
        "if False:",
        OF_COPIES + "test_a_message_taken_is_there_before_it_is_said_to_be",
    ),
    Mutation(
        "cluster_read_ahead_of_the_copy",
        "A consumer of a copy waits for what the copy has not yet.",
        "ReplicaPort.pump",
        "if state is None or state.next_offset < offset + count:",
        "if state is None:",
        OF_COPIES + "test_messages_come_out_of_the_copy_when_they_are_there",
    ),
    Mutation(
        "cluster_taken_back_by_anybody",
        "Who has lost its promises is taken back only where it is committed that it is no voter.",
        "Acquaintances.take_back",
        "if met is None or not met.doubt or not self._may_be_readmitted(member, met):",
        "if met is None or not met.doubt:",
        OF_INCARNATIONS + "test_who_does_not_lead_for_certain_takes_nobody_back",
    ),
    Mutation(
        "cluster_floor_forgotten",
        "What votes are weighed by is durable, and never lowered.",
        "Acquaintances._take_of_met.floor",
        "floor = max(self.record.floor, _floor(content))",
        "floor = _floor(content)",
        OF_INCARNATIONS + "test_who_is_taken_back_votes_as_if_it_held_what_is_committed",
    ),
    Mutation(
        "cluster_hearsay_keeps_the_old_log",
        "Who hears that a member is another one counts nothing that the earlier one has said.",
        "Acquaintances._learn",
        "if ours is not None:",
        "if ours is None:",
        OF_INCARNATIONS + "test_the_others_hear_at_once_who_is_taken_back_and_begin_anew_with_it",
    ),
    Mutation(
        "cluster_floor_in_an_old_term",
        "Who is taken back begins in the term of who takes it back.",
        "raft.node:Node",
        """if term > self._state.term:
            self._follow(term, 0)

    def announce""",
        """if False:
            self._follow(term, 0)

    def announce""",
        "tests/unit/raft/test_floor.py::test_it_begins_in_the_term_of_who_takes_it_back",
    ),
    Mutation(
        "damaged_member_is_a_voter",
        "A member whose copy was set aside is no voter by itself: an empty group never comes out of that.",
        "Damages._begin_anew.fresh",
        """True,
            others,""",
        """True,
            (*others, member_number(self._cluster.node)),""",
        OF_DAMAGES + "test_who_begins_anew_does_not_lead_however_long_nobody_else_does",
    ),
    Mutation(
        "damaged_member_keeps_its_incarnation",
        "A member whose copy was set aside is another one: it has lost what it promised.",
        "Damages._begin_anew.fresh",
        "random_number(),",
        "0 if before is None else before.incarnation,",
        OF_DAMAGES + "test_a_copy_that_cannot_be_opened_begins_anew",
    ),
    Mutation(
        "damaged_log_of_this_node_alone",
        "A log with what no other node has is never set aside.",
        "Damages._mend_log",
        "if alone or not found.whole:",
        "if not found.whole:",
        OF_DAMAGES + "test_a_log_with_what_only_this_node_has_is_never_set_aside",
    ),
    Mutation(
        "damaged_copy_of_the_last_member",
        "The copy of a group whose other members were taken out is never set aside.",
        "Damages._others",
        "if self._voters(group) == (own,):",
        "if False:",
        OF_DAMAGES + "test_a_group_whose_others_were_taken_out_is_never_set_aside",
    ),
    Mutation(
        "damage_that_is_none",
        "What does not fit the settings is not taken for damage.",
        "Damages.mend",
        "if not others or isinstance(damage, Misfit):",
        "if not others:",
        OF_DAMAGES + "test_what_does_not_fit_the_settings_is_not_set_aside",
    ),
    Mutation(
        "damaged_log_with_lost_names",
        "A log in which a name is lost may hold what no other node has.",
        "groups_in_log.whole",
        "bool(names) and seen - {0} <= names.keys()",
        "bool(names)",
        "tests/unit/storage/test_set_aside.py::test_a_log_whose_names_or_key_are_lost_is_not_whole",
    ),
    Mutation(
        "damage_met_and_forgotten",
        "A group that fails for damage is fetched anew.",
        "RaftDriver._guarded",
        "if isinstance(error, Corruption):",
        "if False:",
        OF_DAMAGES + "test_a_group_that_failed_for_damage_is_quarantined",
    ),
    Mutation(
        "damaged_start_is_refused",
        "A shard that begins goes on when a copy is damaged that others have.",
        "HostedGroups.failure",
        "not (hosted.shared.failed or hosted.mending)",
        "not hosted.shared.failed",
        OF_DAMAGES + "test_a_segment_that_a_start_finds_damaged_does_not_end_it",
    ),
    Mutation(
        "snapshot_fetched_twice",
        "A snapshot that is in place already is not fetched again.",
        "Snapshots.intercept",
        "elif offered.mark.index <= node.status().commit:",
        "elif False:",
        OF_OFFERS + "test_what_is_here_already_is_not_fetched_again",
    ),
    Mutation(
        "group_opened_while_replaced",
        "Nobody opens a group whose files are being replaced.",
        "HostedGroups.open",
        "if name in self.replacing:",
        "if False:",
        OF_DAMAGES + "test_nobody_opens_a_group_whose_files_are_being_replaced",
    ),
    Mutation(
        "scrub_finds_nothing",
        "A bit that was turned in a sealed segment is found before somebody reads it.",
        "Scrub._check",
        'return str(damage) if self._files.exists(path) else ""',
        'return ""',
        OF_SCRUBS + "test_a_bit_that_was_turned_is_found",
    ),
    Mutation(
        "snapshot_offered_again_late",
        "A snapshot of which nobody speaks is offered again soon.",
        "SnapshotOffers.wanted",
        "self._now() + UNHEARD_SECONDS",
        "self._now() + SILENT_SECONDS",
        OF_OFFERS + "test_an_offer_of_which_not_a_word_is_heard_is_repeated",
    ),
    Mutation(
        "snapshot_trimmed_behind",
        "The log keeps what is behind a snapshot that is being fetched.",
        "checkpoints:trim",
        "until = min(until, hosted.keep_behind)",
        "pass",
        OF_CALLS + "test_the_log_keeps_what_is_behind_a_snapshot_that_is_fetched",
    ),
    Mutation(
        "snapshot_kept_without_bound",
        "A log that has too much keeps nothing for others.",
        "checkpoints:trim",
        "if hosted.keep_behind and not hosted.pressed:",
        "if hosted.keep_behind:",
        OF_CALLS + "test_the_log_keeps_nothing_for_others_when_it_has_too_much",
    ),
    Mutation(
        "copy_replaced_under_its_readers",
        "Consumers of a copy that is replaced are attached to the next.",
        "ReplicaClient.close",
        """self._closed = True
        self._let_go()""",
        "self._closed = True",
        OF_COPIES + "test_consumers_of_a_copy_that_is_replaced_are_let_go",
    ),
    Mutation(
        "late_consumer_of_a_damaged_copy",
        "A consumer whose copy was damaged while it was being attached is attached elsewhere.",
        "ReplicaClient.attach",
        "reading not in self._ports",
        "self._closed",
        OF_COPIES + "test_a_consumer_that_a_copy_took_too_late_is_attached_to_the_next",
    ),
    Mutation(
        "group_moved_to_its_start_again",
        "A consumer group is moved to the start that its consumer asked for once.",
        "LeaderHandle.attach",
        "elif not wanted.temporary and self._done is None:",
        "elif False:",
        OF_HOSTS + "test_a_group_is_moved_to_a_start_once",
    ),
    Mutation(
        "damaged_copy_read_again",
        "Messages of a damaged copy come from who leads.",
        "ReplicaClient.damaged",
        "self._forwarding = True",
        "pass",
        OF_COPIES + "test_a_damaged_copy_is_not_read_any_more",
    ),
    Mutation(
        "cluster_late_append_overtakes",
        "What was sent to an earlier leadership of a node is not taken by a later one.",
        "GroupRequests._is_of_another_term",
        "return self.replicated and not self.absent and term not in (0, self.applied_term)",
        "return False",
        OF_KEEPING + "test_what_was_sent_to_an_earlier_leadership_is_not_taken_by_a_later_one",
    ),
    Mutation(
        "cluster_spread_while_restless",
        "Leaders stay while any leader has just changed.",
        "Spreading.moves",
        "if now - self._changed < QUIET_SECONDS:",
        "if False:",
        OF_SPREAD + "test_nothing_moves_while_leaders_change",
    ),
    Mutation(
        "cluster_spread_while_lagging",
        "A group is not handed over while one of its members lags.",
        "Spreading._successors",
        "if since is None or now - since < QUIET_SECONDS or resting or group in self.kept:",
        "if resting or group in self.kept:",
        OF_SPREAD + "test_a_group_of_which_a_member_lags_stays_and_another_moves",
    ),
    Mutation(
        "cluster_spread_to_and_fro",
        "A group that comes back is not handed over again at once.",
        "Spreading._successors",
        "if since is None or now - since < QUIET_SECONDS or resting or group in self.kept:",
        "if since is None or now - since < QUIET_SECONDS or group in self.kept:",
        OF_SPREAD + "test_a_group_that_came_back_is_not_handed_over_at_once",
    ),
    Mutation(
        "cluster_spread_against_the_operator",
        "A group that an operator has moved stays where it is.",
        "Spreading._successors",
        " or group in self.kept:",
        ":",
        OF_SPREAD + "test_a_group_that_an_operator_moved_here_stays_until_it_is_led_elsewhere",
    ),
    Mutation(
        "cluster_spread_away_from_the_node_that_should_lead",
        "A group that one node should lead is not handed over to another to make nodes even.",
        "leader_placement",
        "(wanted,) if wanted in voters else ",
        "",
        OF_SPREAD
        + "test_a_group_stays_with_the_node_that_should_lead_it_and_others_are_spread_around",
    ),
    Mutation(
        "cluster_leader_without_a_copy",
        "The node that should lead a group is one of its members.",
        "_chosen",
        "return node == leader, ",
        "return False, ",
        "tests/unit/settings/test_plans.py::test_groups_that_one_node_should_lead",
    ),
    Mutation(
        "cluster_forgetful_node_begins_a_group",
        "A node that has left and joined again begins no group of before.",
        "GroupPlans._is_same",
        "self._history.times.get(node, 0) == first[node]",
        "node in first",
        OF_SETS + "test_a_node_that_has_left_and_joined_again_begins_no_group_of_before",
    ),
    Mutation(
        "cluster_group_on_nodes_that_have_left",
        "A new group begins on nodes that have been in the cluster since their node set.",
        "NodeHistory.is_whole",
        "self.times.get(node, -1) == node_set.nodes[node]",
        "node in self.times",
        OF_SETS + "test_a_node_that_has_left_and_joined_again_begins_no_group_of_before",
    ),
    Mutation(
        "cluster_node_set_of_another_identifier",
        "A node set is the one that its identifier says.",
        "check_set",
        "id_of_set(node_set.nodes) != identifier",
        "not identifier",
        OF_SETS + "test_a_set_is_known_by_its_nodes",
    ),
    Mutation(
        "cluster_set_that_a_node_does_not_know",
        "A node set is put once all of its nodes know sets.",
        "NodeKeys._put_sets",
        "if not unable:",
        "if True:",
        "tests/integration/test_etcd_nodes.py"
        "::test_no_set_is_put_while_one_of_its_nodes_does_not_know_sets",
    ),
    Mutation(
        "cluster_unheard_group_stays_closed",
        "A node that hears late of a node set opens its groups on it.",
        "ReplicatedGroups._open_unheard",
        "self._hosting.open(name)",
        "pass",
        "tests/unit/replication/test_unheard.py"
        "::test_it_is_opened_with_the_members_that_its_name_says_as_soon_as_the_nodes_are_known",
    ),
    Mutation(
        "cluster_audit_at_another_index",
        "Copies are compared at one index.",
        "Audit.at",
        "if group.applied_index == index:",
        "if group.applied_index <= index:",
        OF_AUDIT + "test_a_member_that_lags_comes_as_far_as_the_leader_or_says_that_it_is_behind",
    ),
    Mutation(
        "cluster_audit_believes_the_leader",
        "Of copies that differ the majority's is right.",
        "requested_audit:deviating",
        "if count > len(membership.voters) // 2:",
        "if False:",
        OF_AUDIT + "test_a_leader_that_differs_is_named_and_quarantined",
    ),
    Mutation(
        "fetched_and_not_synced_is_believed",
        "What could not be synced of a snapshot is fetched anew.",
        "SnapshotTarget._sync_file",
        """self._files.unlink(path)
            raise""",
        "raise",
        "tests/unit/storage/test_transfer.py::test_what_could_not_be_synced_is_fetched_anew",
    ),
    Mutation(
        "outbox_settles_what_is_asked",
        "What is kept is let go of when its queue has it, not when it is asked to take it.",
        "Outbox.carry",
        "envelope.sent = True",
        """envelope.sent = envelope.taken = True
            self._settle()""",
        OF_OUTBOX + "test_a_leader_is_asked_in_order_and_what_it_has_is_let_go",
    ),
    Mutation(
        "outbox_overtaken",
        "Nothing goes to the leader past what is kept for the same queue.",
        "LocalPolicy.intercept",
        "if self._is_here() and self._outboxes.is_empty(queue):",
        "if self._is_here():",
        OF_OUTBOX + "test_appends_go_to_the_leader_only_where_it_is_and_behind_what_is_kept",
    ),
    Mutation(
        "outbox_renamed",
        "What is kept is asked for under one name, whoever asks.",
        "Outbox.deliver",
        "origin, number = _HEAD.unpack_from(payload)",
        "origin, number = self._origin, next(self._numbers)",
        OF_OUTBOX + "test_another_life_asks_under_the_same_name",
    ),
    Mutation(
        "outbox_forgets_names",
        "A name is needed until the disk says that what it names is settled.",
        "Outbox._send.floor",
        "floor = min(each.number for each in self._envelopes.values() if each.origin == origin)",
        "floor = envelope.number",
        OF_OUTBOX + "test_a_name_is_not_given_up_before_the_disk_says_that_it_is_not_needed",
    ),
    Mutation(
        "outbox_refusal_passed_over",
        "What a queue refuses is asked for again.",
        "Outbox._answered",
        "envelope.sent = False",
        "envelope.taken = True",
        OF_OUTBOX + "test_a_refusal_is_asked_again_in_order_and_loses_nothing",
    ),
    Mutation(
        "outbox_origin_used_twice",
        "No two outboxes give their appends the same names, whatever became of the one before.",
        "Outboxes._new_origin.salt",
        'salt = next(self._made).to_bytes(blake2b.SALT_SIZE, "little")',
        "salt = bytes(blake2b.SALT_SIZE)",
        OF_OUTBOX + "test_what_is_kept_for_a_queue_declared_again_reaches_it",
    ),
    Mutation(
        "outbox_inherits",
        "What was kept for a deleted queue does not go to the next one of its name.",
        "Outbox.end",
        """self._ready = False
        self._again = 0.0""",
        "self._again = 0.0",
        OF_OUTBOX + "test_what_is_kept_for_a_deleted_queue_is_not_carried_to_the_one_after_it",
    ),
    Mutation(
        "outbox_not_withdrawn",
        "A shard that does not have an outbox any more asks no longer for what it had.",
        "Outbox.cancelled",
        """if asked:
            self._withdraw(""",
        """if False:
            self._withdraw(""",
        OF_OUTBOX + "test_what_was_asked_before_a_group_went_is_stored_once_when_it_has_come_back",
    ),
    Mutation(
        "origins_too_few",
        "Appends of as many outboxes as there may be are recognised after a change of leader.",
        "Origins._forget.most",
        "most = ORIGINS_MAX if self.wide else TRAVELLING_MAX",
        "most = TRAVELLING_MAX",
        "tests/unit/queues/test_origins.py::test_more_outboxes_than_an_older_version_remembers_are_recognised_after_a_change_of_leader",
    ),
]
