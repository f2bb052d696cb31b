"""The default user of a new node, so that clients without credentials of their own can log in.

As in RabbitMQ: ``guest`` with a well-known password, an administrator with all permissions in the
first virtual host, from this machine only (shards enforce ``auth.loopback_users``). The environment
may name another user, as it does for RabbitMQ's container images. MQTT clients may log in with it as
well, but neither publish nor subscribe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fluxmq.auth.credentials import HashParameters
from fluxmq.auth.users import User, VhostPermission, name_problem
from fluxmq.control.password_hashes import store_password
from fluxmq.routing.topology.names import DEFAULT_VHOST

NAME: Final = "guest"
TAG: Final = "administrator"


PREFIXES: Final = ("FLUXMQ_DEFAULT_", "RABBITMQ_DEFAULT_")
"""Prefixes of the variables ``USER`` and ``PASS``; the first one given counts."""


def first_user(parameters: HashParameters, environment: Mapping[str, str]) -> User:
    """Return the user; takes as long as hashing a password. Raises ValueError for a name or password
    that cannot be used, and for a variable that has no meaning here."""
    name = _given(environment, "USER") or NAME
    password = _given(environment, "PASS") or NAME
    vhost = _given(environment, "VHOST") or DEFAULT_VHOST
    if vhost != DEFAULT_VHOST:
        raise ValueError(
            f"the first virtual host is {DEFAULT_VHOST}, not {vhost} as the environment has it:"
            " management.load_definitions declares others"
        )
    problem = name_problem(name)
    if problem is not None:
        raise ValueError(f"the first user: {problem}")
    stored = store_password(password, parameters)
    everything = VhostPermission(DEFAULT_VHOST, ".*", ".*", ".*")
    return User(
        name,
        stored.hash,
        stored.scram,
        publish=(),
        subscribe=(),
        enabled=True,
        tags=(TAG,),
        permissions=(everything,),
    )


def _given(environment: Mapping[str, str], name: str) -> str:
    return next(
        (environment[f"{each}{name}"] for each in PREFIXES if f"{each}{name}" in environment), ""
    )
