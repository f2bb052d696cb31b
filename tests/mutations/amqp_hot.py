"""Mutations of AMQP's hot path: framing, runs, what a channel owes, confirms and deliveries."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

PARSER = "fluxmq/protocols/amqp091/parser.py"
RUN = "fluxmq/protocols/amqp091/run.py"
LEDGER = "fluxmq/protocols/amqp091/ledger.py"
CONFIRMS = "fluxmq/protocols/amqp091/confirms.py"
DELIVERY = "fluxmq/protocols/amqp091/delivery.py"

OF_PARSER = "tests/unit/protocols/amqp091/test_parser.py::"
OF_RUN = "tests/unit/protocols/amqp091/test_run.py::"
OF_LEDGER = "tests/unit/protocols/amqp091/test_ledger.py::"
OF_CONFIRMS = "tests/unit/protocols/amqp091/test_confirms.py::"
OF_DELIVERY = "tests/unit/protocols/amqp091/test_delivery.py::"

MUTATIONS = [
    Mutation(
        "amqp_frame_end",
        "A frame without its end octet is refused.",
        "AmqpParser.process",
        "if data[following - 1] != _END:",
        "if False:",
        OF_PARSER + "test_frames_that_cannot_be",
    ),
    Mutation(
        "amqp_frame_size",
        "A frame larger than was agreed on is refused by its header alone.",
        "AmqpParser.process",
        "if size > connection.frame_max:",
        "if False:",
        OF_PARSER + "test_frames_that_cannot_be",
    ),
    Mutation(
        "amqp_run_front",
        "A run has one exchange, routing key and channel.",
        "AmqpParser.extend",
        "and buffer.startswith(head, position)",
        "",
        OF_PARSER + "test_what_differs_ends_a_run",
    ),
    Mutation(
        "amqp_run_properties",
        "Messages of one run have equal properties, also where sizes differ.",
        "AmqpParser.extend_any_size",
        "buffer.startswith(head, position) and buffer.startswith(tail, position + back_at)",
        "buffer.startswith(head, position)",
        OF_PARSER + "test_what_differs_ends_a_run",
    ),
    Mutation(
        "amqp_interrupted_publish",
        "A publish that another channel interrupts is handed over frame by frame, in order.",
        "AmqpParser.may_be",
        "return place + 2 >= end or buffer[place + 2] == buffer[at + 2]",
        "return True",
        OF_PARSER + "test_frames_that_come_one_by_one",
    ),
    Mutation(
        "amqp_direct",
        "A channel in a transaction gets every frame.",
        "AmqpParser.process",
        "if ledger is not None and ledger.direct:",
        "if ledger is not None:",
        OF_PARSER + "test_a_channel_may_want_every_frame",
    ),
    Mutation(
        "amqp_paused",
        "What follows a pause is handled after it.",
        "AmqpParser.process",
        """if connection.paused:
                break""",
        "",
        OF_PARSER + "test_what_follows_a_pause_is_handled_after_it_in_order",
    ),
    Mutation(
        "amqp_detached",
        "A run that is kept has its own bytes.",
        "AmqpPublishRun.detach",
        "self.buffer = bytes(memoryview(self.buffer)[self.start : self.end])",
        "self.buffer = memoryview(self.buffer)[self.start : self.end]",
        OF_PARSER + "test_a_run_outlives_the_buffer_when_it_is_detached",
    ),
    Mutation(
        "amqp_batch_bytes",
        "A batch has a bounded number of bytes.",
        "build_amqp_batches",
        "if total + run.body_length > _PAYLOADS_MAX:",
        "if False:",
        OF_RUN + "test_a_batch_has_a_bounded_number_of_bytes",
    ),
    Mutation(
        "amqp_sequences",
        "Every message has its own sequence number, also behind the first batch.",
        "build_amqp_batches",
        "sequence += count",
        "pass",
        OF_RUN + "test_a_batch_has_a_bounded_number_of_messages",
    ),
    Mutation(
        "amqp_settled_once",
        "A delivery is settled once, also out of order.",
        "ChannelLedger._find",
        """if found.settled[index >> 3] & (1 << (index & 7)):
                return -1""",
        "",
        OF_LEDGER + "test_a_tag_that_is_not_outstanding",
    ),
    Mutation(
        "amqp_multiple_known",
        "An acknowledgement of many names a tag that is outstanding.",
        "ChannelLedger.acknowledge",
        """if tag and self._find(tag) < 0:
                return False""",
        "",
        OF_LEDGER + "test_a_tag_that_is_not_outstanding",
    ),
    Mutation(
        "amqp_multiple_holes",
        "What was settled alone is not settled again with many.",
        "ChannelLedger._settle_through",
        "while index < until and not settled[index >> 3] & (1 << (index & 7)):",
        "while index < until:",
        OF_LEDGER + "test_disorder_is_merged_when_it_is_taken",
    ),
    Mutation(
        "amqp_forgotten",
        "Nothing comes of acknowledgements for a consumer that was forgotten.",
        "ChannelLedger.forget",
        "unacked.gone = True",
        "",
        OF_LEDGER + "test_a_forgotten_consumer_is_owed_nothing",
    ),
    Mutation(
        "amqp_confirmed_by_all",
        "A publish is confirmed when every queue has it.",
        "Confirmation.done",
        "if self.waiting == 0:",
        "if self.waiting >= 0:",
        OF_CONFIRMS + "test_a_run_that_several_take_up_is_answered_when_all_have",
    ),
    Mutation(
        "amqp_refused_is_nack",
        "A publish that one queue refused is not confirmed.",
        "Confirmation.done",
        "self.reason < REFUSED_MIN",
        "True",
        OF_CONFIRMS + "test_a_run_that_several_take_up_is_answered_when_all_have",
    ),
    Mutation(
        "amqp_confirm_gap",
        "A confirm of many names nothing that is still waited for.",
        "ConfirmWindow.answers",
        """if tile is None:
                break""",
        """if tile is None and low < self.next - 1:
                low += 1
                continue
            if tile is None:
                break""",
        OF_CONFIRMS + "test_what_is_behind_a_gap_does_not_wait_for_it",
    ),
    Mutation(
        "amqp_confirm_last",
        "A confirm names the message that is confirmed, not one that was before.",
        "ConfirmWindow.answers",
        """if waiting:
            frames.append(_frame(channel, last,""",
        """if waiting:
            frames.append(_frame(channel, low - 1,""",
        OF_CONFIRMS + "test_the_last_answered_message_is_named_and_not_one_answered_before",
    ),
    Mutation(
        "amqp_delivery_tags",
        "Every delivery has its own tag.",
        "_deliveries_uncompiled",
        "tag += 1",
        "",
        OF_DELIVERY + "test_deliveries",
    ),
    Mutation(
        "amqp_delivery_frames",
        "No body frame is larger than was agreed on.",
        "_deliveries_uncompiled.stop",
        "stop = min(begin + room, end)",
        "stop = end",
        OF_DELIVERY + "test_deliveries",
    ),
]
