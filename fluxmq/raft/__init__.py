"""Consensus of one replication group, and nothing else: Raft as state and messages, without network, disk or clock.

A `Node` is told what happened (a message came, a tick passed, a write is durable) and says in a `Ready` what must be
done now. Entries are opaque bytes; what is already on disk is read through the `LogReader` port. Sources: D. Ongaro
and J. Ousterhout, "In Search of an Understandable Consensus Algorithm" (extended version, 2014), called *the paper*;
D. Ongaro, "Consensus: Bridging Theory and Practice" (2014), called *the dissertation*.

* `types`        values: entries, hard state, membership, messages, `Ready`, outcomes
* `errors`       what makes a node unable to continue
* `log`          the log: stable part behind a port, unstable tail, how far it is persisted, committed, handed out
* `memberships`  who belongs to the group at which index of the log
* `progress`     what a leader knows of one peer, and how much it may send it
* `state`        term, vote, role and what is to be sent: shared by the modules below
* `elections`    becoming leader: pre-vote, votes, the refusal to vote while there is a leader
* `following`    what a follower does with a leader's messages
* `leading`      what a leader does: replication, commit, reads, transfer, membership
* `node`         the whole: dispatch, ready and advance
"""
