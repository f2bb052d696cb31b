"""The control process of a node and its command line.

Responsible for the node's metadata (users, for now), for answering health and metrics over HTTP, and for
`fluxmqctl`. It talks to shards only through the control socket and the process table, so that whatever goes
wrong here, messages keep flowing.
"""

from __future__ import annotations
