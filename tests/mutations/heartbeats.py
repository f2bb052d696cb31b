"""Mutations of combined heartbeats: what makes it safe to leave a group alone while nothing happens in it."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_QUIESCENCE = "tests/unit/raft/test_quiescence.py::"
OF_HEARTBEATS = "tests/unit/replication/test_heartbeats.py::"

MUTATIONS = [
    Mutation(
        "rest_in_older_term",
        "A follower trusts a combined heartbeat only of the term that it is in.",
        "Quiescence.follows_quietly",
        "and state.term == term",
        "and state.term >= term",
        OF_HEARTBEATS + "test_a_frame_of_an_older_term_is_not_trusted",
    ),
    Mutation(
        "rest_without_the_log",
        "A follower rests only with the whole log of its leader.",
        "Quiescence.follows_quietly",
        "and log.last_index == log.persisted == log.commit == index",
        "and log.last_index == log.persisted == log.commit",
        OF_QUIESCENCE + "test_a_follower_is_quiet_only_for_its_leader_its_term_and_its_whole_log",
    ),
    Mutation(
        "rest_of_a_group_elsewhere",
        "A leader hears of groups that do not rest at the shard that answers, and counts nothing for them.",
        "CombinedHeartbeats.on_beat",
        "if not self._follow(peer, name, term, index):\n                each.woken[name] = None\n        if each.led",
        "self._follow(peer, name, term, index)\n        if each.led",
        OF_HEARTBEATS + "test_a_group_that_the_shard_does_not_have_is_refused",
    ),
    Mutation(
        "rest_told_late",
        "A member that does not rest says so in answer to the next frame, not later.",
        "CombinedHeartbeats.on_beat",
        "if each.led and not (added or removed or lapsed or each.woken):",
        "if each.led and not (added or removed or lapsed):",
        OF_HEARTBEATS + "test_what_has_changed_is_answered_at_once",
    ),
    Mutation(
        "rest_counted_unanswered",
        "A leader that wakes counts only whom it has heard since the group rests.",
        "CombinedHeartbeats._release",
        "if peer.answered >= lease.number and peer.silent < self.silence_max:",
        "if peer.silent < self.silence_max:",
        OF_HEARTBEATS + "test_a_leader_does_not_count_who_has_not_answered_since_the_group_rests",
    ),
    Mutation(
        "rest_without_a_leader",
        "Followers of a silent shard wake and elect another leader.",
        "CombinedHeartbeats.beat",
        "if peer.followed and peer.missed > self.silence_max:",
        "if peer.followed and peer.missed > 100 * self.silence_max:",
        OF_HEARTBEATS + "test_followers_of_a_leader_that_died_elect_within_two_timeouts",
    ),
    Mutation(
        "rest_without_a_majority",
        "A leader at rest that has lost its majority wakes, and steps down.",
        "Quiescence.suffice",
        "return present > len(voters) // 2",
        "return present > 0",
        OF_HEARTBEATS + "test_a_leader_without_a_majority_steps_down_within_two_timeouts",
    ),
    Mutation(
        "rest_without_members",
        "A group's only member does not rest: nobody could wake it.",
        "CombinedHeartbeats._rest",
        "if not peers or not group.quiescence.leads_quietly(peers):",
        "if not group.quiescence.leads_quietly(peers):",
        OF_HEARTBEATS + "test_the_only_member_of_a_group_stays_awake",
    ),
    Mutation(
        "rest_timeout_begins_anew",
        "A follower that wakes continues its election timeout from when its leader was heard last.",
        "Quiescence.resume",
        "state.elapsed = elapsed",
        "state.elapsed = 0",
        OF_QUIESCENCE + "test_a_follower_continues_its_timeout_where_the_silence_began",
    ),
    Mutation(
        "rest_not_told",
        "Followers wake when their leader has woken, although nothing else tells them.",
        "CombinedHeartbeats._release",
        "peer.removed.append(group.name)",
        "pass",
        OF_HEARTBEATS + "test_a_follower_wakes_when_its_leader_no_longer_leads",
    ),
]
