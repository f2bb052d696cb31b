"""Tables of ``meta.db``, and upgrades of older versions to the present one.

Schema 4::

    state              one row: revision of users, revision of the topology, whether a node ran here
                       already, and which one runs or ran last
    users              name, argon2id hash, SCRAM-SHA-256 keys (all four or none), filters as JSON
                       lists, enabled, tags as JSON list
    permissions        user and virtual host: patterns configure, write, read
    topic_permissions  user, virtual host and exchange: patterns write, read
    topology           kind and key: a row (msgpack), and whether it ends with the node
    shared             in a cluster, up to which revision of etcd this is a copy, and the records of
                       the nodes, by key (msgpack); empty while the node is alone

Schema 3 had a replication group's log beside them: the nodes of a cluster agreed by it. Schema 2 had
neither that nor ``shared``. Schema 1 had ``state`` with the users' revision, and
``users`` without tags.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 4

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

FROM_3_TO_4: Final = """
INSERT OR REPLACE INTO shared SELECT 'meta_node', CAST(node AS BLOB) FROM raft_state;
DELETE FROM shared WHERE key GLOB 'node:*';
DROP TABLE raft_log;
DROP TABLE raft_state;
"""

STEPS: Final = {1: FROM_1_TO_2, 2: FROM_2_TO_3, 3: FROM_3_TO_4}
"""Statements that upgrade a database from each version to the next."""


def upgrade(version: int) -> str:
    """Return the statements that upgrade a database of this version (0: an empty one) to `VERSION`.

    Raises KeyError for an unknown version.
    """
    if version == 0:
        return SCHEMA_1 + "".join(STEPS.values())
    return "".join(STEPS[step] for step in range(version, VERSION))
