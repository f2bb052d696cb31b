"""Sessions and retained messages that survive their shard: what is written when, and what is read at start.

A client id's rows, and a topic's, live with their *home* shard, whatever shard serves the client. Nothing is
acknowledged before what it promises is on disk there: SUBACK, PUBACK and PUBREC of publishers, PUBREL, PUBCOMP. A
message of QoS 1 for a client that is connected and answers promptly is never written.
"""
