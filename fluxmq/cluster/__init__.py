"""Between nodes: the transport, and what crosses it."""

import os

# Read by gRPC when it is first imported, which the modules of this package do. Its handlers around fork have crashed
# children in up to six of a hundred starts, and no process with gRPC in it forks. What goes wrong is told to us by
# status, and logged where lines are limited: its own lines are not.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# A process of ours has one thread that works. gRPC's event engine hands every message through threads of its own, which
# costs it twice the processor time and the time of a round trip (165 µs became 86 µs: 300 bytes, one in flight).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
