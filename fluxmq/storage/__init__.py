"""A node's data on disk: write-ahead log, segments, snapshots, and all access to files.

Responsible for bytes that survive SIGKILL and power cuts. Knows nothing of queues, consumers or
protocols: entries and snapshots are opaque bytes.
"""
