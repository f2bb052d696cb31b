"""The process tree of a node: the supervisor itself and the acceptor.

The supervisor has no event loop and no threads, so that forking is always safe; everything that
needs a loop runs in a child. The acceptor lives here because it, too, only moves connections about
and does not interpret them. Neither calls the shards or the control process: the supervisor imports
them by name and forks.
"""
