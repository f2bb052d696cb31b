"""Rules of retained messages and wills in a cluster."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_NODES = "tests/unit/shards/test_retained_cluster.py::"
OF_WILLS = "tests/integration/test_etcd_wills.py::"
OF_CLIENTS = "tests/unit/shards/test_wills_cluster.py::"
OF_ETCD = "tests/integration/test_etcd_retained.py::"

MUTATIONS = [
    Mutation(
        "retained_uncommitted",
        "A retained publish is acknowledged when etcd has committed it.",
        "RetainedCommits.keep",
        "(entry.publishers if waits else entry.dones).append(done)",
        "done(0)",
        OF_NODES + "test_a_publish_is_answered_when_it_is_committed",
    ),
    Mutation(
        "index_before_disk",
        "A message that etcd has by its metadata alone is on its node's disk first.",
        "_Pending.__init__",
        "self.ready = kind != INDEX",
        "self.ready = True",
        OF_NODES + "test_what_is_committed_by_metadata_is_on_disk_first",
    ),
    Mutation(
        "older_payload",
        "A node that does not have the latest message of a topic delivers none.",
        "RetainedSync._apply",
        """if found is None:
            self._retained.commit(deletion(topic), (revision, 0, 0))""",
        "if found is None:",
        OF_NODES + "test_a_large_message_waits_for_a_node_that_has_it",
    ),
    Mutation(
        "deleted_while_away",
        "A node that was away forgets what was deleted meanwhile.",
        "RetainedSync._compare",
        "self._retained.commit(deletion(topic), (self._as_of, 0, 0))",
        "pass",
        OF_NODES + "test_a_node_that_was_away_has_what_the_others_have",
    ),
    Mutation(
        "stray_copies",
        "A copy of a change that was committed, and changed again, unheard is forgotten.",
        "RetainedSync._forget_unheard",
        "self._retained.store.forget(topic)",
        "pass",
        OF_NODES + "test_a_shard_that_was_not_told_forgets_copies_of_that_time",
    ),
    Mutation(
        "own_change_unseen",
        "A client sees its own change at once, whatever others have committed before it.",
        "RetainedMessages.commit",
        "if self._rows.is_unsettled(topic):",
        "if False:",
        OF_NODES + "test_a_client_sees_its_own_change_at_once",
    ),
    Mutation(
        "older_after_newer",
        "A message is not followed by an older retained one.",
        "NodePeers._deliver",
        "self._beside.retained.announce(run)",
        "",
        OF_NODES + "test_a_message_is_not_followed_by_an_older_retained_one",
    ),
    Mutation(
        "both_keys",
        "A topic that crosses the threshold has one of the two keys.",
        "_operations",
        "return Put(index, change.value), Delete(data)",
        "return (Put(index, change.value),)",
        OF_ETCD + "test_a_topic_never_has_both_keys",
        slow=True,
    ),
    Mutation(
        "fence_kept_after_failure",
        "A request that failed is not carried out after a later one.",
        "Fence._forget",
        "self._revision = 0",
        "pass",
        OF_ETCD + "test_a_request_that_failed_is_not_carried_out_after_a_later_one",
        slow=True,
    ),
    Mutation(
        "watch_begins_late",
        "A watch that broke goes on behind the last change that was told.",
        "RetainedKeys._watch",
        "self._client.watch(PREFIX, end_of(PREFIX), self._revision + 1)",
        "self._client.watch(PREFIX, end_of(PREFIX), result.revision + 1)",
        OF_ETCD + "test_nothing_is_missed_when_the_server_is_killed",
        slow=True,
    ),
    Mutation(
        "will_published_twice",
        "A will that another node has published is not published again.",
        "WillKeys._claim",
        "(Created(PUBLISHED + name, 0),),",
        "(),",
        OF_WILLS + "test_wills_of_a_node_that_has_ended_are_published_once",
        slow=True,
    ),
    Mutation(
        "will_of_the_returned",
        "The will of a client that has connected again is not published.",
        "WillKeys._publish",
        "(Changed(entry.key, entry.revision),),",
        "(),",
        OF_WILLS + "test_a_client_that_has_connected_again_has_not_ended",
        slow=True,
    ),
    Mutation(
        "will_unclaimed",
        "A node claims a will before it publishes it.",
        "ClusterWills._claimed",
        "if is_ours:",
        "if True:",
        OF_CLIENTS + "test_a_will_that_another_node_has_published_is_not_published_again",
    ),
    Mutation(
        "claim_before_will",
        "A will is claimed after control was told of it.",
        "ClusterWills._ask",
        "[client_id for client_id in self._claims if client_id not in self._untold]",
        "list(self._claims)",
        OF_CLIENTS + "test_what_control_was_not_told_comes_before_the_claim",
    ),
]
