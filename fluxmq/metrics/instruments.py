"""Instruments of one process: counters, gauges, maxima and histograms, declared in `registry`.

One writer each (the process's own loop), so there are no locks. An instrument is made once, at
start, and kept by the code that increments it: `counter.value += n` is a slot access and an
addition. A process that already counts elsewhere supplies a function instead (`observed`), which is
called at each collection. Independent of the destination of reports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from fluxmq.metrics.metric import Metric, MetricKind
from fluxmq.metrics.registry import METRICS, Sample

# Series per process. Labels are fixed sets, so only a bug reaches this; then it must be loud.
SERIES_MAX = 4096


class Counter:
    """Only grows: `counter.value += n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float = 0


class Gauge:
    """Goes up and down: `gauge.value = n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float = 0


class Maximum:
    """A gauge holding the largest value since it was last collected; collecting sets it to 0."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0.0

    def observe(self, value: float) -> None:
        """Record one value, not negative."""
        if value > self.value:
            self.value = value


class Histogram:
    """Counts observations by size; `counts` is per bucket, not cumulative."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Record one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


Instrument = Counter | Gauge | Maximum | Histogram
_Observed = Callable[[], float]


class Instruments:
    """All instruments of one process, each checked against its declaration when it is made.

    Repeated requests for the same name and labels return the same instrument. Mistakes in names,
    kinds or labels are bugs and raise AssertionError at start, not at the first scrape.
    """

    __slots__ = ("_observed", "_series")

    def __init__(self) -> None:
        self._series: dict[tuple[str, tuple[str, ...]], Instrument] = {}
        self._observed: list[tuple[str, dict[str, str], _Observed]] = []

    def counter(self, name: str, **labels: str) -> Counter:
        """Return the counter of this name and these labels."""
        found = self._find(name, MetricKind.COUNTER, labels, Counter)
        assert isinstance(found, Counter), name
        return found

    def gauge(self, name: str, **labels: str) -> Gauge:
        """Return the gauge of this name and these labels."""
        found = self._find(name, MetricKind.GAUGE, labels, Gauge)
        assert isinstance(found, Gauge), name
        return found

    def maximum(self, name: str, **labels: str) -> Maximum:
        """Return the gauge of this name that keeps the largest value between collections."""
        found = self._find(name, MetricKind.GAUGE, labels, Maximum)
        assert isinstance(found, Maximum), name
        return found

    def histogram(self, name: str, **labels: str) -> Histogram:
        """Return the histogram of this name and these labels."""
        bounds = METRICS[name].buckets if name in METRICS else ()
        found = self._find(name, MetricKind.HISTOGRAM, labels, lambda: Histogram(bounds))
        assert isinstance(found, Histogram), name
        return found

    def observed(self, name: str, read: _Observed, **labels: str) -> None:
        """Report the result of `read()` at each collection: for numbers kept elsewhere."""
        metric = METRICS.get(name)
        assert metric is not None, f"{name} is not declared"
        assert metric.kind is not MetricKind.HISTOGRAM, name
        _key(metric, labels)
        assert len(self._observed) < SERIES_MAX, name
        self._observed.append((name, labels, read))

    def samples(self) -> Iterator[Sample]:
        """Yield (name, labels, number) for every series, and reset the maxima."""
        for (name, values), instrument in self._series.items():
            labels = dict(zip(METRICS[name].labels, values, strict=True))
            if isinstance(instrument, Histogram):
                yield from _histogram_samples(name, labels, instrument)
                continue
            yield name, labels, instrument.value
            if isinstance(instrument, Maximum):
                instrument.value = 0.0
        for name, labels, read in self._observed:
            yield name, labels, read()

    def _find(
        self, name: str, kind: MetricKind, labels: dict[str, str], make: Callable[[], Instrument]
    ) -> Instrument:
        metric = METRICS.get(name)
        assert metric is not None, f"{name} is not declared"
        assert metric.kind is kind, f"{name} is a {metric.kind.value}"
        key = (name, _key(metric, labels))
        instrument = self._series.get(key)
        if instrument is None:
            assert len(self._series) < SERIES_MAX, name
            instrument = self._series[key] = make()
        return instrument


def _key(metric: Metric, labels: dict[str, str]) -> tuple[str, ...]:
    assert set(labels) == set(metric.labels), f"{metric.name} needs labels {metric.labels}"
    return tuple(labels[label] for label in metric.labels)


def _histogram_samples(name: str, labels: dict[str, str], histogram: Histogram) -> Iterator[Sample]:
    cumulative = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        cumulative += count
        yield f"{name}_bucket", {**labels, "le": repr(bound)}, cumulative
    cumulative += histogram.counts[-1]
    yield f"{name}_bucket", {**labels, "le": "+Inf"}, cumulative
    yield f"{name}_sum", labels, histogram.total
    yield f"{name}_count", labels, cumulative
