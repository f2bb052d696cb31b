"""Durable queues on a shard: replication groups it hosts, and what its clients want of queues anywhere.

Two sides that meet in ``ports``. The host's side (``service``, ``group``, ``group_log``, ``checkpoints``) owns
groups outright: their Raft node, state machine, segments and place in the shard's write-ahead log. The clients'
side (``sinks``, ``consumers``, ``names``) turns publishes into appends and deliveries into packets, and asks the
host of a queue, on this shard directly, on another one through its link (``remote``, ``hosting``).
"""
