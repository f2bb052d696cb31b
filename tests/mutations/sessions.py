"""Mutations of what sessions, permissions, routing and shards promise."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_SESSIONS = "tests/unit/sessions/mqtt/test_sessions.py::"
OF_REACTOR = "tests/unit/net/test_reactor.py::"

MUTATIONS = [
    # Sessions
    Mutation(
        "connect_first",
        "The first packet is CONNECT [MQTT-3.1.0-1].",
        "MqttConnectionHandler.dispatch",
        """if first != _CONNECT:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "the first packet is not CONNECT")""",
        """if first != _CONNECT:
                return""",
        OF_REACTOR + "test_nothing_comes_before_connect",
    ),
    Mutation(
        "connect_once",
        "A second CONNECT is an error [MQTT-3.1.0-2].",
        "MqttConnectionHandler.dispatch",
        'raise ProtocolError(Reason.PROTOCOL_ERROR, "second CONNECT")',
        "return",
        OF_SESSIONS + "test_a_second_connect_is_an_error",
    ),
    Mutation(
        "qos_2_once",
        "A QoS 2 message that is published again is not routed again [MQTT-4.3.3-10].",
        "remember",
        "received.add(first, count)",
        "pass",
        OF_SESSIONS + "test_a_repeated_qos_2_publish_is_answered_and_not_routed_again",
    ),
    Mutation(
        "receive_maximum",
        "Unreleased QoS 2 messages are bounded (Receive Maximum of the server).",
        "remember",
        "if received.count + fresh.count > limits.max_inflight:",
        "if False:",
        OF_SESSIONS + "test_unreleased_qos_2_messages_are_bounded",
    ),
    Mutation(
        "alias_maximum",
        "A topic alias is within the server's maximum [MQTT-3.3.2-9].",
        "apply_properties",
        "if alias > broker.limits.topic_alias_maximum:",
        "if False:",
        OF_SESSIONS + "test_an_alias_above_the_maximum_or_unknown_is_an_error",
    ),
    Mutation(
        "aliased_size",
        "A topic sent as an alias counts in a packet's size.",
        "apply_properties",
        "run.largest += len(known)",
        "",
        OF_REACTOR + "test_a_topic_sent_as_an_alias_counts_in_the_size",
    ),
    Mutation(
        "system_topics",
        "Clients do not publish to $SYS.",
        "allows_publish",
        'not topic.startswith(b"$SYS/") and policy',
        "policy",
        OF_SESSIONS + "test_only_the_broker_speaks_on_system_topics",
    ),
    Mutation(
        "subscriptions_bounded",
        "Subscriptions of a session are bounded.",
        "add",
        "if existing is None and len(session.subscriptions) >= limits.max_subscriptions:",
        "if False:",
        OF_SESSIONS + "test_subscriptions_per_session_are_bounded",
    ),
    Mutation(
        "reserved_names",
        "Client identifiers of other protocols' sessions are refused.",
        "connect_flow:check",
        "if name.startswith(RESERVED_PREFIXES) or (",
        "if (",
        OF_SESSIONS + "test_the_names_of_other_protocols_are_refused",
    ),
    Mutation(
        "no_will_after_disconnect",
        "A client that disconnects has no will [MQTT-3.14.4-3].",
        "MqttConnectionHandler._on_disconnect.with_will",
        "with_will = packet.reason != Reason.NORMAL_DISCONNECTION",
        "with_will = True",
        OF_SESSIONS + "test_a_will_is_published_unless_the_client_says_goodbye",
    ),
    # Permissions
    Mutation(
        "covered_not_matched",
        "A subscription's filter must be covered by a rule, not merely matched.",
        "covers",
        """if asked == "#" or (level not in ("+", asked)):
            return False
    return len(granted) == last""",
        """if asked == "#":
            return True
        if level not in ("+", asked):
            return False
    return len(granted) == last""",
        OF_SESSIONS + "test_a_filter_must_be_covered",
    ),
    Mutation(
        "names_do_not_widen",
        "A client's name never widens what a rule grants.",
        "_fill.value",
        "if not text or _WIDENING.search(text):",
        "if not text:",
        "tests/unit/auth/test_policy.py::test_names_that_would_widen_make_the_rule_grant_nothing",
    ),
    Mutation(
        "dollar_by_name",
        "Topics beginning with $ are granted by name only.",
        "auth.filters:matches",
        """if topic[0].startswith("$") and topic_filter[0] in ("+", "#"):
        return False""",
        "",
        "tests/unit/auth/test_policy.py::test_topics_beginning_with_a_dollar_sign_are_granted_by_name_only",
    ),
    # Routing
    Mutation(
        "retained_last_writer",
        "Of retained messages the one with the greater stamp stays.",
        "RetainedStore.set",
        "if last is not None and stamp <= last:",
        "if False:",
        "tests/unit/routing/test_retained.py::test_the_greater_stamp_wins_in_whatever_order",
    ),
    Mutation(
        "retained_bounded",
        "Retained messages are bounded.",
        "RetainedStore.set",
        "if old is None and len(self._records) >= self._max_messages:",
        "if False:",
        "tests/unit/routing/test_retained.py::test_limits_refuse_and_keep_the_old",
    ),
    Mutation(
        "connected_members_first",
        "A shared subscription's absent member gets nothing while another is connected.",
        "SharedGroup.split",
        "if not members and not shards:",
        "if not members:",
        "tests/unit/routing/test_shared.py::test_the_connected_go_first_wherever_they_are",
    ),
    Mutation(
        "wildcards_and_dollar",
        "A leading wildcard does not match topics beginning with $ [MQTT-4.7.2-1].",
        "Scan._step",
        """if key[:1] == _RESERVED and wanted[:1] in ([], [SINGLE]):
            self._bound = _AFTER_RESERVED  # [MQTT-4.7.2-1]
            return""",
        "",
        "tests/unit/routing/test_retained.py::test_search",
    ),
    # Shards
    Mutation(
        "handed_over",
        "What a leaving member of a group has not acknowledged goes to another.",
        "give_up_shared",
        "if inflight.qos == 1 and inflight.group is not None and movable(inflight.group):",
        "if False:",
        "tests/unit/shards/test_groups.py::test_unacknowledged_messages_go_to_another_shard",
    ),
    Mutation(
        "qos_2_is_not_handed_over",
        "A QoS 2 message that was sent is completed with its client or with nobody.",
        "give_up_shared",
        "if inflight.qos == 1 and inflight.group is not None and movable(inflight.group):",
        "if inflight.group is not None and movable(inflight.group):",
        "tests/unit/shards/test_groups.py::test_qos_2_messages_are_completed_with_their_member_or_nobody",
    ),
    # Protocol
    Mutation(
        "wildcards_in_topics",
        "A topic name holds no wildcard [MQTT-3.3.2-2].",
        "validate_topic",
        """if b"+" in topic or b"#" in topic:
        raise _bad_topic("topic name contains a wildcard")""",
        "",
        OF_REACTOR + "test_a_bad_topic_is_an_error",
    ),
    Mutation(
        "reserved_flags",
        "Reserved flags of the fixed header are checked [MQTT-2.1.3-1].",
        "mqtt.codec:decode",
        "if kind is not PacketType.PUBLISH and flags != RESERVED_FLAGS[kind]:",
        "if False:",
        "tests/unit/protocols/mqtt/test_codec.py::test_reserved_flags",
    ),
    Mutation(
        "client_proof",
        "SCRAM: the client's proof is what lets it in.",
        "ServerExchange.receive_client_final.proven",
        "hmac.compare_digest(hashlib.sha256(client_key).digest(), stored_key)",
        "bool(client_key)",
        "tests/unit/auth/test_scram.py::test_a_wrong_password_fails_at_the_proof",
    ),
]
