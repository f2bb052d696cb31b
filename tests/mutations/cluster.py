"""Mutations of what a cluster promises: nothing before it is durable, nothing twice, nothing out of order, nothing by nobody."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

FOLDER = "tests/unit/shards/cluster/"
OF_COPIES = FOLDER + "test_replica_host.py::"
OF_HOSTS = FOLDER + "test_leader_host.py::"
OF_INCARNATIONS = FOLDER + "test_incarnation.py::"
OF_SPREAD = FOLDER + "test_spread.py::"
OF_AUDIT = FOLDER + "test_ordered_audit.py::"
OF_KEEPING = FOLDER + "test_keeping.py::"
CLUSTER = "fluxmq/shards/cluster/"
QUEUES = "fluxmq/shards/queues/"

MUTATIONS = [
    Mutation(
        "cluster_answer_before_persistence",
        "A member answers others when what it promises is on its disk.",
        QUEUES + "raft_keeper.py",
        "            if self._durable < self._written:\n",
        "            if False:\n",
        OF_KEEPING + "test_a_follower_promises_nothing_before_its_disk_has_it",
    ),
    Mutation(
        "cluster_vote_before_persistence",
        "A vote leaves when it is on disk.",
        QUEUES + "raft_keeper.py",
        "            if self._durable < self._written:\n",
        "            if self._durable < self._written and ready.entries:\n",
        OF_KEEPING + "test_a_vote_leaves_when_it_is_on_disk",
    ),
    Mutation(
        "cluster_early_for_all",
        "Only queues that ask for it are answered before the commit.",
        QUEUES + "waiting_answers.py",
        "    return isinstance(done, Append) and done.wish.early\n",
        "    return isinstance(done, Append)\n",
        OF_KEEPING + "test_mode_async_answers_with_the_leaders_own_write",
    ),
    Mutation(
        "cluster_early_where_refused",
        "A queue that may refuse is answered when it is known whether it does.",
        QUEUES + "waiting_answers.py",
        "            wish = wish._replace(early=False)\n",
        "            pass\n",
        OF_KEEPING + "test_a_queue_that_may_refuse_is_not_answered_early",
    ),
    Mutation(
        "cluster_in_sync_ignored",
        "min_in_sync_replicas hold an answer back.",
        QUEUES + "waiting_answers.py",
        "        if not members or index <= self.in_sync(members):\n",
        "        if True:\n",
        OF_KEEPING + "test_min_in_sync_replicas_hold_the_answers_of_their_queues_only",
    ),
    Mutation(
        "cluster_held_answer_positive",
        "What too few members held when leadership was lost is not acknowledged.",
        QUEUES + "waiting_answers.py",
        "        for answers in waiting.values():\n            for _, done, _ in answers:\n                done(result)\n",
        "        for answers in waiting.values():\n            for _, done, found in answers:\n                done(found)\n",
        OF_KEEPING + "test_a_held_answer_of_a_leader_that_is_no_longer_is_never_positive",
    ),
    Mutation(
        "cluster_moved_is_success",
        "That nobody knows what became of an append is no success.",
        CLUSTER + "leader_host.py",
        "        if reason == MOVED:\n            append.sent = 0\n",
        "        if reason == MOVED:\n            reason = 0\n        if reason == MOVED:\n            append.sent = 0\n",
        OF_HOSTS + "test_an_answer_of_nobody_knows_is_no_success_and_no_refusal",
    ),
    Mutation(
        "cluster_timeout_is_success",
        "A timeout is a refusal.",
        CLUSTER + "leader_host.py",
        "                    append.done(_REFUSED)\n",
        "                    append.done(0)\n",
        OF_HOSTS + "test_a_timeout_is_a_refusal_and_each_queue_has_its_own",
    ),
    Mutation(
        "cluster_sent_again_out_of_order",
        "What a former leader has not answered goes before what is newer.",
        CLUSTER + "leader_host.py",
        "            for append in self._appends.values():\n                append.sent = 0\n            self._unsent = len(self._appends)\n",
        "            pass\n",
        OF_HOSTS + "test_what_a_former_leader_has_not_answered_goes_before_what_is_newer",
    ),
    Mutation(
        "cluster_overtaken",
        "Nothing overtakes an append that came back.",
        CLUSTER + "leader_host.py",
        "            if self._unsent >= unsent:\n                return",
        "            if False:\n                return",
        OF_HOSTS + "test_nothing_overtakes_what_came_back_at_once",
    ),
    Mutation(
        "cluster_sent_again_as_another",
        "An append that is sent again has the identity it had.",
        CLUSTER + "leader_host.py",
        "        identity = Identity(self._origin, number, min(floor, number), self._leader.term)\n",
        "        identity = Identity(self._origin, number + sending, floor, self._leader.term)\n",
        OF_HOSTS + "test_it_is_sent_again_with_the_identity_it_had",
    ),
    Mutation(
        "cluster_settled_by_nobody",
        "A settlement fails while nobody leads.",
        CLUSTER + "leader_host.py",
        "            self._held.settle(verb, ranges, delay, reason, _telling(done))\n        elif done is not None:\n            done(_REFUSED)\n",
        "            self._held.settle(verb, ranges, delay, reason, _telling(done))\n        elif done is not None:\n            done(0)\n",
        OF_HOSTS + "test_a_consumer_follows_the_leader_and_settles_only_there",
    ),
    Mutation(
        "cluster_older_term",
        "Of several who say that they lead the one of the greatest term is believed.",
        CLUSTER + "leaders.py",
        "        if term > leader.term or (term == leader.term and leader.peer is None):\n",
        "        if True:\n",
        OF_HOSTS + "test_the_greatest_term_is_believed",
    ),
    Mutation(
        "cluster_taken_before_it_is_there",
        "A message that was taken is delivered before it is said to be there.",
        QUEUES + "replica_host.py",
        "        if found and self._told:\n",
        "        if False:\n",
        OF_COPIES + "test_a_message_taken_is_there_before_it_is_said_to_be",
    ),
    Mutation(
        "cluster_read_ahead_of_the_copy",
        "A consumer of a copy waits for what the copy has not yet.",
        QUEUES + "replica_host.py",
        "            if state is None or state.next_offset < offset + count:\n",
        "            if state is None:\n",
        OF_COPIES + "test_messages_come_out_of_the_copy_when_they_are_there",
    ),
    Mutation(
        "cluster_taken_back_by_anybody",
        "Who has lost its promises is taken back only where it is committed that it is no voter.",
        CLUSTER + "incarnation.py",
        "        if met is None or not met.doubt or not self._out_of_it(member):\n",
        "        if met is None or not met.doubt:\n",
        OF_INCARNATIONS + "test_who_does_not_lead_for_certain_takes_nobody_back",
    ),
    Mutation(
        "cluster_floor_forgotten",
        "What votes are weighed by is durable, and never lowered.",
        CLUSTER + "incarnation.py",
        "            floor = max(self.record.floor, _floor(content))\n",
        "            floor = _floor(content)\n",
        OF_INCARNATIONS + "test_who_is_taken_back_votes_as_if_it_held_what_is_committed",
    ),
    Mutation(
        "cluster_hearsay_keeps_the_old_log",
        "Who hears that a member is another one counts nothing that the earlier one has said.",
        CLUSTER + "incarnation.py",
        "                if ours is not None:\n",
        "                if ours is None:\n",
        OF_INCARNATIONS + "test_the_others_hear_at_once_who_is_taken_back_and_begin_anew_with_it",
    ),
    Mutation(
        "cluster_floor_in_an_old_term",
        "Who is taken back begins in the term of who takes it back.",
        "fluxmq/raft/node.py",
        "        if term > self._state.term:\n            self._follow(term, 0)\n\n    def announce",
        "        if False:\n            self._follow(term, 0)\n\n    def announce",
        "tests/unit/raft/test_floor.py::test_it_begins_in_the_term_of_who_takes_it_back",
    ),
    Mutation(
        "meta_learner_keeps_what_it_said",
        "What a learner of _meta acknowledged with an earlier directory counts no more.",
        "fluxmq/admin/meta/admission.py",
        "        if learner:\n            # What",
        "        if False:\n            # What",
        "tests/unit/admin/meta/test_meta_parts.py::"
        "test_a_node_that_returns_is_taken_out_in_and_made_a_voter",
    ),
    Mutation(
        "cluster_late_append_overtakes",
        "What was sent to an earlier leadership of a node is not taken by a later one.",
        QUEUES + "group.py",
        "        return self.replicated and not self.absent and term not in (0, self.applied_term)\n",
        "        return False\n",
        OF_KEEPING + "test_what_was_sent_to_an_earlier_leadership_is_not_taken_by_a_later_one",
    ),
    Mutation(
        "cluster_spread_while_restless",
        "Leaders stay while any leader has just changed.",
        CLUSTER + "spread.py",
        "        if now - self._changed < QUIET_SECONDS:\n",
        "        if False:\n",
        OF_SPREAD + "test_nothing_moves_while_leaders_change",
    ),
    Mutation(
        "cluster_spread_while_lagging",
        "A group is not handed over while one of its members lags.",
        CLUSTER + "spread.py",
        "        if since is None or now - since < QUIET_SECONDS or resting:\n",
        "        if resting:\n",
        OF_SPREAD + "test_a_group_of_which_a_member_lags_stays_and_another_moves",
    ),
    Mutation(
        "cluster_spread_to_and_fro",
        "A group that comes back is not handed over again at once.",
        CLUSTER + "spread.py",
        "        if since is None or now - since < QUIET_SECONDS or resting:\n",
        "        if since is None or now - since < QUIET_SECONDS:\n",
        OF_SPREAD + "test_a_group_that_came_back_is_not_handed_over_at_once",
    ),
    Mutation(
        "cluster_audit_at_another_index",
        "Copies are compared at one index.",
        CLUSTER + "audit.py",
        "        if group.applied_index == index:\n",
        "        if group.applied_index <= index:\n",
        OF_AUDIT + "test_a_member_that_lags_comes_as_far_as_the_leader_or_says_that_it_is_behind",
    ),
    Mutation(
        "cluster_audit_believes_the_leader",
        "Of copies that differ the majority's is right.",
        CLUSTER + "ordered_audit.py",
        "        if count > len(membership.voters) // 2:\n",
        "        if False:\n",
        OF_AUDIT + "test_a_leader_that_differs_is_named_and_quarantined",
    ),
]
