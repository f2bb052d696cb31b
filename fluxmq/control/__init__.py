"""The control process of a node.

Responsible for the node's metadata (users, topology), and for answering health and metrics over HTTP. It talks to shards
only through the control socket and the process table, so that whatever goes wrong here, messages keep flowing.
"""

from __future__ import annotations
