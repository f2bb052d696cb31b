"""Between nodes: the transport, and what crosses it."""
