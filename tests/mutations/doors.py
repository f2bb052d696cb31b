"""Mutations of who is let in, and of what a stranger cannot do."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_AUTHENTICATION = "tests/unit/shards/test_authentication.py::"
OF_VERIFYING = "tests/unit/shards/test_password_verifications.py::"
OF_CLUSTER_BANS = "tests/integration/test_etcd_bans.py::"
OF_CLAIMS = "tests/unit/shards/test_session_ownership.py::"

MUTATIONS = [
    # Client ids
    Mutation(
        "foreign_session",
        "A session of another principal is neither taken nor ended (review finding 7).",
        "SessionTakeover.take",
        "if owner is not None and self._foreign(owner, principal):",
        "if False:",
        OF_CLAIMS + "test_the_id_of_another_principal_is_refused",
    ),
    Mutation(
        "foreign_arriving",
        "Nor is a client disconnected whose session is about to begin (review finding 7).",
        "SessionTakeover.take",
        "owner = arriving.username if arriving is not None else None",
        "owner = None",
        OF_CLAIMS + "test_an_arriving_client_is_not_put_out_by_another_principal",
    ),
    Mutation(
        "foreign_owner_kept",
        "The home goes on knowing whose an id is that it refused to another (review finding 7).",
        "SessionOwnership._grant",
        "if not refused:\n                self._owners[client_id] = acquisition.shard",
        "self._owners[client_id] = acquisition.shard",
        OF_CLAIMS + "test_the_id_of_another_principal_is_refused",
    ),
    Mutation(
        "claim_without_home",
        "While its home is away a client id is nobody's to take (review finding 7).",
        "SessionOwnership.acquire",
        "if not self._sessions.holds(client_id):\n                    # The home has",
        "if not clean and not self._sessions.holds(client_id):\n                    # The home has",
        OF_CLAIMS + "test_while_the_home_is_away_nothing_is_taken",
    ),
    # Bans of a cluster
    Mutation(
        "lifted_bans_return",
        "A node that starts does not bring back bans that were lifted meanwhile.",
        "Bans.own",
        "() if self._copied else tuple(self._in_force().values())",
        "tuple(self._in_force().values())",
        OF_CLUSTER_BANS + "test_a_node_starts_by_its_copy_and_catches_up",
    ),
    Mutation(
        "half_a_ban",
        "What the cluster does not take holds on no node.",
        "Bans.answer",
        "not self._reached",
        "False",
        OF_CLUSTER_BANS + "test_without_etcd_a_ban_is_refused",
    ),
    # Web pages
    Mutation(
        "foreign_page",
        "Without settings a page from elsewhere does not connect (review finding 6).",
        "origins:page_of",
        "return PageOrigin.FOREIGN if origin_allowed(origin, allowed) else None",
        "return PageOrigin.FOREIGN",
        "tests/unit/auth/test_origins.py::test_without_settings_only_pages_of_the_same_origin_connect",
    ),
    Mutation(
        "foreign_page_anonymous",
        "Where it does, it is not anonymous (review finding 6).",
        "Authentication.anonymous_allowed",
        "if page is PageOrigin.FOREIGN:",
        "if False:",
        OF_AUTHENTICATION + "test_pages_from_elsewhere_are_not_anonymous",
    ),
    Mutation(
        "rebound_page_anonymous",
        "Nor is one whose name was made to point at this machine (review finding 6).",
        "Authentication.anonymous_allowed",
        "and page is not PageOrigin.SAME",
        "",
        OF_AUTHENTICATION + "test_pages_from_elsewhere_are_not_anonymous",
    ),
    # Logins
    Mutation(
        "certificate_loopback",
        "A certificate is no way round loopback_users (review finding 12).",
        "Authentication.by_certificate",
        "if not allowed or not self.reachable(name, peer):",
        "if not allowed:",
        OF_AUTHENTICATION + "test_certificates_honour_loopback_users",
    ),
    Mutation(
        "external_loopback",
        "Nor is it by AMQP (review finding 12).",
        "AmqpBroker.authenticate",
        "authentication.by_certificate(name, client.peer, user_needed=True)",
        "authentication.by_certificate(name, '127.0.0.1:1', user_needed=True)",
        "tests/unit/shards/amqp/test_wiring.py::test_a_certificate_honours_loopback_users",
    ),
    Mutation(
        "remembered_first",
        "A password that was verified before does not wait for others (review finding 8).",
        "Authentication.verify",
        """if remembered:
            self._accept""",
        """if remembered and not self.pending:
            self._accept""",
        OF_VERIFYING + "test_a_password_verified_before_does_not_queue",
    ),
    Mutation(
        "addresses_in_turn",
        "Logins of one address do not hold up those of another (review finding 8).",
        "FairQueue.take",
        "self._waiting.move_to_end(key)",
        "self._waiting.move_to_end(key, last=False)",
        "tests/unit/auth/test_fair_queue.py::test_keys_take_turns",
    ),
    Mutation(
        "room_for_others",
        "An address with many waiting makes room for one with fewer (review finding 8).",
        "FairQueue.add",
        "if greatest is None or len(greatest) <= have + 1:",
        "if True:",
        OF_VERIFYING + "test_addresses_take_turns",
    ),
    Mutation(
        "busy_is_no_refusal",
        "AMQP clients are not refused for good when the node is busy (review finding 8).",
        "Handshake._authenticated",
        "elif result.outcome in (LoginOutcome.UNAVAILABLE, LoginOutcome.BUSY):",
        "elif False:",
        "tests/unit/sessions/amqp091/test_connecting.py::"
        "test_credentials_that_cannot_be_checked_now_are_not_refused",
    ),
    Mutation(
        "guessing_delayed",
        "Failed logins delay the next ones (review finding 15).",
        "LoginThrottle._count",
        "entry.until = now + min(delay, self.limits.max_delay)",
        "pass",
        "tests/unit/auth/test_login_throttle.py::test_delays_double_up_to_a_limit",
    ),
    Mutation(
        "guessing_at_once",
        "Those that wait when the delay begins are not tried either (review finding 15).",
        "Authentication._begin",
        "if self.guessing.wait(login.username, login.address, self._loop.time()):",
        "if False:",
        OF_VERIFYING + "test_attempts_at_once_are_not_all_tried",
    ),
    Mutation(
        "guessing_oracle",
        "A remembered password is no way to guess without delay (review finding 15).",
        "Authentication.verify",
        "if remembered is False:",
        "if False:",
        OF_VERIFYING + "test_guessing_at_many_names_is_slowed_down",
    ),
    Mutation(
        "guessing_scram",
        "SCRAM exchanges that were begun at once are not all tried (review finding 15).",
        "scram_step",
        "if login_refused(broker, client, exchange.username):",
        "if False:",
        "tests/unit/sessions/mqtt/test_connect_flow.py::test_scram_is_no_way_to_guess",
    ),
    # What is let in
    Mutation(
        "deleted_user_is_not_anonymous",
        "A name is nobody's only where nobody was ever added.",
        "Authentication._nobody_yet",
        "0 <= self.revision <= INITIAL_REVISION",
        "0 <= self.revision",
        OF_AUTHENTICATION + "test_an_unknown_name_is_none_until_somebody_adds_a_user",
    ),
    Mutation(
        "control_characters",
        "Topics and client ids hold no control characters unless the settings allow them.",
        "_check_text",
        "if not control_characters and holds_control_characters(raw):",
        "if False:",
        "tests/unit/sessions/mqtt/test_publishing.py::test_control_characters_are_malformed",
    ),
    # Certificates and bans
    Mutation(
        "name_around_client_certificates",
        "Another host name is no way round client_auth.",
        "net.certificates:_context",
        "return server_context(settings, pair)",
        "return certificate_context(settings, pair)",
        "tests/unit/net/test_certificates.py::test_client_certificates_are_asked_for_under_every_name",
    ),
    Mutation(
        "banned_stay",
        "A ban closes the connections that are open.",
        "BanUpdates._close_mqtt",
        "self._handler.disconnect(client, Cause.BANNED)",
        "pass",
        "tests/unit/shards/test_bans.py::test_open_connections_are_closed",
    ),
]
