"""Login backends beside the internal one: tokens, an HTTP server, an LDAP directory.

They live in the control process, because asking other machines takes time and may block: `service`
asks them for shards and for the management interface, and remembers their answers.
"""

from __future__ import annotations
