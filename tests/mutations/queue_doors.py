"""Mutations of who gets at queues, and at topics, by which protocol."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_PUBLISHING = "tests/unit/shards/amqp/test_publishing.py::"

MUTATIONS = [
    Mutation(
        "topic_exchange_leads_to_topics_only",
        "A routing key of amq.topic is no address of a queue.",
        "fluxmq/shards/amqp/publishing.py",
        "    return [] if topic.startswith(BROKERS_OWN) else [topic]\n",
        "    return [topic]\n",
        OF_PUBLISHING + "test_the_topic_exchange_reaches_no_queue_by_its_address",
    ),
]
