"""Rules of what nodes say to each other: who is believed, what is bounded, in which order a follower does its work."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

HTTP2 = "fluxmq/cluster/"
KEEPER = "fluxmq/replication/raft_driver.py"
OF_HTTP2 = "tests/unit/cluster/test_http2.py::"
OF_STREAMS = "tests/integration/test_cluster_transport.py::"
OF_STRANGERS = "tests/integration/test_cluster_strangers.py::"
OF_LINKS = "tests/unit/cluster/test_node_links.py::"
OF_BOUNDS = "tests/unit/cluster/test_http2_bounds.py::"
OF_FOLLOWING = "tests/unit/replication/test_following.py::"

MUTATIONS = [
    Mutation(
        "transport_who_dials_is_believed",
        "Whoever dials is the node that its certificate names.",
        "Endpoint._greeted",
        "why = self._security.problem_with(hello.node, wire.socket.certificate())",
        'why = ""',
        OF_STREAMS + "test_who_proves_nothing_gets_no_stream",
    ),
    Mutation(
        "transport_who_is_dialled_is_believed",
        "Whoever is dialled is the node that its certificate names.",
        "sockets:connect",
        "if why := security.problem_with(node, socket.certificate()):",
        'if why := "":',
        OF_STREAMS + "test_who_proves_nothing_gets_no_stream",
    ),
    Mutation(
        "transport_window_overrun",
        "Nothing is sent that the other side has opened no window for.",
        "http2_sender:Http2Sender.send",
        "and length <= stream.window",
        "",
        OF_HTTP2 + "test_who_is_not_read_is_held_back_and_goes_on",
    ),
    Mutation(
        "transport_settings_used_too_soon",
        "What new settings allow is sent behind the word that they are taken.",
        "Http2._on_initial_window",
        "stream.window += more",
        """stream.window += more
            self._pump(stream)""",
        OF_HTTP2 + "test_what_settings_allow_is_sent_behind_the_word_that_they_are_taken",
    ),
    Mutation(
        "transport_overrun_taken",
        "Who sends more than was allowed is sent away.",
        "Http2._begin_data",
        "if stream.left < 0:",
        "if False:",
        OF_HTTP2 + "test_what_is_not_http2_ends_the_connection_with_its_code",
    ),
    Mutation(
        "transport_message_of_any_length",
        "A message that is longer than is taken breaks its stream.",
        "Http2Stream._begin",
        "if length > self.message_max:",
        "if False:",
        OF_HTTP2 + "test_a_message_that_is_too_long_breaks_its_stream_only",
    ),
    Mutation(
        "transport_rapid_reset",
        "Who opens streams only to cut them off is sent away.",
        "Http2._on_reset",
        "if self._cut_short > CUT_SHORT_MAX and not self.client:",
        "if False:",
        OF_HTTP2 + "test_who_only_opens_and_cuts_off_is_sent_away",
    ),
    Mutation(
        "transport_sockets_unbounded",
        "An endpoint has a bounded number of connections.",
        "Door.enter",
        "if self.inside >= channels.SOCKETS_MAX:",
        "if False:",
        OF_STREAMS + "test_connections_are_counted_while_they_last_and_no_longer",
    ),
    Mutation(
        "transport_stale_frames",
        "Who was away for so long that the others have given it up believes nothing that came meanwhile.",
        "Socket.data_received",
        "if self._was_away(time.monotonic()):",
        "if False:",
        "tests/unit/cluster/test_sockets.py::test_what_came_while_this_side_was_away_is_not",
    ),
    Mutation(
        "following_applies_first",
        "A follower writes what has come before it applies what is committed with it.",
        "RaftDriver._may_wait",
        "return bool(ready.entries) and ready.role is Role.FOLLOWER and self._recovered is None",
        "return False",
        OF_FOLLOWING + "test_what_comes_is_written_before_what_is_committed_with_it_is_applied",
    ),
    Mutation(
        "following_applies_out_of_turn",
        "What waits to be applied is applied before anything that comes later.",
        "RaftDriver.pump",
        """self._apply_rest()
                        self._apply(ready.committed)""",
        "self._apply(ready.committed)",
        "tests/unit/replication/test_gathering.py::test_what_comes_without_entries_applies_what_waits",
    ),
    Mutation(
        "following_gathers_for_ever",
        "What gathers is applied within a tick of the group's clock, whatever comes or does not.",
        "RaftDriver.tick",
        "self.catch_up(at_once=True)",
        "",
        "tests/unit/replication/test_gathering.py::test_a_tick_of_the_groups_clock_applies_what_waits",
    ),
    Mutation(
        "transport_table_sizes_remembered",
        "Of the table sizes between two headers the least and the last are remembered.",
        "Http2._on_settings",
        "self._table_last = last",
        """self._table_last = last
                self._encoder.header_table_size = last""",
        OF_BOUNDS + "test_table_sizes_between_two_headers_cost_nothing",
    ),
    Mutation(
        "transport_least_table_size_untold",
        "A table that shrank and grew again is told to have been as small.",
        "Http2Sender._resize",
        "if least < last:",
        "if False:",
        OF_BOUNDS + "test_the_other_side_is_told_of_tables_that_shrank_and_grew",
    ),
    Mutation(
        "transport_refused_without_end",
        "Whoever is refused again and again is sent away.",
        "SocketStream.refuse",
        "self.socket.http2.turned_away()",
        "",
        OF_STRANGERS + "test_a_client_whose_calls_are_unknown_is_sent_away",
    ),
    Mutation(
        "transport_strangers_take_all",
        "Connections from addresses of no member have a share of their own.",
        "Door.enter",
        "elif not known and self.strangers >= channels.STRANGERS_MAX:",
        "elif False:",
        "tests/unit/cluster/test_door.py::test_strangers_leave_room_for_members",
    ),
    Mutation(
        "transport_handshakes_without_end",
        "TLS handshakes under way are counted until they are over.",
        "Endpoint._let_in.visit",
        "visit = self.door.enter(address, self._security.tls)",
        "visit = self.door.enter(address, False)",
        OF_STRANGERS + "test_strangers_do_not_keep_members_out",
    ),
    Mutation(
        "transport_unread_without_end",
        "What nobody reads is bounded for all connections of a process together.",
        "Guard.holds",
        "if self.unread_bytes > self._unread_max:",
        "if False:",
        "tests/unit/cluster/test_guard.py::test_what_all_connections_hold_together_is_bounded",
    ),
    Mutation(
        "transport_members_ended_first",
        "When too much is held unread, connections of nobody known are ended first.",
        "Guard._worth",
        "return (holder.trusted, -self._held[holder])",
        "return (False, -self._held[holder])",
        "tests/unit/cluster/test_guard.py::test_those_of_nobody_known_go_first_and_the_largest_of_them",
    ),
    Mutation(
        "transport_window_below_nothing",
        "A window that settings have made negative is opened again before anything is sent.",
        "Http2._on_initial_window",
        "more, self._window_of_streams = value - self._window_of_streams, value",
        "more, self._window_of_streams = max(0, value - self._window_of_streams), value",
        "tests/unit/cluster/test_http2_strict.py::test_windows_that_shrink_below_nothing_and_open_again",
    ),
    Mutation(
        "transport_any_purpose_is_taken",
        "An address takes streams of the purposes that it has a listener for.",
        "Endpoint._greeted",
        "elif hello.purpose not in self._listeners:",
        "elif False:",
        OF_LINKS + "test_an_unwelcome_stream_is_refused_with_the_reason",
    ),
    Mutation(
        "transport_purposes_are_confused",
        "Streams of a purpose reach that purpose's listener.",
        "Endpoint._opened",
        "self._listeners[hello.purpose]",
        "next(iter(self._listeners.values()))",
        OF_LINKS + "test_streams_of_two_purposes_arrive_at_one_address",
    ),
    Mutation(
        "transport_stream_of_no_pair",
        "Shards that are no pair have no stream.",
        "NodeLinks.problem_with",
        "if hello.shard in self._pairs(own.shard, own.workers, others):",
        "if True:",
        OF_LINKS + "test_an_unwelcome_stream_is_refused_with_the_reason",
    ),
    Mutation(
        "transport_pairs_stay",
        "When a node returns with another number of shards, the pairs of all purposes follow.",
        "ShardEndpoint.met",
        "listener.resized(hello.node)",
        "pass",
        OF_LINKS + "test_pairs_follow_the_number_of_shards_of_a_node_that_returns",
    ),
]
