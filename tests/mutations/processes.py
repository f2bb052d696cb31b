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
        "and not self._table.taking(self._slots[shard])",
        "",
        "tests/unit/supervisor/test_delivery.py::test_connections_just_received_count_as_on_their_way",
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
