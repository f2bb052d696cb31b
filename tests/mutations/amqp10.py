"""Mutations of AMQP 1.0: runs of transfers, shapes of messages, ranges of outcomes, deliveries; subscriptions."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_RUN = "tests/unit/protocols/amqp10/test_transfer_run.py::"
OF_DELIVERY = "tests/unit/protocols/amqp10/test_delivery_template.py::"
OF_SUBSCRIPTIONS = "tests/unit/sessions/amqp10/test_subscriptions.py::"
OF_SESSION = "tests/unit/sessions/amqp10/test_transfer_runs.py::"

OF_CODEC = "tests/unit/protocols/amqp10/test_codec.py::"
OF_SELECTORS = "tests/unit/protocols/amqp10/test_selectors.py::"

MUTATIONS = [
    Mutation(
        "amqp10_values_without_bytes",
        "Values without bytes are counted over all arrays of a value.",
        "_array",
        "empty[0] -= count",
        "empty = [EMPTY_ITEMS_MAX - count]",
        OF_CODEC + "test_values_without_bytes_are_counted_over_all_arrays_of_a_value",
    ),
    Mutation(
        "amqp10_between_once",
        "A value between bounds is evaluated once.",
        "is_between",
        "above = _known(at_least, value, low(moment))",
        "above = _known(at_least, left(moment), low(moment))",
        OF_SELECTORS + "test_conditions_inside_each_other_are_evaluated_once",
    ),
    Mutation(
        "amqp10_run_of_one_link",
        "A run has transfers of one link, with ids one apart.",
        "TransferRun.read",
        "or self._delivery != (self.first + count) & 0xFFFFFFFF",
        "",
        OF_RUN + "test_what_ends_a_run",
    ),
    Mutation(
        "amqp10_aborted_in_a_run",
        "A transfer that is aborted, resumes or has more frames is in no run.",
        "TransferRun._envelope",
        "elif field != _BATCHABLE:",
        "elif False:",
        OF_RUN + "test_what_ends_a_run",
    ),
    Mutation(
        "amqp10_id_as_text",
        "An id is checked before it is stored.",
        "_id_end",
        "if bytes(memoryview(buffer)[start:stop]).isascii() else -1",
        "",
        OF_SESSION + "test_an_id_that_is_no_text_is_refused_within_a_run",
    ),
    Mutation(
        "amqp10_other_properties",
        "Messages of one check are equal in all but ids and creation time.",
        "MessageShape._walk",
        "return _past(buffer, place, end, self._rest)",
        "return place + len(self._rest)",
        OF_RUN + "test_messages_of_another_shape_are_checked",
    ),
    Mutation(
        "amqp10_hashed_ids",
        "A message goes by its own id where an exchange looks at ids.",
        "goes_by_key",
        "return space is not None and (exchange, routing_key) in space.routes",
        "return True",
        OF_SESSION + "test_an_exchange_that_hashes_ids_gets_each",
    ),
    Mutation(
        "amqp10_credit_of_runs",
        "A run takes no more than the link's credit.",
        "IncomingLink.on_transfers",
        "count = min(count, self.credit)",
        "count = min(count, 1 << 20)",
        OF_SESSION + "test_no_more_than_the_credit_is_taken",
    ),
    Mutation(
        "amqp10_accepted_range",
        "Dispositions are one range only where one follows the other.",
        "Amqp10Parser._accepts",
        "elif self._first != (last + 1) & 0xFFFFFFFF:",
        "elif False:",
        OF_SESSION + "test_dispositions_in_any_order_settle_each_once",
    ),
    Mutation(
        "amqp10_expiry_of_a_template",
        "A delivery tells the rest of its own message's life.",
        "DeliveryTemplate._size",
        "if batch.expiry(index) != self.expiry:",
        "if False:",
        OF_DELIVERY + "test_another_mark_expiry_or_key_is_another_template",
    ),
    Mutation(
        "amqp10_sections_of_a_template",
        "Sections behind the payload are not taken for properties.",
        "DeliveryTemplate._tail",
        "return _are_properties(data, at, end)",
        "return True",
        OF_DELIVERY + "test_messages_of_other_kinds_are_of_other_templates",
    ),
    Mutation(
        "amqp10_subscription_browsed",
        "A subscription takes the messages of its queue, also if JMS asks for copies.",
        "attach_consumer",
        "terminus.distribution_mode = MOVE",
        "pass",
        OF_SUBSCRIPTIONS + "test_a_copy_of_what_an_exchange_routes_is_taken_and_not_browsed",
    ),
    Mutation(
        "amqp10_subscription_shared_by_any",
        "A durable subscription has one consumer.",
        "_open_consumer",
        "exclusive=subscription is not None and not shared",
        "exclusive=False",
        OF_SUBSCRIPTIONS + "test_it_is_consumed_by_one_link_at_a_time",
    ),
    Mutation(
        "amqp10_subscription_detached_is_deleted",
        "Detaching leaves a durable subscription.",
        "Amqp10Session._on_detach",
        "not detach.closed or not subscriptions.ends",
        "not subscriptions.ends",
        OF_SUBSCRIPTIONS + "test_a_durable_subscription_gathers_messages_while_nobody_is_attached",
    ),
    Mutation(
        "amqp10_subscription_answered_early",
        "A subscription's link is closed when its queue has been deleted.",
        "subscriptions:ends",
        "lambda _refusal: done()",
        "lambda _refusal: None",
        OF_SUBSCRIPTIONS + "test_it_stays_when_its_connection_ends_and_goes_when_it_is_closed",
    ),
]
"""Rules, each with the test that notices."""
