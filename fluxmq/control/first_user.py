"""The user that a new node has, so that clients that are not told otherwise can log in.

As RabbitMQ has it: ``guest``, whose password everybody knows, an administrator who may do everything in the
first virtual host, from this machine only (``auth.loopback_users``, which shards hold them to). MQTT clients may log in with
it as well, and publish and subscribe to nothing.
"""

from __future__ import annotations

from typing import Final

from fluxmq.auth.credentials import HashParameters
from fluxmq.auth.users import User, VhostPermission
from fluxmq.control.hashing import store_password
from fluxmq.routing.topology.names import DEFAULT_VHOST

NAME: Final = "guest"
TAG: Final = "administrator"


def first_user(parameters: HashParameters) -> User:
    """Return the user; takes as long as hashing a password does."""
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
