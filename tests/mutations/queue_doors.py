"""Mutations of who gets at queues, and at topics, by which protocol."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_OWNED = "tests/unit/shards/amqp/test_owned_queues.py::"
OF_PERMISSIONS = "tests/unit/shards/test_permissions.py::"
OF_PUBLISHING = "tests/unit/shards/amqp/test_publishing.py::"

MUTATIONS = [
    Mutation(
        "topic_exchange_leads_to_topics_only",
        "A routing key of amq.topic is no address of a queue.",
        "publishing:_topic_of",
        "return [] if topic.startswith(BROKERS_OWN) else [topic]",
        "return [topic]",
        OF_PUBLISHING + "test_the_topic_exchange_reaches_no_queue_by_its_address",
    ),
    Mutation(
        "wills_take_permission_when_published",
        "A will is published if its client may publish it at that moment.",
        "publish_will",
        "if policy is None or not allows_publish(policy, will.topic):",
        "if policy is None:",
        OF_PERMISSIONS + "test_a_will_that_is_not_permitted_any_more_is_not_published",
    ),
    Mutation(
        "wills_of_nobody",
        "A deleted or disabled user publishes no will.",
        "Authentication.will_policy",
        "return self.policy(client_id, username) if allowed else None",
        "return self.policy(client_id, username)",
        OF_PERMISSIONS + "test_a_will_that_is_not_permitted_any_more_is_not_published",
    ),
    Mutation(
        "wills_wait_for_users",
        "No will is judged before the shard knows who there is.",
        "ShardBroker.run_timers",
        "if self.authentication.revision >= 0:",
        "if True:",
        OF_PERMISSIONS + "test_wills_wait_until_it_is_known_who_there_is",
    ),
    Mutation(
        "copies_take_permission",
        "Routing keys in CC and BCC are checked like the message's own.",
        "check_publish",
        "for each in keys:",
        "for each in keys[:1]:",
        "tests/unit/sessions/amqp091/test_copies.py::test_every_routing_key_takes_permission",
    ),
    Mutation(
        "exclusive_queues_are_read_by_their_owner",
        "Nobody but its owner consumes from an exclusive queue.",
        "MigrationFence.is_closed_to",
        "return owner != asker if owner else",
        "return False if owner else",
        OF_OWNED + "test_an_exclusive_queue_is_closed_to_mqtt",
    ),
    Mutation(
        "exclusive_queues_ask_connections",
        "Another connection of AMQP is refused by the host of an exclusive queue.",
        "MigrationFence.is_closed_to",
        "return owner != asker if owner else",
        "return not asker if owner else",
        OF_OWNED + "test_an_exclusive_queue_is_closed_to_other_connections",
    ),
    Mutation(
        "exclusive_queues_have_no_address",
        "What an MQTT client sends to the address of an exclusive queue is refused on whichever shard it is.",
        "GroupServer.append.by_address",
        "by_address = kind == frames.APPEND_BY_ADDRESS",
        "by_address = False",
        OF_OWNED + "test_an_exclusive_queue_is_closed_to_mqtt",
    ),
    Mutation(
        "replies_reach_exclusive_queues",
        "What exchanges route to an exclusive queue is stored, whoever published it.",
        "ReplicationGroup.append",
        'if by_address and self.migration_fence.is_closed_to(queue, ""):',
        'if self.migration_fence.is_closed_to(queue, ""):',
        OF_OWNED + "test_an_exclusive_queue_takes_what_is_routed_to_it",
    ),
    Mutation(
        "owners_begin_anew",
        "A queue that MQTT made by its address does not become an exclusive one with its consumers.",
        "DeclaredQueues.declare",
        "elif state is not None and queue.owner and not known:",
        "elif False:",
        OF_OWNED + "test_who_was_there_before_the_owner_gets_nothing_of_its_queue",
    ),
]
