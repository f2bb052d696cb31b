"""Counting in one process, and what a collection yields."""

import pytest

from fluxmq.metrics.instruments import Instruments
from fluxmq.metrics.registry import LAG_BUCKETS


def collected(instruments):
    return {(name, *sorted(labels.items())): value for name, labels, value in instruments.samples()}


def test_counters_and_gauges_report_their_value():
    instruments = Instruments()
    received = instruments.counter("fluxmq_messages_received_total", qos="1")
    received.value += 41
    received.value += 1
    instruments.gauge("fluxmq_subscriptions").value = 7
    assert collected(instruments) == {
        ("fluxmq_messages_received_total", ("qos", "1")): 42,
        ("fluxmq_subscriptions",): 7,
    }


def test_the_same_name_and_labels_are_the_same_instrument():
    instruments = Instruments()
    first = instruments.counter("fluxmq_authentications_total", method="scram", result="ok")
    again = instruments.counter("fluxmq_authentications_total", result="ok", method="scram")
    assert first is again


def test_a_maximum_starts_anew_after_each_collection():
    instruments = Instruments()
    lag = instruments.maximum("fluxmq_loop_lag_max_seconds")
    for value in (0.2, 0.5, 0.1):
        lag.observe(value)
    assert collected(instruments) == {("fluxmq_loop_lag_max_seconds",): 0.5}
    assert collected(instruments) == {("fluxmq_loop_lag_max_seconds",): 0.0}


def test_a_histogram_reports_cumulative_buckets_sum_and_count():
    instruments = Instruments()
    lag = instruments.histogram("fluxmq_loop_lag_seconds")
    for value in (0.0001, 0.001, 0.03, 99.0):
        lag.observe(value)
    report = collected(instruments)
    name = "fluxmq_loop_lag_seconds"
    assert report[f"{name}_bucket", ("le", "0.00025")] == 1
    # A bound includes values equal to it.
    assert report[f"{name}_bucket", ("le", "0.001")] == 2
    assert report[f"{name}_bucket", ("le", "0.05")] == 3
    assert report[f"{name}_bucket", ("le", "2.5")] == 3
    assert report[f"{name}_bucket", ("le", "+Inf")] == 4
    assert report[f"{name}_count",] == 4
    assert report[f"{name}_sum",] == pytest.approx(99.0311)
    assert len(report) == len(LAG_BUCKETS) + 3


def test_numbers_kept_elsewhere_are_read_at_each_collection():
    instruments = Instruments()
    sizes = [3]
    instruments.observed("fluxmq_route_cache_entries", lambda: sizes[0])
    sizes[0] = 5
    assert collected(instruments) == {("fluxmq_route_cache_entries",): 5}


@pytest.mark.parametrize(
    "make",
    [
        lambda i: i.counter("fluxmq_not_declared_total"),
        lambda i: i.counter("fluxmq_subscriptions"),
        lambda i: i.gauge("fluxmq_connections"),
        lambda i: i.gauge("fluxmq_subscriptions", client="x"),
        lambda i: i.histogram("fluxmq_subscriptions"),
        lambda i: i.observed("fluxmq_not_declared", lambda: 0),
        lambda i: i.observed("fluxmq_connections", lambda: 0),
        lambda i: i.observed("fluxmq_loop_lag_seconds", lambda: 0),
    ],
)
def test_undeclared_names_kinds_and_labels_are_bugs(make):
    with pytest.raises(AssertionError):
        make(Instruments())


def test_a_gauge_and_a_maximum_are_not_mixed_up():
    instruments = Instruments()
    instruments.gauge("fluxmq_loop_lag_max_seconds")
    with pytest.raises(AssertionError):
        instruments.maximum("fluxmq_loop_lag_max_seconds")
