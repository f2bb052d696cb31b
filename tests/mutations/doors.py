"""Mutations of who is let in, and of what a stranger cannot do."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_AUTHENTICATION = "tests/unit/shards/test_authentication.py::"
OF_CLAIMS = "tests/unit/shards/test_claims.py::"

MUTATIONS = [
    # Client ids
    Mutation(
        "foreign_session",
        "A session of another principal is neither taken nor ended (review finding 7).",
        "fluxmq/shards/taking_over.py",
        "if owner is not None and self._foreign(owner, principal):",
        "if False:",
        OF_CLAIMS + "test_the_id_of_another_principal_is_refused",
    ),
    Mutation(
        "foreign_arriving",
        "Nor is a client disconnected whose session is about to begin (review finding 7).",
        "fluxmq/shards/taking_over.py",
        "owner = arriving.username if arriving is not None else None",
        "owner = None",
        OF_CLAIMS + "test_an_arriving_client_is_not_put_out_by_another_principal",
    ),
    Mutation(
        "foreign_owner_kept",
        "The home goes on knowing whose an id is that it refused to another (review finding 7).",
        "fluxmq/shards/claims.py",
        """            if not foreign:
                self._owners[client_id] = claim.shard
""",
        """            self._owners[client_id] = claim.shard
""",
        OF_CLAIMS + "test_the_id_of_another_principal_is_refused",
    ),
    Mutation(
        "claim_without_home",
        "While its home is away a client id is nobody's to take (review finding 7).",
        "fluxmq/shards/claims.py",
        "if not self._sessions.holds(client_id):\n                    # What is kept",
        "if not clean and not self._sessions.holds(client_id):\n                    # What is kept",
        OF_CLAIMS + "test_while_the_home_is_away_nothing_is_taken",
    ),
    # Web pages
    Mutation(
        "foreign_page",
        "Without settings a page from elsewhere does not connect (review finding 6).",
        "fluxmq/auth/origins.py",
        "return Page.FOREIGN if origin_allowed(origin, allowed) else None",
        "return Page.FOREIGN",
        "tests/unit/auth/test_origins.py::test_without_settings_only_pages_of_the_same_origin_connect",
    ),
    Mutation(
        "foreign_page_anonymous",
        "Where it does, it is not anonymous (review finding 6).",
        "fluxmq/shards/authentication.py",
        "if page is Page.FOREIGN:",
        "if False:",
        OF_AUTHENTICATION + "test_pages_from_elsewhere_are_not_anonymous",
    ),
    Mutation(
        "rebound_page_anonymous",
        "Nor is one whose name was made to point at this machine (review finding 6).",
        "fluxmq/shards/authentication.py",
        " and page is not Page.SAME",
        "",
        OF_AUTHENTICATION + "test_pages_from_elsewhere_are_not_anonymous",
    ),
]
