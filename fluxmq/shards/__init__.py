"""A shard: one process on one core that owns its sessions and connections.

``worker`` is the composition root. ``broker`` is the sessions' view of the shard; behind it are
``routes`` (subscribers of a topic), ``session_ownership`` (owner of a client id), ``groups``
(shared subscriptions), ``retained``, ``authentication``; ``peers`` and the links of `fluxmq.net`
carry runs and state to other shards.
"""
