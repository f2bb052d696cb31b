"""Mutations of what the logs of queues, their snapshots and their readers promise."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_LOG = "tests/unit/storage/test_queue_log.py::"
OF_RECOVERY = "tests/unit/storage/test_queue_log_recovery.py::"
OF_FAULTS = "tests/unit/storage/test_queue_log_faults.py::"
OF_SEGMENTS = "tests/unit/storage/test_segments.py::"
OF_FORMAT = "tests/unit/model/test_segments.py::"
OF_SNAPSHOTS = "tests/unit/storage/test_snapshots.py::"
OF_BOUNDS = "tests/unit/storage/test_queue_log_bounds.py::"
OF_CACHE = "tests/unit/storage/test_batch_cache.py::"

OF_OPEN_FILES = "tests/unit/storage/test_open_files.py::"

MUTATIONS = [
    Mutation(
        "descriptors_final",
        "Without a descriptor a file is waited for, as without space.",
        "fluxmq/storage/errors.py",
        "    if is_out_of_descriptors(operation, error):\n        return",
        "    if False:\n        return",
        OF_FAULTS + "test_a_log_waits_for_descriptors",
    ),
    Mutation(
        "unsynced_file_closed",
        "A file that is not synced stays open: an error of its writing out would be lost.",
        "fluxmq/storage/open_files.py",
        "        for file in self._synced:\n            if file.spared:\n",
        "        for file in [*self._unsynced, *self._synced]:\n            if True:\n",
        OF_OPEN_FILES + "test_what_is_not_synced_stays_open",
    ),
    Mutation(
        "synced_file_closed_in_use",
        "A file that a thread works with is not closed for another.",
        "fluxmq/storage/open_files.py",
        "        return self.synced == self.writes and not self._sharers\n",
        "        return self.synced == self.writes\n",
        OF_OPEN_FILES + "test_a_shared_file_stays_open",
    ),
    Mutation(
        "failure_of_relief_forgotten",
        "A sync between checkpoints that failed is not made good by the next one.",
        "fluxmq/storage/open_files.py",
        """            self.files.fdatasync(self.fd)
        except StorageError as error:
            self.failure = error
            raise
""",
        """            self.files.fdatasync(self.fd)
        except StorageError:
            raise
""",
        OF_OPEN_FILES + "test_a_sync_between_checkpoints_that_fails_fails_the_checkpoint",
    ),
    Mutation(
        "checkpoint_without_descriptors_final",
        "A checkpoint that could not open a directory has failed nothing.",
        "fluxmq/storage/unsynced.py",
        """        except OutOfDescriptors:
            raise
""",
        "",
        OF_FAULTS + "test_a_checkpoint_without_descriptors_is_only_repeated",
    ),
    Mutation(
        "segment_read_unchecked",
        "The contents of a batch are checked whenever it is read from disk.",
        "fluxmq/storage/log_reader.py",
        "            verify(batch)\n",
        "",
        OF_SEGMENTS + "test_every_flipped_bit_of_a_segment_is_noticed_or_does_not_matter",
    ),
    Mutation(
        "segment_header_unchecked",
        "The header of a batch is checked whenever it is read from disk.",
        "fluxmq/model/segments.py",
        "    if fields[1] != _check_of(header, _CHECK_AT):\n",
        "    if False:\n",
        OF_FORMAT + "test_every_flipped_bit_of_a_batchs_header_is_noticed",
    ),
    Mutation(
        "trim_before_head",
        "The head's start moves before files are removed.",
        "fluxmq/storage/queue_log.py",
        """        self._move_head()
        if self._settle is not None:
            self._settle()
        self._files.reach("segment.trim")
        self._unlink(self._gone)
""",
        """        self._unlink(self._gone)
        if self._settle is not None:
            self._settle()
        self._files.reach("segment.trim")
        self._move_head()
""",
        OF_LOG + "test_the_head_moves_before_files_go",
    ),
    Mutation(
        "index_trusted",
        "The index of a sealed segment is not believed without its check.",
        "fluxmq/model/segments.py",
        "    return entries if data[-INDEX_ENTRY_BYTES:] == trailer else None\n",
        "    return entries if data else None\n",
        OF_SEGMENTS + "test_an_index_that_is_wrong_is_made_again[0]",
    ),
    Mutation(
        "growing_index_trusted",
        "The index of a growing segment is not believed without its check.",
        "fluxmq/storage/segment_index.py",
        "    return known.check == extent.index_check\n",
        "    return True\n",
        OF_SEGMENTS + "test_an_index_that_is_wrong_is_made_again[-1]",
    ),
    Mutation(
        "roll_not_synced",
        "A rolled segment is synced at the next checkpoint.",
        "fluxmq/storage/queue_log.py",
        "        return [*self._rolled.values(), *growing]\n",
        "        return [*growing]\n",
        OF_RECOVERY + "test_a_rolled_segment_is_synced_with_its_directory",
    ),
    Mutation(
        "directory_not_synced",
        "The directory is synced when a checkpoint has new segments.",
        "fluxmq/storage/queue_log.py",
        "        names = self._names if self._names_synced < self._names else None\n",
        "        names = None\n",
        OF_RECOVERY + "test_a_rolled_segment_is_synced_with_its_directory",
    ),
    Mutation(
        "sync_failure_forgotten",
        "After a failed sync nothing is written to the log.",
        "fluxmq/storage/queue_log.py",
        "            self._failed = unsynced.failure\n",
        "            self._failed = None\n",
        OF_FAULTS + "test_a_failed_sync_ends_the_log",
    ),
    Mutation(
        "unsynced_forgotten",
        "What a checkpoint that was given up had to sync is synced by the next one.",
        "fluxmq/storage/unsynced.py",
        "            if self.done:\n",
        "            if True:\n",
        OF_RECOVERY + "test_a_checkpoint_that_is_given_up_is_only_repeated",
    ),
    Mutation(
        "head_goes_back",
        "The head does not go back while entries are replayed.",
        "fluxmq/storage/queue_log.py",
        "        if self._recovering or not self._head_moved:\n",
        "        if not self._head_moved:\n",
        OF_RECOVERY + "test_the_head_never_goes_back_in_a_recovery",
    ),
    Mutation(
        "stale_segments_kept",
        "Segments that are not the log's any more are removed after a recovery.",
        "fluxmq/storage/queue_log.py",
        "        for name in names - wanted:\n",
        "        for name in ():\n",
        OF_RECOVERY + "test_what_is_behind_the_end_is_cut",
    ),
    Mutation(
        "stale_bytes_kept",
        "Bytes behind the last batch are cut after a recovery.",
        "fluxmq/storage/shape.py",
        """    if size > length:
        files.truncate(fd, length)
""",
        "",
        OF_RECOVERY + "test_what_is_behind_the_end_is_cut",
    ),
    Mutation(
        "lost_segment_accepted",
        "A log that lost synced bytes is not opened.",
        "fluxmq/storage/shape.py",
        "    if size < length:\n",
        "    if False:\n",
        OF_SEGMENTS + "test_a_synced_segment_cut_anywhere_is_refused",
    ),
    Mutation(
        "segment_offset_reused",
        "A batch begins with the offset after the last message.",
        "fluxmq/storage/queue_log.py",
        '        assert batch.base_offset == self._next, "offsets have no gaps"\n',
        "",
        OF_LOG + "test_gaps_are_our_own_fault",
    ),
    Mutation(
        "written_offset_early",
        "What could not be written is not taken for written.",
        "fluxmq/storage/segments.py",
        """            self.file.write(self._pending, self.written)
            self._pending.clear()
""",
        """            pending, self._pending = self._pending, []
            self.file.write(pending, self.written)
""",
        OF_FAULTS + "test_a_full_disk_is_waited_for[pwritev]",
    ),
    Mutation(
        "segment_rolls_late",
        "Segments roll by the batches alone, so that replaying gives the same files.",
        "fluxmq/storage/queue_log.py",
        "        if segment is not None and self._is_full(segment, batch):\n",
        "        if segment is not None and not self._unwritten and self._is_full(segment, batch):\n",
        OF_LOG + "test_replicas_are_equal_byte_for_byte",
    ),
    Mutation(
        "snapshot_unchecked",
        "A snapshot is not believed without its check.",
        "fluxmq/storage/snapshots.py",
        "    if _CHECK.unpack_from(data, _HEADER.size) != (digest.intdigest(),):\n",
        "    if False:\n",
        OF_SNAPSHOTS + "test_every_cut_and_every_flipped_bit_is_noticed",
    ),
    Mutation(
        "snapshot_fallback_blind",
        "An older snapshot stands in only if the log reaches back to it.",
        "fluxmq/storage/snapshots.py",
        "        if snapshot.index > newest_damaged or reached:\n",
        "        if True:\n",
        OF_SNAPSHOTS + "test_the_older_one_stands_in_if_the_log_reaches_back_to_it[72]",
    ),
    Mutation(
        "batch_cache_unbounded",
        "Batches in memory are bounded.",
        "fluxmq/storage/batch_cache.py",
        "        while self.recent_bytes > self.recent_bytes_max:\n",
        "        while False:\n",
        OF_CACHE + "test_the_oldest_leave_whichever_log_they_are_of",
    ),
    Mutation(
        "segment_resized",
        "A segment keeps the size that it began with.",
        "fluxmq/storage/queue_log.py",
        "        full = segment.bytes_max or self.options.segment_bytes\n        if segment.length +",
        "        full = self._segment_bytes or self.options.segment_bytes\n        if segment.length +",
        OF_BOUNDS + "test_another_size_is_for_segments_that_begin_later",
    ),
    Mutation(
        "segment_size_forgotten",
        "A checkpoint has the size of the segment that grows.",
        "fluxmq/storage/log_state.py",
        "    return fields if segment.bytes_max else fields[:-1]\n",
        "    return fields[:-1]\n",
        OF_BOUNDS + "test_replicas_are_equal_though_one_was_restarted_after_a_change",
    ),
    Mutation(
        "batch_cache_of_one_log",
        "A log keeps no more in memory than its own limit allows.",
        "fluxmq/storage/batch_cache.py",
        "        if recent.is_over():\n",
        "        if False:\n",
        OF_BOUNDS + "test_a_queue_keeps_no_more_in_memory_than_it_may[5-0-5]",
    ),
]
