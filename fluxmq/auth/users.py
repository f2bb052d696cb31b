"""The record of one user, and what a name and a set of rules must look like.

Pure values. Where they are stored is the control process's affair, how they travel is
`fluxmq.control.user_messages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fluxmq.auth.credentials import hash_problem
from fluxmq.auth.policy import rule_problem
from fluxmq.auth.saslprep import saslprep
from fluxmq.auth.scram import StoredKeys

# Far above any real name, far below what a log line or a table column can bear.
NAME_BYTES_MAX: Final = 256
# Asked in turn at each SUBSCRIBE and (by run) PUBLISH: more rules than this belong in fewer, wider
# filters.
RULES_MAX: Final = 128
RULE_BYTES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class User:
    """One user as shards know it: `hash` is argon2id text, `scram` the keys for SCRAM-SHA-256
    (None: password only).

    `publish` and `subscribe` are topic filters, possibly with ``{client_id}`` and ``{username}``.
    """

    name: str
    hash: str
    scram: StoredKeys | None
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    enabled: bool


def name_problem(name: str) -> str | None:
    """Return why `name` cannot be a user's name, or None when it can."""
    if not name:
        return "name is empty"
    try:
        encoded = name.encode()
        prepared = saslprep(name)
    except (UnicodeEncodeError, ValueError) as error:
        return f"name cannot be used: {error}"
    if len(encoded) > NAME_BYTES_MAX:
        return f"name is longer than {NAME_BYTES_MAX} bytes"
    if prepared != name:
        # SCRAM compares prepared names; a name that changes when prepared could never log in that
        # way.
        return f"name is not in its normal form, which is {prepared!r}"
    if name != name.strip():
        return "name begins or ends with a space"
    return None


def rules_problem(rules: Sequence[str]) -> str | None:
    """Return why `rules` cannot be a user's permissions to publish (or subscribe), or None when
    they can."""
    if len(rules) > RULES_MAX:
        return f"more than {RULES_MAX} filters"
    for rule in rules:
        problem = rule_problem(rule)
        if problem is not None:
            return f"filter {rule!r} {problem}"
        if len(rule.encode("utf-8", "surrogatepass")) > RULE_BYTES_MAX:
            return f"filter {rule[:40]!r}... is longer than {RULE_BYTES_MAX} bytes"
    return None


def user_problem(user: User) -> str | None:
    """Return the first thing wrong with a user's record, or None."""
    return (
        name_problem(user.name)
        or hash_problem(user.hash)
        or rules_problem(user.publish)
        or rules_problem(user.subscribe)
    )
