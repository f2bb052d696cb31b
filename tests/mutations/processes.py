"""Mutations of how the supervisor forks its children."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_FORKING = "tests/unit/supervisor/test_fork.py::"
OF_CHILDREN = "tests/unit/supervisor/test_children.py::"
OF_SERVICE_MANAGER = "tests/unit/supervisor/test_service_manager.py::"

MUTATIONS = [
    Mutation(
        "connections_forgotten_on_their_way",
        "Connections that a shard has received and not counted are on their way.",
        "ShardHandoff.recount",
        "and not self._table.taking(slot)",
        "",
        "tests/unit/supervisor/test_delivery.py::test_connections_just_received_count_as_on_their_way",
    ),
    Mutation(
        "received_connections_counted_twice",
        "Connections that a busy shard has received and counted are not on their way.",
        "ShardHandoff.recount",
        "max(0, each - counted) for each, counted in zip(given, received, strict=True)",
        "max(0, each) for each, counted in zip(given, received, strict=True)",
        "tests/unit/supervisor/test_delivery.py::test_a_shard_that_never_rests_has_each_connection_once",
    ),
    Mutation(
        "connections_of_a_dead_shard_on_their_way",
        "Connections that a shard had taken when it died are not on their way for ever.",
        "ShardHandoff.recount",
        "given[:] = self._received(slot)",
        "pass",
        "tests/unit/supervisor/test_delivery.py::test_connections_that_a_shard_has_lost_are_forgotten",
    ),
    Mutation(
        "hung_child_looked_at_late",
        "The supervisor looks more often at a heartbeat that is late.",
        "_look_at",
        "return now + SUSPECT_SHARE * HEARTBEAT_SECONDS_MAX",
        "return now + HEARTBEAT_SECONDS_MAX",
        "tests/unit/supervisor/test_tree.py::test_heartbeats_are_looked_at_when_they_could_be_old",
    ),
    Mutation(
        "idle_shard_not_stirred",
        "Whatever happens in an idle shard is followed by a turn of its timer within a tenth of a second.",
        "TurnTimer.stir",
        "if self.expected > now + TURN_SECONDS:",
        "if self.expected > now + REST_SECONDS:",
        "tests/unit/shards/test_turn_timer.py::test_whatever_happens_brings_the_next_turn_forward",
    ),
    Mutation(
        "idle_shard_late_for_what_is_due",
        "An idle shard wakes when the first timeout is due.",
        "TurnTimer.end",
        "min(due() - now, REST_SECONDS)",
        "REST_SECONDS",
        "tests/unit/shards/test_turn_timer.py::test_the_next_turn_is_when_something_is_due",
    ),
    Mutation(
        "idle_shard_syncs_late",
        "An idle shard wakes when writes that were acknowledged before a sync have to be synced.",
        "ShardLogs.next_due",
        "return self._next_buffered if dirty else math.inf",
        "return math.inf",
        "tests/unit/engine/test_buffered_syncs.py"
        "::test_an_idle_shard_wakes_for_the_sync_that_is_due",
    ),
    Mutation(
        "idle_shard_leaves_publishers_paused",
        "A shard takes all its turns while publishers wait until a stream to another node has caught up.",
        "NodePeers.holds",
        "return bool(self._paused)",
        "return False",
        "tests/unit/shards/test_node_peers.py"
        "::test_a_slow_stream_costs_qos_0_messages_and_pauses_other_publishers",
    ),
    Mutation(
        "due_work_slept_over",
        "The supervisor does not sleep over what became due between its decisions and its sleep.",
        "Tree.wake_at",
        "times.append(child.start_at)",
        "times += [child.start_at] if child.start_at > now else []",
        "tests/unit/supervisor/test_tree.py::test_what_became_due_a_moment_ago_is_not_slept_over",
    ),
    Mutation(
        "descriptors_inherited",
        "A child has no descriptor of the supervisor that its launch description does not name.",
        "_become_child",
        "        _keep_descriptors(launch.descriptors())\n",
        "",
        OF_FORKING + "test_a_child_keeps_only_what_is_its_own",
    ),
    Mutation(
        "handlers_inherited",
        "A signal to a child does not run a handler of the supervisor.",
        "_become_child",
        "_reset_signals(mask)",
        "signal.pthread_sigmask(signal.SIG_SETMASK, mask)",
        OF_FORKING + "test_a_child_keeps_only_what_is_its_own",
    ),
    Mutation(
        "orphan_starts",
        "A child whose supervisor has ended does not start.",
        "_become_child",
        "        die_with_parent(launch.parent_pid)\n",
        "",
        OF_FORKING + "test_a_child_of_a_supervisor_that_is_gone_does_not_start",
    ),
    Mutation(
        "image_has_threads",
        "No library in the supervisor's image has started a thread.",
        "load_common",
        'os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")',
        "pass",
        OF_CHILDREN + "test_the_image_starts_no_threads",
    ),
    Mutation(
        "service_manager_not_asked_for_time",
        "The service manager is asked for more time while the node recovers.",
        "ServiceManager.alive",
        "self._in_transition and now >= self._extend_at",
        "False",
        OF_SERVICE_MANAGER + "test_more_time_is_asked_for_while_the_node_starts_and_stops",
    ),
]
