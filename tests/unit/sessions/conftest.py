"""Sessions are tested in whole shards, stepped by hand on a clock of their own."""

from tests.unit.shards.conftest import clock, loop, make_node

__all__ = ["clock", "loop", "make_node"]
