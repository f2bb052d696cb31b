"""Mutations of what a shard promises to those who use its queues."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

FOLDER = "tests/unit/engine/"
OF_ASKED = FOLDER + "test_proposal_buffer.py::"
OF_BOUNDS = FOLDER + "test_bounds.py::"
OF_CLIENTS = FOLDER + "test_clients.py::"
OF_CONSUMERS = FOLDER + "test_consumers.py::"
OF_EXCHANGES = FOLDER + "test_dead_letter_exchange.py::"
OF_DISKS = FOLDER + "test_disks.py::"
OF_COLLECTING = "tests/unit/shards/test_collecting.py::"
OF_GARBAGE = "tests/unit/shards/amqp/test_garbage.py::"
OF_LOG = "tests/unit/replication/test_shared_log.py::"
OF_MESSAGES = FOLDER + "test_messages.py::"
OF_REMOTE = FOLDER + "test_remote_shards.py::"
OF_SETTINGS = FOLDER + "test_settings.py::"
OF_WRITING = FOLDER + "test_store_writes.py::"

MUTATIONS = [
    Mutation(
        "queue_before_sync",
        "Nothing is acknowledged before the log's sync is done.",
        "SharedLog.flush",
        "self._under_way, self._next = self._next, {}",
        """self._under_way, self._next = self._next, {}
                for group, at in self._under_way.items():
                    group.persisted(*at)""",
        OF_DISKS + "test_nothing_is_acknowledged_before_it_is_durable",
    ),
    Mutation(
        "queue_failed_log",
        "A log whose sync failed ends its groups, and everybody is answered.",
        "SharedLog._fail",
        """for group in list(self._members):
            group.log_failed(why)""",
        "",
        OF_DISKS + "test_a_failed_sync_ends_all_acknowledgements",
    ),
    Mutation(
        "queue_failed_apply",
        "Who asked for an entry that could not be applied is answered.",
        "ReplicationGroup.apply",
        "self._proposed.appendleft((index, term, answers))",
        "",
        OF_DISKS + "test_a_failing_segment_ends_its_group_and_answers_everybody",
    ),
    Mutation(
        "queue_full_refuses",
        "A full disk refuses publishers and ends no group.",
        "StoreWrites._write",
        """except Exhausted as problem:
            self._refuse(queue_id, problem)
        else:""",
        """except Exhausted:
            raise
        else:""",
        OF_DISKS + "test_a_full_disk_refuses_publishers_and_consumers_go_on",
    ),
    Mutation(
        "queue_written_late",
        "What was confirmed is in the files soon.",
        "HostedGroups.begin_housekeeping",
        "hosted.group.flush()",
        "pass",
        OF_WRITING + "test_a_confirmed_message_is_in_the_files_with_the_next_housekeeping",
    ),
    Mutation(
        "queue_settled_first",
        "A settlement stands behind the claims asked for before it.",
        "ProposalBuffer.add_quietly",
        "self._add_settlement(command)",
        "self._quiet.insert(0, command)",
        OF_ASKED + "test_a_settlement_never_precedes_its_claim",
    ),
    Mutation(
        "queue_asked_out_of_order",
        "A command with an answer stands behind everything asked before it.",
        "ProposalBuffer.add",
        """if not weight:
            self.close()""",
        "",
        OF_ASKED + "test_a_command_with_an_answer_stands_behind_everything_asked_before",
    ),
    Mutation(
        "queue_joined_unnoticed",
        "A claim that became one with the last is applied once.",
        "ProposalBuffer._add_claim",
        "self._joined(*claim_merge.target_of(command))",
        "",
        OF_CONSUMERS + "test_deliveries_of_many_ticks_are_claimed_together",
    ),
    Mutation(
        "queue_limit_stale",
        "What was settled makes room before the next publish is judged.",
        "ReplicationGroup.append",
        "self.asked.close()  # what has been settled makes room",
        "pass",
        OF_CONSUMERS + "test_what_is_settled_makes_room_at_once",
    ),
    Mutation(
        "queue_deleted_directory",
        "A queue that was deleted just before a crash does not come back.",
        "DiskStores.recovered",
        "if remove_unknown(self._files, self._paths.queues(self._group), known):",
        "if known is None:",
        OF_DISKS + "test_a_queue_deleted_before_a_crash_is_gone",
    ),
    Mutation(
        "queue_dead_letter_early",
        "A dead message stays in its queue until its dead-letter append is durable.",
        "DeadLetters.dead_letter",
        "self._client_of(target.group).append(dead.target, data, answered)",
        """answered(0)
        self._client_of(target.group).append(dead.target, data, None)""",
        OF_DISKS + "test_a_dead_letter_waits_for_space",
    ),
    Mutation(
        "queue_dead_letter_in_memory",
        "A dead letter whose queue is not known goes to no queue in memory.",
        "DeadLetters.dead_letter.target",
        "target = self._names.find(dead.target)",
        "target = self._names.info(dead.target)",
        OF_MESSAGES + "test_a_dead_letter_waits_for_a_queue_that_is_not_known",
    ),
    Mutation(
        "queue_exchange_letter_kept",
        "A dead letter published to an exchange stays until every queue there has it.",
        "DeadLetters._publish.answered",
        """if not waiting:
                self._ended(group, config, dead, RETRY_US if worst else 0)""",
        "self._ended(group, config, dead, 0)",
        OF_EXCHANGES + "test_a_full_queue_drops_it_or_has_it_wait_as_told",
    ),
    Mutation(
        "queue_exchange_letter_unknown",
        "A dead letter routed to a queue that is not known yet is not dropped.",
        "DeadLetters._copies",
        """if None in targets:
            return None""",
        "",
        OF_EXCHANGES + "test_a_dead_letter_is_kept_until_it_is_stored",
    ),
    Mutation(
        "queue_exchange_circle",
        "A message that no consumer rejected does not come to a queue twice.",
        "DeadLetters._copies",
        "and (rejected or not dead.goes_round(public_name(target.name)[1].encode()))",
        "",
        OF_EXCHANGES + "test_expired_messages_go_not_round_and_round",
    ),
    Mutation(
        "queue_take_early",
        "Whoever takes a message sees what was published before.",
        "GroupRequests._after_changes",
        "if (self.uncommitted or self._changing) and not self.failed:",
        "if False:",
        "tests/unit/engine/test_asking.py::test_takes_wait_for_the_disk_as_publishes_do",
    ),
    Mutation(
        "queue_detach",
        "What a consumer held when it left is given to others at once.",
        "GroupRequests.detach",
        "self._change(self.dispatch.consumers.detach(consumer))",
        "self.dispatch.consumers.detach(consumer)",
        OF_CLIENTS + "test_unsubscribing_gives_back_at_once",
    ),
    Mutation(
        "queue_dead_shard",
        "What a dead shard's consumers held is given to others.",
        "GroupServer.lose",
        "self._slow.pop(port, None)\n            if port.handle is not None:\n                port.handle.detach()",
        "self._slow.pop(port, None)",
        OF_REMOTE + "test_the_host_takes_back_what_a_dead_shard_held",
    ),
    Mutation(
        "queue_sent_again",
        "Appends that a lost shard has not answered are sent again when it is back.",
        "RemoteShard.lose",
        "self._answer(number, Outcome.MOVED)",
        "pass",
        OF_REMOTE + "test_an_append_whose_answer_is_lost_is_sent_again_and_counts_once",
    ),
    Mutation(
        "queue_remote_early",
        "An append to another shard is acknowledged when that has it on disk.",
        "RemoteShard.append",
        "self._appends[number] = done",
        """self._appends[number] = None
        done and done(0)""",
        OF_REMOTE + "test_nothing_is_acknowledged_before_the_other_shard_has_it",
    ),
    Mutation(
        "queue_held_publishers",
        "Publishers held for another shard are let go when that has answered.",
        "QueueService.housekeeping",
        "elif self.held and not self._surroundings.remote_above_high_watermark:",
        "elif self.held and self._surroundings.remote_above_high_watermark:",
        OF_REMOTE + "test_publishers_held_for_another_shard_are_let_go",
    ),
    Mutation(
        "queue_slow_reader",
        "A slow QoS 0 reader of a stream is waited for.",
        "QueueConsumer._send",
        """self._send_fitting(run, offset)
            else:""",
        """self._send_fitting(run, offset)
            elif self.qos == 0:
                delivery.send_now(run, 0, b"")
                self.acknowledged(offset, run.count)
            else:""",
        OF_CONSUMERS + "test_a_slow_qos_0_reader_of_a_stream_gets_every_message",
    ),
    Mutation(
        "queue_large_run",
        "Only what is too large for a consumer is rejected.",
        "QueueConsumer._send",
        "self._send_fitting(run, offset)",
        "self._reject(offset, offset + run.count - 1, UNDELIVERABLE)",
        OF_CONSUMERS + "test_only_what_is_too_large_for_a_consumer_is_rejected",
    ),
    Mutation(
        "queue_puback_reason",
        "A PUBACK with a reason settles as soon as one without.",
        "acknowledgements:on_acknowledgement",
        "delivery.report_front()",
        "",
        OF_CONSUMERS + "test_a_puback_with_a_reason_settles_at_once",
    ),
    Mutation(
        "queue_captured_once",
        "A topic that several filters of a queue match is captured once.",
        "QueueClients.targets.names",
        "names = dict.fromkeys(name for _, name, _ in self._captures.match(topic))",
        "names = [name for _, name, _ in self._captures.match(topic)]",
        OF_CLIENTS + "test_a_topic_that_several_filters_match_is_captured_once",
    ),
    Mutation(
        "queue_capture_changes",
        "A topic whose route is remembered reaches queues that are told later.",
        "QueueClients.flush",
        """if self.names.changed:
            self._learn()
        marked""",
        "marked",
        OF_CLIENTS + "test_a_queue_that_is_told_captures_at_once",
    ),
    Mutation(
        "queue_left_alone",
        "A consumer that was made anew is not attached again.",
        "QueueClients.housekeeping",
        "if written not in self._consumers.get(session, {}):",
        "if session is not None:",
        OF_CLIENTS + "test_subscribing_anew_while_an_attach_is_under_way",
    ),
    Mutation(
        "queue_turns",
        "Members take turns when messages come one by one.",
        "GroupDispatcher.run",
        "waiting.append(consumer)",
        "waiting.appendleft(consumer)",
        OF_MESSAGES + "test_members_take_turns_when_messages_come_one_by_one",
    ),
    Mutation(
        "queue_all_settled",
        "An order that names a message which is not with its client says so.",
        "GroupRequests.settle.missing",
        "missing = settlement.missing",
        "missing = settlement.missing and not settlement.settled",
        OF_MESSAGES + "test_orders_settle",
    ),
    Mutation(
        "queue_buffered_descriptor",
        "A buffered log's file may be closed before it is synced.",
        "BufferedSyncer.submit",
        "self._dirty[key] = os.dup(fd)",
        "self._dirty[key] = fd",
        OF_LOG + "test_a_buffered_file_may_be_closed_before_it_is_synced",
    ),
    Mutation(
        "queue_window",
        "As many sequences of a producer are remembered as the settings say.",
        "names:config_of",
        "deduplication_window=queue.deduplication.window,",
        "",
        OF_SETTINGS + "test_deduplication_window",
    ),
    Mutation(
        "queue_receive_maximum",
        "A consumer holds no more than its client takes unanswered.",
        "QueueClients._limit",
        "limit = min(limit, session.delivery.window)",
        "limit = max(limit, 1)",
        OF_CONSUMERS + "test_what_the_client_does_not_take_stays_in_the_queue",
    ),
    Mutation(
        "queue_stale",
        "What others have got by now does not wait in a session for ever.",
        "QueueConsumer.deliver",
        """if self._enqueued > self._limit:
            self._drop_stale()""",
        "",
        OF_CONSUMERS + "test_a_client_that_takes_nothing_does_not_gather_messages",
    ),
    Mutation(
        "queue_given_back",
        "The answer to a delivery that was given back does not settle the next.",
        "QueueConsumer.acknowledged",
        "if self._given_back:",
        "if self._given_back and first < 0:",
        OF_CONSUMERS + "test_an_answer_to_what_was_given_back_does_not_settle_it",
    ),
    Mutation(
        "queue_overdue",
        "Messages whose time is up take no room of their consumer.",
        "WorkDispatcher._collect_due",
        "self._let_run_out(state.holder, first, last)",
        "pass",
        OF_MESSAGES + "test_a_consumer_that_holds_all_it_may_gets_them_again",
    ),
    Mutation(
        "queue_link_room",
        "Messages for another shard wait for room in its link, without being given back.",
        "RemotePort._has_room",
        "return self._link.up and self._link.backlog_bytes <= BACKLOG_BYTES_MAX",
        "return self._link.up and self._link.backlog_bytes < 0",
        OF_REMOTE + "test_messages_wait_for_room_in_a_link",
    ),
    Mutation(
        "queue_size_after_start",
        "What is replayed goes into segments as large as the snapshot's configuration says.",
        "ReplicationGroup._open",
        """self.logs[queue_id] = self.stores.open(queue_id, name)
            self._bound(queue_id)""",
        "self.logs[queue_id] = self.stores.open(queue_id, name)",
        OF_BOUNDS + "test_a_snapshots_configuration_holds_for_what_is_replayed",
    ),
    Mutation(
        "vhost_limit_per_shard",
        "A vhost's limit of connections counts those of all shards.",
        "SharedCounts.count",
        "self._said_by(link).get(name, 0) for link in self._links.values() if link.up",
        "0 for link in self._links.values() if link.up",
        "tests/unit/shards/amqp/test_shared_counts.py::"
        "test_a_vhost_takes_so_many_connections_on_all_shards_together",
    ),
    Mutation(
        "names_keep_configurations",
        "Nothing is kept of a queue that is undeclared, whether or not its group has lost it before.",
        "QueueNames.undeclare",
        """for configs in self._configs.values():
            configs.pop(name, None)""",
        """info = self._queues.get(name)
        if info is not None:
            self._configs.get(info.group, {}).pop(name, None)""",
        FOLDER + "test_names.py::test_a_configuration_that_nobody_knows_the_queue_of_goes",
    ),
    Mutation(
        "names_forget_what_is_declared",
        "A queue that is declared is known, whatever is heard late of one before it.",
        "QueueNames.remove",
        "if info is None or self._is_declared(info):",
        "if info is None:",
        FOLDER
        + "test_names.py::test_a_declared_queue_is_known_though_its_group_has_lost_the_one_before_it",
    ),
    Mutation(
        "timers_far_ahead",
        "What is due in half an hour is looked at by the housekeeping, and has no timer of its own.",
        "QueueService._wake_at",
        "if due is None or due > now + TIMER_AHEAD_US or now < self._timer_at <= due:",
        "if due is None or now < self._timer_at <= due:",
        OF_GARBAGE + "test_no_cycles_and_nothing_kept",
    ),
    Mutation(
        "desk_keeps_itself",
        "A queue that has ended is freed without the collector.",
        "WorkDispatcher.__init__",
        "self.dead_lettering = DeadLettering(queue, group)",
        "self.dead_lettering = DeadLettering(queue, group)\n        self.dead_lettering.dispatcher = self  # type: ignore[attr-defined]",
        OF_GARBAGE + "test_no_cycles_and_nothing_kept",
    ),
    Mutation(
        "channel_taken_apart",
        "A channel that is closed is freed without the collector.",
        "Channel.let_go",
        "del self.mark, self.answered",
        "pass",
        OF_GARBAGE + "test_no_cycles_and_nothing_kept[refused]",
    ),
    Mutation(
        "garbage_only_when_quiet",
        "Garbage is collected while there is traffic.",
        "Garbage.look",
        "if not (due or quiet):",
        "if not quiet:",
        OF_COLLECTING + "test_what_is_left_behind_is_looked_through_while_there_is_traffic",
    ),
    Mutation(
        "garbage_pause_grows",
        "A pause for garbage under traffic does not grow with what there is.",
        "Garbage._freeze",
        """self._collector.freeze()
        self._frozen +=""",
        "self._frozen +=",
        OF_COLLECTING + "test_a_look_goes_through_no_more_however_much_there_is",
    ),
    Mutation(
        "garbage_looked_for_in_vain",
        "A shard that has nothing to do looks for no garbage.",
        "Garbage.look",
        "enough = max(QUIET_OBJECTS_MIN, self._held // QUIET_SHARE)",
        "enough = 0",
        OF_COLLECTING + "test_traffic_that_leaves_nothing_is_never_stopped",
    ),
    Mutation(
        "amqp_home_of_the_wish",
        "A queue that was there before and cannot be reached is an error of the channel, not of the connection.",
        "AmqpBroker._when_there",
        """queue = self.topology.queue(wanted.vhost, wanted.name)
        if queue is None:""",
        """queue = wanted
        if queue is None:""",
        "tests/unit/shards/amqp/test_broker.py::test_a_queue_whose_home_does_not_answer_is_said_to_be_down",
    ),
    Mutation(
        "amqp_host_looked_up_once",
        "Whoever waits for a queue's host follows the queue.",
        "AmqpBroker._ask_until",
        "ask(self._client_of(now or queue), told)",
        "ask(self._client_of(queue), told)",
        "tests/unit/shards/amqp/test_broker.py::test_a_queue_that_is_declared_again_elsewhere_is_asked_there",
    ),
    Mutation(
        "amqp_other_owners_queue",
        "Another connection's exclusive queue of the same name is another queue.",
        "AmqpBroker._ask_until",
        "if now is not None and now.owner != queue.owner:",
        "if False:",
        "tests/unit/shards/amqp/test_broker.py::test_who_waits_for_a_queue_takes_no_other_for_it",
    ),
]
