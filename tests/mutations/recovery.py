"""Mutations of what a start promises: what was acknowledged is there, or what is wrong is named."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_RECOVERY = "tests/damage/test_recovery.py::"
OF_POWER = "tests/damage/test_power.py::"
OF_MARK = "tests/unit/storage/test_wal_mark.py::"

MUTATIONS = [
    Mutation(
        "mark_ignored",
        "A log that ends before what is known to be synced has lost something.",
        "_check_mark",
        "if end < mark:",
        "if False:",
        OF_MARK + "test_a_log_that_ends_before_its_mark_has_lost_something",
    ),
    Mutation(
        "mark_unchecked",
        "A mark counts only if its check is right.",
        "read_mark",
        "if len(check) == _CHECK.size and check == _check(fields, key):",
        "if len(check) == _CHECK.size:",
        OF_MARK + "test_a_mark_that_is_not_valid_says_nothing",
    ),
    Mutation(
        "mark_before_sync",
        "The mark is never ahead of what is synced.",
        "LogWriter._make_durable",
        "mark = self._mark_file.after(file.sequence, file.end)",
        """last = self._mark_file.after(file.sequence, file.end)
                self._files.overwrite(last.fd, last.data, last.position)""",
        OF_POWER + "test_nothing_confirmed_is_lost",
    ),
    Mutation(
        "snapshot_missing",
        "Entries that a log has let go of are in the snapshot.",
        "_check_reaches",
        "if index < recovered.checkpoint_index:",
        "if False:",
        OF_RECOVERY + "test_an_older_snapshot_is_not_taken_for_the_newest",
    ),
    Mutation(
        "log_foreign",
        "A log that knows nothing of a group with files is not the group's.",
        "_check_new",
        "if files.exists(path) and files.listdir(path):",
        "if False:",
        OF_RECOVERY + "test_a_log_that_knows_nothing_of_a_group_is_not_its_log",
    ),
    Mutation(
        "write_out_forgotten",
        "What failed when it was written out is never counted as synced.",
        "OpenFile.write_out",
        """time.sleep(time.monotonic() - began)
        except StorageError as error:
            self.failure = error""",
        """time.sleep(time.monotonic() - began)
        except StorageError:""",
        "tests/unit/storage/test_write_out.py::test_what_failed_when_it_was_written_out_is_never_synced",
    ),
    Mutation(
        "head_ahead",
        "A queue's log goes at least as far as its head says.",
        "QueueLog.check_head",
        "if head is not None and head.committed > self._next:",
        "if False:",
        OF_RECOVERY + "test_a_log_that_ends_before_a_head_has_lost_something",
    ),
    Mutation(
        "deletion_not_synced",
        "A queue that a snapshot does not know any more is gone for good.",
        "checkpoints:write",
        "files.fsync_directory(paths.queues(name))",
        "files.exists(paths.queues(name))",
        OF_RECOVERY + "test_a_deleted_queue_is_gone_when_its_snapshot_is_durable",
    ),
    Mutation(
        "placement_unchecked",
        "A placement with a flipped bit is no placement.",
        "read_placement",
        'if not isinstance(content, dict) or content.get("check") != _placement_check(content):',
        "if not isinstance(content, dict):",
        OF_RECOVERY + "test_a_flipped_bit_in_the_placement_is_noticed",
    ),
    Mutation(
        "replay_refused",
        "What was acknowledged is stored whatever the size of segments is now.",
        "QueueLog.append",
        "if batch.length > self.options.batch_bytes_max and not self._recovering:",
        "if batch.length > self.options.batch_bytes_max:",
        OF_RECOVERY + "test_smaller_segments_take_what_was_acknowledged_in_larger_ones",
    ),
    Mutation(
        "confirmed_before_sync",
        "Nothing is confirmed before it is synced, whatever the power does.",
        "SharedLog.flush",
        "self._under_way, self._next = self._next, {}",
        """self._under_way, self._next = self._next, {}
                for group, at in self._under_way.items():
                    group.persisted(*at)""",
        OF_POWER + "test_after_a_failure_of_the_log_nothing_is_confirmed",
    ),
    Mutation(
        "buffered_gap",
        "A log that is answered before its sync may have gaps after a power cut.",
        "ShardLogs.open.wal",
        "synced=kind == WAL,",
        "",
        OF_POWER + "test_of_a_buffered_group_a_whole_beginning_is_left",
    ),
    Mutation(
        "buffered_removal",
        "Files go only when what asked for it is durable.",
        "QueueLog._clear_away",
        """if self._settle is not None:
            self._settle()""",
        "",
        OF_RECOVERY + "test_what_a_buffered_group_removes_is_asked_for_durably",
    ),
    Mutation(
        "placement_made_anew",
        "A placement that is missing is not made anew over logs.",
        "check_unplaced",
        """if files.exists(paths.groups) or files.exists(paths.shards):
        what""",
        """if False:
        what""",
        OF_RECOVERY + "test_a_placement_that_is_gone_is_missed",
    ),
    Mutation(
        "snapshot_before_segments",
        "Segments are synced before the snapshot that promises them.",
        "checkpoints:write",
        "part.sync()",
        "part.done = True",
        OF_POWER + "test_nothing_confirmed_is_lost",
    ),
    Mutation(
        "released_before_snapshot",
        "The log lets go of entries only when their snapshot is durable.",
        "Checkpoints._take",
        """hosted.stores.synced(parts, error)
            self._give_up(hosted, error)
            return""",
        """hosted.stores.synced(parts, error)
            self._give_up(hosted, error)""",
        OF_POWER + "test_nothing_confirmed_is_lost",
    ),
    Mutation(
        "left_behind_named",
        "A copy that led and is left behind is not named as the leader any more.",
        "ReplicatedGroups.closed",
        "replica.follows()",
        "pass",
        "tests/unit/replication/test_left_behind.py"
        "::test_a_leader_that_is_left_behind_is_named_no_longer",
    ),
    Mutation(
        "forced_term_near",
        "Those left behind do not pass the term of the copy that was declared the truth.",
        "Forcing.force",
        "+ TERMS_AHEAD",
        "+ 1",
        "tests/unit/replication/test_left_behind.py"
        "::test_those_left_behind_cannot_pass_the_term_of_the_forced_copy",
    ),
]
