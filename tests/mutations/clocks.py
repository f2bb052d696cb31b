"""Mutations of what time it is: steady time, who is believed about it, and groups that are ahead."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

STEADY = "fluxmq/model/steady.py"
NODE = "fluxmq/shards/steady.py"
PEERS = "fluxmq/cluster/clocks.py"
GROUP = "fluxmq/engine/group_time.py"

OF_STEADY = "tests/unit/model/test_steady.py::"
OF_NODE = "tests/unit/shards/test_steady.py::"
OF_PEERS = "tests/unit/cluster/test_clocks.py::"
OF_LINKS = "tests/unit/cluster/test_clock_links.py::"
OF_GROUP = "tests/unit/engine/test_group_time.py::"

MUTATIONS = [
    Mutation(
        "clock_slews_at_once",
        "Steady time catches up with the wall clock slowly.",
        "SteadyClock.at",
        "return self._base + passed + min(most, adrift)",
        "return self._base + passed + adrift",
        OF_STEADY + "test_time_never_goes_back_nor_faster_than_it_may",
    ),
    Mutation(
        "clock_believes_the_wall_at_start",
        "Within one boot no more time has passed than the clock that counts from boot says.",
        "resumed",
        "if boot and boot == mark.boot:",
        "if False:",
        OF_STEADY + "test_within_a_boot_a_wall_clock_that_is_ahead_is_not_believed",
    ),
    Mutation(
        "clock_goes_back_at_start",
        "A wall clock that is behind at the start takes nothing back.",
        "resumed",
        "return max(mark.steady, min(claims))",
        "return min(claims)",
        OF_STEADY + "test_a_wall_clock_that_is_behind_takes_nothing_back",
    ),
    Mutation(
        "clock_longest_absence",
        "Of several answers for how long a node was off the shortest counts.",
        "resumed",
        "return max(mark.steady, min(claims))",
        "return max(mark.steady, max(claims))",
        OF_STEADY + "test_a_hardware_clock_in_local_time_counts_once",
    ),
    Mutation(
        "clock_marks_what_nobody_vouched_for",
        "A start that nobody has vouched for is not written down.",
        "NodeClock._mark",
        """if not self.settled:
            return  # a time that may""",
        """if False:
            return  # a time that may""",
        OF_NODE + "test_a_start_that_others_have_to_vouch_for",
    ),
    Mutation(
        "clock_step_is_not_marked",
        "A wall clock that was set is marked at once.",
        "NodeClock.housekeeping",
        "if moved or elapsed",
        "if elapsed",
        OF_NODE + "test_a_wall_clock_that_was_set_right_before_the_machine_was_switched_off",
    ),
    Mutation(
        "clock_believes_itself",
        "A node that starts believes those that run.",
        "PeerClocks.correction",
        "if settled:",
        "if False:",
        OF_PEERS + "test_a_node_that_starts_believes_those_that_run",
    ),
    Mutation(
        "clock_upper_median",
        "Of two that start the one counts whose clock is behind.",
        "lower_median",
        "return ordered[(len(ordered) - 1) // 2]",
        "return ordered[len(ordered) // 2]",
        OF_PEERS + "test_of_two_that_start_the_earlier_one_is_believed_after_a_while",
    ),
    Mutation(
        "clock_minority_decides",
        "It takes a majority of the nodes to say what time it is.",
        "PeerClocks.correction",
        "if 2 * known <= self.nodes:",
        "if False:",
        OF_PEERS + "test_a_minority_decides_nothing",
    ),
    Mutation(
        "clock_steers_by_its_own_wall",
        "A node whose wall clock jumps steers by the others'.",
        "ClockLinks._target",
        "return None if correction is None else wall + correction",
        "return None if correction is None else wall",
        OF_LINKS + "test_a_clock_that_jumps_raises_the_alarm_and_moves_nothing",
    ),
    Mutation(
        "group_time_waits_for_the_clock",
        "A group whose time is ahead goes on from there.",
        "GroupTime.now",
        "self._ahead, self._since = applied - steady, steady",
        "",
        OF_GROUP + "test_it_goes_on_from_an_entry_of_the_future_as_fast_as_real_time",
    ),
    Mutation(
        "group_time_shifts_no_message",
        "What messages bring of expiry is moved into the time of a group that is ahead.",
        "ReplicationGroup._in_own_time",
        "return shifted(batch, ahead) if ahead else batch",
        "return batch",
        OF_GROUP + "test_messages_with_a_time_to_live_are_there",
    ),
    Mutation(
        "group_timers_by_the_groups_time",
        "A timer of a group that is ahead rings by the node's time.",
        "GroupTime.of_node",
        "return due - self.ahead if due else due",
        "return due",
        OF_GROUP + "test_what_is_refused_comes_again",
    ),
    Mutation(
        "leader_does_not_wait_for_time",
        "A leader does nothing before it is known what time it is.",
        "ReplicationGroup.propose",
        "return self.is_timed() and self._guarded(self._propose_all)",
        "return self._guarded(self._propose_all)",
        OF_GROUP + "test_a_leader_waits_until_it_is_known_what_time_it_is",
    ),
]
