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
OF_GROUP_FILES = "tests/unit/engine/test_group_files.py::"
OF_COPIES = "tests/unit/storage/test_queue_copy.py::"
OF_AMQP = "tests/unit/sessions/amqp091/test_deduplication.py::"

MUTATIONS = [
    Mutation(
        "spark_beyond_the_stop",
        "No message behind the last one wanted is read, though it is in the same batch.",
        "_Reader._built",
        "columns.build(group, self._segment_range.first, self._segment_range.stop)",
        "columns.build(group, self._segment_range.first, 1 << 62)",
        OF_SCAN + "test_rows_are_what_the_model_reads",
    ),
    Mutation(
        "spark_contents_unchecked",
        "Contents are held against their check before they are used.",
        "_Reader._groups",
        "kinds[checked[~batches.bodies_right(checked)]] = WRONG",
        "batches.bodies_right(checked)",
        OF_DAMAGE + "test_a_flip_in_contents_loses_that_batch_only_and_only_if_it_is_used",
    ),
    Mutation(
        "spark_headers_unchecked",
        "Headers are held against their check.",
        "_headers_right.right",
        'right = (headers["magic"] == MAGIC) & (checks == headers["check"])',
        'right = (headers["magic"] == MAGIC) & (checks == checks)',
        OF_DAMAGE + "test_a_flip_in_a_header_loses_that_batch_only",
    ),
    Mutation(
        "spark_foreign_segment",
        "A segment of another queue gives no rows.",
        "_Reader._page_is_right",
        "if page.queue != segment_range.queue or page.base_offset != segment_range.base_offset:",
        "if page.base_offset != segment_range.base_offset:",
        OF_DAMAGE + "test_a_file_that_is_no_segment_of_that_queue_gives_no_rows",
    ),
    Mutation(
        "spark_offsets_unchained",
        "Each batch begins with the offset after the last one's.",
        "Batches.__init__",
        "if (base_offsets != due).any():",
        "if (base_offsets < 0).any():",
        OF_DAMAGE + "test_batches_of_another_segment_are_not_taken_for_its_own",
    ),
    Mutation(
        "spark_index_believed",
        "An index entry is used only where a batch of its offset begins.",
        "_Reader._is_batch",
        'return int(window.rows(found)["base_offset"][0]) == place.offset',
        "return True",
        OF_SCAN + "test_an_index_that_is_wrong_costs_time_and_nothing_else",
    ),
    Mutation(
        "spark_guess_behind_damage",
        "Behind damage only what leads to a batch known otherwise is believed.",
        "_Reader._resume",
        "if reached:",
        "if found:",
        OF_DAMAGE + "test_without_an_index_what_leads_nowhere_is_lost_and_not_guessed",
    ),
    Mutation(
        "spark_loss_unnoticed",
        "A file that is gone is an error unless loss may be skipped.",
        "fluxmq_spark.scan:scan",
        'raise DataLoss(f"{what}; set failOnDataLoss=false to skip") from None',
        "return",
        OF_SCAN + "test_a_file_that_is_gone_is_loss_of_data",
    ),
    Mutation(
        "spark_start_clipped",
        "Offsets that retention removed are an error unless loss may be skipped.",
        "kept",
        """if offset >= log.head.start:
        return offset""",
        """if offset >= 0:
        return max(offset, log.head.start)""",
        OF_PLANNING + "test_offsets_that_retention_removed",
    ),
    Mutation(
        "spark_head_ignored",
        "Segments beyond what is committed are left out.",
        "_segments.last",
        "last = head.committed if head.segment in bases else min(head.segment, head.committed)",
        "last = head.committed + 1",
        OF_CATALOG + "test_a_log_is_what_the_head_says",
    ),
    Mutation(
        "spark_stream_of_another_queue",
        "A queue shorter than what was read is not read on as if it were the same.",
        "StreamReader._begin",
        "if start > head.committed:",
        "if start < 0:",
        OF_STREAMING + "test_a_queue_that_was_made_anew",
    ),
    Mutation(
        "spark_cursor_off_by_one",
        "What a group was never given is not settled.",
        "states:selection_of",
        "(found.cursor, BEHIND_ALL)",
        "(found.cursor + 1, BEHIND_ALL)",
        OF_STATES + "test_unacknowledged_is_everything_but_the_settled",
    ),
    Mutation(
        "spark_batch_published_again",
        "A micro-batch noted as done is not published again.",
        "Ledger.commit",
        "if batch_id in done:",
        "if False:",
        OF_LEDGER + "test_a_batch_that_is_done_is_not_published_again",
    ),
    Mutation(
        "spark_batch_begun_anew",
        "A micro-batch that was begun is finished with the rows and the name it was begun with.",
        "Ledger._publish",
        "if manifest is None:",
        "if True:",
        OF_LEDGER + "test_a_crash_between_the_last_confirm_and_its_mark",
    ),
    Mutation(
        "spark_order_not_in_the_name",
        "Rows in another order have another name: none is taken for another.",
        "outgoing:digest",
        "for key, body, headers, properties in chunk:",
        "for key, body, headers, properties in sorted(chunk, key=repr):",
        OF_PUBLISHING + "test_a_digest_is_of_everything_and_of_the_order",
    ),
    Mutation(
        "group_file_not_written_at_the_end",
        "After an end in order the file of consumer groups says what was so then.",
        "GroupFiles.write_all",
        """if changed:
                self._write(hosted, key)""",
        """if changed:
                pass""",
        OF_GROUP_FILES + "test_an_end_in_order_writes_the_last_state",
    ),
    Mutation(
        "head_beyond_what_is_written",
        "The head ends in what is written, also when retention moves it.",
        "QueueLog._move_head.committed",
        "committed = self._written_offset",
        "committed = self._next",
        OF_COPIES + "test_retention_before_the_next_write_leaves_a_head_that_is_right",
    ),
    Mutation(
        "amqp_name_forgotten",
        "A message published again under its name is recognised.",
        "check_publish",
        "identity = identity_in(headers)",
        "identity_in(headers)",
        OF_AMQP + "test_a_name_by_which_queues_recognise_a_message_is_kept_as_a_number",
    ),
]
