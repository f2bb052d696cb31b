"""Limits of users and rates, the firehose, events, spans, and parameters."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_AMQP = "tests/unit/shards/amqp/"
OF_RATES = OF_AMQP + "test_publish_rates.py::"

MUTATIONS = [
    Mutation(
        "user_limit",
        "A user has no more connections than the limit says.",
        "UserLimitChecks._reached",
        "if not 0 <= limit <= self._shared[name].count(user):",
        "if True:",
        "tests/unit/shards/test_user_limits.py::test_connections_of_all_nodes_count",
    ),
    Mutation(
        "user_limit_later",
        "A limit that is set later counts what is there.",
        "UserLimitChecks.changed",
        "self._shared[name].set(user, count if limited else 0)",
        "pass",
        "tests/unit/shards/test_user_limits.py::test_a_limit_set_later_counts_what_is_there",
    ),
    Mutation(
        "firehose_of_copies",
        "Copies of the firehose are not copied.",
        "Firehose.delivered",
        "if head.exchange == _TRACE or not self._wanted(info.vhost):",
        "if not self._wanted(info.vhost):",
        OF_AMQP + "test_firehose.py::test_copies_are_not_copied",
    ),
    Mutation(
        "events_by_all_shards",
        "Changes that every shard learns of are told by one.",
        "BrokerEvents._speaks",
        "return self._first and all(self._node < each for each in self.connected())",
        "return all(self._node < each for each in self.connected())",
        OF_AMQP + "test_events.py::test_what_all_shards_learn_is_told_once",
    ),
    Mutation(
        "rate_without_pause",
        "A client above its rate is not read.",
        "PublishRates.charge",
        "self._reactor.pause(connection, PAUSED_RATE)",
        "pass",
        OF_RATES + "test_a_client_is_read_at_its_rate",
    ),
    Mutation(
        "rate_undivided",
        "Shards share the rate of a virtual host.",
        "PublishRates._share_out",
        "own / max(self._publishers.count(name), own)",
        "1",
        OF_RATES + "test_a_virtual_hosts_rate_is_shared_by_the_publishers_of_all_shards",
    ),
    Mutation(
        "span_not_sampled",
        "Only traces that their publishers sample have spans.",
        "SpanRecorder._wanted",
        "context is None or not context.sampled or not",
        "context is None or not",
        OF_AMQP + "test_span_recorder.py::test_traces_that_are_not_sampled_or_none",
    ),
    Mutation(
        "spans_without_end",
        "Spans wait for control in a bounded buffer.",
        "SpanRecorder._note",
        "if len(self._waiting) >= WAITING_MAX:",
        "if False:",
        OF_AMQP + "test_span_recorder.py::test_what_waits_for_control_is_bounded",
    ),
    Mutation(
        "parameter_of_a_plug_in",
        "A parameter that would have no effect is refused.",
        "setting",
        "_check_component(component)",
        "pass",
        "tests/unit/routing/topology/test_parameters.py::test_what_is_refused",
    ),
]
