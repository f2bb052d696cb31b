"""Byte transport between a shard and its clients, and between the shards of a node."""
