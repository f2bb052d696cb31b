"""Mutations of what the write-ahead log and all access to files promise."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_LOG = "tests/unit/storage/test_wal.py::"
OF_GROUPS = "tests/unit/storage/test_wal_groups.py::"
OF_DAMAGE = "tests/unit/storage/test_wal_damage.py::"
OF_FAULTS = "tests/unit/storage/test_wal_faults.py::"
OF_FILES = "tests/unit/storage/test_files.py::"

MUTATIONS = [
    Mutation(
        "wal_checksum",
        "A record whose check does not fit is no record.",
        "fluxmq/storage/wal_records.py",
        "    if xxh3_64_intdigest(data[at + 8 : at + HEADER_BYTES], seed) != _CHECK.unpack_from(data, at)[0]:\n",
        "    if seed < 0:\n",
        OF_DAMAGE + "test_a_flipped_bit_in_every_byte",
    ),
    Mutation(
        "wal_before_sync",
        "A write counts as done when its sync is, not before.",
        "fluxmq/storage/wal_writer.py",
        "        self._syncing = True\n        self._syncer.submit(file.fd, self._number)\n",
        "        self._syncing = True\n        self._syncer.submit(file.fd, self._number)\n        self._durable = self._number\n",
        OF_LOG + "test_nothing_is_durable_before_it_is_synced",
    ),
    Mutation(
        "wal_half_a_write",
        "A write that goes on in the next file counts when all of it is synced.",
        "fluxmq/storage/wal_writer.py",
        "            if self._cursor < len(self._writing):\n                self._write()\n            else:\n                self._writing = []\n                self._durable = number\n",
        "            if self._cursor < len(self._writing):\n                self._write()\n            self._durable = number\n",
        OF_LOG + "test_a_write_goes_on_in_the_next_file_and_counts_when_all_is_synced",
    ),
    Mutation(
        "wal_failed_sync",
        "After a failed sync nothing is acknowledged any more.",
        "fluxmq/storage/wal_writer.py",
        "        self._failure = error\n        raise error\n",
        "        raise error\n",
        OF_FAULTS + "test_a_failed_sync_is_final",
    ),
    Mutation(
        "wal_sync_error",
        "The system's error of a sync is looked at.",
        "fluxmq/storage/wal_writer.py",
        "            if failure:\n",
        "            if failure < 0:\n",
        OF_FAULTS + "test_a_failed_sync_is_final",
    ),
    Mutation(
        "wal_cut",
        "What a torn write left is cut, so that it never becomes valid again.",
        "fluxmq/storage/wal.py",
        "            _clear(files, active, active.end, file_bytes)\n",
        "            pass\n",
        OF_DAMAGE + "test_what_a_torn_write_left_never_becomes_valid_again",
    ),
    Mutation(
        "wal_written_again",
        "After a failed sync the last write is written once more at the next start.",
        "fluxmq/storage/wal.py",
        "        files.pwritev(active.fd, [written], recovery.last_write)\n",
        "",
        OF_FAULTS + "test_after_a_failed_sync_a_new_start_writes_the_last_write_again",
    ),
    Mutation(
        "wal_hard_state_carried",
        "Each file repeats the hard states, so that those before it can go.",
        "fluxmq/storage/wal_groups.py",
        "            declared,\n            self.hard_record,\n",
        "            declared,\n",
        OF_LOG + "test_a_group_and_its_hard_state_are_in_every_file",
    ),
    Mutation(
        "wal_sequence",
        "Records of a file's former life are no records.",
        "fluxmq/storage/wal_records.py",
        '    seed = xxh3_64_intdigest(struct.pack("<QQ", key, sequence))\n',
        '    seed = xxh3_64_intdigest(struct.pack("<QQ", key, 0))\n',
        OF_DAMAGE + "test_another_files_contents_are_refused",
    ),
    Mutation(
        "wal_key",
        "Bytes that a client sent are not taken for records.",
        "fluxmq/storage/wal_records.py",
        '    seed = xxh3_64_intdigest(struct.pack("<QQ", key, sequence))\n',
        '    seed = xxh3_64_intdigest(struct.pack("<QQ", 0, sequence))\n',
        OF_DAMAGE + "test_records_of_another_log_are_no_records",
    ),
    Mutation(
        "wal_position",
        "A record counts at its own place only.",
        "fluxmq/storage/wal_records.py",
        "    seed = xxh3_64_intdigest(\n        data[at + HEADER_BYTES : at + HEADER_BYTES + length], (tie.seed + position) & _WORD\n    )\n",
        "    seed = xxh3_64_intdigest(\n        data[at + HEADER_BYTES : at + HEADER_BYTES + length], (tie.seed + start) & _WORD\n    )\n",
        OF_LOG + "test_everything_is_recovered",
    ),
    Mutation(
        "wal_damage_in_the_middle",
        "A bad record that had been synced is reported, not taken for the end.",
        "fluxmq/storage/wal_recovery.py",
        "        if found.start > file.end:\n",
        "        if found.start > file.size:\n",
        OF_DAMAGE + "test_a_flipped_bit_in_every_byte",
    ),
    Mutation(
        "wal_torn_is_no_damage",
        "Records of one write may come to the disk in any combination.",
        "fluxmq/storage/wal_recovery.py",
        "        if found.start > file.end:\n",
        "        if found.position > file.end:\n",
        OF_DAMAGE + "test_records_of_one_write_may_be_lost_in_any_combination",
    ),
    Mutation(
        "wal_end_of_file",
        "A file ends where the next one says.",
        "fluxmq/storage/wal_recovery.py",
        "        if file.end != end:\n",
        "        if file.end > end:\n",
        OF_DAMAGE + "test_an_earlier_file_torn_at_every_byte_is_refused",
    ),
    Mutation(
        "wal_missing_entries",
        "Entries that are missing between checkpoint and log are damage.",
        "fluxmq/storage/wal_recovery.py",
        "        if group.first > group.checkpoint + 1:\n",
        "        if group.first < 0:\n",
        OF_DAMAGE + "test_a_first_file_that_is_gone_is_noticed_by_what_the_next_one_says",
    ),
    Mutation(
        "wal_recycled_early",
        "A file is recycled only when the checkpoint's mark is durable.",
        "fluxmq/storage/wal_writer.py",
        "            if group is None or min(group.released, group.checkpoint_durable) < index:\n",
        "            if group is None or group.released < index:\n",
        OF_LOG + "test_a_file_is_recycled_when_the_mark_is_durable_and_no_group_needs_it",
    ),
    Mutation(
        "wal_full_disk",
        "On a full disk nothing is written unless all of it finds room.",
        "fluxmq/storage/wal_writer.py",
        "        if self.buffered_bytes > self._capacity(len(self._row.ready)):\n            if self._row.full is not None:\n",
        "        if self.buffered_bytes > self._capacity(1):\n            if self._row.full is not None:\n",
        OF_FAULTS + "test_a_full_disk_is_noticed_before_anything_is_written",
    ),
    Mutation(
        "wal_truncation",
        "A later entry makes those behind it void.",
        "fluxmq/storage/wal_groups.py",
        "            del self._places[max(0, index - self._first) :]\n            self.last = max(index, self._first) - 1\n",
        "            self.last = max(index, self._first) - 1\n",
        OF_GROUPS + "test_a_later_entry_overrides_what_stood_at_its_index_and_behind",
    ),
    Mutation(
        "files_short_write",
        "A short write is continued.",
        "fluxmq/storage/files.py",
        "                left -= done\n",
        "                left = 0\n",
        OF_FILES + "test_a_short_write_is_continued",
    ),
    Mutation(
        "files_rename_before_sync",
        "A file is synced before it takes the old one's place.",
        "fluxmq/storage/files.py",
        '                self.reach("file.write")\n                self.fdatasync(fd)\n',
        '                self.reach("file.write")\n',
        OF_FILES + "test_a_whole_file_is_synced_before_it_is_renamed",
    ),
]
