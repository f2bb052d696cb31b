"""Mutations of what the Spark package promises: never a row that was not committed or is not right, none twice."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_SCAN = "tests/unit/spark/test_scan.py::"
OF_DAMAGE = "tests/unit/spark/test_damage.py::"
OF_CATALOG = "tests/unit/spark/test_catalog.py::"
OF_PLANNING = "tests/unit/spark/test_planning.py::"
OF_STREAMING = "tests/unit/spark/test_streaming.py::"
OF_STATES = "tests/unit/spark/test_states.py::"
OF_LEDGER = "tests/unit/spark/test_writer_ledger.py::"
OF_PUBLISHING = "tests/unit/spark/test_publishing.py::"
OF_GROUP_FILES = "tests/unit/shards/queues/test_group_files.py::"
OF_COPIES = "tests/unit/storage/test_queue_copy.py::"
OF_AMQP = "tests/unit/sessions/amqp091/test_deduplication.py::"

MUTATIONS = [
    Mutation(
        "spark_beyond_the_stop",
        "No message behind the last one wanted is read, though it is in the same batch.",
        "spark/fluxmq_spark/scan.py",
        "columns.build(group, self._portion.first, self._portion.stop)",
        "columns.build(group, self._portion.first, 1 << 62)",
        OF_SCAN + "test_rows_are_what_the_model_reads",
    ),
    Mutation(
        "spark_contents_unchecked",
        "Contents are held against their check before they are used.",
        "spark/fluxmq_spark/scan.py",
        "            kinds[checked[~batches.bodies_right(checked)]] = WRONG\n",
        "            batches.bodies_right(checked)\n",
        OF_DAMAGE + "test_a_flip_in_contents_loses_that_batch_only_and_only_if_it_is_used",
    ),
    Mutation(
        "spark_headers_unchecked",
        "Headers are held against their check.",
        "spark/fluxmq_spark/decode.py",
        'right = (headers["magic"] == MAGIC) & (checks == headers["check"])\n',
        'right = (headers["magic"] == MAGIC) & (checks == checks)\n',
        OF_DAMAGE + "test_a_flip_in_a_header_loses_that_batch_only",
    ),
    Mutation(
        "spark_foreign_segment",
        "A segment of another queue gives no rows.",
        "spark/fluxmq_spark/scan.py",
        "        if page.queue != portion.queue or page.base_offset != portion.base_offset:\n",
        "        if page.base_offset != portion.base_offset:\n",
        OF_DAMAGE + "test_a_file_that_is_no_segment_of_that_queue_gives_no_rows",
    ),
    Mutation(
        "spark_offsets_unchained",
        "Each batch begins with the offset after the last one's.",
        "spark/fluxmq_spark/decode.py",
        "        if (base_offsets != due).any():\n",
        "        if (base_offsets < 0).any():\n",
        OF_DAMAGE + "test_batches_of_another_segment_are_not_taken_for_its_own",
    ),
    Mutation(
        "spark_index_believed",
        "An index entry is used only where a batch of its offset begins.",
        "spark/fluxmq_spark/scan.py",
        '        return int(window.rows(found)["base_offset"][0]) == place.offset\n',
        "        return True\n",
        OF_SCAN + "test_an_index_that_is_wrong_costs_time_and_nothing_else",
    ),
    Mutation(
        "spark_guess_behind_damage",
        "Behind damage only what leads to a batch known otherwise is believed.",
        "spark/fluxmq_spark/scan.py",
        "            if reached:\n",
        "            if found:\n",
        OF_DAMAGE + "test_without_an_index_what_leads_nowhere_is_lost_and_not_guessed",
    ),
    Mutation(
        "spark_loss_unnoticed",
        "A file that is gone is an error unless loss may be skipped.",
        "spark/fluxmq_spark/scan.py",
        '            raise DataLoss(f"{what}; set failOnDataLoss=false to skip") from None\n',
        "            return\n",
        OF_SCAN + "test_a_file_that_is_gone_is_loss_of_data",
    ),
    Mutation(
        "spark_start_clipped",
        "Offsets that retention removed are an error unless loss may be skipped.",
        "spark/fluxmq_spark/planning.py",
        "    if offset >= log.head.start:\n        return offset\n",
        "    if offset >= 0:\n        return max(offset, log.head.start)\n",
        OF_PLANNING + "test_offsets_that_retention_removed",
    ),
    Mutation(
        "spark_head_ignored",
        "Segments beyond what is committed are left out.",
        "spark/fluxmq_spark/catalog.py",
        "    last = head.committed if head.segment in bases else min(head.segment, head.committed)\n",
        "    last = head.committed + 1\n",
        OF_CATALOG + "test_a_log_is_what_the_head_says",
    ),
    Mutation(
        "spark_stream_of_another_queue",
        "A queue shorter than what was read is not read on as if it were the same.",
        "spark/fluxmq_spark/streaming.py",
        "        if start > head.committed:\n",
        "        if start < 0:\n",
        OF_STREAMING + "test_a_queue_that_was_made_anew",
    ),
    Mutation(
        "spark_cursor_off_by_one",
        "What a group was never given is not settled.",
        "spark/fluxmq_spark/states.py",
        "(found.cursor, BEHIND_ALL)",
        "(found.cursor + 1, BEHIND_ALL)",
        OF_STATES + "test_unacknowledged_is_everything_but_the_settled",
    ),
    Mutation(
        "spark_batch_published_again",
        "A micro-batch noted as done is not published again.",
        "spark/fluxmq_spark/staging.py",
        "        if batch_id in done:\n",
        "        if False:\n",
        OF_LEDGER + "test_a_batch_that_is_done_is_not_published_again",
    ),
    Mutation(
        "spark_batch_begun_anew",
        "A micro-batch that was begun is finished with the rows and the name it was begun with.",
        "spark/fluxmq_spark/staging.py",
        "        if manifest is None:\n",
        "        if True:\n",
        OF_LEDGER + "test_a_crash_between_the_last_confirm_and_its_mark",
    ),
    Mutation(
        "spark_order_not_in_the_name",
        "Rows in another order have another name: none is taken for another.",
        "spark/fluxmq_spark/outgoing.py",
        "    for key, body, headers, properties in chunk:\n",
        "    for key, body, headers, properties in sorted(chunk, key=repr):\n",
        OF_PUBLISHING + "test_a_digest_is_of_everything_and_of_the_order",
    ),
    Mutation(
        "group_file_not_written_at_the_end",
        "After an end in order the file of consumer groups says what was so then.",
        "fluxmq/shards/queues/group_files.py",
        "            if changed:\n                self._write(hosted, key)\n",
        "            if changed:\n                pass\n",
        OF_GROUP_FILES + "test_an_end_in_order_writes_the_last_state",
    ),
    Mutation(
        "head_beyond_what_is_written",
        "The head ends in what is written, also when retention moves it.",
        "fluxmq/storage/queue_log.py",
        "        committed = self._written_offset\n",
        "        committed = self._next\n",
        OF_COPIES + "test_retention_before_the_next_write_leaves_a_head_that_is_right",
    ),
    Mutation(
        "amqp_name_forgotten",
        "A message published again under its name is recognised.",
        "fluxmq/sessions/amqp091/publishing.py",
        "        identity = identity_in(headers)\n",
        "        identity_in(headers)\n",
        OF_AMQP + "test_a_name_by_which_queues_recognise_a_message_is_kept_as_a_number",
    ),
]
