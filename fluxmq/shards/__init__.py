"""A shard: one process on one core that owns its sessions and connections.

``worker`` is the composition root. ``broker`` is the sessions' view of the shard; behind it are
``routes`` (subscribers of a topic), ``sessions`` and ``ownership`` (owner of a client id), ``groups``
(shared subscriptions), ``retained``, ``authentication``; ``links`` and ``peers`` carry runs and
state to other shards.
"""
