"""Mutations of what keeps a node below its limits of memory."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

ALARMS = "fluxmq/shards/alarms.py"
BUDGET = "fluxmq/sessions/amqp091/budget.py"
MARKS = "fluxmq/ipc/memory.py"
REACTOR = "fluxmq/net/reactor.py"
OF_ALARMS = "tests/unit/shards/test_alarms.py::"
OF_BUDGET = "tests/unit/sessions/amqp091/test_budget.py::"
OF_MARKS = "tests/unit/ipc/test_memory.py::"

MUTATIONS = [
    Mutation(
        "memory_hysteresis",
        "An alarm ends below another mark than it begins.",
        "Watermark.update",
        "self.watermarks.resume if self.above else self.watermarks.high",
        "self.watermarks.high",
        OF_MARKS + "test_the_alarm_ends_below_another_mark_than_it_begins",
    ),
    Mutation(
        "memory_control_group",
        "The least limit of all control groups above a process holds.",
        "_group_limits",
        "for directory in (place, *place.parents):",
        "for directory in (place,):",
        OF_MARKS + "test_a_control_group_may_allow_less_than_the_machine_has",
    ),
    Mutation(
        "memory_of_all_processes",
        "What all processes hold counts together.",
        "Watch._use",
        "return self._table.memory()",
        "return self._measure()",
        OF_ALARMS + "test_what_all_shards_hold_counts_together",
    ),
    Mutation(
        "memory_given_back",
        "What has been freed is given back before anybody is stopped.",
        "Watch._use.took",
        "took = self._trim()",
        "took = 0.0",
        OF_ALARMS + "test_what_has_been_freed_is_given_back_before_anybody_is_stopped",
    ),
    Mutation(
        "memory_of_the_dead",
        "What a process that ended held is free.",
        "ProcessTable.clear_readings",
        """self._words[base + _MEMORY] = 0
        self._words[base + _ALARMS] = 0""",
        "",
        OF_ALARMS + "test_a_shard_that_ended_holds_nothing",
    ),
    Mutation(
        "memory_publishers_stop",
        "While memory is short, a connection that has published is not read.",
        "Reactor.tick",
        """if self.watching and self.watching & WATCH_ALARM:
                        host.hold_publisher(connection)
                    if connection.paused:""",
        "if connection.paused:",
        OF_ALARMS + "test_publishers_wait_while_memory_is_short_and_lose_nothing",
    ),
    Mutation(
        "memory_first_publish",
        "A new publisher stops at its first publish.",
        "Reactor.process",
        """self.publish(connection, buffer)
                if self.watching and self.watching & WATCH_ALARM:
                    host.hold_publisher(connection)""",
        "self.publish(connection, buffer)",
        OF_ALARMS + "test_a_new_publisher_waits_from_its_first_publish_on",
    ),
    Mutation(
        "memory_silence",
        "A publisher that is not read is not silent.",
        "HELD",
        "HELD = ~PAUSED_OUTPUT",
        "HELD = 3",
        OF_ALARMS + "test_who_is_not_read_is_not_silent",
    ),
    Mutation(
        "memory_relief",
        "What stopped publishers cannot complete is given up, or the alarm might never end.",
        "Watch.step",
        "self._alarms.relieve()",
        "",
        OF_ALARMS + "test_a_packet_too_large_to_be_anything_but_a_publish_is_not_read_on",
    ),
    Mutation(
        "memory_critical",
        "Beyond the critical mark nobody is let in.",
        "connect_flow:check",
        "if broker.alarms.critical:",
        "if False:",
        OF_ALARMS + "test_nobody_is_let_in_beyond_the_critical_mark",
    ),
    Mutation(
        "memory_budget",
        "All channels of a connection draw on one budget.",
        "Share.take",
        "if self._budget.used + size > most:",
        "if self.bytes + size > most:",
        OF_BUDGET + "test_transactions_of_all_channels_count_together",
    ),
    Mutation(
        "memory_budget_returned",
        "What is not held any more can be held by others.",
        "Share.release",
        "self._budget.used -= self.bytes",
        "",
        OF_BUDGET + "test_a_connection_that_ends_holds_nothing",
    ),
    Mutation(
        "memory_pieces",
        "A body in many small frames counts as what it takes.",
        "IncomingContent._body",
        "self.share.take(len(payload) + PIECE_BYTES)",
        "self.share.take(len(payload))",
        OF_BUDGET + "test_announcing_takes_nothing_and_small_frames_count_as_what_they_are",
    ),
    Mutation(
        "memory_flight",
        "What a session is sent and has not answered is bounded in bytes.",
        "SessionDelivery.pump",
        "and self.unanswered_bytes < self.pending_bytes_max",
        "",
        "tests/unit/protocols/mqtt/test_window.py::test_what_is_in_flight_has_a_bound_in_bytes",
    ),
]
