"""Mutations of MQTT's hot path and the loop: what is promised of every message, every byte and every buffer."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

SCAN = "fluxmq/protocols/mqtt/scan.py"
RUN = "fluxmq/protocols/mqtt/run.py"
CONNECTION = "fluxmq/protocols/connection.py"
PORTION = "fluxmq/protocols/mqtt/inflight_range.py"
DELIVERY = "fluxmq/protocols/mqtt/delivery.py"
WINDOW = "fluxmq/protocols/mqtt/window.py"
REACTOR = "fluxmq/net/reactor.py"

OF_SCAN = "tests/unit/protocols/mqtt/test_scan.py::"
OF_CONNECTION = "tests/unit/protocols/test_connection.py::"
OF_DELIVERY = "tests/unit/protocols/mqtt/test_delivery.py::"
OF_PORTION = "tests/unit/protocols/mqtt/test_inflight_range.py::"
OF_GATHERING = "tests/unit/net/test_gathering.py::"
OF_REACTOR = "tests/unit/net/test_reactor.py::"
OF_RUNS = "tests/props/test_hot_runs.py::test_runs_are_written_as_the_codec_reads_them"

MUTATIONS = [
    # Delivery
    Mutation(
        "acknowledged_out_of_order",
        "An acknowledgement frees the message it names and no other.",
        "InflightWindow.acknowledge",
        "if front.qos == qos and pid == front.pid + front.acknowledged:",
        "if front.qos == qos:",
        OF_DELIVERY + "test_an_acknowledgement_out_of_order_frees_itself_only",
    ),
    Mutation(
        "window",
        "No more messages are unacknowledged than the client's Receive Maximum.",
        "SessionDelivery.pump",
        """count,
                self.window - self.inflight,""",
        """count,
                self.window,""",
        OF_DELIVERY + "test_acknowledgements_in_order_let_as_many_follow",
    ),
    Mutation(
        "identifier_in_flight",
        "A packet identifier is not given twice while the first message is unanswered.",
        "InflightWindow.free_identifiers",
        "used.update(range(inflight.pid + inflight.acknowledged, inflight.pid + inflight.count))",
        "used.update(range(inflight.pid, inflight.pid))",
        OF_DELIVERY + "test_identifiers_in_use_are_passed_over",
    ),
    Mutation(
        "identifier_released",
        "A packet identifier is in use from PUBREC to PUBCOMP.",
        "InflightWindow.free_identifiers",
        "for first, count in self.released.in_order() if self.released is not None else ():",
        "for first, count in list[tuple[int, int]]():",
        OF_DELIVERY + "test_identifiers_between_pubrec_and_pubcomp_are_in_use",
    ),
    Mutation(
        "identifier_0",
        "Packet identifiers begin at 1 again after 65535.",
        "InflightWindow.free_identifiers",
        """if self.next_pid > PACKET_ID_MAX:
            self.next_pid = 1
        used""",
        """if self.next_pid > PACKET_ID_MAX:
            self.next_pid = 0
        used""",
        OF_DELIVERY + "test_identifiers_begin_anew_after_the_last",
    ),
    Mutation(
        "repeated_with_dup",
        "A message sent again carries DUP [MQTT-3.3.1-1].",
        "SessionDelivery.pump",
        "write_inflight(connection, front, front.pid, True)",
        "write_inflight(connection, front, front.pid, False)",
        OF_DELIVERY + "test_unanswered_messages_are_repeated_in_order_before_new_ones",
    ),
    Mutation(
        "repeated_in_order",
        "Messages are sent again in the order of their first sending [MQTT-4.6.0-1].",
        "SessionDelivery.detach",
        "self.resend.extendleft(reversed(again))",
        "self.resend.extendleft(again)",
        OF_DELIVERY + "test_unanswered_messages_are_repeated_in_order_before_new_ones",
    ),
    Mutation(
        "answered_is_not_repeated",
        "What was acknowledged out of order is not sent again.",
        "unanswered",
        "while stretch < inflight.count and not (early and (inflight.pid + stretch) in early):",
        "while stretch < inflight.count:",
        OF_DELIVERY + "test_an_acknowledgement_out_of_order_frees_itself_only",
    ),
    Mutation(
        "qos_2_until_pubcomp",
        "A QoS 2 message takes its place in the window until PUBCOMP [MQTT-4.3.3-8].",
        "InflightWindow.acknowledge",
        """if qos == 1:
            self.inflight -= 1
        return True""",
        """self.inflight -= 1
        return True""",
        OF_DELIVERY + "test_a_qos_2_message_takes_its_place_in_the_window_until_pubcomp",
    ),
    Mutation(
        "release_repeated",
        "PUBREL is sent again on a new connection until PUBCOMP [MQTT-4.4.0-1].",
        "SessionDelivery.attach",
        "if self.released is not None and self.released.count:",
        "if False:",
        OF_DELIVERY + "test_after_pubrec_the_release_is_repeated_and_not_the_message",
    ),
    Mutation(
        "release_order",
        "PUBRELs are repeated in the order of the PUBRECs [MQTT-4.6.0-4].",
        "ReleasedIdentifiers.in_order",
        "key=lambda each: (each.turn, each.pid)",
        "key=lambda each: each.pid",
        OF_DELIVERY + "test_releases_are_repeated_in_the_order_of_the_receipts",
    ),
    Mutation(
        "received_range",
        "A range of PUBRECs frees no message that was answered before.",
        "InflightWindow.receive_front",
        "count = 1 if self.early else min(count, front.count - front.acknowledged)",
        "count = min(count, front.count - front.acknowledged)",
        OF_DELIVERY + "test_qos_2_is_answered_by_ranges",
    ),
    Mutation(
        "received_once",
        "A publish of QoS 2 whose identifier was received already is not routed again [MQTT-4.3.3-10].",
        "remember",
        "if received.overlaps(first, count):",
        "if False:",
        "tests/props/test_exactly_once.py"
        "::test_each_publish_is_routed_once_and_each_packet_answered",
    ),
    Mutation(
        "released_range",
        "PUBREL frees the identifiers that it names and no others.",
        "IdentifierRanges.remove",
        """firsts.append(last + 1)
                lasts.append(end)""",
        "pass",
        "tests/props/test_exactly_once.py"
        "::test_each_publish_is_routed_once_and_each_packet_answered",
    ),
    Mutation(
        "pending_count",
        "The number of messages that wait for a client is bounded.",
        "SessionDelivery.enqueue_inflight",
        "if self.pending_count > self.bound() or self.pending_bytes > self.pending_bytes_max:",
        "if self.pending_bytes > self.pending_bytes_max:",
        OF_DELIVERY + "test_a_full_queue_of_an_absent_client_evicts_the_oldest",
    ),
    Mutation(
        "pending_bytes",
        "The bytes that wait for a client are bounded.",
        "SessionDelivery.enqueue_inflight",
        "if self.pending_count > self.bound() or self.pending_bytes > self.pending_bytes_max:",
        "if self.pending_count > self.bound():",
        OF_DELIVERY + "test_bytes_are_bounded_too",
    ),
    Mutation(
        "drop_counted",
        "A dropped message is counted.",
        "SessionDelivery.trim",
        "self.tally.dropped_full += excess",
        "self.tally.dropped_full += 0",
        OF_DELIVERY + "test_a_full_queue_rejects_the_newest_where_asked",
    ),
    Mutation(
        "early_bounded",
        "Answers out of order that are remembered are bounded.",
        "SessionDelivery.pump",
        "if self.early is not None and len(self.early) >= EARLY_MAX:",
        "if self.early is not None and len(self.early) >= 100 * EARLY_MAX:",
        OF_DELIVERY + "test_answers_out_of_order_are_remembered_up_to_a_bound",
    ),
    Mutation(
        "slow_client",
        "QoS 0 is dropped for a client whose output is full.",
        "SessionDelivery.blocked",
        """connection.buffer()
        return True""",
        """connection.buffer()
        return False""",
        OF_DELIVERY + "test_qos_0_is_dropped_and_counted_when_the_client_is_too_slow",
    ),
    Mutation(
        "expired_while_waiting",
        "A message that has expired is not sent [MQTT-3.3.2-5].",
        "SessionDelivery.pump",
        "if inflight.run.deadline != 0.0 and inflight.run.deadline <= self.tally.now:",
        "if False:",
        OF_DELIVERY + "test_messages_that_expire_while_they_wait_are_dropped_and_counted",
    ),
    Mutation(
        "kept_runs_are_copied",
        "Whoever keeps a run has its bytes copied from the receive buffer.",
        "SessionDelivery.enqueue",
        """run.detach()
        if self.durable is not None:""",
        "if self.durable is not None:",
        OF_DELIVERY + "test_what_waits_survives_the_next_reading",
    ),
    Mutation(
        "maximum_packet_size",
        "No packet is larger than the client's Maximum Packet Size [MQTT-3.1.2-24].",
        "fitting",
        "if size <= connection.max_packet_out:",
        "if size <= connection.max_packet_out + 1:",
        OF_PORTION + "test_packets_that_the_client_does_not_take_are_left_out",
    ),
    Mutation(
        "measured_without_alias",
        "A message that just fits is sent without a topic alias.",
        "write_inflight",
        "if not redelivered and run.largest:",
        "if not redelivered:",
        OF_PORTION + "test_an_alias_does_not_push_a_message_over_the_limit",
    ),
    Mutation(
        "alias_known",
        "An alias stands alone only after it was sent with its topic.",
        "write_inflight",
        "offset = append_publishes(out, run, offset, 1, first, run.topic, properties, pid)",
        'offset = append_publishes(out, run, offset, 1, first, b"", properties, pid)',
        OF_PORTION + "test_the_first_message_names_topic_and_alias_and_the_next_the_alias",
    ),
    # Bytes in
    Mutation(
        "publish_with_identifier_0",
        "A packet identifier is not 0 [MQTT-2.2.1-3].",
        "Scanner.publish",
        "if qos and not data[at + self.pid_at] and not data[at + self.pid_at + 1]:",
        "if False:",
        OF_SCAN + "test_errors",
    ),
    Mutation(
        "identifier_0_within_a_run",
        "Nor is it 0 in the second message of a run.",
        "Scanner.whole_identifiers",
        "if not buffer[place] and not buffer[place + 1]:",
        "if False:",
        OF_SCAN + "test_an_identifier_of_0_ends_a_run",
    ),
    Mutation(
        "dup_with_qos_0",
        "DUP is 0 with QoS 0 [MQTT-3.3.1-2].",
        "Scanner.publish",
        "if qos == 3 or length < 2 or (qos == 0 and data[at] & 8):",
        "if qos == 3 or length < 2:",
        OF_SCAN + "test_errors",
    ),
    Mutation(
        "topic_within_the_packet",
        "A topic does not end beyond its packet.",
        "Scanner.publish",
        """if variable > length:
            return self.fail(MALFORMED)
        if qos and""",
        "if qos and",
        OF_SCAN + "test_errors",
    ),
    Mutation(
        "packet_size",
        "No packet is larger than the server takes.",
        "Scanner.next",
        "if total > self.max_packet:",
        "if False:",
        OF_REACTOR + "test_packets_are_bounded_and_refused_by_their_length_alone",
    ),
    Mutation(
        "first_packet_size",
        "A packet before the session exists is small.",
        "Reactor.process",
        "scanner.max_packet = self.max_packet if connection.open else self.max_first_packet",
        "scanner.max_packet = self.max_packet",
        OF_REACTOR + "test_the_first_packet_is_bounded",
    ),
    Mutation(
        "runs_have_one_topic",
        "A run holds messages of one topic.",
        "Scanner.extend_any_size",
        """if not buffer.startswith(topic, place):
                    break""",
        "",
        OF_SCAN + "test_another_topic_or_flag_ends_a_run",
    ),
    Mutation(
        "gathering_in_proportion",
        "Announcing a large packet takes no memory.",
        "Connection.widen.size",
        "size: cython.Py_ssize_t = min(self.needed, max(2 * self.gathered, CHUNK_MIN))",
        "size: cython.Py_ssize_t = self.needed",
        OF_GATHERING + "test_announcing_a_large_packet_takes_no_memory",
    ),
    Mutation(
        "paused_is_not_read",
        "A connection that waits for an answer is not read.",
        "Reactor.process",
        "if connection.paused:\n                break",
        "if connection.paused and False:\n                break",
        OF_REACTOR + "test_what_follows_a_pause_is_handled_after_it_in_order",
    ),
    # Bytes out
    Mutation(
        "partial_write",
        "What the socket took is not written again.",
        "protocols.connection:Connection.flush",
        "self.sent += done",
        "self.sent += 0",
        OF_CONNECTION + "test_partial_writes_lose_and_repeat_nothing",
    ),
    Mutation(
        "encoded_once",
        "A stream filter gets each byte once.",
        "Connection.encode",
        "self.encoded = len(done)",
        "self.encoded = 0",
        OF_CONNECTION + "test_a_stream_filter_is_given_each_byte_once",
    ),
    Mutation(
        "answers_bounded",
        "A client that does not take its answers is not read.",
        "Reactor.flush",
        "if connection.size > connection.limit + ANSWERS_MAX:",
        "if False:",
        OF_REACTOR + "test_a_client_that_does_not_read_its_answers_is_not_read",
    ),
    Mutation(
        "ticks_bounded",
        "Timers and control messages get their turn.",
        "Reactor.run_ready",
        "while ticks < TICKS_MAX:",
        "while ticks < 100 * TICKS_MAX:",
        OF_REACTOR + "test_a_call_of_the_loop_takes_a_bounded_number_of_ticks",
    ),
    Mutation(
        "routes_bounded",
        "The cache of routes is bounded.",
        "Reactor.publish_run",
        "if len(self.routes) >= self.routes_max:",
        "if False:",
        OF_REACTOR + "test_the_cache_of_routes_is_bounded",
    ),
    Mutation(
        "no_local",
        "No Local keeps a client's own messages from it [MQTT-3.8.3-3].",
        "Reactor.deliver",
        "if target.no_local and delivery is run.publisher:",
        "if False:",
        OF_REACTOR + "test_no_local",
    ),
    Mutation(
        "acknowledged_once",
        "Every QoS 1 publish is acknowledged with its own identifier.",
        "append_acknowledgements",
        "out[used + 3 :: 4] = run.buffer[place + 1 : run.end : run.stride]",
        "out[used + 3 :: 4] = run.buffer[place : run.end : run.stride]",
        OF_RUNS,
    ),
]
