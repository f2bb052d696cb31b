"""The root of the error tree.

Four kinds of failure are distinguished. An *outcome* (queue full, no permission) is a value, not an
error. A *peer's fault* is the protocol package's own error with its wire code. The *environment*
(disk, network, a wrong settings file) raises an error derived from the one below, for the owner of
the policy to handle. *Our own bug* is an assertion.
"""

from __future__ import annotations


class FluxmqError(Exception):
    """Something outside the program's control failed; the text addresses the operator."""
