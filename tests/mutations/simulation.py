"""Mutations of the consensus core that random schedules notice within the seeds of CI.

Most of them have a directed test as well (see ``raft``); here they show that the simulator is awake.
"""

from __future__ import annotations

from tests.mutations.mutation import Mutation

SEEDS = "tests/sim/test_sim.py::test_seeds_keep_every_promise"

MUTATIONS = [
    # Durability
    Mutation(
        "simulated_follower_answers_before_fsync",
        "A follower acknowledges an append after its own fsync.",
        "on_append",
        """)
    state.answer(answer)""",
        """)
    state.send(answer)""",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_leader_counts_before_fsync",
        "A leader counts itself for an entry after its own fsync.",
        "Leadership._held",
        "persisted, peers = self._state.id, self._state.log.persisted, self.peers",
        "persisted, peers = self._state.id, self._state.log.last_index, self.peers",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_vote_before_fsync",
        "A vote leaves after it is durable (paper figure 2: updated on stable storage before responding).",
        "Elections.on_request",
        "state.answer(Message(kind, state.id, message.source, message.term))",
        "state.send(Message(kind, state.id, message.source, message.term))",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_vote_not_persisted",
        "A vote survives a restart, so that a node votes once per term.",
        "Node._new_hard_state",
        "self._given = HardState(state.term, state.vote, commit)\n        return self._given",
        "self._given = HardState(state.term, state.vote, commit)\n"
        "        return HardState(state.term, 0, commit)",
        SEEDS,
        slow=True,
    ),
    # The log
    Mutation(
        "simulated_duplicates_cut",
        "An append cuts the log where it conflicts and nowhere else (paper figure 2, AppendEntries 3).",
        "RaftLog.accept",
        "if self.term(entry.index) != entry.term:",
        "if entry.index > self.commit:",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_previous_entry_unchecked",
        "An append is refused unless the entry before it matches (paper figure 2, AppendEntries 2).",
        "on_append",
        "elif log.matches(message.index, message.log_term):",
        "elif message.index <= log.last_index:",
        SEEDS,
        slow=True,
    ),
    # Elections
    Mutation(
        "simulated_vote_ignores_log",
        "Votes go only to a log at least as complete (paper section 5.4.1).",
        "Elections.on_request",
        "if not (free and complete):",
        "if not free:",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_votes_twice",
        "One vote per term (paper section 5.2).",
        "Elections.on_request.free",
        "or (state.vote == 0 and state.leader == 0)",
        "or True",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_elected_by_half",
        "A leader has the votes of a majority.",
        "Elections._record.needed",
        "needed = len(voters) // 2 + 1",
        "needed = (len(voters) + 1) // 2",
        SEEDS,
        slow=True,
    ),
    # Commit
    Mutation(
        "simulated_commit_on_minority",
        "Committed is what a majority holds.",
        "Majority.committed",
        "return sorted(held)[(len(held) - 1) // 2]",
        "return sorted(held)[len(held) // 2 + (len(held) > 2)]",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_commit_of_earlier_terms",
        "Entries of earlier terms are not committed by counting (paper section 5.4.2, figure 8).",
        "Leadership.advance_commit",
        "if index > log.commit and index >= self.first_index:",
        "if index > log.commit:",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_heartbeat_commits_unproven",
        "A heartbeat tells no more of the commit index than the receiver is proven to hold.",
        "Leadership._send_heartbeats.commit",
        "commit = min(progress.match, state.log.commit)",
        "commit = state.log.commit",
        SEEDS,
        slow=True,
    ),
    # Reads
    Mutation(
        "simulated_reads_without_quorum",
        "A read waits until a majority has said that this is still the leader.",
        "Leadership._confirm_reads.confirmed",
        "else MAJORITY.committed(voters, answered)",
        "else max(answered)",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_reads_before_own_commit",
        "A new leader answers reads after an entry of its own term is committed.",
        "Leadership.flush",
        "if self._reads_asked and self._state.log.commit >= self.first_index:",
        "if self._reads_asked:",
        SEEDS,
        slow=True,
    ),
    # Membership
    Mutation(
        "simulated_two_changes_at_once",
        "No membership change while an earlier one is uncommitted.",
        "Leadership.propose_membership",
        "if state.memberships.since > log.commit:",
        "if False:",
        SEEDS,
        slow=True,
    ),
    # Members without their promises
    Mutation(
        "simulated_floor_of_votes",
        "Who comes back without its log votes as if it held what was committed then.",
        "NodeState.end",
        "return max((log.last_term, log.last_index), self.floor)",
        "return (log.last_term, log.last_index)",
        "tests/sim/test_found.py::test_what_worn_storage_once_found_stays_away",
    ),
    Mutation(
        "simulated_start_over",
        "A learner that has lost its log is known anew by its leader.",
        "Leadership.start_over",
        """self.peers[peer] = Progress(self._state.log.last_index + 1)
        return True""",
        "return True",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_sent_snapshot_proves",
        "A snapshot that has been sent proves nothing before the peer answers.",
        "Progress.probe",
        "self.next = max(self.match, self.pending_snapshot) + 1",
        """self.match = max(self.match, self.pending_snapshot)
        self.next = self.match + 1""",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_snapshot_answer_before_fsync",
        "A snapshot is acknowledged when it is durable.",
        "on_snapshot",
        """answer.index = log.commit
    state.answer(answer)""",
        """answer.index = log.commit
    state.send(answer)""",
        SEEDS,
        slow=True,
    ),
    # Liveness
    Mutation(
        "simulated_failed_snapshots_are_wanted_again",
        "A snapshot that was given up is wanted again.",
        "Leadership.report_snapshot",
        """if not ok:
            progress.pending_snapshot = 0
        progress.probe()""",
        """if not ok:
            return
        progress.probe()""",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_transfer_is_given_up",
        "A leader whose successor is cut off takes proposals again.",
        "Leadership.tick",
        "if self._transfer_elapsed >= state.config.election_ticks:",
        "if self._transfer_elapsed >= 1 << 40:",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_lost_appends_are_forgotten",
        "A follower that lost an append is asked again.",
        "Leadership.on_heartbeat_answer",
        """progress.due = True
        if message.context""",
        """pass
        if message.context""",
        SEEDS,
        slow=True,
    ),
    Mutation(
        "simulated_candidates_are_told",
        "A request for a vote in an earlier term is answered with the term (paper figure 2, RequestVote 1).",
        "Node._meet_lower_term",
        """elif message.kind is MessageKind.VOTE:
            self._state.reject(""",
        """elif False:
            self._state.reject(""",
        "tests/sim/test_found.py::test_a_candidate_behind_is_told_the_term",
    ),
]
