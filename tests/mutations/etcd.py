"""Rules of the node that coordinates a cluster."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

TESTS = "tests/integration/test_etcd.py::"

MUTATIONS = [
    Mutation(
        "two_coordinators",
        "Of nodes that compete at once, one leads.",
        "Election._compete",
        "(Created(LEADER_KEY, 0),)",
        "()",
        TESTS + "test_of_nodes_that_compete_at_once_one_leads",
        slow=True,
    ),
    Mutation(
        "coordinates_without_lease",
        "A node whose keep-alives are not answered gives up before its lease ends.",
        "Election._hold",
        "self._until = now + HOLD_SECONDS",
        "self._until = now + 60",
        TESTS + "test_a_leader_that_etcd_does_not_hear_from_gives_up_before_its_lease_ends",
        slow=True,
    ),
    Mutation(
        "own_lease_waited_for",
        "A node that restarts need not wait for the end of its own lease.",
        "Election._compete",
        "if leader == self._node.encode():",
        "if False:",
        TESTS + "test_a_node_that_restarts_need_not_wait_for_its_own_lease",
        slow=True,
    ),
]
