"""The control process of a node.

Owns the node's metadata (users, topology) and answers health and metrics over HTTP. It talks to
shards only through the control socket and the process table, so that messages keep flowing whatever
goes wrong here.
"""

from __future__ import annotations
