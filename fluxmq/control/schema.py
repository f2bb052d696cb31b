"""Tables of ``meta.db``, and upgrades of older versions to the present one.

Schema 3::

    state              one row: revision of users, revision of the topology, whether a node ran here
                       already, and which one runs or ran last
    users              name, argon2id hash, SCRAM-SHA-256 keys (all four or none), filters as JSON
                       lists, enabled, tags as JSON list
    permissions        user and virtual host: patterns configure, write, read
    topic_permissions  user, virtual host and exchange: patterns write, read
    topology           kind and key: a row (msgpack), and whether it ends with the node
    shared             facts that the nodes of a cluster share about each other, by key (msgpack);
                       empty while the node is alone
    raft_state         one row while the node is in a cluster: its identity, term and vote, first
                       log index, index applied to the tables above, and the membership there
    raft_log           entries of the group _meta from that index on

Schema 2 had no ``shared`` and nothing of Raft. Schema 1 had ``state`` with the users' revision, and
``users`` without tags.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 3

USERS: Final = """
CREATE TABLE users (
    name TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    scram_iterations INTEGER,
    scram_salt BLOB,
    scram_stored_key BLOB,
    scram_server_key BLOB,
    publish TEXT NOT NULL,
    subscribe TEXT NOT NULL,
    enabled INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    CHECK ((scram_iterations IS NULL) = (scram_salt IS NULL)),
    CHECK ((scram_iterations IS NULL) = (scram_stored_key IS NULL)),
    CHECK ((scram_iterations IS NULL) = (scram_server_key IS NULL))
) STRICT, WITHOUT ROWID;
"""

SCHEMA_1: Final = f"""
CREATE TABLE state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    revision INTEGER NOT NULL CHECK (revision >= 0)
) STRICT;
INSERT INTO state (id, revision) VALUES (1, 0);
{USERS}
"""

FROM_1_TO_2: Final = """
ALTER TABLE state ADD COLUMN topology_revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE state ADD COLUMN seeded INTEGER NOT NULL DEFAULT 0 CHECK (seeded IN (0, 1));
ALTER TABLE state ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
CREATE TABLE permissions (
    user TEXT NOT NULL,
    vhost TEXT NOT NULL,
    configure TEXT NOT NULL,
    write TEXT NOT NULL,
    read TEXT NOT NULL,
    PRIMARY KEY (user, vhost)
) STRICT, WITHOUT ROWID;
CREATE TABLE topic_permissions (
    user TEXT NOT NULL,
    vhost TEXT NOT NULL,
    exchange TEXT NOT NULL,
    write TEXT NOT NULL,
    read TEXT NOT NULL,
    PRIMARY KEY (user, vhost, exchange)
) STRICT, WITHOUT ROWID;
CREATE TABLE topology (
    kind TEXT NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    transient INTEGER NOT NULL CHECK (transient IN (0, 1)),
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
"""

FROM_2_TO_3: Final = """
CREATE TABLE shared (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE raft_state (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    node TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    standing TEXT NOT NULL,
    brings INTEGER NOT NULL CHECK (brings IN (0, 1)),
    term INTEGER NOT NULL,
    vote INTEGER NOT NULL,
    commit_index INTEGER NOT NULL,
    base_index INTEGER NOT NULL,
    base_term INTEGER NOT NULL,
    applied INTEGER NOT NULL,
    applied_term INTEGER NOT NULL,
    membership BLOB NOT NULL
) STRICT;
CREATE TABLE raft_log (
    place INTEGER PRIMARY KEY,
    term INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;
"""

STEPS: Final = {1: FROM_1_TO_2, 2: FROM_2_TO_3}
"""Statements that upgrade a database from each version to the next."""


def upgrade(version: int) -> str:
    """Return the statements that upgrade a database of this version (0: an empty one) to `VERSION`.

    Raises KeyError for an unknown version.
    """
    if version == 0:
        return SCHEMA_1 + "".join(STEPS.values())
    return "".join(STEPS[step] for step in range(version, VERSION))
