"""Rules of mirrored queues: who leads, and on which nodes they are."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_RECORDS = "tests/unit/routing/topology/test_mirror_records.py::"
OF_NODES = "tests/unit/routing/topology/test_mirroring.py::"
OF_ENDED = "tests/unit/replication/test_ended_leaders.py::"
OF_LEADERS = "tests/unit/replication/test_mirror_leaders.py::"
OF_KEYS = "tests/integration/test_etcd_mirrors.py::"
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
        "leader_replaced_by_an_unsynchronised_mirror",
        "A leader whose process has ended is replaced by a synchronised mirror, or waited for.",
        "mirror_records:replaced",
        "if each.synchronised:",
        "if each.since:",
        OF_RECORDS
        + "test_a_leader_whose_process_has_ended_is_replaced_by_a_synchronised_mirror_only",
    ),
    Mutation(
        "leader_replaced_at_the_first_refusal",
        "A shard that has crashed is waited for.",
        "EndedLeaders.has_ended",
        "probed.last - probed.first >= ENDED_SECONDS",
        "True",
        OF_ENDED + "test_a_leader_has_ended_when_its_machine_has_refused_connections_for_a_while",
    ),
    Mutation(
        "leader_that_listens_again_replaced",
        "Only a leader has ended that has refused all connections meanwhile.",
        "EndedLeaders._probe",
        "refused and not probed.refused",
        "refused and not probed.first",
        OF_ENDED + "test_a_process_that_was_started_again_meanwhile_has_not_ended",
    ),
    Mutation(
        "leader_that_hangs_replaced",
        "A leader whose machine does not refuse connections keeps its lead until its lease ends.",
        "EndedLeaders._probe",
        "await is_refused(probed.leader.address)",
        "True",
        OF_ENDED + "test_a_process_that_is_stopped_has_not_ended",
    ),
    Mutation(
        "word_of_an_unsynchronised_mirror_counts",
        "A mirror that the leader does without has nobody lead.",
        "MirrorLeaders._is_without_leader",
        "self._node in record.synchronised and",
        "",
        OF_LEADERS + "test_a_mirror_that_is_not_synchronised_leaves_that_to_others",
    ),
    Mutation(
        "late_word_of_a_mirror_counts",
        "A mirror that the leader has left out meanwhile has nobody lead.",
        "MirrorKeys._replace",
        "own is None or not own.synchronised",
        "own is None",
        OF_KEYS + "test_a_mirror_that_the_leader_does_without_has_nobody_lead",
        slow=True,
    ),
    Mutation(
        "leader_of_another_epoch_replaced",
        "A leader that leads again is not replaced.",
        "MirrorKeys._replace",
        "(record.leader, record.epoch) != (asked.leader, asked.epoch)",
        "record.leader != asked.leader",
        OF_KEYS + "test_a_leader_that_leads_again_is_not_replaced",
        slow=True,
    ),
    Mutation(
        "replaced_leader_leaves_a_mirror_out",
        "A leader that was replaced does without no mirror any more.",
        "MirrorKeys._mirror",
        "(record.leader, record.epoch) != (self._node, asked.epoch)",
        "False",
        OF_KEYS + "test_a_leader_that_was_replaced_does_without_no_mirror_and_leads_no_more",
        slow=True,
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
