"""Mutations of the consensus core: what makes an acknowledged entry stay, and a leader be the only one."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

NODE = "fluxmq/raft/node.py"
LOG = "fluxmq/raft/log.py"
ELECTIONS = "fluxmq/raft/elections.py"
FOLLOWING = "fluxmq/raft/follower.py"
LEADING = "fluxmq/raft/leader.py"

OF_COMMITS = "tests/unit/raft/test_commits.py::"
OF_ELECTIONS = "tests/unit/raft/test_elections.py::"
OF_FIGURES = "tests/unit/raft/test_figures.py::"
OF_FOUND = "tests/sim/test_found.py::"
OF_FOLLOWING = "tests/unit/raft/test_follower.py::"
OF_LEADING = "tests/unit/raft/test_leader.py::"
OF_LOG = "tests/unit/raft/test_log.py::"
OF_MEMBERSHIPS = "tests/unit/raft/test_memberships.py::"
OF_NODE = "tests/unit/raft/test_node.py::"

MUTATIONS = [
    # Votes
    Mutation(
        "raft_vote_is_persisted",
        "A vote is durable before it is answered, also when the term was durable before (paper figure 2).",
        "Node._new_hard_state",
        "if state.term == given.term and state.vote == given.vote and commit == given.commit:",
        "if state.term == given.term and commit == given.commit:",
        OF_ELECTIONS + "test_nobody_votes_twice_in_a_term_restart_or_not",
    ),
    Mutation(
        "raft_vote_answer_waits",
        "The answer leaves after the vote is durable, not with it.",
        "Elections.on_request",
        "state.answer(Message(kind, state.id, message.source, message.term))",
        "state.send(Message(kind, state.id, message.source, message.term))",
        OF_ELECTIONS + "test_a_vote_leaves_only_when_it_is_durable",
    ),
    Mutation(
        "raft_candidate_waits",
        "A candidate asks for votes after its own is durable.",
        "Elections._ask",
        "state.answer(request)",
        "state.send(request)",
        OF_ELECTIONS + "test_a_candidate_asks_only_after_its_own_vote_is_durable",
    ),
    Mutation(
        "raft_vote_once",
        "A node votes once in a term (paper section 5.2).",
        "Elections.on_request.free",
        "or (state.vote == 0 and state.leader == 0)",
        "or state.leader == 0",
        OF_ELECTIONS + "test_nobody_votes_twice_in_a_term_restart_or_not",
    ),
    Mutation(
        "raft_vote_looks_at_the_log",
        "A vote goes to a log that is at least as complete (paper section 5.4.1).",
        "Elections.on_request",
        "if not (free and complete):",
        "if not free:",
        OF_ELECTIONS + "test_a_vote_needs_a_log_as_complete",
    ),
    Mutation(
        "raft_votes_of_voters",
        "Only a voter's vote counts.",
        "Elections._record",
        "if node in voters:",
        "if node:",
        OF_ELECTIONS + "test_late_votes_of_an_earlier_campaign_do_not_count",
    ),
    Mutation(
        "raft_votes_of_this_campaign",
        "A vote given in an earlier campaign does not count in this one.",
        "Elections.on_answer",
        "if state.role is not wanted or (not message.reject and message.term != term):",
        "if state.role is not wanted:",
        OF_ELECTIONS + "test_a_pre_vote_for_another_term_does_not_count",
    ),
    Mutation(
        "raft_lease",
        "Nobody votes while a leader is heard (dissertation section 4.2.3).",
        "Node._meet_higher_term",
        "if kind in _REQUESTS and message.context != TRANSFER and self._state.in_lease():",
        "if False:",
        OF_ELECTIONS + "test_votes_are_refused_while_a_leader_is_heard",
    ),
    Mutation(
        "raft_pre_vote",
        "A node that was cut off does not raise its term (dissertation section 9.6).",
        "Node.campaign",
        "self._campaign(pre_vote=self._config.pre_vote)",
        "self._campaign(pre_vote=False)",
        OF_ELECTIONS + "test_a_rejoining_node_does_not_disturb",
    ),
    Mutation(
        "raft_check_quorum",
        "A leader that hears from no majority steps down (dissertation section 6.2).",
        "Leadership._quorum_is_active",
        "return active > len(voters) // 2",
        "return active > 0",
        OF_ELECTIONS + "test_a_leader_without_a_majority_steps_down",
    ),
    # Commit
    Mutation(
        "raft_majority",
        "An entry is committed when a majority holds it, not before.",
        "Majority.committed",
        "return sorted(held)[(len(held) - 1) // 2]",
        "return sorted(held)[-2]",
        OF_FIGURES + "test_a_minority_commits_nothing",
    ),
    Mutation(
        "raft_commit_rule_ignored",
        "A leader commits by the group's rule.",
        "Leadership.advance_commit",
        "state.config.commit_rule.committed(voters, self._held(voters))",
        "sorted(self._held(voters))[(len(voters) - 1) // 2]",
        OF_COMMITS + "test_a_group_commits_by_the_rule_that_it_is_given",
    ),
    Mutation(
        "raft_own_term",
        "Entries of earlier terms are not committed by counting (paper figure 8).",
        "Leadership.advance_commit",
        "if index > log.commit and index >= self.first_index:",
        "if index > log.commit:",
        OF_FIGURES + "test_figure_8_entries_of_earlier_terms_are_not_committed_by_counting",
    ),
    Mutation(
        "raft_stale_answers",
        "An answer of an earlier term says nothing about this one.",
        "Node.step",
        "elif message.term < state.term:",
        "elif message.term < state.term and message.kind is not MessageKind.APPEND_ANSWER:",
        OF_FIGURES + "test_a_stale_answer_of_an_earlier_term_does_not_count",
    ),
    Mutation(
        "raft_leader_counts_what_is_durable",
        "A leader counts itself for what is durable, not for what it holds.",
        "Leadership._held",
        "persisted, peers = self._state.id, self._state.log.persisted, self.peers",
        "persisted, peers = self._state.id, self._state.log.last_index, self.peers",
        OF_LEADING + "test_a_leader_counts_itself_only_when_its_write_is_durable",
    ),
    Mutation(
        "raft_alone_counts_what_is_durable",
        "So does a leader that is alone.",
        "Leadership.advance_commit",
        "index = log.persisted",
        "index = log.last_index",
        OF_NODE + "test_proposals_are_committed_in_order_once_they_are_durable",
    ),
    Mutation(
        "raft_commit_is_proven",
        "A follower commits no further than the message proves, not to the end of its log (paper figure 2).",
        "on_append",
        "min(message.commit, proven)",
        "min(message.commit, log.last_index)",
        OF_FOLLOWING + "test_commit_goes_no_further_than_what_is_proven",
    ),
    Mutation(
        "raft_heartbeat_commit",
        "A heartbeat's commit index is not above what the receiver is proven to hold.",
        "Leadership._send_heartbeats.commit",
        "commit = min(progress.match, state.log.commit)",
        "commit = state.log.commit",
        OF_LEADING + "test_a_heartbeats_commit_is_what_the_follower_is_proven_to_hold",
    ),
    # The log
    Mutation(
        "raft_duplicates_cut_nothing",
        "Only a conflict cuts a log, never an append that ends before it.",
        "RaftLog.accept",
        "if self.term(entry.index) != entry.term:",
        "if entry.index > self.commit:",
        OF_FOLLOWING + "test_a_duplicate_append_cuts_nothing",
    ),
    Mutation(
        "raft_append_answer_waits",
        "The answer to an append leaves after the entries are durable.",
        "on_append",
        """message.log_term, log.commit
        )
    state.answer(answer)""",
        """message.log_term, log.commit
        )
    state.send(answer)""",
        OF_FOLLOWING + "test_an_answer_leaves_only_when_the_entries_are_durable",
    ),
    Mutation(
        "raft_snapshot_answer_waits",
        "The answer to a snapshot leaves after it is durable.",
        "on_snapshot",
        """answer.index = log.commit
    state.answer(answer)""",
        """answer.index = log.commit
    state.send(answer)""",
        OF_FOLLOWING + "test_a_snapshot_takes_the_place_of_the_log_and_is_answered_when_durable",
    ),
    Mutation(
        "raft_overtaken_writes",
        "A write whose entries were overwritten meanwhile makes nothing durable.",
        "RaftLog._cut",
        "write.valid = min(write.valid, index - 1)",
        "write.valid = max(write.valid, index - 1)",
        OF_LOG + "test_the_same_entry_written_twice_with_another_between",
    ),
    Mutation(
        "raft_applied_is_durable",
        "What is applied is durable here, whoever else has it.",
        "RaftLog.take_committed.high",
        "high = min(self.commit, self.persisted)",
        "high = self.commit",
        OF_LEADING + "test_the_others_may_commit_without_it_but_it_applies_nothing_before",
    ),
    Mutation(
        "raft_written_commit",
        "A written commit index covers only what was durable before.",
        "Node._new_hard_state",
        "commit = max(commit, min(self._log.commit, self._log.persisted))",
        "commit = self._log.commit",
        OF_FOLLOWING + "test_the_commit_written_is_of_what_is_durable_already",
    ),
    Mutation(
        "raft_unopposed",
        "A leader without anybody's vote sends nothing before its term is durable.",
        "Leadership.__init__",
        "self.term_durable = not unopposed",
        "self.term_durable = True",
        OF_LEADING + "test_a_leader_that_nobody_voted_for_sends_nothing_before_its_term_is_durable",
    ),
    Mutation(
        "raft_unopposed_shows",
        "Nor does it show as leader before: a crash would undo its vote, and another could lead this term.",
        "Leadership._show_role",
        """if self.term_durable:
            self._state.role""",
        """if True:
            self._state.role""",
        OF_LEADING + "test_such_a_leader_does_not_show_before_either",
    ),
    # Membership
    Mutation(
        "raft_one_change",
        "No membership change while an earlier one is uncommitted (dissertation section 4.1).",
        "Leadership.propose_membership",
        "if state.memberships.since > log.commit:",
        "if False:",
        OF_MEMBERSHIPS + "test_no_change_while_one_is_uncommitted",
    ),
    Mutation(
        "raft_change_in_own_term",
        "No membership change before an entry of the leader's own term is committed.",
        "Leadership.propose_membership",
        "if log.commit < self.first_index:",
        "if False:",
        OF_MEMBERSHIPS + "test_no_change_before_an_entry_of_the_own_term_is_committed",
    ),
    Mutation(
        "raft_change_undone",
        "A membership change that is cut off is undone.",
        "_take_memberships",
        "state.memberships.cut(changed_from)",
        "",
        OF_MEMBERSHIPS + "test_a_change_that_is_cut_off_is_undone",
    ),
    Mutation(
        "raft_change_after_restart",
        "A membership change in the log is in effect after a restart, committed or not.",
        "raft.node:Node.__init__",
        "self._read_memberships(memberships, applied)",
        "",
        OF_MEMBERSHIPS + "test_a_change_is_found_in_the_log_after_a_restart",
    ),
    Mutation(
        "raft_removed_leader",
        "A leader that removed itself steps down once that is committed, not before.",
        "Leadership.removed",
        "and memberships.since <= self._state.log.commit",
        "",
        OF_MEMBERSHIPS + "test_a_leader_that_removes_itself_leads_until_that_is_committed",
    ),
    # Members without their promises
    Mutation(
        "raft_floor_of_votes",
        "Who comes back without its log votes as if it held what was committed then.",
        "NodeState.end",
        "return max((log.last_term, log.last_index), self.floor)",
        "return (log.last_term, log.last_index)",
        OF_FOUND + "test_who_came_back_votes_as_if_it_held_what_is_committed",
    ),
    Mutation(
        "raft_floor_of_campaigns",
        "Nor does it campaign before it holds that again.",
        "NodeState.is_whole",
        "and (log.last_term, log.last_index) >= self.floor",
        "",
        OF_FOUND + "test_who_came_back_campaigns_when_it_holds_that",
    ),
    # Reads
    Mutation(
        "raft_read_majority",
        "A read needs a majority that still follows this leader (dissertation section 6.4).",
        "Leadership._confirm_reads.confirmed",
        "else MAJORITY.committed(voters, answered)",
        "else max(answered)",
        OF_LEADING + "test_an_old_leader_answers_no_read",
    ),
    Mutation(
        "raft_read_term",
        "A read waits for an entry of the leader's own term to be committed.",
        "Leadership.flush",
        "if self._reads_asked and self._state.log.commit >= self.first_index:",
        "if self._reads_asked:",
        OF_LEADING + "test_no_read_before_an_entry_of_the_own_term_is_committed",
    ),
    # Bounds
    Mutation(
        "raft_window",
        "Unanswered data per peer is bounded.",
        "Leadership._feed",
        "progress.inflight_bytes < config.max_inflight_bytes",
        "progress.inflight_bytes >= 0",
        OF_LEADING + "test_the_window_is_bounded_in_bytes_and_opens_with_answers",
    ),
    Mutation(
        "raft_window_of_appends",
        "Unanswered appends per peer are bounded: the next takes what has gathered.",
        "Leadership._feed",
        "and progress.inflight_appends < config.max_inflight_appends",
        "",
        OF_LEADING + "test_the_window_is_bounded_in_appends_and_each_answer_lets_the_next_take_all",
    ),
    Mutation(
        "raft_unstable_bytes",
        "Proposed data that is neither durable nor committed is bounded.",
        "Leadership.propose",
        "if held > state.config.max_unstable_bytes:",
        "if False:",
        OF_NODE + "test_what_is_neither_durable_nor_committed_is_bounded",
    ),
    Mutation(
        "raft_reads_bounded",
        "Waiting reads are bounded.",
        "Leadership.read_index",
        "if self._reads_waiting >= READS_MAX:",
        "if False:",
        OF_LEADING + "test_waiting_reads_are_bounded",
    ),
]
