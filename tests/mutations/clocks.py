"""Mutations of what time it is: steady time, who is believed about it, and groups that are ahead."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

STEADY = "fluxmq/model/steady.py"
NODE = "fluxmq/shards/steady.py"
PEERS = "fluxmq/cluster/clocks.py"
GROUP = "fluxmq/shards/queues/group_time.py"

OF_STEADY = "tests/unit/model/test_steady.py::"
OF_NODE = "tests/unit/shards/test_steady.py::"
OF_PEERS = "tests/unit/cluster/test_clocks.py::"
OF_LINKS = "tests/unit/shards/cluster/test_clock_links.py::"
OF_GROUP = "tests/unit/shards/queues/test_group_time.py::"

MUTATIONS = [
    Mutation(
        "clock_slews_at_once",
        "Steady time catches up with the wall clock slowly.",
        STEADY,
        "        return self._base + passed + min(most, adrift)\n",
        "        return self._base + passed + adrift\n",
        OF_STEADY + "test_time_never_goes_back_nor_faster_than_it_may",
    ),
    Mutation(
        "clock_believes_the_wall_at_start",
        "Within one boot no more time has passed than the clock that counts from boot says.",
        STEADY,
        "    if boot and boot == mark.boot:\n",
        "    if False:\n",
        OF_STEADY + "test_within_a_boot_a_wall_clock_that_is_ahead_is_not_believed",
    ),
    Mutation(
        "clock_goes_back_at_start",
        "A wall clock that is behind at the start takes nothing back.",
        STEADY,
        "    return max(mark.steady, min(claims))\n",
        "    return min(claims)\n",
        OF_STEADY + "test_a_wall_clock_that_is_behind_takes_nothing_back",
    ),
    Mutation(
        "clock_longest_absence",
        "Of several answers for how long a node was off the shortest counts.",
        STEADY,
        "    return max(mark.steady, min(claims))\n",
        "    return max(mark.steady, max(claims))\n",
        OF_STEADY + "test_a_hardware_clock_in_local_time_counts_once",
    ),
    Mutation(
        "clock_marks_what_nobody_vouched_for",
        "A start that nobody has vouched for is not written down.",
        NODE,
        "        if not self.settled:\n            return  # what may",
        "        if False:\n            return  # what may",
        OF_NODE + "test_a_start_that_others_have_to_vouch_for",
    ),
    Mutation(
        "clock_step_is_not_marked",
        "A wall clock that was set is marked at once.",
        NODE,
        "        if moved or elapsed",
        "        if elapsed",
        OF_NODE + "test_a_wall_clock_that_was_set_right_before_the_machine_was_switched_off",
    ),
    Mutation(
        "clock_believes_itself",
        "A node that starts believes those that run.",
        PEERS,
        "        if settled:\n",
        "        if False:\n",
        OF_PEERS + "test_a_node_that_starts_believes_those_that_run",
    ),
    Mutation(
        "clock_upper_median",
        "Of two that start the one counts whose clock is behind.",
        PEERS,
        "    return ordered[(len(ordered) - 1) // 2]\n",
        "    return ordered[len(ordered) // 2]\n",
        OF_PEERS + "test_of_two_that_start_the_earlier_one_is_believed_after_a_while",
    ),
    Mutation(
        "clock_minority_decides",
        "It takes a majority of the nodes to say what time it is.",
        PEERS,
        "        if 2 * known <= self._nodes:\n",
        "        if False:\n",
        OF_PEERS + "test_a_minority_decides_nothing",
    ),
    Mutation(
        "clock_steers_by_its_own_wall",
        "A node whose wall clock jumps steers by the others'.",
        "fluxmq/shards/cluster/clock_links.py",
        "        return None if correction is None else wall + correction\n",
        "        return None if correction is None else wall\n",
        OF_LINKS + "test_a_clock_that_jumps_raises_the_alarm_and_moves_nothing",
    ),
    Mutation(
        "group_time_waits_for_the_clock",
        "A group whose time is ahead goes on from there.",
        GROUP,
        "            self._ahead, self._since = applied - steady, steady\n",
        "",
        OF_GROUP + "test_it_goes_on_from_an_entry_of_the_future_as_fast_as_real_time",
    ),
    Mutation(
        "group_time_shifts_no_message",
        "What messages bring of expiry is moved into the time of a group that is ahead.",
        "fluxmq/shards/queues/group.py",
        "        return shifted(batch, ahead) if ahead else batch\n",
        "        return batch\n",
        OF_GROUP + "test_messages_with_a_time_to_live_are_there",
    ),
    Mutation(
        "group_timers_by_the_groups_time",
        "A timer of a group that is ahead rings by the node's time.",
        GROUP,
        "        return due - self.ahead if due else due\n",
        "        return due\n",
        OF_GROUP + "test_what_is_refused_comes_again",
    ),
    Mutation(
        "leader_does_not_wait_for_time",
        "A leader does nothing before it is known what time it is.",
        "fluxmq/shards/queues/group.py",
        "        return self.is_timed() and self._guarded(self._propose_all)\n",
        "        return self._guarded(self._propose_all)\n",
        OF_GROUP + "test_a_leader_waits_until_it_is_known_what_time_it_is",
    ),
]
