"""Mutations of how sessions move that the simulator of roaming clients notices.

Most of these rules have a test of their own; here they show what that simulator is awake for.
"""

from __future__ import annotations

from tests.mutations.mutation import Mutation

SEEDS = "tests/sim/test_sessions.py::test_seeds_that_notice_mutations"
MEETING = "tests/unit/shards/test_meeting_again.py::"

MUTATIONS = [
    Mutation(
        "simulated_sessions_no_end_of_term",
        "A node that does not reach etcd lets its clients go before another one can have them.",
        "OwnedIds._check",
        "if self._until and self._now() > self._until:",
        "if False:",
        SEEDS + "[84]",
    ),
    Mutation(
        "simulated_sessions_done_before_commit",
        "The former node deletes a session when the new one owns the id.",
        "SessionArrivals._commit",
        "arrival.stage = _Stage.COMMITTING",
        'arrival.stage = _Stage.COMMITTING\n        self._relay.send(arrival.node, arrival.client_id, "moved", arrival.number)',
        SEEDS + "[490]",
    ),
    Mutation(
        "simulated_sessions_not_compared",
        "A claim names the revision of the key that the session came with.",
        "SessionArrivals._claimed",
        "elif self._ids.is_own(owner):",
        "elif self._ids.is_own(owner) or arrival.session is not None:",
        SEEDS + "[128]",
    ),
    Mutation(
        "simulated_sessions_no_barrier_of_the_former_node",
        "A session moves with what is on its way to the former node.",
        "SessionDepartures._on_ready",
        "self._peers.flush_all([node], passed, allowed=departure.nodes)",
        "passed(True)",
        SEEDS + "[272]",
    ),
    Mutation(
        "simulated_sessions_resent_after_the_move",
        "What is sent again to the former node of a session is not acknowledged.",
        "DoubtfulPeers.came",
        "doubt.reason = 0 if nothing_left else Outcome.OVER_LIMIT",
        "doubt.reason = 0",
        SEEDS + "[24]",
    ),
    Mutation(
        "simulated_sessions_former_session_kept",
        "A node that comes back deletes sessions that others have.",
        "OwnedIds._on_renewed",
        "self._user.taken(client_id)",
        "pass",
        SEEDS + "[62]",
    ),
    Mutation(
        "simulated_sessions_not_seen_elsewhere",
        "A session that comes back does not get again what it had at another node.",
        "SeenMessages.rest_of",
        "if run.identity is None or not self.elsewhere:",
        "if True:",
        SEEDS + "[400]",
    ),
    Mutation(
        "seen_elsewhere_not_on_disk",
        "A session knows after a restart as well what it had at another node.",
        "SessionJournal.seen_elsewhere",
        "self.home.put(HEARD, (self.client_id, origin, 0, SEEN_ELSEWHERE, number))",
        "pass",
        MEETING
        + "test_a_session_that_has_come_back_does_not_get_again_what_it_had_elsewhere[workers0-True]",
    ),
    Mutation(
        "released_again_before_disk",
        "PUBREL to a client that has returned waits until PUBREC is on disk.",
        "SessionJournal.released_again",
        "self._then(partial(connection.append, pubrels))",
        "connection.append(pubrels)",
        "tests/unit/shards/test_durable.py::"
        "test_pubrel_to_a_client_that_returns_waits_for_the_disk_as_well",
    ),
]
