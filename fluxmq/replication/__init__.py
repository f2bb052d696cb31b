"""The replication groups of one shard: one Raft driver, the groups' logs, checkpoints and
snapshots, their members on other nodes, and the repair of damaged copies.

A group replicates a state machine that the package knows by its port only (`ports`).
"""
