"""The backend that asks an HTTP server, with the questions of RabbitMQ's rabbitmq_auth_backend_http.

    user_path      username, password                  answers deny, or allow and the user's tags
    vhost_path     username, vhost, ip, tags           answers deny or allow, like the next ones
    resource_path  username, vhost, resource, name, permission, tags
    topic_path     username, vhost, resource, name, permission, routing_key, tags

The first two are asked when a client logs in, the second for each virtual host of the broker; the
others at each operation, unless the settings lack them: then all users have the permissions of the
settings. Any answer but allow, or none, refuses.

Source: RabbitMQ's HTTP authentication backend (what must my web server do?).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from fluxmq.auth.remote_rights import TOPIC, RightsQuestion
from fluxmq.auth.users import (
    PERMISSIONS_MAX,
    TAGS_MAX,
    VhostPermission,
    name_problem,
    tags_problem,
)
from fluxmq.control.logins.backend import NOT_TEXT, BackendError, LoginGrant, Verdict, text_of
from fluxmq.control.logins.web_client import WebClient
from fluxmq.ipc.login_messages import LoginQuestion
from fluxmq.settings.login_backends import HttpBackend

ASKED_AT_ONCE: Final = 8
"""Questions about virtual hosts that one login has under way."""


class HttpLoginBackend:
    """Asks one server."""

    def __init__(self, settings: HttpBackend) -> None:
        """Raise BackendSettingsError for unusable certificates."""
        self._settings = settings
        self._method = settings.method.upper()
        self._client = WebClient(settings.ca_file, settings.timeout)

    async def check(self, question: LoginQuestion, vhosts: Sequence[str]) -> Verdict:
        """Ask whether name and password are right, then which virtual hosts the user may access."""
        name = question.username
        problem = name_problem(name)
        if problem is not None:
            return problem
        password = text_of(question.password)
        if password is None:
            return NOT_TEXT
        values = {"username": name, "password": password}
        tags = await self._allowed(self._settings.user_path, values)
        if tags is None:
            return "denied by user_path"
        turns = asyncio.Semaphore(ASKED_AT_ONCE)
        asked = vhosts[:PERMISSIONS_MAX]

        async def enters(vhost: str) -> bool:
            values = {
                "username": name,
                "vhost": vhost,
                "ip": question.address,
                "tags": " ".join(tags),
            }
            async with turns:
                return await self._allowed(self._settings.vhost_path, values) is not None

        entered = await asyncio.gather(*map(enters, asked))
        settings = self._settings
        asked_later = settings.resource_path is not None, settings.topic_path is not None
        permissions = tuple(
            VhostPermission(vhost, settings.configure, settings.write, settings.read)
            for vhost, may in zip(asked, entered, strict=True)
            if may
        )
        return LoginGrant(name, tags, permissions, (), 0.0, *asked_later)

    async def allows(self, question: RightsQuestion) -> bool:
        """Ask about one operation. Raises BackendError."""
        values = {
            "username": question.user,
            "vhost": question.vhost,
            "resource": question.resource,
            "name": question.name,
            "permission": question.permission,
            "tags": " ".join(question.tags),
        }
        path = self._settings.resource_path
        if question.resource == TOPIC:
            path = self._settings.topic_path
            values["routing_key"] = question.routing_key
        return path is not None and await self._allowed(path, values) is not None

    async def _allowed(self, path: str, values: dict[str, str]) -> tuple[str, ...] | None:
        """Return the tags beside allow, None for deny. Raises BackendError for anything else."""
        body = await self._client.request(self._method, path, values)
        word, *rest = body.decode("utf-8", "replace").split() or [""]
        match word.lower():
            case "allow":
                tags = dict.fromkeys(tag.strip("[],") for tag in rest)
                usable = [tag for tag in tags if tag and tags_problem((tag,)) is None]
                return tuple(usable[:TAGS_MAX])
            case "deny":
                return None
        raise BackendError("the answer is neither allow nor deny")

    async def stop(self) -> None:
        """Close the connections."""
        await self._client.stop()
