"""Mutations of what settings say of queues, and of what MQTT clients and queues say to each other."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_SETTINGS = "tests/unit/settings/test_queues.py::"
OF_ADDRESSES = "tests/unit/routing/test_queue_addresses.py::"
OF_PROPERTIES = "tests/unit/sessions/mqtt/test_queue_properties.py::"
OF_SETTLEMENT = "tests/unit/sessions/mqtt/test_settlement.py::"
OF_SUBSCRIPTIONS = "tests/unit/sessions/mqtt/test_queue_subscriptions.py::"
OF_PUBLISHING = "tests/unit/sessions/mqtt/test_queue_publishing.py::"
PUBLISHING = "fluxmq/sessions/mqtt/publishing.py"

MUTATIONS = [
    Mutation(
        "connections_take_all_descriptors",
        "A shard is given no more connections than leave storage its descriptors.",
        "ShardHandoff.has_place",
        "return self._held[shard] + len(batch.fds) < self._connections_max",
        "return True",
        "tests/unit/supervisor/test_delivery.py::"
        "test_a_shard_gets_no_more_than_it_has_descriptors_for",
    ),
    # Settings
    Mutation(
        "replicated_is_synced",
        "A replicated queue acknowledges nothing that is not synced.",
        "_replication",
        """== "buffered":
        kind =""",
        """== "never":
        kind =""",
        OF_SETTINGS + "test_mistakes_of_replication",
    ),
    Mutation(
        "dead_letters_end",
        "Dead letters do not come back to the queue they left.",
        "_dead_letter_circles",
        "if onward.get(way[-1]) == queue.name and len(way) > 1",
        "if False and len(way) > 1",
        OF_SETTINGS + "test_dead_letters_do_not_come_back",
    ),
    Mutation(
        "alone_without_peers",
        "A node that is not in a cluster has no replication group with other members.",
        "cluster_problems",
        """elif cluster.raft.enabled:
        yield from _alone(cluster.raft)""",
        "",
        OF_SETTINGS + "test_a_node_alone_has_no_peers",
    ),
    Mutation(
        "plaintext_by_consent",
        "Nodes on other machines are spoken to without TLS only if the file says so.",
        "cluster_refusals",
        "if exposed and not (cluster.transport.tls_enabled or cluster.transport.allow_plaintext):",
        "if False:",
        "tests/unit/settings/test_cluster.py::test_plaintext_between_machines_is_asked_for",
    ),
    Mutation(
        "members_by_name",
        "Every node chooses the same members for a group.",
        "_chosen",
        "sorted(nodes, key=weight, reverse=True)[:copies]",
        "nodes[:copies]",
        "tests/unit/settings/test_plans.py::test_members_are_chosen_alike_on_every_node",
    ),
    Mutation(
        "directory_of_one_group",
        "A directory that another group or node has is not taken for a group.",
        "_own",
        "if found != owner:",
        "if False:",
        "tests/unit/storage/test_directory.py::test_a_directory_has_one_owner",
    ),
    # Addresses
    Mutation(
        "dead_letters_apart",
        "A permission for $queue/ does not reach dead-letter queues.",
        "is_reachable_name",
        "and name[0] != 0x24  # $",
        "",
        OF_ADDRESSES + "test_malformed_addresses",
    ),
    Mutation(
        "orders_come_last",
        "An order that is not the last level is refused, not stored as a message.",
        "parse_publish",
        """if not VERBS.keys().isdisjoint(key.split(b"/")):
        raise""",
        """if False:
        raise""",
        OF_ADDRESSES + "test_malformed_addresses",
    ),
    Mutation(
        "patterns_apart",
        "Every pattern of a group has its own progress.",
        "effective_group",
        'return group + b"@" + pattern if pattern else group',
        "return group",
        OF_SUBSCRIPTIONS + "test_groups",
    ),
    # What may be believed
    Mutation(
        "not_forged",
        "Publishers cannot say what only queues say.",
        "queue_publish.own",
        "own = strip_reserved(run.properties)",
        "own = run.properties",
        OF_PUBLISHING + "test_what_steers_a_message",
    ),
    Mutation(
        "order_permission",
        "Who may not publish to a queue settles only what a queue delivers to it.",
        "consumes",
        "grant.queue is not None and grant.queue.queue == queue",
        "grant.queue is not None",
        OF_PUBLISHING + "test_who_consumes_may_settle",
    ),
    Mutation(
        "order_of_consumers_only",
        "Who consumes from a queue may not publish to it for that.",
        "queue_publish",
        "if not allowed and not (address.verb and consumes(session, address.queue)):",
        "if not allowed and not consumes(session, address.queue):",
        OF_PUBLISHING + "test_who_consumes_may_settle",
    ),
    Mutation(
        "order_offset",
        "A range of offsets that ends before it begins settles nothing.",
        "_span",
        "if end < start:",
        "if False:",
        OF_SETTLEMENT + "test_orders_that_are_none",
    ),
    Mutation(
        "options_of_one",
        "What steers a message stands once or is refused.",
        "queue_options",
        "if item.name in found:",
        "if False:",
        OF_PROPERTIES + "test_options_that_say_nothing_usable",
    ),
    # Answers
    Mutation(
        "order_answered_when_safe",
        "An order is answered when it has taken effect.",
        "queue_publish.done",
        "done = broker.reactor.hold().done if run.qos else ignore",
        "done = ignore",
        OF_PUBLISHING + "test_an_orders_answer_says_what_came_of_it",
    ),
    Mutation(
        "refusals_in_order",
        "A refused publish is not answered before earlier ones [MQTT-4.6.0-2].",
        "publishing:refuse",
        "if client.connection.pending_acks:",
        "if False:",
        OF_PUBLISHING + "test_refusals_keep_their_place",
    ),
    Mutation(
        "order_once",
        "A QoS 2 order that is published again is not carried out again.",
        "queue_publish",
        "if repeated is not None and (settlement is None or not repeated):",
        "if repeated is not None and settlement is None:",
        OF_PUBLISHING + "test_a_repeated_order_is_answered_and_not_repeated",
    ),
    Mutation(
        "suback_after_queues",
        "A SUBACK waits for every queue among the filters.",
        "add_queue",
        "answer.waiting += 1",
        "",
        OF_SUBSCRIPTIONS + "test_suback_waits_for_every_queue",
    ),
    Mutation(
        "refused_subscription_gone",
        "A subscription that the queue refused is not kept in the session.",
        "add_queue.answered",
        "if session.subscriptions.get(written) is grant:",
        "if False:",
        OF_SUBSCRIPTIONS + "test_suback_waits_for_every_queue",
    ),
    Mutation(
        "explained_is_fenced",
        "An explained refusal is none that hosts retry.",
        "Explanations.explain",
        "len(self._texts) + _FIRST",
        "len(self._texts) + 2",
        "tests/unit/model/test_outcomes.py::test_an_explained_refusal_is_none_that_hosts_retry",
    ),
    Mutation(
        "unsuback_over_limit",
        "UNSUBACK carries no code that it may not.",
        "outcomes:REASONS",
        "Outcome.OVER_LIMIT: Reason.IMPLEMENTATION_SPECIFIC_ERROR,",
        "Outcome.OVER_LIMIT: Reason.QUOTA_EXCEEDED,",
        "tests/unit/sessions/mqtt/test_outcomes.py::test_unsuback_has_no_quota",
    ),
    Mutation(
        "queues_left",
        "UNSUBSCRIBE ends the consumer.",
        "Subscriptions.unsubscribe",
        "self._queues.unsubscribe(session, written)",
        "pass",
        OF_SUBSCRIPTIONS + "test_unsubscribing",
    ),
    Mutation(
        "will_no_order",
        "A will is no order to a queue.",
        "check_queue_will",
        """if not address.verb:
            return""",
        "return",
        OF_PUBLISHING + "test_wills_that_are_refused",
    ),
]
