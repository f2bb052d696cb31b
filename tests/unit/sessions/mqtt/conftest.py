"""Shards for sessions that are tested by what goes over the wire."""

from tests.unit.net.conftest import shard

__all__ = ["shard"]
