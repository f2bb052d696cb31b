"""Mutations of what a shard promises to those who use its queues."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

FOLDER = "tests/unit/shards/queues/"
OF_ASKED = FOLDER + "test_asked.py::"
OF_BOUNDS = FOLDER + "test_bounds.py::"
OF_CLIENTS = FOLDER + "test_clients.py::"
OF_CONSUMERS = FOLDER + "test_consumers.py::"
OF_EXCHANGES = FOLDER + "test_dead_letter_exchange.py::"
OF_DISKS = FOLDER + "test_disks.py::"
OF_GARBAGE = "tests/unit/shards/amqp/test_garbage.py::"
OF_LOG = FOLDER + "test_shared_log.py::"
OF_MESSAGES = FOLDER + "test_messages.py::"
OF_REMOTE = FOLDER + "test_remote.py::"
OF_SETTINGS = FOLDER + "test_settings.py::"
OF_WRITING = FOLDER + "test_writing.py::"
QUEUES = "fluxmq/shards/queues/"

MUTATIONS = [
    Mutation(
        "queue_before_sync",
        "Nothing is acknowledged before the log's sync is done.",
        QUEUES + "shared_log.py",
        "                self._under_way, self._next = self._next, {}\n",
        "                self._under_way, self._next = self._next, {}\n"
        "                for group, at in self._under_way.items():\n"
        "                    group.persisted(*at)\n",
        OF_DISKS + "test_nothing_is_acknowledged_before_it_is_durable",
    ),
    Mutation(
        "queue_failed_log",
        "A log whose sync failed ends its groups, and everybody is answered.",
        QUEUES + "shared_log.py",
        "        for group in list(self._members):\n            group.log_failed(why)\n",
        "",
        OF_DISKS + "test_a_failed_sync_ends_all_acknowledgements",
    ),
    Mutation(
        "queue_failed_apply",
        "Who asked for an entry that could not be applied is answered.",
        QUEUES + "group.py",
        "            self._proposed.appendleft((index, term, answers))\n",
        "",
        OF_DISKS + "test_a_failing_segment_ends_its_group_and_answers_everybody",
    ),
    Mutation(
        "queue_full_refuses",
        "A full disk refuses publishers and ends no group.",
        QUEUES + "writing.py",
        "        except DiskFull:\n            self.refused[queue_id] = None\n",
        "        except DiskFull:\n            raise\n",
        OF_DISKS + "test_a_full_disk_refuses_publishers_and_consumers_go_on",
    ),
    Mutation(
        "queue_written_late",
        "What was confirmed is in the files soon.",
        QUEUES + "service.py",
        "            if hosted.group.writes.waiting:\n",
        "            if False:\n",
        OF_WRITING + "test_a_confirmed_message_is_in_the_files_with_the_next_housekeeping",
    ),
    Mutation(
        "queue_settled_first",
        "A settlement stands behind the claims asked for before it.",
        QUEUES + "asked.py",
        "            self._add_settlement(command)\n",
        "            self._quiet.insert(0, command)\n",
        OF_ASKED + "test_a_settlement_never_precedes_its_claim",
    ),
    Mutation(
        "queue_asked_out_of_order",
        "A command with an answer stands behind everything asked before it.",
        QUEUES + "asked.py",
        "        if not weight:\n            self.close()\n",
        "",
        OF_ASKED + "test_a_command_with_an_answer_stands_behind_everything_asked_before",
    ),
    Mutation(
        "queue_joined_unnoticed",
        "A claim that became one with the last is applied once.",
        QUEUES + "asked.py",
        "                self._joined(*joining.target_of(command))\n",
        "",
        OF_CONSUMERS + "test_deliveries_of_many_ticks_are_claimed_together",
    ),
    Mutation(
        "queue_limit_stale",
        "What was settled makes room before the next publish is judged.",
        QUEUES + "group.py",
        "            self.asked.close()  # what has been settled makes room\n",
        "            pass\n",
        OF_CONSUMERS + "test_what_is_settled_makes_room_at_once",
    ),
    Mutation(
        "queue_deleted_directory",
        "A queue that was deleted just before a crash does not come back.",
        QUEUES + "stores.py",
        "        remove_unknown(self._files, self._paths.queues(self._group), known)\n",
        "        assert known is not None\n",
        OF_DISKS + "test_a_queue_deleted_before_a_crash_is_gone",
    ),
    Mutation(
        "queue_dead_letter_early",
        "A dead message stays in its queue until its dead-letter append is durable.",
        QUEUES + "dead_letters.py",
        "        self._host(target.group).append(dead.target, data, answered)\n",
        "        answered(0)\n        self._host(target.group).append(dead.target, data, None)\n",
        OF_DISKS + "test_a_dead_letter_waits_for_space",
    ),
    Mutation(
        "queue_dead_letter_in_memory",
        "A dead letter whose queue is not known goes to no queue in memory.",
        QUEUES + "dead_letters.py",
        "        target = self._names.find(dead.target)\n",
        "        target = self._names.info(dead.target)\n",
        OF_MESSAGES + "test_a_dead_letter_waits_for_a_queue_that_is_not_known",
    ),
    Mutation(
        "queue_exchange_letter_kept",
        "A dead letter published to an exchange stays until every queue there has it.",
        QUEUES + "dead_letters.py",
        "            if not waiting:\n                self._ended(group, config, dead, RETRY_US if worst else 0)\n",
        "            self._ended(group, config, dead, 0)\n",
        OF_EXCHANGES + "test_a_full_queue_drops_it_or_has_it_wait_as_told",
    ),
    Mutation(
        "queue_exchange_letter_unknown",
        "A dead letter routed to a queue that is not known yet is not dropped.",
        QUEUES + "dead_letters.py",
        "        if None in targets:\n            return None\n",
        "",
        OF_EXCHANGES + "test_a_dead_letter_is_kept_until_it_is_stored",
    ),
    Mutation(
        "queue_exchange_circle",
        "A message that no consumer rejected does not come to a queue twice.",
        QUEUES + "dead_letters.py",
        "            and (rejected or not dead.goes_round(public_name(target.name)[1].encode()))\n",
        "",
        OF_EXCHANGES + "test_expired_messages_go_not_round_and_round",
    ),
    Mutation(
        "queue_take_early",
        "Whoever takes a message sees what was published before.",
        QUEUES + "consuming.py",
        "        if (self.uncommitted or self._changing) and not self.failed:\n",
        "        if False:\n",
        "tests/unit/shards/queues/test_asking.py::test_takes_wait_for_the_disk_as_publishes_do",
    ),
    Mutation(
        "queue_detach",
        "What a consumer held when it left is given to others at once.",
        QUEUES + "consuming.py",
        "            self._change(self.dispatch.detach(consumer))\n",
        "            self.dispatch.detach(consumer)\n",
        OF_CLIENTS + "test_unsubscribing_gives_back_at_once",
    ),
    Mutation(
        "queue_dead_shard",
        "What a dead shard's consumers held is given to others.",
        QUEUES + "hosting.py",
        "            self._slow.pop(port, None)\n            if port.held is not None:\n                port.held.detach()\n",
        "            self._slow.pop(port, None)\n",
        OF_REMOTE + "test_the_host_takes_back_what_a_dead_shard_held",
    ),
    Mutation(
        "queue_sent_again",
        "Appends that a host has not answered are sent again when it is back.",
        QUEUES + "remote.py",
        "        for frame, _ in self._appends.values():\n            self._link.send_frame(frame)\n",
        "",
        OF_REMOTE + "test_publishes_wait_for_a_host_that_starts_again",
    ),
    Mutation(
        "queue_remote_early",
        "An append to another shard is acknowledged when that has it on disk.",
        QUEUES + "remote.py",
        "        self._appends[number] = (frame, done)\n",
        "        self._appends[number] = (frame, None)\n        done and done(0)\n",
        OF_REMOTE + "test_nothing_is_acknowledged_before_the_other_shard_has_it",
    ),
    Mutation(
        "queue_held_publishers",
        "Publishers held for another shard are let go when that has answered.",
        QUEUES + "service.py",
        "        elif self.held and not self.crowded_elsewhere():\n",
        "        elif self.held and self.crowded_elsewhere():\n",
        OF_REMOTE + "test_publishers_held_for_another_shard_are_let_go",
    ),
    Mutation(
        "queue_slow_reader",
        "A slow QoS 0 reader of a stream is waited for.",
        QUEUES + "consumers.py",
        "                self._send_fitting(run, offset)\n            else:\n",
        "                self._send_fitting(run, offset)\n            elif self.qos == 0:\n"
        '                delivery.send_now(run, 0, b"")\n                self.acknowledged(offset, run.count)\n'
        "            else:\n",
        OF_CONSUMERS + "test_a_slow_qos_0_reader_of_a_stream_gets_every_message",
    ),
    Mutation(
        "queue_large_run",
        "Only what is too large for a consumer is rejected.",
        QUEUES + "consumers.py",
        "                self._send_fitting(run, offset)\n",
        "                self._reject(offset, offset + run.count - 1, UNDELIVERABLE)\n",
        OF_CONSUMERS + "test_only_what_is_too_large_for_a_consumer_is_rejected",
    ),
    Mutation(
        "queue_puback_reason",
        "A PUBACK with a reason settles as soon as one without.",
        "fluxmq/sessions/mqtt/handler.py",
        "            delivery.report_front()\n",
        "",
        OF_CONSUMERS + "test_a_puback_with_a_reason_settles_at_once",
    ),
    Mutation(
        "queue_captured_once",
        "A topic that several filters of a queue match is captured once.",
        QUEUES + "clients.py",
        "        names = dict.fromkeys(name for _, name, _ in self._captures.match(topic))\n",
        "        names = [name for _, name, _ in self._captures.match(topic)]\n",
        OF_CLIENTS + "test_a_topic_that_several_filters_match_is_captured_once",
    ),
    Mutation(
        "queue_capture_changes",
        "A topic whose route is remembered reaches queues that are told later.",
        QUEUES + "clients.py",
        "        if self.names.changed:\n            self._learn()\n        marked",
        "        marked",
        OF_CLIENTS + "test_a_queue_that_is_told_captures_at_once",
    ),
    Mutation(
        "queue_left_alone",
        "A consumer that was made anew is not attached again.",
        QUEUES + "clients.py",
        "            if written not in self._consumers.get(session, {}):",
        "            if session is not None:",
        OF_CLIENTS + "test_subscribing_anew_while_an_attach_is_under_way",
    ),
    Mutation(
        "queue_turns",
        "Members take turns when messages come one by one.",
        "fluxmq/queues/desks.py",
        "                    hungry.append(consumer)  # the next that comes is another member's\n",
        "                    hungry.appendleft(consumer)\n",
        OF_MESSAGES + "test_members_take_turns_when_messages_come_one_by_one",
    ),
    Mutation(
        "queue_all_settled",
        "An order that names a message which is not with its client says so.",
        QUEUES + "consuming.py",
        "            missing = settlement.missing\n",
        "            missing = settlement.missing and not settlement.settled\n",
        OF_MESSAGES + "test_orders_settle",
    ),
    Mutation(
        "queue_buffered_descriptor",
        "A buffered log's file may be closed before it is synced.",
        QUEUES + "shared_log.py",
        "                self._dirty[key] = os.dup(fd)\n",
        "                self._dirty[key] = fd\n",
        OF_LOG + "test_a_buffered_file_may_be_closed_before_it_is_synced",
    ),
    Mutation(
        "queue_window",
        "As many sequences of a producer are remembered as the settings say.",
        QUEUES + "names.py",
        "        deduplication_window=queue.deduplication.window,\n",
        "",
        OF_SETTINGS + "test_deduplication_window",
    ),
    Mutation(
        "queue_receive_maximum",
        "A consumer holds no more than its client takes unanswered.",
        QUEUES + "clients.py",
        "            limit = min(limit, session.delivery.window)\n",
        "            limit = max(limit, 1)\n",
        OF_CONSUMERS + "test_what_the_client_does_not_take_stays_in_the_queue",
    ),
    Mutation(
        "queue_stale",
        "What others have got by now does not wait in a session for ever.",
        QUEUES + "consumers.py",
        "        if self._enqueued > self._limit:\n            self._drop_stale()\n",
        "",
        OF_CONSUMERS + "test_a_client_that_takes_nothing_does_not_gather_messages",
    ),
    Mutation(
        "queue_given_back",
        "The answer to a delivery that was given back does not settle the next.",
        QUEUES + "consumers.py",
        "        if self._given_back:\n",
        "        if self._given_back and first < 0:\n",
        OF_CONSUMERS + "test_an_answer_to_what_was_given_back_does_not_settle_it",
    ),
    Mutation(
        "queue_overdue",
        "Messages whose time is up take no room of their consumer.",
        "fluxmq/queues/desks.py",
        "                self._let_run_out(fate.holder, first, last)\n",
        "                pass\n",
        OF_MESSAGES + "test_a_consumer_that_holds_all_it_may_gets_them_again",
    ),
    Mutation(
        "queue_link_room",
        "Messages for another shard wait for room in its link, without being given back.",
        QUEUES + "hosting.py",
        "        return self._link.up and self._link.backlog_bytes <= BACKLOG_BYTES_MAX\n",
        "        return self._link.up and self._link.backlog_bytes < 0\n",
        OF_REMOTE + "test_messages_wait_for_room_in_a_link",
    ),
    Mutation(
        "queue_size_after_start",
        "What is replayed goes into segments as large as the snapshot's configuration says.",
        QUEUES + "group.py",
        "            self.logs[queue_id] = self.stores.open(queue_id, name)\n            self._bound(queue_id)\n",
        "            self.logs[queue_id] = self.stores.open(queue_id, name)\n",
        OF_BOUNDS + "test_a_snapshots_configuration_holds_for_what_is_replayed",
    ),
    Mutation(
        "vhost_limit_per_shard",
        "A vhost's limit of connections counts those of all shards.",
        "fluxmq/shards/amqp/entered.py",
        "self._said_by(link).get(vhost, 0) for link in self._links.values() if link.up",
        "0 for link in self._links.values() if link.up",
        "tests/unit/shards/amqp/test_entered.py::"
        "test_a_vhost_takes_so_many_connections_on_all_shards_together",
    ),
    Mutation(
        "names_keep_configurations",
        "Nothing is kept of a queue that is undeclared, whether or not its group has lost it before.",
        QUEUES + "names.py",
        "        for configs in self._configs.values():\n            configs.pop(name, None)\n",
        "        info = self._queues.get(name)\n"
        "        if info is not None:\n"
        "            self._configs.get(info.group, {}).pop(name, None)\n",
        FOLDER + "test_names.py::test_a_configuration_that_nobody_knows_the_queue_of_goes",
    ),
    Mutation(
        "names_forget_what_is_declared",
        "A queue that is declared is known, whatever is heard late of one before it.",
        QUEUES + "names.py",
        "        if info is None or self._is_declared(info):\n",
        "        if info is None:\n",
        FOLDER
        + "test_names.py::test_a_declared_queue_is_known_though_its_group_has_lost_the_one_before_it",
    ),
    Mutation(
        "timers_far_ahead",
        "What is due in half an hour is looked at by the housekeeping, and has no timer of its own.",
        QUEUES + "service.py",
        "        if due is None or due > now + TIMER_AHEAD_US or now < self._timer_at <= due:\n",
        "        if due is None or now < self._timer_at <= due:\n",
        OF_GARBAGE + "test_no_cycles_and_nothing_kept",
    ),
    Mutation(
        "desk_keeps_itself",
        "A queue that has ended is freed without the collector.",
        "fluxmq/queues/desks.py",
        "        self.dying = Dying(queue, group)\n",
        "        self.dying = Dying(queue, group)\n        self.dying.desk = self  # type: ignore[attr-defined]\n",
        OF_GARBAGE + "test_no_cycles_and_nothing_kept",
    ),
]
