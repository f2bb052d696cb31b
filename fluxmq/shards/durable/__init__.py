"""Sessions and retained messages that survive their shard: when they are written and read.

The rows of a client id or a topic live with their *home* shard, whatever shard serves the client.
Nothing is acknowledged before what it promises is on disk there: SUBACK, PUBACK and PUBREC of
publishers, PUBREL, PUBCOMP. A QoS 1 message for a connected client that answers promptly is never
written.
"""
