"""The default user of a new node, so that clients without credentials of their own can log in.

As in RabbitMQ: ``guest`` with a well-known password, an administrator with all permissions in the
first virtual host, from this machine only (shards enforce ``auth.loopback_users``). MQTT clients
may log in with it as well, but neither publish nor subscribe.
"""

from __future__ import annotations

from typing import Final

from fluxmq.auth.credentials import HashParameters
from fluxmq.auth.users import User, VhostPermission
from fluxmq.control.password_hashes import store_password
from fluxmq.routing.topology.names import DEFAULT_VHOST

NAME: Final = "guest"
TAG: Final = "administrator"


def first_user(parameters: HashParameters) -> User:
    """Return the user; takes as long as hashing a password."""
    stored = store_password(NAME, parameters)
    everything = VhostPermission(DEFAULT_VHOST, ".*", ".*", ".*")
    return User(
        NAME,
        stored.hash,
        stored.scram,
        publish=(),
        subscribe=(),
        enabled=True,
        tags=(TAG,),
        permissions=(everything,),
    )
