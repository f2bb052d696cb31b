"""A shard's part in the cluster: which shard leads each group, and the traffic between nodes."""
