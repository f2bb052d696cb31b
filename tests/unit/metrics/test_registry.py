"""The declared metrics, and that nothing else is reported anywhere in the broker."""

import ast
import re
from pathlib import Path

import fluxmq
from fluxmq.metrics.metric import MetricKind, Scope
from fluxmq.metrics.registry import DROP_REASONS, METRICS, find, labels_problem

# Names that look like a metric's and are something else.
OTHER_NAMES = {"fluxmq_hot", "fluxmq_version"}


def literals():
    for path in Path(fluxmq.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value


def test_every_metric_name_written_in_the_broker_is_declared():
    used = {
        (path.name, text)
        for path, text in literals()
        if re.fullmatch(r"fluxmq_[a-z0-9_]+", text) and text not in OTHER_NAMES
    }
    assert used
    assert [
        entry for entry in sorted(used) if find(entry[1]) is None and entry[1] not in METRICS
    ] == []


def test_names_follow_prometheus_conventions():
    for metric in METRICS.values():
        assert re.fullmatch(r"fluxmq_[a-z0-9_]+", metric.name)
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
        assert metric.help.endswith(".")
        assert not any(label.startswith("_") for label in metric.labels)


def test_counters_and_gauges_do_not_share_a_family_name():
    families = [metric.name.removesuffix("_total") for metric in METRICS.values()]
    assert len(families) == len(set(families))


def test_what_the_issue_asks_to_see_is_there():
    wanted = [
        "connections",
        "sessions",
        "messages_received_total",
        "messages_sent_total",
        "message_bytes_received_total",
        "message_bytes_sent_total",
        "messages_dropped_total",
        "retained_messages",
        "retained_bytes",
        "subscriptions",
        "shared_groups",
        "route_cache_entries",
        "route_cache_hits_total",
        "route_cache_misses_total",
        "loop_lag_max_seconds",
        "loop_lag_seconds",
        "link_bytes",
        "link_up",
        "protocol_errors_total",
        "authentications_total",
        "packets_received_total",
        "sessions_expired_total",
        "wills_published_total",
        "inflight_messages",
        "pending_messages",
        "acceptor_accepted_total",
        "acceptor_handed_total",
        "acceptor_refused_total",
        "acceptor_pending",
        "process_restarts_total",
        "process_uptime_seconds",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "scrape_stale",
    ]
    assert [name for name in wanted if f"fluxmq_{name}" not in METRICS] == []
    assert {"slow_subscriber", "expired", "shared_no_member"} <= set(DROP_REASONS)


def test_samples_are_found_by_name_and_histograms_by_their_suffixes():
    assert find("fluxmq_sessions") is METRICS["fluxmq_sessions"]
    histogram = METRICS["fluxmq_loop_lag_seconds"]
    for suffix in ("_bucket", "_sum", "_count"):
        assert find("fluxmq_loop_lag_seconds" + suffix) is histogram
    assert find("fluxmq_loop_lag_seconds") is None
    assert find("fluxmq_sessions_sum") is None
    assert find("other") is None


def test_labels_must_be_those_declared():
    metric = METRICS["fluxmq_connections"]
    assert labels_problem(metric, metric.name, {"listener": "mqtt.tcp"}) is None
    assert "declared" in (labels_problem(metric, metric.name, {}) or "")
    assert "declared" in (
        labels_problem(metric, metric.name, {"listener": "x", "client": "y"}) or ""
    )
    lag = METRICS["fluxmq_loop_lag_seconds"]
    assert labels_problem(lag, "fluxmq_loop_lag_seconds_bucket", {"le": "1.0"}) is None
    assert labels_problem(lag, "fluxmq_loop_lag_seconds_sum", {"le": "1.0"}) is not None


def test_only_the_control_process_labels_by_shard():
    for metric in METRICS.values():
        assert metric.scope is Scope.NODE or "shard" not in metric.labels
