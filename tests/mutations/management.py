"""Rules of the management interface."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_API = "tests/unit/control/test_management.py::"
OF_BROKER = "tests/integration/test_management.py::"

MUTATIONS = [
    Mutation(
        "rights_not_checked",
        "A user needs the right that a route asks for.",
        "ManagementApi._serve",
        "check_rights(route, call.caller, call.parts)",
        "pass",
        OF_BROKER + "test_users_and_their_rights",
    ),
    Mutation(
        "other_sites_change_something",
        "Pages of other sites change nothing with a password that a browser remembers.",
        "ManagementApi._serve",
        "_check_origin(request)",
        "pass",
        OF_BROKER + "test_pages_of_other_sites_change_nothing",
    ),
    Mutation(
        "other_virtual_hosts_changed",
        "A user changes only virtual hosts where it has permissions.",
        "check_rights",
        "caller.enters(vhost) or administers if route.enters else caller.sees(vhost)",
        "True",
        OF_API + "test_rights_by_route_tag_and_virtual_host",
    ),
    Mutation(
        "permissions_of_another_user",
        "What a user declares over HTTP is checked against its permissions.",
        "ManagementCalls._begin",
        "Access(self._broker, asked.user, asked.vhost, login)",
        'Access(self._broker, "guest", "/")',
        OF_BROKER + "test_users_and_their_rights",
    ),
    Mutation(
        "loopback_users_from_anywhere",
        "Users with a well-known password are let in from this machine only.",
        "ManagementAccess._reachable",
        "name not in self._settings().loopback_users",
        "True",
        OF_API + "test_some_users_are_let_in_from_this_machine_only",
    ),
    Mutation(
        "guessing_not_delayed",
        "Failed logins delay the next ones.",
        "ManagementAccess.caller",
        "if wait > 0:",
        "if False:",
        OF_API + "test_guessing_is_delayed",
    ),
    Mutation(
        "denied_topics_permitted",
        "A rule of mosquitto that denies is not converted into one that permits.",
        "_rule",
        'if access == "deny":',
        "if False:",
        "tests/unit/cli/test_mosquitto_files.py::test_what_cannot_be_converted_is_refused",
    ),
    Mutation(
        "imported_hash_not_compared",
        "A password is compared with the digest of an imported hash.",
        "ImportedHash.matches",
        "return hmac.compare_digest(found, self.expected)",
        "return True",
        OF_API + "test_hashes_of_rabbitmq_verify",
    ),
    Mutation(
        "every_queue_has_a_row",
        "Only the queues of a page have rows made, whatever a list is sorted by.",
        "MessagingObjects._queues",
        "self._listings.queue_rows(chosen)",
        "self._listings.queue_rows(found)",
        "tests/unit/control/test_queue_pages.py::test_a_sorted_page_makes_rows_of_its_queues_only",
    ),
    Mutation(
        "a_column_at_once",
        "A shard looks at a bounded number of queues for one answer about a column.",
        "QueueColumnReader.page",
        "islice(self._from(wanted.after), self._at_once)",
        "self._from(wanted.after)",
        "tests/unit/shards/amqp/test_queue_columns.py"
        "::test_a_column_comes_in_pages_and_without_what_is_nothing",
    ),
]
