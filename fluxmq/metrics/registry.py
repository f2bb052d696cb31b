"""Every metric of the broker, declared once: name, kind, help, labels, and reporting process.

Names and units follow Prometheus' conventions: `fluxmq_` in front, base units (seconds, bytes),
counters end in `_total`. A process may report only what is declared here; the control process adds
the label `shard` to shards' reports. Label values are few and known beforehand (a QoS, a reason, a
packet type), never something a client chose.

Longer than 500 lines because it is one table, with an entry for each metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fluxmq.metrics.cluster_metrics import OF_CLUSTERS
from fluxmq.metrics.metric import Metric, MetricKind, Scope

# One number as a process reports it: the sample's name, its labels, its value.
Sample = tuple[str, Mapping[str, str], float]


# Reasons why a message did not reach a subscriber or queue: the values of label `reason` of
# fluxmq_messages_dropped_total.
DROP_REASONS: Final = (
    "slow_subscriber",  # QoS 0 for a connection whose output buffer is full
    "offline_queue_full",  # the session's queue of an absent client is at its limit
    "expired",  # message expiry interval passed
    "too_large",  # above the receiver's maximum packet size
    "no_permission",  # the publisher may not publish there
    "shared_no_member",  # no connected member in the shared subscription's group
    "link_full",  # QoS 0 for another shard while the link to it is full
    "retained_full",  # the store of retained messages is at its limit; delivered, not retained
    "queue_refused",  # a queue refused it, or there is no such queue
    "capture_full",  # QoS 0 for a queue while too many wait to be copied into it
    "not_stored",  # a session or retained message could not be kept on disk
    "unroutable",  # AMQP: no queue or subscriber was found, and the message was not mandatory
    "reply_gone",  # AMQP: the requester of a direct reply is gone
    "reply_slow",  # AMQP: a direct reply for a connection whose output buffer is full
)

# States of AMQP connections: the values of label `state` of fluxmq_amqp_connections.
AMQP_STATES: Final = (
    "starting",  # from its header to connection.open-ok
    "running",
    "flow",  # reading is paused: it publishes, or sends requests, too fast
    "blocked",  # it has published, and is not read: the node is low on memory or disk space
    "closing",  # connection.close was sent and not answered yet
)

# Duration of a write-ahead log sync: from a drive with a battery to a failing one.
SYNC_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)

# Queues of one shard with series of their own; the rest is summed under `OTHER_QUEUES`. Names come
# from the settings and from clients, so their number has to be bounded here.
QUEUE_SERIES_MAX: Final = 200
OTHER_QUEUES: Final = "(other)"

# Replicated groups of one shard with series of their own: eight per shard is sensible.
GROUP_SERIES_MAX: Final = 200

# Loop lag: how late the event loop came back to a tick that was due. From a quarter of a
# millisecond (normal) to seconds (something blocked).
LAG_BUCKETS: Final = (0.00025, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5)

_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_ACCEPTOR, _NODE = Scope.ACCEPTOR, Scope.NODE

_DECLARED: Final = (
    # Connections and sessions
    Metric("fluxmq_connections", _G, "Client connections open now.", ("listener",)),
    Metric("fluxmq_connections_opened_total", _C, "Connections opened.", ("listener",)),
    Metric("fluxmq_connections_closed_total", _C, "Connections ended, by cause.", ("reason",)),
    Metric("fluxmq_sessions", _G, "Sessions of connected and of absent clients.", ("state",)),
    Metric("fluxmq_sessions_expired_total", _C, "Sessions removed because they expired."),
    Metric("fluxmq_session_takeovers_total", _C, "Sessions taken over by a new connection."),
    Metric(
        "fluxmq_cluster_sessions_arrived_total",
        _C,
        "Sessions that have come from other nodes, with their clients.",
    ),
    Metric(
        "fluxmq_cluster_client_ids_left_total",
        _C,
        "Client identifiers that other nodes have taken over from this one, with or without a session.",
    ),
    Metric("fluxmq_wills_pending", _G, "Wills waiting for their delay to pass."),
    Metric("fluxmq_wills_published_total", _C, "Wills published."),
    # Messages
    Metric("fluxmq_messages_received_total", _C, "PUBLISH packets received.", ("qos",)),
    Metric("fluxmq_messages_sent_total", _C, "PUBLISH packets sent to clients.", ("qos",)),
    Metric(
        "fluxmq_message_bytes_received_total", _C, "Bytes of PUBLISH packets received.", ("qos",)
    ),
    Metric("fluxmq_message_bytes_sent_total", _C, "Bytes of PUBLISH packets sent.", ("qos",)),
    Metric("fluxmq_messages_dropped_total", _C, "Messages not delivered, by cause.", ("reason",)),
    Metric("fluxmq_packets_received_total", _C, "Control packets received.", ("type",)),
    Metric("fluxmq_inflight_messages", _G, "QoS 1 and 2 messages sent and not yet acknowledged."),
    Metric("fluxmq_pending_messages", _G, "Messages waiting in sessions."),
    Metric("fluxmq_pending_bytes", _G, "Bytes of messages waiting in sessions."),
    Metric("fluxmq_retained_messages", _G, "Retained messages held by this shard."),
    Metric("fluxmq_retained_bytes", _G, "Bytes of retained messages held by this shard."),
    Metric(
        "fluxmq_retained_uncommitted",
        _G,
        "Topics of this shard with a change that etcd has not committed.",
    ),
    Metric(
        "fluxmq_retained_missing",
        _G,
        "Retained messages that this shard still has to fetch from another node.",
    ),
    Metric(
        "fluxmq_retained_fetched_total",
        _C,
        "Retained messages fetched from other nodes.",
    ),
    # Routing
    Metric("fluxmq_subscriptions", _G, "Subscriptions of this shard's sessions."),
    Metric("fluxmq_shared_groups", _G, "Shared subscription groups known to this shard."),
    Metric("fluxmq_route_cache_entries", _G, "Topics in the route cache."),
    Metric("fluxmq_route_cache_hits_total", _C, "Publish runs routed from the cache."),
    Metric("fluxmq_route_cache_misses_total", _C, "Publish runs routed without the cache."),
    # Queues
    Metric("fluxmq_queues", _G, "Queues of this shard.", ("durability",)),
    Metric("fluxmq_queue_messages", _G, "Messages in the queue.", ("queue",)),
    Metric("fluxmq_queue_bytes", _G, "Bytes of the queue, on disk or in memory.", ("queue",)),
    Metric("fluxmq_queue_unsettled", _G, "Messages delivered and not settled.", ("queue",)),
    Metric("fluxmq_queue_consumers", _G, "Consumers in all groups of the queue.", ("queue",)),
    Metric("fluxmq_queue_messages_stored_total", _C, "Messages stored in queues."),
    Metric("fluxmq_queue_messages_delivered_total", _C, "Messages handed to consumers."),
    Metric(
        "fluxmq_queue_messages_settled_total",
        _C,
        "Messages settled by consumers, by verb.",
        ("verb",),
    ),
    Metric(
        "fluxmq_queue_batches_refused_total",
        _C,
        "Batches that queues refused to store, by cause.",
        ("reason",),
    ),
    Metric("fluxmq_dead_letters_total", _C, "Messages moved to dead-letter queues."),
    Metric("fluxmq_dead_letters_failed_total", _C, "Refused attempts to dead-letter a message."),
    Metric(
        "fluxmq_dead_letters_dropped_total",
        _C,
        "Dead-lettered messages dropped because their exchange routed them to no queue or to a full one.",
    ),
    # AMQP 0.9.1
    Metric("fluxmq_amqp_connections", _G, "Open AMQP connections, by state.", ("state",)),
    Metric(
        "fluxmq_amqp_connections_opened_total", _C, "AMQP connections that opened a virtual host."
    ),
    Metric(
        "fluxmq_amqp_connections_closed_total", _C, "AMQP connections ended, by cause.", ("reason",)
    ),
    Metric("fluxmq_amqp_channels", _G, "AMQP channels open now."),
    Metric("fluxmq_amqp_consumers", _G, "Consumers of AMQP channels, including direct reply-to."),
    Metric("fluxmq_amqp_unsettled_messages", _G, "AMQP deliveries not acknowledged yet."),
    Metric(
        "fluxmq_amqp_published_total",
        _C,
        "Messages published over AMQP, including unroutable ones.",
    ),
    Metric("fluxmq_amqp_published_bytes_total", _C, "Bytes of message bodies published over AMQP."),
    Metric("fluxmq_amqp_returned_total", _C, "Mandatory messages returned as unroutable."),
    Metric("fluxmq_amqp_confirms_total", _C, "Publisher confirms sent, by answer.", ("answer",)),
    Metric("fluxmq_amqp_delivered_total", _C, "Messages delivered over AMQP, including basic.get."),
    Metric("fluxmq_amqp_delivered_bytes_total", _C, "Bytes of the frames of AMQP deliveries."),
    Metric("fluxmq_amqp_redelivered_total", _C, "AMQP deliveries marked as redelivered."),
    Metric("fluxmq_amqp_gets_total", _C, "basic.get requests, by answer.", ("answer",)),
    Metric(
        "fluxmq_amqp_settled_total", _C, "Messages settled by AMQP clients, by verb.", ("verb",)
    ),
    Metric("fluxmq_amqp_direct_replies_total", _C, "Messages sent as direct replies."),
    Metric(
        "fluxmq_amqp_transactions_total", _C, "AMQP transactions ended, by outcome.", ("outcome",)
    ),
    Metric(
        "fluxmq_amqp_methods_total",
        _C,
        "AMQP methods received, except publishes, and acknowledgements outside transactions.",
        ("method",),
    ),
    Metric(
        "fluxmq_amqp_errors_total", _C, "AMQP errors caused by clients, by reply code.", ("code",)
    ),
    Metric("fluxmq_topology_revision", _G, "Revision of the topology in use by this shard."),
    Metric("fluxmq_topology_records", _G, "Records of the topology, by kind.", ("kind",)),
    Metric(
        "fluxmq_topology_changes_waiting", _G, "Topology changes requested and not yet answered."
    ),
    # Replication groups and their log
    Metric("fluxmq_groups", _G, "Replication groups of this shard, by state.", ("state",)),
    Metric("fluxmq_groups_released_total", _C, "Groups that moved from this shard to another."),
    Metric(
        "fluxmq_group_disk_full",
        _G,
        "1 while disk space or file descriptors are too few to accept messages.",
    ),
    Metric("fluxmq_queue_files_open", _G, "Open files of queue logs, by state.", ("state",)),
    Metric("fluxmq_checkpoints_total", _C, "Group checkpoints taken."),
    Metric("fluxmq_checkpoints_failed_total", _C, "Group checkpoints that failed."),
    Metric(
        "fluxmq_group_files_failed_total",
        _C,
        "Failed writes of the files that show consumer groups to external readers.",
    ),
    Metric(
        "fluxmq_log_sync_seconds",
        _H,
        "Time to sync a write to disk; 0 for the buffered log, which is synced later.",
        ("log",),
        buckets=SYNC_BUCKETS,
    ),
    Metric("fluxmq_log_written_bytes_total", _C, "Bytes written to the log.", ("log",)),
    Metric("fluxmq_log_writes_total", _C, "Writes to the log, each synced once.", ("log",)),
    Metric("fluxmq_log_files_begun_total", _C, "Log files started.", ("log",)),
    Metric(
        "fluxmq_log_failed",
        _G,
        "1 after a failed write or sync: no group of the log works.",
        ("log",),
    ),
    *OF_CLUSTERS,
    # Sessions and retained messages on disk
    Metric(
        "fluxmq_state_failed",
        _G,
        "1 after a failed commit: sessions and retained messages are no longer persisted.",
    ),
    Metric("fluxmq_state_full", _G, "1 while the disk is full: requests that need it are refused."),
    Metric(
        "fluxmq_state_commits_total",
        _C,
        "Commits of sessions and retained messages, each synced once.",
    ),
    Metric("fluxmq_state_rows_written_total", _C, "Rows written or removed by these commits."),
    Metric("fluxmq_state_rows_waiting", _G, "Changed rows not yet on disk."),
    Metric("fluxmq_state_commit_seconds", _G, "Duration of the last commit."),
    # The loop and the links between shards
    Metric("fluxmq_ticks_total", _C, "Iterations of the shard's event loop."),
    Metric(
        "fluxmq_loop_lag_max_seconds", _G, "Longest delay of the event loop since the last scrape."
    ),
    Metric(
        "fluxmq_loop_lag_seconds",
        _H,
        "Delay of the event loop against its timer.",
        buckets=LAG_BUCKETS,
    ),
    Metric(
        "fluxmq_garbage_collection_seconds",
        _H,
        "Pauses of the shard's loop for garbage collection.",
        buckets=LAG_BUCKETS,
    ),
    Metric("fluxmq_link_up", _G, "1 while the link to the peer shard is up.", ("peer",)),
    Metric("fluxmq_link_bytes", _G, "Bytes waiting in the link to the peer shard.", ("peer",)),
    Metric("fluxmq_link_bytes_sent_total", _C, "Bytes sent to the peer shard.", ("peer",)),
    Metric("fluxmq_link_full_total", _C, "Times the link to the peer was full.", ("peer",)),
    # Errors, and logins
    Metric(
        "fluxmq_protocol_errors_total", _C, "Connections ended for a protocol error.", ("code",)
    ),
    Metric("fluxmq_authentications_total", _C, "Attempts to authenticate.", ("method", "result")),
    Metric("fluxmq_authentications_pending", _G, "Password verifications waiting or running."),
    Metric(
        "fluxmq_authorization_denied_total",
        _C,
        "Requests denied for lack of permission.",
        ("operation",),
    ),
    Metric(
        "fluxmq_login_backend_checks_total",
        _C,
        "Logins decided by another backend than the internal one: accepted, refused, unavailable or"
        " busy.",
        ("backend", "outcome"),
        _NODE,
    ),
    Metric(
        "fluxmq_login_backend_rights_total",
        _C,
        "Operations decided by another backend than the internal one: allowed, refused or"
        " unavailable.",
        ("backend", "outcome"),
        _NODE,
    ),
    Metric(
        "fluxmq_login_backend_pending",
        _G,
        "Logins that wait for another backend.",
        (),
        _NODE,
    ),
    Metric("fluxmq_login_cache_entries", _G, "Answers of login backends remembered.", (), _NODE),
    Metric("fluxmq_users_revision", _G, "Revision of the users in use by this shard."),
    Metric("fluxmq_log_lines_suppressed_total", _C, "Log lines suppressed by rate limits."),
    Metric(
        "fluxmq_log_lines_dropped_total",
        _C,
        "Log lines dropped because standard error was not read.",
    ),
    # Resource alarms
    Metric("fluxmq_connections_blocked", _G, "Publishers paused by an alarm."),
    Metric(
        "fluxmq_memory_refused_total",
        _C,
        "Refusals because memory is low: connections, declarations and transactions beyond the critical mark, publishes beyond"
        " an AMQP connection's budget, and incomplete work of paused publishers.",
        ("what",),
    ),
    # Firehose and events
    Metric(
        "fluxmq_broker_messages_total",
        _C,
        "Messages that the broker itself published: copies for the firehose, and events.",
        ("exchange",),
    ),
    Metric(
        "fluxmq_broker_messages_dropped_total",
        _C,
        "Such messages dropped because too many were waiting, or a queue had no room.",
        ("exchange",),
    ),
    # Spans for OpenTelemetry
    Metric("fluxmq_tracing_spans_total", _C, "Spans of a shard's messages.", ("outcome",)),
    Metric(
        "fluxmq_tracing_exports_total",
        _C,
        "Spans for the collector, by whether it has taken them.",
        ("outcome",),
        Scope.NODE,
    ),
    # Limits on rates, and of users
    Metric("fluxmq_publishers_held", _G, "Connections not read because they publish too fast."),
    Metric(
        "fluxmq_publishers_slowed_total",
        _C,
        "Times that a connection was not read because it, or its virtual host, published too fast.",
        ("limit",),
    ),
    Metric(
        "fluxmq_user_limit_refused_total",
        _C,
        "Connections and channels refused because their user's limit was reached.",
        ("limit",),
    ),
    # Acceptor
    Metric("fluxmq_acceptor_accepted_total", _C, "Connections accepted.", ("listener",), _ACCEPTOR),
    Metric(
        "fluxmq_acceptor_handed_total",
        _C,
        "Connections handed to a shard.",
        ("listener",),
        _ACCEPTOR,
    ),
    Metric(
        "fluxmq_acceptor_refused_total",
        _C,
        "Connections closed before they reached a shard.",
        ("reason",),
        _ACCEPTOR,
    ),
    Metric(
        "fluxmq_acceptor_pending",
        _G,
        "Connections whose first bytes are still awaited.",
        (),
        _ACCEPTOR,
    ),
    # The node, from the control process
    Metric("fluxmq_build_info", _G, "Always 1.", ("version", "python"), _NODE),
    Metric("fluxmq_process_up", _G, "1 while the process is ready.", ("process",), _NODE),
    Metric("fluxmq_process_restarts_total", _C, "Restarts of the process.", ("process",), _NODE),
    Metric("fluxmq_process_uptime_seconds", _G, "Time since start.", ("process",), _NODE),
    Metric(
        "fluxmq_process_heartbeat_age_seconds",
        _G,
        "Time since the last iteration of the process's event loop.",
        ("process",),
        _NODE,
    ),
    Metric(
        "fluxmq_process_resident_memory_bytes",
        _G,
        "Resident memory, shared pages included.",
        ("process",),
        _NODE,
    ),
    Metric("fluxmq_alarm", _G, "1 while the alarm is raised.", ("kind",), _NODE),
    Metric(
        "fluxmq_memory_held_bytes", _G, "Memory that counts against the high watermark.", (), _NODE
    ),
    Metric(
        "fluxmq_memory_high_watermark_bytes",
        _G,
        "High watermark of memory, above which publishers are paused.",
        (),
        _NODE,
    ),
    Metric("fluxmq_memory_available_bytes", _G, "Memory available to the node.", (), _NODE),
    Metric("fluxmq_disk_available_bytes", _G, "Disk space for the data directory.", (), _NODE),
    Metric(
        "fluxmq_disk_reserve_bytes",
        _G,
        "Disk space below which publishers are paused (storage.min_free_bytes).",
        (),
        _NODE,
    ),
    Metric("fluxmq_process_cpu_seconds_total", _C, "CPU time used.", ("process",), _NODE),
    Metric(
        "fluxmq_http_refused_total",
        _C,
        "HTTP connections and requests refused by the control process.",
        ("reason",),
        _NODE,
    ),
    Metric(
        "fluxmq_http_event_streams",
        _G,
        "Open streams of server-sent events of the management interface.",
        (),
        _NODE,
    ),
    Metric("fluxmq_users", _G, "Users known to the node.", (), _NODE),
    Metric(
        "fluxmq_tls_certificate_expiry_seconds",
        _G,
        "Time at which a certificate in use expires, in seconds since 1970 (Unix time), by the"
        " listener's setting and the certificate's file.",
        ("listener", "certificate"),
        _NODE,
    ),
    Metric(
        "fluxmq_tls_certificate_reloads_total",
        _C,
        "Loads of changed certificates, and those that failed, after which the previous ones stay in"
        " use.",
        ("listener", "result"),
        _NODE,
    ),
    Metric(
        "fluxmq_bans",
        _G,
        "Bans in force, by what they concern: address, user or client_id.",
        ("kind",),
        _NODE,
    ),
    Metric(
        "fluxmq_bans_failures_total",
        _C,
        "Failures of requests to etcd about bans of the cluster, and keys that make no sense.",
        (),
        _NODE,
    ),
    Metric(
        "fluxmq_scrape_stale",
        _G,
        "1 if the shard did not answer in time and its previous numbers are shown.",
        ("shard",),
        _NODE,
    ),
    Metric(
        "fluxmq_scrape_undeclared_samples_total",
        _C,
        "Samples dropped because their metric is not declared.",
        (),
        _NODE,
    ),
)


def _index() -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for metric in _DECLARED:
        assert metric.name not in metrics, metric.name
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total"), metric.name
        assert (metric.kind is MetricKind.HISTOGRAM) == bool(metric.buckets), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets)), metric.name
        assert metric.scope is Scope.NODE or "shard" not in metric.labels, metric.name
        metrics[metric.name] = metric
    return metrics


METRICS: Final[Mapping[str, Metric]] = MappingProxyType(_index())


def find(sample_name: str) -> Metric | None:
    """Return the metric a sample belongs to, or None when it is not declared.

    A histogram's samples carry `_bucket`, `_sum` or `_count` behind its name.
    """
    metric = METRICS.get(sample_name)
    if metric is not None:
        return None if metric.kind is MetricKind.HISTOGRAM else metric
    for suffix in ("_bucket", "_sum", "_count"):
        if sample_name.endswith(suffix):
            metric = METRICS.get(sample_name[: -len(suffix)])
            if metric is not None and metric.kind is MetricKind.HISTOGRAM:
                return metric
    return None


def labels_problem(metric: Metric, sample_name: str, labels: Mapping[str, str]) -> str | None:
    """Return why `labels` do not fit the declaration, or None when they do."""
    expected = set(metric.labels)
    if metric.kind is MetricKind.HISTOGRAM and sample_name.endswith("_bucket"):
        expected.add("le")
    if set(labels) != expected:
        return f"{sample_name} has labels {sorted(labels)}, declared are {sorted(expected)}"
    return None
