"""Mutations of what durable queues promise."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_MACHINE = "tests/unit/queues/test_machine.py::"
OF_DISPATCH = "tests/unit/queues/test_dispatch.py::"
OF_STATES = "tests/unit/queues/test_states.py::"
OF_STREAMS = "tests/unit/queues/test_stream_dispatcher.py::"
OF_DEAD = "tests/unit/queues/test_dead_letters.py::"
OF_SPARE = "tests/unit/queues/test_spare_room.py::"
OF_ATTACHING = "tests/unit/queues/test_attachments.py::"
OF_DOUBTS = "tests/unit/queues/test_possibly_delivered.py::"
OF_BROWSERS = "tests/unit/queues/test_browse_dispatcher.py::"
OF_COMMANDS = "tests/unit/queues/test_commands.py::"
GROUPS = "fluxmq/queues/groups.py"
STATES = "fluxmq/queues/states.py"
MACHINE = "fluxmq/queues/machine.py"
DESKS = "fluxmq/queues/work_dispatcher.py"

MUTATIONS = [
    Mutation(
        "automatic_settles_waiting",
        "An automatic claim settles only what it hands out.",
        "ConsumerGroup._claim_new",
        "elif state.holder == NOBODY or not automatic:",
        "elif not automatic:",
        OF_ATTACHING + "test_an_automatic_claim_settles_nothing_that_only_waits",
    ),
    Mutation(
        "automatic_settles_all",
        "An automatic claim moves the cursor no further than what was handed out.",
        "FifoDispatcher._give_new",
        "self._propose_new(step, holder, position, ranges, others, consumer.automatic)",
        """if consumer.automatic:
            position = end
        self._propose_new(step, holder, position, ranges, others, consumer.automatic)""",
        OF_ATTACHING + "test_only_what_was_handed_out_is_settled",
    ),
    Mutation(
        "automatic_given_again",
        "What an automatic consumer was given is settled with the claim.",
        "ConsumerGroup.claim",
        """if not automatic:
                timeout = self._timeout(config, holder)""",
        """if True:
                timeout = self._timeout(config, holder)""",
        OF_ATTACHING + "test_what_an_automatic_consumer_is_given_is_settled",
    ),
    Mutation(
        "priority_passed_over",
        "A message that is not given because others have a higher priority waits.",
        "PriorityDispatcher._pass_over",
        "new.others += [(first, last, 0) for first, last in waiting]",
        "",
        "tests/unit/queues/test_priorities.py::test_the_highest_priority_is_given_first",
    ),
    Mutation(
        "claimed_is_too_much",
        "What is being claimed is not dropped because its queue is too long.",
        "Dispatch._shorten",
        "if any(dispatcher.under_way for dispatcher in self.consumers.served(queue).values()):",
        "if False:",
        OF_SPARE + "test_what_is_being_claimed_is_not_too_much",
    ),
    Mutation(
        "spare_room_stays",
        "Room that consumers make is for one append only.",
        "Machine._commands",
        "queue.spare = 0",
        "",
        OF_SPARE + "test_what_nobody_takes_after_all_goes",
    ),
    Mutation(
        "held_bytes_count",
        "A limit of bytes is about messages that nobody holds.",
        "QueueState._ready_bytes.used",
        "used = log_index.end_bytes - log_index.bytes_before(self._first_ready(group), end)",
        "used = log_index.end_bytes - log_index.bytes_before(self.start, end)",
        OF_STATES + "test_bytes_that_consumers_hold_do_not_count",
    ),
    Mutation(
        "delete_in_use",
        "A queue that is to be deleted only without consumers is not deleted with some.",
        "Machine._delete",
        "if if_unused and used:",
        "if False:",
        OF_ATTACHING + "test_a_queue_is_deleted_only_as_asked",
    ),
    Mutation(
        "dead_before_append",
        "A dead message stays in its queue until its dead-letter append is committed.",
        "QueueState.follow_floors",
        "if first is not None and first < kept:",
        "if False:",
        OF_MACHINE + "test_the_dead_stay_until_their_append_is_committed",
    ),
    Mutation(
        "dead_forgotten",
        "A rejected message is dead, not gone.",
        "ConsumerGroup.settle",
        "if verb == Verb.REJECT:",
        "if False:",
        OF_MACHINE + "test_the_dead_stay_until_their_append_is_committed",
    ),
    Mutation(
        "dead_again",
        "A new leader hands out again what its predecessor may not have dead-lettered.",
        "DeadLettering.__init__",
        "group.dead.arm_all()",
        "",
        OF_DEAD + "test_the_dead_are_handed_out_once_and_again_to_a_new_leader",
    ),
    Mutation(
        "offset_reused",
        "No offset is used twice.",
        "QueueState._store",
        "self.next_offset = base + batch.count",
        "self.next_offset = base + batch.count - (batch.count > 1)",
        OF_MACHINE + "test_offsets_count_up_and_are_never_reused",
    ),
    Mutation(
        "foreign_ack",
        "Only who holds a message settles it.",
        "Ledger.acknowledge.pieces",
        "pieces = self.cut(first, last, lambda state: state.holder == holder)",
        "pieces = self.cut(first, last)",
        OF_MACHINE + "test_only_the_holder_settles",
    ),
    Mutation(
        "foreign_ack_at_the_desk",
        "A claim that was taken over is no longer held by its former consumer.",
        "WorkDispatcher._take_from",
        "holder.unacked.remove(first, last)",
        "",
        OF_DISPATCH + "test_overdue_messages_go_to_anybody_and_late_settlements_do_nothing",
    ),
    Mutation(
        "attempts_not_counted",
        "Every delivery counts as an attempt.",
        "ConsumerGroup._claim_again.taken",
        "state.attempts + 1, state.first_time",
        "state.attempts, state.first_time",
        OF_MACHINE + "test_a_release_waits_for_nobody_and_counts_as_a_delivery",
    ),
    Mutation(
        "claimed_before_deadline",
        "What is held is not claimed again before its deadline.",
        "ConsumerGroup._claim_again",
        "lambda state: state.due <= time and (not limit or state.attempts < limit)",
        "lambda state: not limit or state.attempts < limit",
        OF_MACHINE + "test_what_is_held_cannot_be_claimed_before_its_deadline",
    ),
    Mutation(
        "floor_past_pending",
        "The acknowledged floor never passes a pending range.",
        "ConsumerGroup.floor",
        "return self.cursor if first is None else first",
        "return self.cursor",
        OF_MACHINE + "test_the_floor_never_passes_a_pending_range",
    ),
    Mutation(
        "claim_skips",
        "A claim that leaves out messages below it settles nothing silently.",
        "ConsumerGroup.claim",
        "if self.cursor < cursor or not",
        "if not",
        OF_MACHINE + "test_a_claim_that_does_not_fit_claims_nothing",
    ),
    Mutation(
        "duplicates_forgotten",
        "Duplicates are recognised after a restart.",
        "QueueState.unpack",
        "queue.producers = Producers.unpack(producers)",
        "queue.producers = Producers()",
        OF_STATES + "test_duplicates_are_known_after_a_snapshot",
    ),
    Mutation(
        "refusal_remembered",
        "A refused batch is not taken for stored when it is repeated.",
        "QueueState._append_once",
        """return _FULL
        self.producers.remember(""",
        """self.producers.remember([messages[index] for index in fresh], 100, 100)
            return _FULL
        self.producers.remember(""",
        OF_STATES + "test_a_refused_batch_is_not_remembered",
    ),
    Mutation(
        "claimed_twice",
        "A claim under way is not handed out again.",
        "WorkDispatcher._propose_new",
        "self._cursor = target",
        "",
        OF_DISPATCH + "test_claims_under_way_are_not_handed_out_twice",
    ),
    Mutation(
        "reclaimed_twice",
        "Two consumers are not given one message while its claim is under way.",
        "WorkDispatcher._claimable",
        "for first, last in self._inflight_claims.unclaimed(low, high):\n                    yield",
        """for first, last in [(low, high)]:
                    yield""",
        OF_DISPATCH + "test_a_range_that_grows_while_it_is_claimed_is_not_given_again",
    ),
    Mutation(
        "refused_claim_forgotten",
        "A claim that was refused in part is made again from what the machine says.",
        "WorkDispatcher.applied_claim",
        """if not whole:
            self._refused = True""",
        "",
        OF_DISPATCH + "test_redeliveries_that_were_refused_come_again",
    ),
    Mutation(
        "limit_of_unsettled",
        "A consumer never holds more than its limit.",
        "GroupConsumer.available_credit",
        "return min(self.credit, self.limit - self.unacked.count + self.overdue.count)",
        "return self.credit",
        OF_DISPATCH + "test_nobody_gets_more_than_limit_and_credit",
    ),
    Mutation(
        "time_back",
        "Time in the machine never goes back.",
        "Machine.apply.time",
        "self.time = time = max(time, self.time)",
        "self.time = time",
        OF_MACHINE + "test_time_never_goes_back",
    ),
    Mutation(
        "unknown_command",
        "An entry that cannot be understood stops the machine.",
        "Machine._cold",
        'raise CommandError(f"a command of kind {kind}")',
        "return _OK",
        OF_COMMANDS + "test_an_unknown_kind_stops_the_machine",
    ),
    Mutation(
        "timeout_of_the_queue",
        "A consumer may keep what it is given for as long as it says itself.",
        "ConsumerGroup._timeout",
        "return self.timeouts.get(holder, config.visibility_timeout)",
        "return config.visibility_timeout",
        "tests/unit/queues/test_timeouts.py::test_each_consumer_has_its_own_time",
    ),
    Mutation(
        "stream_commit",
        "A stream's committed offset never passes what a consumer may still need.",
        "StreamDispatcher.floor",
        "floor = min(floor, consumer.unacked.firsts[0])",
        "pass",
        OF_STREAMS + "test_a_streams_group_shares_a_cursor_and_commits_what_is_acknowledged",
    ),
    Mutation(
        "nothing_is_in_doubt",
        "What an earlier leader may have handed out comes as what comes again.",
        "PossiblyDelivered.begin",
        "if first <= last:\n                    intervals.add(first, last)",
        "",
        OF_DOUBTS + "test_what_was_handed_out_and_never_claimed_comes_again_as_such",
    ),
    Mutation(
        "delayed_is_never_in_doubt",
        "What was delayed and has become due may have been handed out.",
        "PossiblyDelivered.begin",
        "if not state.attempts and state.due <= now + CLOCKS_APART_MAX:",
        "if False:",
        OF_DOUBTS + "test_what_was_delayed_is_in_doubt_once_it_was_due",
    ),
    Mutation(
        "runs_ahead_without_end",
        "A leader hands out only so much that nobody knows of.",
        "InflightClaims.may_reach",
        "return ahead < RUN_AHEAD_MAX or not self._under_way",
        "return True",
        OF_DOUBTS + "test_a_leader_runs_only_so_far_ahead_of_what_is_applied",
    ),
    Mutation(
        "browser_shows_held",
        "A browser is shown what is ready, not what consumers hold.",
        "BrowseDispatcher._ready",
        "if state.holder == NOBODY and state.due <= now:",
        "if True:",
        OF_BROWSERS + "test_a_browser_passes_over_what_others_hold_and_follows",
    ),
    Mutation(
        "browser_in_use",
        "A browser does not keep its queue in use.",
        "GroupConsumer.counts",
        " or self.terms.browsing",
        "",
        OF_BROWSERS + "test_a_browser_sees_what_is_ready_and_takes_nothing",
    ),
]
