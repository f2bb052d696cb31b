"""What the processes of one node say to each other, and through which descriptors.

``launch`` tells a child what it is, ``table`` is the shared page of vital signs, ``handoff`` carries
accepted connections from the acceptor to the shards.
"""
