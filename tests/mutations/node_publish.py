"""Rules of publish and subscribe between nodes."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_PEERS = "tests/unit/shards/test_node_peers.py::"
OF_INTEREST = "tests/unit/routing/test_node_interest.py::"

BESIDE = "tests/unit/shards/test_beside_messages.py::"

MUTATIONS = [
    Mutation(
        "node_ready_early",
        "A shard that starts waits for the nodes that it has not met.",
        "Confirmations.when_known",
        "if self._held is not None:",
        "if False:",
        OF_PEERS + "test_a_subscription_waits_while_its_node_has_not_met_the_others",
    ),
    Mutation(
        "node_batch_unbounded",
        "A frame between nodes has at most route_batch_max_size messages.",
        "parts_of",
        "if run.count <= count_max:",
        "if True:",
        OF_PEERS + "test_a_frame_has_no_more_messages_than_the_settings_say",
    ),
    Mutation(
        "node_suback_early",
        "A subscription is acknowledged when all connected nodes know of it.",
        "Peers.when_known",
        "self._confirmations.when_known(lambda: self.nodes.when_known(done))",
        "self._confirmations.when_known(done)",
        OF_PEERS + "test_a_subscription_that_is_acknowledged_gets_every_message_after_it",
    ),
    Mutation(
        "node_repeat_delivered",
        "A run that another node sends again is delivered once.",
        "NodeRuns.deliver",
        "if number <= heard.last:",
        "if False:",
        OF_PEERS + "test_an_answer_that_was_lost_is_given_again",
    ),
    Mutation(
        "node_not_sent_again",
        "What a stream has lost goes over the next one.",
        "NodePath.came",
        "self.link.send_frame(frame)",
        "pass",
        OF_PEERS + "test_a_stream_that_breaks_loses_nothing_and_doubles_nothing",
    ),
    Mutation(
        "node_kept_early",
        "A publisher waits for the persistent sessions of other nodes.",
        "NodePath.send",
        "pending_ack = self._reactor.hold() if waits else None",
        "pending_ack = None",
        OF_PEERS
        + "test_a_persistent_session_elsewhere_has_a_message_before_its_publisher_is_answered",
    ),
    Mutation(
        "node_given_up_as_success",
        "A message for persistent sessions of a node that stays away is refused.",
        "NodePath.give_up",
        "self.answered(number, Outcome.OVER_LIMIT)",
        "self.answered(number, 0)",
        OF_PEERS + "test_a_node_that_does_not_keep_a_message_is_no_success",
    ),
    Mutation(
        "node_union_not_counted",
        "A filter ends for other nodes when the last shard ceases to want it.",
        "NodeInterest.set_filter",
        """if not shards:
                del self._wanted[topic_filter]""",
        "del self._wanted[topic_filter]",
        OF_INTEREST + "test_only_the_first_and_the_last_shard_are_told",
    ),
    Mutation(
        "node_former_interest_kept",
        "Interest that ended while a stream was away is not kept.",
        "NodePeers._follow",
        "change.ceased.extend(former.keys() - announced.filters)",
        "pass",
        OF_PEERS + "test_interest_that_ended_while_a_stream_was_away_is_forgotten",
    ),
    Mutation(
        "node_clock_of_another",
        "The time to live of a message travels as a duration: clocks of nodes differ.",
        "NodePeers.received",
        "run.deadline = self._reactor.tally.now + left if left else 0.0",
        "pass",
        OF_PEERS + "test_the_time_to_live_travels_as_a_duration",
    ),
    Mutation(
        "vhost_limit_per_node",
        "A vhost's limit of connections counts those of all nodes.",
        "SharedCounts.count",
        "return here + self.nodes.count(name)",
        "return here",
        BESIDE + "test_connections_of_all_nodes_count",
    ),
    Mutation(
        "limit_counts_the_gone",
        "Connections of a node that cannot be reached do not count.",
        "NodeConnections.gone",
        "self._others.pop(link.node, None)",
        "pass",
        BESIDE + "test_connections_of_a_node_that_cannot_be_reached_do_not_count",
    ),
    Mutation(
        "replies_end_at_the_node",
        "A direct reply for another shard of the node that gets it is passed on.",
        "Replies.received",
        "link.send_frame(frame)",
        "pass",
        BESIDE + "test_direct_replies_cross_nodes",
    ),
]
