"""Durable queues on a shard: hosted replication groups, and client access to queues on any shard.

``ports`` separates the two sides. The host side (``service``, ``group``, ``group_log``,
``checkpoints``) owns groups: their Raft node, state machine, segments and share of the shard's
write-ahead log. The client side (``sinks``, ``consumers``, ``names``) turns publishes into appends
and deliveries into packets. It calls a queue's host directly on this shard, or through a link
(``remote``, ``hosting``) on another.
"""
