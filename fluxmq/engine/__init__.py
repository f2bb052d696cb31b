"""Durable and ephemeral queues of a shard, and the access of clients to queues on any shard.

``ports`` separates the two sides. The serving side (``service``, ``group``) owns the queues of the
groups that are open here; `fluxmq.replication` makes their commands durable. The client side
(``queue_targets``, ``consumers``, ``names``) turns publishes into appends and deliveries into
packets. It calls a group directly on its own shard, or through a `GroupClient` and a link
(``remote_shards``, ``group_server``) on another.
"""
