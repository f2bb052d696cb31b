"""What a connection means to the broker: wire events become broker calls, one package per protocol.

Sessions know their protocol's rules and nothing of sockets, processes or disks: time is told to them, and
what they need of the broker they ask through a port that the shard implements.
"""
