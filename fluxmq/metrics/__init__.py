"""Metrics of the broker: their declarations, and the instruments of one process.

Pure. `registry` declares every metric once, with those of clusters in `cluster_metrics`; `instruments` are the counters a process increments;
`exposition` turns the reports of all processes into Prometheus' text format. Independent of the
requester and the transport of reports.
"""

from __future__ import annotations
