"""A shard among the shards of other nodes: where groups are led, and what crosses to there."""
