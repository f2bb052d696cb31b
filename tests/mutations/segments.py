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
        "storage_error",
        """if is_out_of_descriptors(operation, error):
        return""",
        """if False:
        return""",
        OF_FAULTS + "test_a_log_waits_for_descriptors",
    ),
    Mutation(
        "unsynced_file_closed",
        "A file that is not synced stays open: an error of its writing out would be lost.",
        "OpenFiles.give_up",
        """for file in self._synced:
            if file.spared:""",
        """for file in [*self._unsynced, *self._synced]:
            if True:""",
        OF_OPEN_FILES + "test_what_is_not_synced_stays_open",
    ),
    Mutation(
        "synced_file_closed_in_use",
        "A file that a thread works with is not closed for another.",
        "OpenFile.spared",
        "return self.synced == self.writes and not self._sharers",
        "return self.synced == self.writes",
        OF_OPEN_FILES + "test_a_shared_file_stays_open",
    ),
    Mutation(
        "failure_of_relief_forgotten",
        "A sync between checkpoints that failed is not made good by the next one.",
        "OpenFile.sync",
        """self.files.fdatasync(self.fd)
        except StorageError as error:
            self.failure = error
            raise""",
        """self.files.fdatasync(self.fd)
        except StorageError:
            raise""",
        OF_OPEN_FILES + "test_a_sync_between_checkpoints_that_fails_fails_the_checkpoint",
    ),
    Mutation(
        "checkpoint_without_descriptors_final",
        "A checkpoint that could not open a directory has failed nothing.",
        "Unsynced.sync",
        """except OutOfDescriptors:
            raise""",
        "",
        OF_FAULTS + "test_a_checkpoint_without_descriptors_is_only_repeated",
    ),
    Mutation(
        "segment_read_unchecked",
        "The contents of a batch are checked whenever it is read from disk.",
        "LogReader._checked",
        "verify(batch)",
        "",
        OF_SEGMENTS + "test_every_flipped_bit_of_a_segment_is_noticed_or_does_not_matter",
    ),
    Mutation(
        "segment_header_unchecked",
        "The header of a batch is checked whenever it is read from disk.",
        "batch_span",
        "if fields[1] != _check_of(header, _CHECK_AT):",
        "if False:",
        OF_FORMAT + "test_every_flipped_bit_of_a_batchs_header_is_noticed",
    ),
    Mutation(
        "trim_before_head",
        "The head's start moves before files are removed.",
        "QueueLog._clear_away",
        """self._move_head()
        if self._settle is not None:
            self._settle()
        self._files.reach("segment.trim")
        self._unlink(self._gone)""",
        """self._unlink(self._gone)
        if self._settle is not None:
            self._settle()
        self._files.reach("segment.trim")
        self._move_head()""",
        OF_LOG + "test_the_head_moves_before_files_go",
    ),
    Mutation(
        "index_trusted",
        "The index of a sealed segment is not believed without its check.",
        "sealed_index",
        "return entries if data[-INDEX_ENTRY_BYTES:] == trailer else None",
        "return entries if data else None",
        OF_SEGMENTS + "test_an_index_that_is_wrong_is_made_again[0]",
    ),
    Mutation(
        "growing_index_trusted",
        "The index of a growing segment is not believed without its check.",
        "load_growing",
        "return known.check == extent.index_check",
        "return True",
        OF_SEGMENTS + "test_an_index_that_is_wrong_is_made_again[-1]",
    ),
    Mutation(
        "roll_not_synced",
        "A rolled segment is synced at the next checkpoint.",
        "QueueLog.written_files",
        "return [*self._rolled.values(), *growing]",
        "return [*growing]",
        OF_RECOVERY + "test_a_rolled_segment_is_synced_with_its_directory",
    ),
    Mutation(
        "directory_not_synced",
        "The directory is synced when a checkpoint has new segments.",
        "QueueLog.unsynced.names",
        "names = self._names if self._names_synced < self._names else None",
        "names = None",
        OF_RECOVERY + "test_a_rolled_segment_is_synced_with_its_directory",
    ),
    Mutation(
        "sync_failure_forgotten",
        "After a failed sync nothing is written to the log.",
        "QueueLog.synced",
        "self._failed = unsynced.failure",
        "self._failed = None",
        OF_FAULTS + "test_a_failed_sync_ends_the_log",
    ),
    Mutation(
        "unsynced_forgotten",
        "What a checkpoint that was given up had to sync is synced by the next one.",
        "Unsynced.end",
        "if self.done:",
        "if True:",
        OF_RECOVERY + "test_a_checkpoint_that_is_given_up_is_only_repeated",
    ),
    Mutation(
        "head_goes_back",
        "The head does not go back while entries are replayed.",
        "QueueLog._move_head",
        "if self._recovering or self.ahead or not self._head_moved:",
        "if self.ahead or not self._head_moved:",
        OF_RECOVERY + "test_the_head_never_goes_back_in_a_recovery",
    ),
    Mutation(
        "stale_segments_kept",
        "Segments that are not the log's any more are removed after a recovery.",
        "QueueLog.cut",
        "for name in names - wanted:",
        "for name in ():",
        OF_RECOVERY + "test_what_is_behind_the_end_is_cut",
    ),
    Mutation(
        "stale_bytes_kept",
        "Bytes behind the last batch are cut after a recovery.",
        "shape:_cut",
        """if size > length:
        files.truncate(fd, length)""",
        "",
        OF_RECOVERY + "test_what_is_behind_the_end_is_cut",
    ),
    Mutation(
        "lost_segment_accepted",
        "A log that lost synced bytes is not opened.",
        "shape:_cut",
        "if size < length:",
        "if False:",
        OF_SEGMENTS + "test_a_synced_segment_cut_anywhere_is_refused",
    ),
    Mutation(
        "segment_offset_reused",
        "A batch begins with the offset after the last message.",
        "QueueLog.append",
        'assert batch.base_offset == self._next, "offsets have no gaps"',
        "",
        OF_LOG + "test_gaps_are_our_own_fault",
    ),
    Mutation(
        "written_offset_early",
        "What could not be written is not taken for written.",
        "SegmentWriter.flush",
        """self.file.write(self._pending, self.written, passing=passing)
            self._pending.clear()""",
        """pending, self._pending = self._pending, []
            self.file.write(pending, self.written, passing=passing)""",
        OF_FAULTS + "test_a_full_disk_is_waited_for[pwritev]",
    ),
    Mutation(
        "segment_rolls_late",
        "Segments roll by the batches alone, so that replaying gives the same files.",
        "QueueLog.append",
        "if segment is not None and self._is_full(segment, batch):",
        "if segment is not None and not self._unwritten and self._is_full(segment, batch):",
        OF_LOG + "test_replicas_are_equal_byte_for_byte",
    ),
    Mutation(
        "snapshot_unchecked",
        "A snapshot is not believed without its check.",
        "read_snapshot",
        "if _CHECK.unpack_from(data, _HEADER.size) != (digest.intdigest(),):",
        "if False:",
        OF_SNAPSHOTS + "test_every_cut_and_every_flipped_bit_is_noticed",
    ),
    Mutation(
        "snapshot_fallback_blind",
        "An older snapshot stands in only if the log reaches back to it.",
        "latest_snapshot",
        "if snapshot.index > newest_damaged or reached:",
        "if True:",
        OF_SNAPSHOTS + "test_the_older_one_stands_in_if_the_log_reaches_back_to_it[72]",
    ),
    Mutation(
        "batch_cache_unbounded",
        "Batches in memory are bounded.",
        "BatchCache.add",
        "while self.recent_bytes > self.recent_bytes_max:",
        "while False:",
        OF_CACHE + "test_the_oldest_leave_whichever_log_they_are_of",
    ),
    Mutation(
        "segment_resized",
        "A segment keeps the size that it began with.",
        "QueueLog._is_full",
        """full = segment.bytes_max or self.options.segment_bytes
        if segment.length +""",
        """full = self._segment_bytes or self.options.segment_bytes
        if segment.length +""",
        OF_BOUNDS + "test_another_size_is_for_segments_that_begin_later",
    ),
    Mutation(
        "segment_size_forgotten",
        "A checkpoint has the size of the segment that grows.",
        "log_state:_packed",
        "return fields if segment.bytes_max else fields[:-1]",
        "return fields[:-1]",
        OF_BOUNDS + "test_replicas_are_equal_though_one_was_restarted_after_a_change",
    ),
    Mutation(
        "batch_cache_of_one_log",
        "A log keeps no more in memory than its own limit allows.",
        "BatchCache.add",
        "if recent.is_over():",
        "if False:",
        OF_BOUNDS + "test_a_queue_keeps_no_more_in_memory_than_it_may[5-0-5]",
    ),
]
