"""Messages between the processes of one node, and the descriptors that carry them.

``launch`` tells a child its role, ``table`` is the shared page of vital signs, ``handoff`` carries
accepted connections from the acceptor to the shards.
"""
