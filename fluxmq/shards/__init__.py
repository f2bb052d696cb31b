"""A shard: one process on one core, owner of its sessions and connections.

``worker`` is the composition root. ``broker`` is what sessions see; behind it ``routes`` (who gets what),
``sessions`` and ``claims`` (who owns a client id), ``groups`` (shared subscriptions), ``retained``,
``authentication``; ``links`` and ``peers`` carry runs and knowledge to the other shards.
"""
