"""Mutations of batches and property blocks: what is read from a disk is what was written, or is refused."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

FORMAT = "fluxmq/model/batch_format.py"
BUILD = "fluxmq/protocols/mqtt/batches.py"
DELIVERY = "fluxmq/protocols/mqtt/batch_delivery.py"
MODEL = "fluxmq/model/batches.py"
BLOCK = "fluxmq/model/properties.py"
MQTT = "fluxmq/protocols/mqtt/message_properties.py"

OF_BATCHES = "tests/unit/protocols/mqtt/test_batches.py::"
OF_MODEL = "tests/unit/model/test_batches.py::"
OF_BLOCKS = "tests/unit/model/test_properties.py::"
OF_MQTT = "tests/unit/protocols/mqtt/test_message_properties.py::"

MUTATIONS = [
    Mutation(
        "batch_header_check",
        "A header that does not match its check is refused.",
        "batch_format:Batch.__init__",
        "if _header_check(data, start) != load_u32(data, start + 4):",
        "if False:",
        OF_BATCHES + "test_every_flipped_bit_is_noticed",
    ),
    Mutation(
        "batch_payload_check",
        "Messages that do not match their check are refused.",
        "verify",
        "if xxh3_64_intdigest(batch.body()) != batch.payload_check:",
        "if False:",
        OF_BATCHES + "test_every_flipped_bit_is_noticed",
    ),
    Mutation(
        "batch_length",
        "A batch that is longer than the available bytes is refused.",
        "Batch.check",
        "if self.length > len(data) - start:",
        "if False:",
        OF_BATCHES + "test_every_cut_is_noticed",
    ),
    Mutation(
        "batch_payload_ends",
        "Payloads end in order and within their area.",
        "Batch.check",
        "if not _ends_are_right(data, self.payload_ends_at, self.count, self.payload_bytes):",
        "if False:",
        OF_BATCHES + "test_a_field_that_makes_no_sense",
    ),
    Mutation(
        "batch_ends_order",
        "An end before the one before it is refused.",
        "_ends_are_right",
        "and list(ends) == sorted(ends)",
        "",
        OF_BATCHES + "test_a_field_that_makes_no_sense",
    ),
    Mutation(
        "batch_key_ends",
        "Keys end in order and within their area.",
        "Batch.check",
        "if self.flags & KEYS and not _ends_are_right(",
        "if False and not _ends_are_right(",
        OF_BATCHES + "test_keys_and_properties_that_do_not_end_in_order",
    ),
    Mutation(
        "batch_index",
        "No message is read outside of the batch.",
        "Batch.inside",
        "if index < 0 or index >= self.count:",
        "if False:",
        OF_BATCHES + "test_an_index_of_no_message",
    ),
    Mutation(
        "batch_messages_max",
        "A batch holds at most so many messages.",
        "build_batches",
        "count = max(1, min(count, left, MESSAGES_MAX))",
        "count = max(1, min(count, left))",
        OF_BATCHES + "test_at_most_so_many_messages_in_a_batch",
    ),
    Mutation(
        "batch_payload_max",
        "A batch holds at most so much payload.",
        "build_batches",
        "if total + run.body_length > PAYLOAD_BYTES_MAX:",
        "if False:",
        OF_BATCHES + "test_at_most_so_much_payload_in_a_batch",
    ),
    Mutation(
        "delivery_digits",
        "Packets of a run are alike: a run ends where offsets get another digit.",
        "delivery_runs",
        "part = min(count, _TENS[digits] - offset)",
        "part = count",
        OF_BATCHES + "test_every_message_says_where_it_stands",
    ),
    Mutation(
        "delivery_offsets",
        "Every message says its own offset.",
        "_written_uncompiled",
        "number += 1",
        "",
        OF_BATCHES + "test_every_message_says_where_it_stands",
    ),
    Mutation(
        "delivery_fixed",
        "Packets that carry properties of their own are never written anew.",
        "delivery_runs",
        "run.fixed = True",
        "run.fixed = False",
        OF_BATCHES + "test_every_message_says_where_it_stands",
    ),
    Mutation(
        "columns_header_check",
        "Readers of columns refuse a header that does not match its check.",
        "read_header",
        "if xxh3_64_intdigest(raw) & 0xFFFF_FFFF != header.header_check:",
        "if False:",
        OF_MODEL + "test_every_flipped_bit_is_noticed",
    ),
    Mutation(
        "columns_payload_check",
        "Readers of columns refuse messages that do not match their check.",
        "batches:columns",
        "if verify and xxh3_64_intdigest(body) != header.payload_check:",
        "if False:",
        OF_MODEL + "test_the_payload_check_can_be_left_out",
    ),
    Mutation(
        "columns_ends",
        "Readers of columns refuse ends that go back or beyond.",
        "batches:_ends",
        "if ends[0] != 0 or ends[-1] != total or bool((ends[1:] < ends[:-1]).any()):",
        "if False:",
        OF_MODEL + "test_a_field_that_makes_no_sense",
    ),
    Mutation(
        "block_sizes",
        "A size in a property block stays within what surrounds it.",
        "model.properties:_sized",
        "if size > end - at:",
        "if False:",
        OF_BLOCKS + "test_a_size_stays_within_what_surrounds_it",
    ),
    Mutation(
        "block_depth",
        "Tables and arrays are not read without end.",
        "model.properties:_value",
        """if depth == DEPTH_MAX:
        raise PropertyError("tables and arrays too deep inside each other")
    return""",
        "return",
        OF_BLOCKS + "test_depth_is_bounded",
    ),
    Mutation(
        "reserved_properties",
        "A publisher cannot forge what a queue's delivery says.",
        "from_items",
        "if reserved and (name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX)):",
        "if False:",
        OF_MQTT + "test_a_publisher_cannot_forge_what_a_delivery_says",
    ),
]
