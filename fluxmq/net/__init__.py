"""Byte transport between a shard and its clients, and between the shards of a node.

* `reactor`       the body of a shard's loop: reads, routes runs, writes
* `route`         what a topic leads to
* `sockets`       reads and writes that never wait
* `accept`        accepts connections; `accept_batch` carries them to their shard
* `links`         between the shards of a node, over `_ring` or a socket; `frames` go through them
* `tls`, `websocket`  stream filters
"""
