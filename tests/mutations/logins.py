"""Rules of logins by other backends than the internal one."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_TOKENS = "tests/unit/control/logins/test_oauth2.py::"
OF_CHAIN = "tests/unit/control/logins/test_service.py::"
OF_SHARD = "tests/unit/shards/test_backend_logins.py::"
OF_RIGHTS = "tests/unit/shards/test_rights_decisions.py::"
OF_STORE = "tests/unit/control/test_metadata.py::"
OF_UPGRADES = "tests/unit/ipc/test_hash_upgrades.py::"
OF_PASSWORDS = "tests/unit/shards/test_hash_upgrades.py::"
OF_CLIENTS = "tests/unit/shards/test_permissions.py::"
OF_METHOD = "tests/unit/sessions/mqtt/test_token_authentication.py::"
OF_AMQP = "tests/unit/sessions/amqp091/test_logins.py::"

MUTATIONS = [
    Mutation(
        "any_algorithm",
        "Only algorithms of the settings count, and none with a shared secret.",
        "OAuth2Backend.check",
        "algorithm not in self._settings.algorithms",
        "False",
        OF_TOKENS + "test_only_the_algorithms_of_the_settings",
    ),
    Mutation(
        "expired_tokens",
        "A token that has expired lets nobody in.",
        "OAuth2Backend._claims",
        '_seconds(claims, "exp") + leeway <= now',
        "False",
        OF_TOKENS + "test_a_token_ends_with_its_time_and_the_leeway",
    ),
    Mutation(
        "expired_tokens_remembered",
        "Nor does one that has expired since it was remembered.",
        "LoginBackends._granted",
        "if remaining <= 0:",
        "if False:",
        OF_CHAIN + "test_a_remembered_token_ends_with_its_time",
    ),
    Mutation(
        "wrong_for_unavailable",
        "A backend that cannot be asked makes no password wrong.",
        "LoginBackends._check",
        'failed = LoginAnswer("unavailable", name)',
        "pass",
        OF_CHAIN + "test_the_next_backend_is_asked_after_a_refusal_or_a_failure",
    ),
    Mutation(
        "remote_guest",
        "A user of this machine is one whichever backend knows the name.",
        "Authentication._decided",
        "if accepted and self.reachable(answer.name, login.peer)",
        "if accepted",
        OF_SHARD + "test_a_user_of_this_machine_stays_one_of_it",
    ),
    Mutation(
        "earlier_rights_stay",
        "A resumed session has no subscription that the new login does not permit.",
        "end_denied",
        "if not permitted:",
        "if False:",
        OF_SHARD + "test_a_resumed_session_keeps_what_the_new_login_permits",
    ),
    Mutation(
        "endless_logins",
        "A connection ends with its login.",
        "AmqpClient.reschedule",
        "(self.deadline, self.heartbeat_at, ends_at)",
        "(self.deadline, self.heartbeat_at)",
        OF_AMQP + "test_the_connection_ends_with_the_login",
    ),
    Mutation(
        "another_user_by_renewal",
        "A renewed login is of the same user.",
        "AmqpSession._update_secret.done",
        "or result.username != info.user",
        "",
        OF_AMQP + "test_a_renewal_that_is_refused_closes_the_connection",
    ),
    Mutation(
        "another_user_by_auth",
        "Nor does AUTH make another user of an MQTT client.",
        "connect_flow:on_renewed",
        "if result.username != client.username:",
        "if False:",
        OF_METHOD + "test_a_renewal_that_fails_ends_the_connection",
    ),
    Mutation(
        "renewed_until_the_former_end",
        "A login that was renewed by AUTH ends with the new token.",
        "connect_flow:on_renewed",
        "broker.connections.end_at(client, client.policy.ends_at)",
        "pass",
        OF_METHOD + "test_a_renewed_login_has_the_end_and_the_rights_of_the_new_token",
    ),
    Mutation(
        "secrets_given_away",
        "What is no token is given to no backend as one.",
        "connect_flow:check_token",
        "or not looks_like_token(token)",
        "",
        OF_METHOD + "test_what_is_no_token_is_given_to_no_backend",
    ),
    Mutation(
        "banned_by_token",
        "A ban is of the name in the token, whatever name is given beside it.",
        "Authentication._decided",
        "accepted and self.bans.refuse(answer.backend, login.peer, answer.name)",
        "False",
        OF_METHOD + "test_a_ban_is_of_the_name_in_the_token",
    ),
    Mutation(
        "will_of_a_removed_backend",
        "A will is not published once its backend is no longer asked.",
        "Authentication.will_policy",
        "if backend not in self.settings.backends:",
        "if False:",
        OF_SHARD + "test_after_a_restart_a_will_is_published_that_its_backend_had_permitted",
    ),
    Mutation(
        "will_forgets_its_backend",
        "A will that its backend permitted is published after a restart.",
        "rows:will_values",
        "*([will.backend] * bool(will.backend)),",
        "",
        OF_SHARD + "test_after_a_restart_a_will_is_published_that_its_backend_had_permitted",
    ),
    Mutation(
        "permitted_for_ever",
        "What another backend has decided is asked again.",
        "permitted",
        "if lasting and connection.allowed",
        "if connection.allowed",
        OF_RIGHTS + "test_a_permission_that_is_revoked_is_noticed",
    ),
    Mutation(
        "upgrade_undoes_a_new_password",
        "A password that was set after the login stays.",
        "MetadataStore.upgrade_hashes",
        "user.hash != each.verified",
        "False",
        OF_STORE + "test_an_imported_hash_is_replaced_if_it_is_still_the_one_that_was_verified",
    ),
    Mutation(
        "upgrades_at_once",
        "One request to replace hashes is under way at a time, and a pause follows.",
        "HashUpgrades._go_on",
        "self._busy or",
        "",
        OF_UPGRADES + "test_what_comes_meanwhile_shares_the_next_request_after_a_pause",
    ),
    Mutation(
        "upgrade_fails_logins",
        "A login that is being verified stays valid when its hash is replaced.",
        "Authentication._finish",
        "not same_password(stored, user.hash)",
        "stored != user.hash",
        OF_PASSWORDS + "test_a_login_stays_valid_while_its_hash_is_replaced",
    ),
    Mutation(
        "upgrade_disconnects",
        "Nobody is disconnected because a hash was replaced.",
        "PermissionUpdates._may_stay",
        "same_password(before.hash, user.hash)",
        "before.hash == user.hash",
        OF_CLIENTS + "test_who_logged_in_with_an_imported_hash_stays_when_it_is_replaced",
    ),
    Mutation(
        "anonymous_by_default",
        "AMQP clients without credentials log in only as a user that the settings name.",
        "Amqp10Handshake.on_sasl",
        "info.mechanism == sasl.ANONYMOUS and bool(self.limits.anonymous_user)",
        "info.mechanism == sasl.ANONYMOUS",
        "tests/unit/sessions/amqp10/test_handshake.py::test_other_mechanisms_are_refused",
    ),
    Mutation(
        "anonymous_from_anywhere",
        "AMQP clients without credentials come from where MQTT's may.",
        "without_credentials",
        "not from_here or ",
        "",
        "tests/unit/shards/test_authentication.py::"
        "test_amqp_clients_without_credentials_are_one_user_from_where_they_may_be",
    ),
]
