"""Mutations of what the write-ahead log and all access to files promise."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_LOG = "tests/unit/storage/test_wal.py::"
OF_GROUPS = "tests/unit/storage/test_wal_groups.py::"
OF_DAMAGE = "tests/unit/storage/test_wal_damage.py::"
OF_FAULTS = "tests/unit/storage/test_wal_faults.py::"
OF_DISKS = "tests/unit/engine/test_disks.py::"
OF_FILES = "tests/unit/storage/test_files.py::"

MUTATIONS = [
    Mutation(
        "trim_failure_raised",
        "A log that fails while it is trimmed fails for its groups, and not for its caller.",
        "checkpoints:trim",
        "with contextlib.suppress(StorageError):",
        "if True:",
        OF_DISKS + "test_a_log_that_fails_while_it_is_trimmed_fails_for_its_groups_only",
    ),
    Mutation(
        "wal_recycled_file_opened_anew",
        "A file that has got its new name needs no descriptor any more.",
        "FileSupply.recycle",
        """self._sync_names()
        return same_file(self.files, self._directory, self._key, sequence, file.fd)""",
        """self._sync_names()
        self.files.close(file.fd)
        return self.open_(sequence)""",
        OF_FAULTS + "test_a_file_is_used_again_without_a_descriptor",
    ),
    Mutation(
        "wal_checksum",
        "A record whose check does not fit is no record.",
        "wal_records:decode",
        "if xxh3_64_intdigest(data[at + 8 : at + HEADER_BYTES], seed) != _CHECK.unpack_from(data, at)[0]:",
        "if seed < 0:",
        OF_DAMAGE + "test_a_flipped_bit_in_every_byte",
    ),
    Mutation(
        "wal_before_sync",
        "A write counts as done when its sync is, not before.",
        "LogWriter._make_durable",
        """self._syncing = True
        if not self._direct:""",
        """self._syncing = True
        self._durable = self._number
        if not self._direct:""",
        OF_LOG + "test_nothing_is_durable_before_it_is_synced",
    ),
    Mutation(
        "wal_direct_twice",
        "What the syncer writes is not written by the log as well, and is durable only when the syncer says so.",
        "LogWriter._make_durable",
        """if not self._direct:
                self._files.pwritev(file.fd, parts, start)""",
        "self._files.pwritev(file.fd, parts, start)",
        OF_LOG + "test_one_write_and_one_sync_serve_64_groups",
    ),
    Mutation(
        "wal_direct_elsewhere",
        "A write goes to the file in use, also when the syncer writes.",
        "LogWriter._make_durable",
        "if file is not self._begun:",
        "if self._begun is None:",
        OF_LOG + "test_a_write_goes_on_in_the_next_file_and_counts_when_all_is_synced",
    ),
    Mutation(
        "wal_direct_evicted",
        "An entry that is still being written is not read from the file.",
        "LogWriter._shrink",
        "size += OVERHEAD_BYTES * records",
        "size = 0",
        OF_LOG + "test_entries_not_written_yet_stay_in_memory",
    ),
    Mutation(
        "wal_half_a_write",
        "A write that goes on in the next file counts when all of it is synced.",
        "LogWriter.collect",
        """if self._cursor < len(self._writing):
                self._write()
            else:
                self._writing = []
                self._cursor = 0
                if self._direct:
                    self._shrink(0, 0)
                self._durable = number""",
        """if self._cursor < len(self._writing):
                self._write()
            self._durable = number""",
        OF_LOG + "test_a_write_goes_on_in_the_next_file_and_counts_when_all_is_synced",
    ),
    Mutation(
        "wal_failed_sync",
        "After a failed sync nothing is acknowledged any more.",
        "LogWriter._fail",
        """self._failure = error
        raise error""",
        "raise error",
        OF_FAULTS + "test_a_failed_sync_is_final",
    ),
    Mutation(
        "wal_sync_error",
        "The system's error of a sync is looked at.",
        "LogWriter._numbers",
        "if failure:",
        "if failure < 0:",
        OF_FAULTS + "test_a_failed_sync_is_final",
    ),
    Mutation(
        "wal_cut",
        "What a torn write left is cut, so that it never becomes valid again.",
        "_make_good",
        "_clear(files, active, active.end, file_bytes)",
        "pass",
        OF_DAMAGE + "test_what_a_torn_write_left_never_becomes_valid_again",
    ),
    Mutation(
        "wal_written_again",
        "After a failed sync the last write is written once more at the next start.",
        "_make_good",
        "files.pwritev(active.fd, [written], recovery.last_write)",
        "",
        OF_FAULTS + "test_after_a_failed_sync_a_new_start_writes_the_last_write_again",
    ),
    Mutation(
        "wal_hard_state_carried",
        "Each file repeats the hard states, so that those before it can go.",
        "WalGroup.carried",
        """declared,
            self.hard_record,""",
        "declared,",
        OF_LOG + "test_a_group_and_its_hard_state_are_in_every_file",
    ),
    Mutation(
        "wal_sequence",
        "Records of a file's former life are no records.",
        "file_seed.seed",
        'seed = xxh3_64_intdigest(struct.pack("<QQ", key, sequence))',
        'seed = xxh3_64_intdigest(struct.pack("<QQ", key, 0))',
        OF_DAMAGE + "test_another_files_contents_are_refused",
    ),
    Mutation(
        "wal_key",
        "Bytes that a client sent are not taken for records.",
        "file_seed.seed",
        'seed = xxh3_64_intdigest(struct.pack("<QQ", key, sequence))',
        'seed = xxh3_64_intdigest(struct.pack("<QQ", 0, sequence))',
        OF_DAMAGE + "test_records_of_another_log_are_no_records",
    ),
    Mutation(
        "wal_position",
        "A record counts at its own place only.",
        "decode.seed",
        """seed = xxh3_64_intdigest(
        data[at + HEADER_BYTES : at + HEADER_BYTES + length], (tie.seed + position) & _WORD
    )""",
        """seed = xxh3_64_intdigest(
        data[at + HEADER_BYTES : at + HEADER_BYTES + length], (tie.seed + start) & _WORD
    )""",
        OF_LOG + "test_everything_is_recovered",
    ),
    Mutation(
        "wal_damage_in_the_middle",
        "A bad record that had been synced is reported, not taken for the end.",
        "_read_file",
        "if found.start > file.end:",
        "if found.start > file.size:",
        OF_DAMAGE + "test_a_flipped_bit_in_every_byte",
    ),
    Mutation(
        "wal_torn_is_no_damage",
        "Records of one write may come to the disk in any combination.",
        "_read_file",
        "if found.start > file.end:",
        "if found.position > file.end:",
        OF_DAMAGE + "test_records_of_one_write_may_be_lost_in_any_combination",
    ),
    Mutation(
        "wal_end_of_file",
        "A file ends where the next one says.",
        "_read_file",
        "if file.end != end:",
        "if file.end > end:",
        OF_DAMAGE + "test_an_earlier_file_torn_at_every_byte_is_refused",
    ),
    Mutation(
        "wal_missing_entries",
        "Entries that are missing between checkpoint and log are damage.",
        "recover",
        "if group.first > group.checkpoint + 1:",
        "if group.first < 0:",
        OF_DAMAGE + "test_a_first_file_that_is_gone_is_noticed_by_what_the_next_one_says",
    ),
    Mutation(
        "wal_recycled_early",
        "A file is recycled only when the checkpoint's mark is durable.",
        "LogWriter.pinning",
        "if group is None or min(group.released, group.checkpoint_durable) < index:",
        "if group is None or group.released < index:",
        OF_LOG + "test_a_file_is_recycled_when_the_mark_is_durable_and_no_group_needs_it",
    ),
    Mutation(
        "wal_recycled_before_carried",
        "A file is recycled only when what the next one repeats of it is durable.",
        "FileRow.tend",
        "if len(self.used) > 1 and self.used[1].begun and not is_needed(self.used[0]):",
        "if len(self.used) > 1 and not is_needed(self.used[0]):",
        OF_GROUPS + "test_a_file_stays_until_what_the_next_one_repeats_is_durable",
    ),
    Mutation(
        "wal_void_before_durable",
        "Truncated entries hold their file until the truncation is durable.",
        "LogWriter._void",
        "unpin(self._row.used[-1:], group, index)",
        "unpin(self._row.used, group, index)",
        OF_GROUPS + "test_truncated_entries_hold_their_file_until_that_is_durable",
    ),
    Mutation(
        "wal_declared_before_written",
        "A new file repeats groups that were declared, not those that are about to be.",
        "LogWriter._begin_file",
        "if group.declared:",
        "if group.number:",
        OF_GROUPS + "test_a_new_file_repeats_what_was_written_not_what_waits",
    ),
    Mutation(
        "wal_full_disk",
        "On a full disk nothing is written unless all of it finds room.",
        "LogWriter.flush",
        """if self.buffered_bytes > self._capacity(len(self._row.ready)):
                full = self._row.full""",
        """if self.buffered_bytes > self._capacity(1):
                full = self._row.full""",
        OF_FAULTS + "test_a_full_disk_is_noticed_before_anything_is_written",
    ),
    Mutation(
        "wal_truncation",
        "A later entry makes those behind it void.",
        "WalGroup.truncate",
        """del self._places[index - self._first :]
            self.last = index - 1""",
        "self.last = index - 1",
        OF_GROUPS + "test_a_later_entry_overrides_what_stood_at_its_index_and_behind",
    ),
    Mutation(
        "files_short_write",
        "A short write is continued.",
        "Files.pwritev",
        "left -= done",
        "left = 0",
        OF_FILES + "test_a_short_write_is_continued",
    ),
    Mutation(
        "files_rename_before_sync",
        "A file is synced before it takes the old one's place.",
        "Files.write_whole",
        """self.reach("file.write")
                self.fdatasync(fd)""",
        'self.reach("file.write")',
        OF_FILES + "test_a_whole_file_is_synced_before_it_is_renamed",
    ),
]
