"""Conversion of all processes' reports to Prometheus' text format.

Pure: samples in, text out. Only declared metrics with their declared labels come through; anything
else a process sends is omitted and counted, so that a bug in one process cannot spoil the whole
scrape. Shards' samples get the label `shard` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from fluxmq.metrics.metric import Metric, MetricKind, Scope
from fluxmq.metrics.registry import METRICS, Sample, find, labels_problem

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
UNDECLARED = "fluxmq_scrape_undeclared_samples_total"


@dataclass(frozen=True, slots=True)
class MetricSource:
    """The samples of one process; `shard` is its index for `Scope.SHARD`, else None."""

    scope: Scope
    samples: Iterable[Sample]
    shard: int | None = None


class Exposition:
    """Collects the sources of one scrape; `undeclared` counts the omitted samples."""

    __slots__ = ("_families", "_seen", "undeclared")

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        self.undeclared = 0

    def add(self, source: MetricSource) -> None:
        """Add one process's samples. A duplicate series is omitted and counted."""
        for name, labels, value in source.samples:
            metric = find(name)
            if (
                metric is None
                or metric.scope is not source.scope
                or labels_problem(metric, name, labels) is not None
            ):
                self.undeclared += 1
                continue
            shown = dict(labels)
            if source.shard is not None:
                shown["shard"] = str(source.shard)
            series = (name, tuple(sorted(shown.items())))
            if series in self._seen:
                self.undeclared += 1
                continue
            self._seen.add(series)
            self._family(metric).add_sample(name, shown, value)

    def families(self) -> list[Family]:
        """Return the metric families in declaration order."""
        return [self._families[name] for name in METRICS if name in self._families]

    def text(self) -> bytes:
        """Return all families in Prometheus' text format."""
        return rendered(self.families()).body

    def _family(self, metric: Metric) -> Family:
        family = self._families.get(metric.name)
        if family is None:
            # Prometheus names a counter's family without the suffix its samples carry.
            name = (
                metric.name.removesuffix("_total")
                if metric.kind is MetricKind.COUNTER
                else metric.name
            )
            family = self._families[metric.name] = Family(name, metric.help, metric.kind.value)
        return family


class Scrape(NamedTuple):
    """Metrics as text, and its content type."""

    body: bytes
    content_type: str


def rendered(families: list[Family], accept: str = "") -> Scrape:
    """Return families in OpenMetrics' format if ``accept``, an HTTP header, names it, else in
    Prometheus' own."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(families))
    # prometheus_client's own choice raises for versions that are no numbers, and repeats any other.
    if any(_is_openmetrics(each) for each in accept.split(",")):
        encode: Callable[[CollectorRegistry], bytes] = openmetrics.generate_latest
        return Scrape(encode(registry), OPENMETRICS_TYPE)
    return Scrape(generate_latest(registry), TEXT_TYPE)


def _is_openmetrics(accepted: str) -> bool:
    """Return whether an element of an Accept header means OpenMetrics 1.0.0."""
    kind, *parameters = (each.strip() for each in accepted.split(";"))
    versions = [each for each in parameters if each.startswith("version=")]
    return kind == "application/openmetrics-text" and versions in ([], ["version=1.0.0"])


class _Fixed(Collector):
    """A collector that returns given families."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families

    def describe(self) -> Iterable[Family]:
        return ()
