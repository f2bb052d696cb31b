"""Rules of mirrored queues: who leads, and on which nodes they are."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_RECORDS = "tests/unit/routing/topology/test_mirror_records.py::"
OF_NODES = "tests/unit/routing/topology/test_mirroring.py::"
OF_CLIENT = "tests/unit/engine/test_group_client.py::"

MUTATIONS = [
    Mutation(
        "mirror_promoted_though_unsynchronised",
        "An unsynchronised mirror leads only if the policy lets it.",
        "mirror_records:promoted",
        'record.promote_on_failure != "always"',
        "False",
        OF_RECORDS + "test_whether_an_unsynchronised_mirror_leads",
    ),
    Mutation(
        "mirror_promoted_at_an_orderly_stop",
        "At an orderly stop, an unsynchronised mirror leads only if the policy says so.",
        "mirror_records:promoted",
        '(orderly or left is not None) and record.promote_on_shutdown != "always"',
        "False",
        OF_RECORDS + "test_whether_an_unsynchronised_mirror_leads",
    ),
    Mutation(
        "orderly_stop_forgotten",
        "When the lease of a node ends that stopped in an orderly way, that is no failure.",
        "mirror_records:promoted",
        "(orderly or left is not None)",
        "orderly",
        OF_RECORDS + "test_after_an_orderly_stop_the_end_of_the_leader_is_no_failure",
    ),
    Mutation(
        "youngest_mirror_promoted",
        "Of synchronised mirrors the one leads that has run longest.",
        "mirror_records:_age",
        "member.since, member.since",
        "member.since, -member.since",
        OF_RECORDS + "test_the_synchronised_mirror_that_has_run_longest_leads",
    ),
    Mutation(
        "epoch_of_a_promotion_kept",
        "A new leader leads in another epoch.",
        "mirror_records:_led_by",
        "record.epoch + 1",
        "record.epoch",
        OF_RECORDS + "test_the_synchronised_mirror_that_has_run_longest_leads",
    ),
    Mutation(
        "former_leader_still_synchronised",
        "A leader that was replaced has to be synchronised anew.",
        "mirror_records:_led_by",
        "return removed(after, record.leader)",
        "return after",
        OF_RECORDS + "test_the_synchronised_mirror_that_has_run_longest_leads",
    ),
    Mutation(
        "copies_of_others_kept",
        "If an unsynchronised mirror leads, no other copy counts.",
        "mirror_records:_forced",
        "synchronised=each.node == node",
        "synchronised=each.synchronised or each.node == node",
        OF_RECORDS + "test_the_copy_of_an_unsynchronised_leader_is_the_only_one_that_counts",
    ),
    Mutation(
        "mirror_that_was_away_promoted",
        "An unsynchronised mirror that was away when the leader failed does not lead.",
        "mirror_records:promoted",
        "bool(each.since) if present is None else each.node in present",
        "True",
        OF_RECORDS + "test_a_mirror_that_was_away_when_the_leader_failed_does_not_lead",
    ),
    Mutation(
        "first_to_stop_leads",
        "The node that stopped last leads again.",
        "mirror_records:_stopped_before",
        "at <= left",
        "at > left",
        OF_RECORDS + "test_mirrors_that_stopped_before_their_leader_wait_for_it",
    ),
    Mutation(
        "lost_mirror_not_replaced",
        "With exactly so many copies, a lost mirror is replaced.",
        "mirroring:_exactly",
        "each for each in present if each in online",
        "each for each in present",
        OF_NODES + "test_exactly_replaces_a_lost_mirror_if_another_node_can",
    ),
    Mutation(
        "leader_dropped_at_once",
        "A leader that is no longer listed stays until a mirror is synchronised.",
        "mirroring:_listed",
        "each for each in kept if each in synced and each in online",
        "each for each in fitting",
        OF_NODES + "test_a_leader_that_is_no_longer_listed_stays_until_a_mirror_is_synchronised",
    ),
    Mutation(
        "exclusive_queues_mirrored",
        "Exclusive queues are never mirrored.",
        "mirroring:mirror_policy",
        "queue.type != CLASSIC or not queue.durable or queue.exclusive",
        "queue.type != CLASSIC",
        OF_NODES + "test_queues_that_are_never_mirrored",
    ),
    Mutation(
        "forced_by_an_old_record",
        "A record that is out of date makes no copy the truth.",
        "ForcedMirrors.is_due",
        "and status.term < record.epoch",
        "",
        "tests/unit/replication/test_mirror_leaders.py::test_a_record_that_is_out_of_date_makes_no_copy_the_truth",
    ),
    Mutation(
        "failover_not_told",
        "A consumer that asked for it is cancelled by a failover.",
        "LeaderHandle.attach",
        "self._wanted.cancel_on_failover and self._term >= 0 and self._term != term",
        "False",
        OF_CLIENT + "test_a_consumer_may_ask_to_be_cancelled_by_a_failover",
    ),
]
