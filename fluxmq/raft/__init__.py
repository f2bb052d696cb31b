"""Consensus of one replication group, and nothing else: Raft as state and messages, without
network, disk or clock.

A `Node` is told about events (a message came, a tick passed, a write is durable) and returns in a
`Ready` what must be done now. Entries are opaque bytes; the part already on disk is read through
the `LogReader` port. Sources: D. Ongaro and J. Ousterhout, "In Search of an Understandable
Consensus Algorithm" (extended version, 2014), called *the paper*; D. Ongaro, "Consensus: Bridging
Theory and Practice" (2014), called *the dissertation*.

* `types`        values: entries, hard state, membership, messages, `Ready`, outcomes
* `errors`       errors that make a node unable to continue
* `log`          the log: stable part behind a port, unstable tail, and its indexes
* `memberships`  the members of the group at each index of the log
* `progress`     a leader's view of one peer, and how much it may send it
* `state`        term, vote, role and outgoing messages: shared by the modules below
* `elections`    becoming leader: pre-vote, votes, the refusal to vote while there is a leader
* `following`    a follower's handling of its leader's messages
* `leader`      a leader's work: replication, commit, reads, transfer, membership
* `node`         the whole: dispatch, ready and advance
"""
