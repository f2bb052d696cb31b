"""Metrics of replication, of etcd and of the streams between nodes; a part of `registry`'s table."""

from __future__ import annotations

from typing import Final

from fluxmq.metrics.metric import Metric, MetricKind, Scope

_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_NODE = Scope.NODE

OF_CLUSTERS: Final = (
    # Replicated groups, and other nodes
    Metric("fluxmq_raft_term", _G, "Raft term of the group on this node.", ("group",)),
    Metric("fluxmq_raft_leader", _G, "1 while this node leads the group.", ("group",)),
    Metric("fluxmq_raft_leader_known", _G, "1 while the group has a leader.", ("group",)),
    Metric("fluxmq_raft_commit_index", _G, "Commit index of the group.", ("group",)),
    Metric("fluxmq_raft_applied_index", _G, "Applied index of the group on this node.", ("group",)),
    Metric(
        "fluxmq_raft_snapshot_index",
        _G,
        "Index of the group's newest snapshot on this node.",
        ("group",),
    ),
    Metric(
        "fluxmq_raft_elections_total",
        _C,
        "Times that this node became the group's leader.",
        ("group",),
    ),
    Metric(
        "fluxmq_raft_mismatches_total",
        _C,
        "Replicas that this node, as leader, found to differ from the majority.",
        ("group",),
    ),
    Metric(
        "fluxmq_raft_damaged_total",
        _C,
        "Times that this node's replica was damaged and restored from other members.",
        ("group",),
    ),
    Metric(
        "fluxmq_raft_scrubbed_bytes_total",
        _C,
        "Bytes of sealed segments scrubbed in the background.",
    ),
    Metric("fluxmq_raft_snapshots_installed_total", _C, "Snapshots from other members installed."),
    Metric("fluxmq_raft_bytes_sent_total", _C, "Bytes of Raft messages sent.", ("group",)),
    Metric("fluxmq_raft_bytes_received_total", _C, "Bytes of Raft messages received.", ("group",)),
    Metric(
        "fluxmq_raft_lag_entries",
        _G,
        "Entries by which a member lags, as seen by the leader.",
        ("group", "member"),
    ),
    Metric(
        "fluxmq_raft_last_contact_seconds",
        _G,
        "Time since the last contact: with each member on the leader, with the leader elsewhere.",
        ("group", "member"),
    ),
    Metric("fluxmq_etcd_reachable", _G, "1 while etcd says which node leads.", scope=Scope.NODE),
    Metric(
        "fluxmq_etcd_leader", _G, "1 while this node coordinates the cluster.", scope=Scope.NODE
    ),
    Metric(
        "fluxmq_etcd_revision", _G, "Revision of etcd, when it was last heard of.", scope=Scope.NODE
    ),
    Metric(
        "fluxmq_etcd_failures_total",
        _C,
        "Requests of the election that have failed.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_retained_committed_total",
        _C,
        "Changes of retained messages committed in etcd for this node's shards.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_retained_failures_total",
        _C,
        "Requests to etcd about retained messages that have failed, and values that make no sense.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_retained_expired_total",
        _C,
        "Expired retained messages deleted from etcd by this node.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_cluster_owned_client_ids",
        _G,
        "Client identifiers that this node owns, as etcd says.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_cluster_owned_client_ids_failures_total",
        _C,
        "Requests to etcd about client identifiers that have failed, and values that make no sense.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_cluster_nodes",
        _G,
        "Nodes of the cluster, those that have joined included.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_cluster_records",
        _G,
        "Subscriptions and consumers of this node's clients that are recorded in etcd.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_cluster_records_dropped_total",
        _C,
        "Changes that were not recorded because too many waited for etcd.",
    ),
    Metric(
        "fluxmq_cluster_records_failures_total",
        _C,
        "Requests to etcd about subscriptions and consumers that have failed.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_wills_of_ended_nodes_total",
        _C,
        "Wills of clients of other nodes, which had ended, published by this node.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_wills_failures_total",
        _C,
        "Requests to etcd about wills that have failed, and values that make no sense.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_mirrored_groups",
        _G,
        "Groups of mirrored queues that the cluster has.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_mirrored_groups_ended_total",
        _C,
        "Groups that this node has ended since no queue was in them any more.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_mirror_promotions_total",
        _C,
        "Mirrors that this node has made leaders of their groups.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_mirror_divergent_groups",
        _G,
        "Groups of mirrored queues whose leader here went on alone in a partition, and has not been discarded.",
    ),
    Metric(
        "fluxmq_mirror_divergent_messages_total",
        _C,
        "Messages that a leader confirmed alone in a partition, and that were discarded with its copy.",
    ),
    Metric(
        "fluxmq_mirrors_failures_total",
        _C,
        "Requests to etcd about mirrored groups that have failed, and records that make no sense.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_mirror_moves_waiting",
        _G,
        "Queues here that get more mirrors once older messages are gone, or when that is asked for.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_metadata_revision",
        _G,
        "Revision of etcd at which topology and users last changed, as this node has them.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_metadata_commits_total",
        _C,
        "Changes of topology and users that this node has committed in etcd.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_metadata_conflicts_total",
        _C,
        "Changes that this node decided about again, since another node had committed one meanwhile.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_metadata_failures_total",
        _C,
        "Requests to etcd about topology and users that have failed, and watches that have ended.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_etcd_members_admitted_total",
        _C,
        "Members of etcd without a directory that this node has admitted to the cluster.",
        scope=Scope.NODE,
    ),
    Metric(
        "fluxmq_raft_groups_at_rest",
        _G,
        "Groups in which nothing happens: they share their heartbeats.",
    ),
    Metric(
        "fluxmq_raft_groups_not_shown",
        _G,
        "Groups left out of these metrics because there are too many.",
    ),
    Metric(
        "fluxmq_clock_ahead_seconds",
        _G,
        "Steady time, which governs expiry and redelivery, minus the wall clock.",
    ),
    Metric(
        "fluxmq_group_time_ahead_seconds",
        _G,
        "Time of the replication group that is furthest ahead of the wall clock, minus the wall clock.",
    ),
    Metric(
        "fluxmq_cluster_clock_offset_seconds",
        _G,
        "The other node's wall clock minus this node's.",
        ("node",),
    ),
    Metric(
        "fluxmq_cluster_clocks_apart",
        _G,
        "Nodes whose wall clock differs from this node's by more than two seconds.",
    ),
    Metric("fluxmq_node_links_up", _G, "Streams to the other node's shards.", ("node",)),
    Metric("fluxmq_node_link_bytes", _G, "Bytes waiting to be sent to the other node.", ("node",)),
    Metric(
        "fluxmq_node_link_bytes_sent_total", _C, "Bytes sent to the other node's shards.", ("node",)
    ),
    Metric(
        "fluxmq_node_link_bytes_received_total",
        _C,
        "Bytes received from the other node's shards.",
        ("node",),
    ),
    Metric(
        "fluxmq_cluster_append_timeouts_total",
        _C,
        "Appends refused because no leader answered within ack_timeout; they may have been stored.",
    ),
    Metric(
        "fluxmq_cluster_publish_sent_total",
        _C,
        "MQTT messages sent to another node for its subscribers, once for each node.",
    ),
    Metric(
        "fluxmq_cluster_publish_received_total",
        _C,
        "MQTT messages received from other nodes for subscribers of this one.",
    ),
    Metric(
        "fluxmq_cluster_publish_repeated_total",
        _C,
        "Groups of MQTT messages that another node sent again and that had come before.",
    ),
    Metric(
        "fluxmq_cluster_publish_dropped_total",
        _C,
        "MQTT messages not sent to another node, which is behind or cannot be reached.",
    ),
    Metric(
        "fluxmq_cluster_publish_refused_total",
        _C,
        "MQTT messages refused because too many wait for another node's persistent sessions.",
    ),
    Metric(
        "fluxmq_cluster_publish_slow_nodes_total",
        _C,
        "Connections to other nodes begun again because they did not confirm a subscription.",
    ),
    Metric(
        "fluxmq_outboxes", _G, "Queues with appends accepted on this node (write_policy local)."
    ),
    Metric(
        "fluxmq_outbox_batches",
        _G,
        "Batches acknowledged from this node's disk alone, until their queue's leader has them.",
    ),
    Metric("fluxmq_outbox_kept_total", _C, "Batches accepted on this node for a remote leader."),
    Metric("fluxmq_outbox_carried_total", _C, "Batches forwarded to their queue's leader."),
    Metric(
        "fluxmq_outbox_refused_total",
        _C,
        "Times that a queue refused a forwarded batch; it is retried every second.",
    ),
    Metric(
        "fluxmq_cluster_malformed_messages_total",
        _C,
        "Malformed messages from other nodes; each ends its stream.",
    ),
    Metric(
        "fluxmq_cluster_refused_total",
        _C,
        "Inter-node connections, TLS handshakes, streams and calls that were refused or failed,"
        " and connections ended for HTTP/2 violations (protocol) or unread data (unread).",
        ("reason",),
    ),
    Metric(
        "fluxmq_cluster_unread_bytes",
        _G,
        "Unread bytes buffered for other nodes on slow connections; above 512 MiB some connections are closed.",
    ),
)
