"""Queues and streams of FluxMQ as Spark DataFrames, read from a node's segment files without touching the broker."""
