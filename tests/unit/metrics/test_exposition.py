"""Reports of several processes become one well-formed scrape."""

from prometheus_client.parser import text_string_to_metric_families

from fluxmq.metrics.exposition import Exposition, MetricSource
from fluxmq.metrics.instruments import Instruments
from fluxmq.metrics.metric import MetricKind, Scope
from fluxmq.metrics.registry import METRICS, Sample


def parsed(exposition):
    families = text_string_to_metric_families(exposition.text().decode())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_shards_are_told_apart_by_label():
    exposition = Exposition()
    for shard in (0, 1):
        samples = [("fluxmq_messages_received_total", {"qos": "0"}, 10 + shard)]
        exposition.add(MetricSource(Scope.SHARD, samples, shard))
    exposition.add(MetricSource(Scope.ACCEPTOR, [("fluxmq_acceptor_pending", {}, 3)]))
    assert parsed(exposition) == {
        ("fluxmq_messages_received_total", ("qos", "0"), ("shard", "0")): 10,
        ("fluxmq_messages_received_total", ("qos", "0"), ("shard", "1")): 11,
        ("fluxmq_acceptor_pending",): 3,
    }
    assert exposition.undeclared == 0


def test_what_is_not_declared_is_left_out_and_counted():
    exposition = Exposition()
    exposition.add(
        MetricSource(
            Scope.SHARD,
            [
                ("fluxmq_invented_total", {}, 1),
                ("fluxmq_connections", {"listener": "mqtt.tcp", "client": "c"}, 1),
                ("fluxmq_acceptor_pending", {}, 1),
                ("fluxmq_subscriptions", {}, 5),
                ("fluxmq_subscriptions", {}, 6),
            ],
            0,
        )
    )
    assert parsed(exposition) == {("fluxmq_subscriptions", ("shard", "0")): 5}
    assert exposition.undeclared == 4


def test_every_declared_metric_survives_the_round_trip():
    exposition = Exposition()
    for scope in Scope:
        samples: list[Sample] = []
        for metric in METRICS.values():
            if metric.scope is not scope:
                continue
            labels = dict.fromkeys(metric.labels, "x")
            if metric.kind is MetricKind.HISTOGRAM:
                samples.append((f"{metric.name}_bucket", {**labels, "le": "+Inf"}, 1))
                samples.append((f"{metric.name}_sum", labels, 1.5))
                samples.append((f"{metric.name}_count", labels, 1))
            else:
                samples.append((metric.name, labels, 2))
        exposition.add(MetricSource(scope, samples, 0 if scope is Scope.SHARD else None))
    assert exposition.undeclared == 0
    text = exposition.text().decode()
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    for metric in METRICS.values():
        family = (
            metric.name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else metric.name
        )
        assert kinds[family] == metric.kind.value
        assert metric.help in text


def test_a_process_own_instruments_pass():
    instruments = Instruments()
    instruments.histogram("fluxmq_loop_lag_seconds").observe(0.01)
    instruments.counter("fluxmq_ticks_total").value = 9
    exposition = Exposition()
    exposition.add(MetricSource(Scope.SHARD, instruments.samples(), 4))
    assert exposition.undeclared == 0
    assert parsed(exposition)["fluxmq_ticks_total", ("shard", "4")] == 9


def test_label_values_from_anywhere_are_escaped():
    exposition = Exposition()
    samples = [("fluxmq_protocol_errors_total", {"code": 'a"b\\c\nd'}, 1)]
    exposition.add(MetricSource(Scope.SHARD, samples, 0))
    assert parsed(exposition) == {
        ("fluxmq_protocol_errors_total", ("code", 'a"b\\c\nd'), ("shard", "0")): 1
    }
