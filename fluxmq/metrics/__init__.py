"""Numbers about the broker: what each is called, and how one process keeps its own.

Pure. `registry` declares every metric once; `instruments` are the counters a process increments;
`exposition` turns the reports of all processes into what Prometheus reads. Who asks for reports,
and over which socket, is not known here.
"""

from __future__ import annotations
