"""Connection semantics: sessions turn wire events into broker calls, one package per protocol.

Sessions know their protocol's rules and nothing of sockets, processes or disks: they are given the
time, and reach the broker through a port that the shard implements.
"""
