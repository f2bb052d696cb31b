"""Durable and ephemeral queues of a shard, and the access of clients to queues on any shard.

``ports`` separates the two sides. The host side (``service``, ``group``) owns the queues of the
groups that are open here; `fluxmq.replication` makes their commands durable. The client side
(``queue_targets``, ``consumers``, ``names``) turns publishes into appends and deliveries into packets. It
calls a queue's host directly on this shard, or through a link (``remote_client``, ``group_server``) on another.
"""
