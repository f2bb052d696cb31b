"""Declaration of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    """Behaviour of a metric: only grows, goes up and down, or counts observations by size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(Enum):
    """Reporter of a metric. `SHARD` metrics get a label `shard`; `NODE` ones come from control."""

    SHARD = "shard"
    ACCEPTOR = "acceptor"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Metric:
    """One declared metric. `labels` are those the reporting process gives, in order.

    `buckets` are a histogram's upper bounds in ascending order, without the infinite one.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    scope: Scope = Scope.SHARD
    buckets: tuple[float, ...] = ()
