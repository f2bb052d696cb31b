"""Virtual hosts, users, permissions, policies and limits over HTTP.

Longer than 500 lines because each of these kinds has the same handful of short handlers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

from fluxmq.auth.credentials import HashParameters, hash_problem
from fluxmq.auth.hash_upgrades import is_upgrade
from fluxmq.auth.imported_hashes import rabbitmq_hash
from fluxmq.auth.scram import StoredKeys
from fluxmq.auth.users import TopicPermission, User, VhostPermission, rules_problem
from fluxmq.control.management.list_query import JsonRow, ListQuery
from fluxmq.control.management.objects import MessagingObjects
from fluxmq.control.management.requests import (
    ApiRoute,
    Ask,
    Call,
    Right,
    answer,
    bad_request,
    done,
    error_of,
    flag_of,
    not_found,
    number_of,
    table_of,
    text_of,
)
from fluxmq.control.management.rows import (
    permission_rows,
    policy_row,
    scram_keys,
    topic_permission_rows,
    user_row,
    vhost_row,
)
from fluxmq.control.password_hashes import store_password
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import (
    USER_ADD,
    USER_DELETE,
    USER_ENABLE,
    USER_PASSWORD,
    USER_PERMIT,
    MessageBody,
    MessageError,
)
from fluxmq.ipc.permission_messages import (
    PERMISSION_CLEAR,
    PERMISSION_SET,
    TOPIC_PERMISSION_CLEAR,
    TOPIC_PERMISSION_SET,
    USER_TAGS,
    PermissionClear,
    PermissionSet,
    TopicPermissionSet,
    UserTags,
)
from fluxmq.ipc.topology_messages import TOPOLOGY_CHANGE, TopologyChanged, change_body, pack_set
from fluxmq.ipc.trace_messages import TRACE, TracedVhosts, TraceRequest
from fluxmq.ipc.user_messages import UserAdd, UserDelete, UserEnable, UserPassword, UserPermit
from fluxmq.routing.topology.changes import (
    AddVhost,
    Change,
    ClearPolicy,
    DeleteVhost,
    SetPolicy,
    SetUserLimits,
    SetVhostLimits,
)
from fluxmq.routing.topology.records import Policy, Vhost
from fluxmq.routing.topology.rules import LIMITS as VHOST_LIMITS
from fluxmq.routing.topology.topology import Topology

RABBITMQ_HASHING: Final = "rabbit_password_hashing_sha256"
"""Algorithm of a hash in RabbitMQ's definitions that name none."""
UNUSABLE_BYTES: Final = 32
"""Random bytes of the password of a user that is created without one, and cannot log in with one."""


class Administration:
    """Serves the routes. ``users`` returns the node's; ``nodes`` the names of the cluster's
    nodes."""

    def __init__(
        self,
        ask: Ask,
        topology: Callable[[], Topology],
        users: Callable[[], tuple[User, ...]],
        parameters: Callable[[], HashParameters],
        objects: MessagingObjects,
        nodes: Callable[[], Sequence[str]],
    ) -> None:
        self._ask = ask
        self._topology = topology
        self._users = users
        self._parameters = parameters
        self._objects = objects
        self._nodes = nodes

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        admin, policymaker = Right.ADMINISTRATOR, Right.POLICYMAKER
        found = [
            ApiRoute("GET", "vhosts", self._vhosts),
            ApiRoute("GET", "vhosts/{vhost}", self._vhost),
            ApiRoute("PUT", "vhosts/{vhost}", self._add_vhost, admin),
            ApiRoute("DELETE", "vhosts/{vhost}", self._delete_vhost, admin),
            ApiRoute("GET", "vhosts/{vhost}/permissions", self._of_vhost, admin),
            ApiRoute("GET", "vhosts/{vhost}/topic-permissions", self._topics_of_vhost, admin),
            ApiRoute("GET", "users", self._list_users, admin),
            ApiRoute("GET", "users/without-permissions", self._without, admin),
            ApiRoute("POST", "users/bulk-delete", self._delete_users, admin),
            ApiRoute("GET", "users/{user}", self._user, admin),
            ApiRoute("PUT", "users/{user}", self._put_user, admin),
            ApiRoute("DELETE", "users/{user}", self._delete_user, admin),
            ApiRoute("GET", "users/{user}/permissions", self._of_user, admin),
            ApiRoute("GET", "users/{user}/topic-permissions", self._topics_of_user, admin),
            ApiRoute("GET", "permissions", self._permissions, admin),
            ApiRoute("GET", "permissions/{vhost}/{user}", self._permission, admin),
            ApiRoute("PUT", "permissions/{vhost}/{user}", self._permit, admin),
            ApiRoute("DELETE", "permissions/{vhost}/{user}", self._forbid, admin),
            ApiRoute("GET", "topic-permissions", self._topic_permissions, admin),
            ApiRoute("GET", "topic-permissions/{vhost}/{user}", self._topic_permission, admin),
            ApiRoute("PUT", "topic-permissions/{vhost}/{user}", self._permit_topics, admin),
            ApiRoute("DELETE", "topic-permissions/{vhost}/{user}", self._forbid_topics, admin),
            ApiRoute("GET", "vhost-limits", self._limits),
            ApiRoute("GET", "vhost-limits/{vhost}", self._limits),
            ApiRoute("PUT", "vhost-limits/{vhost}/{name}", self._set_limit, admin),
            ApiRoute("DELETE", "vhost-limits/{vhost}/{name}", self._clear_limit, admin),
        ]
        for path, right in (("policies", policymaker), ("operator-policies", admin)):
            one = f"{path}/{{vhost}}/{{name}}"
            found += [
                ApiRoute("GET", path, self._policies),
                ApiRoute("GET", f"{path}/{{vhost}}", self._policies),
                ApiRoute("GET", one, self._policy),
                ApiRoute("PUT", one, self._set_policy, right, enters=True),
                ApiRoute("DELETE", one, self._clear_policy, right, enters=True),
            ]
        return found

    # Changes

    async def change(self, *changes: Change) -> None:
        """Change the topology. Raises ApiError."""
        try:
            body = await self._ask(TOPOLOGY_CHANGE, change_body([pack_set(changes)]))
            results = TopologyChanged.from_body(body).results
        except (RequestError, MessageError) as problem:
            raise error_of(problem) from problem
        except ValueError as problem:
            raise bad_request(str(problem)) from problem
        for refusal in results:
            if refusal is not None:
                raise not_found(refusal.text) if refusal.code == 404 else bad_request(refusal.text)

    async def _change_users(self, kind: str, body: MessageBody) -> None:
        try:
            await self._ask(kind, body.to_body())
        except (RequestError, MessageError) as problem:
            raise error_of(problem) from problem

    # Virtual hosts

    async def _vhosts(self, call: Call) -> web.Response:
        seen = [each for each in self._topology().vhosts() if call.caller.sees(each.name)]
        traced = await self._trace()
        totals = await self._objects.rates.of_vhosts([each.name for each in seen])
        rows = [
            vhost_row(each, self._nodes(), row, traced=each.name in traced)
            for each, row in zip(seen, totals, strict=True)
        ]
        return answer(ListQuery(call).whole(rows))

    def _found_vhost(self, name: str) -> Vhost:
        found = self._topology().vhost(name)
        if found is None:
            raise not_found(f"virtual host {name!r} does not exist")
        return found

    async def _vhost(self, call: Call) -> web.Response:
        found = self._found_vhost(call.vhost)
        traced = call.vhost in await self._trace()
        (totals,) = await self._objects.rates.of_vhosts([found.name])
        return answer(vhost_row(found, self._nodes(), totals, traced=traced))

    async def _trace(self, vhost: str = "", on: bool = False) -> tuple[str, ...]:
        """Trace a virtual host or no longer; return those that are traced. Raises ApiError."""
        try:
            body = await self._ask(TRACE, TraceRequest(vhost, on).to_body())
            return TracedVhosts.from_body(body).vhosts
        except (RequestError, MessageError) as problem:
            raise error_of(problem) from problem

    async def _add_vhost(self, call: Call) -> web.Response:
        """Create a virtual host, or change one; its creator gets permissions there, as in RabbitMQ."""
        created = await self.put_vhost({**await call.body(), "name": call.vhost})
        if created:
            permission = VhostPermission(call.vhost, ".*", ".*", ".*")
            user = call.caller.user.name
            await self._change_users(PERMISSION_SET, PermissionSet(user, permission))
        return done(created)

    async def put_vhost(self, body: JsonRow) -> bool:
        """Create or change a virtual host; return whether it is new. Raises ApiError."""
        name = text_of(body, "name")
        before = self._topology().vhost(name)
        metadata = table_of(body, "metadata")
        described = {**metadata, **body}
        vhost = Vhost(
            name,
            default_queue_type=_queue_type(described.get("default_queue_type")),
            tags=tags_of(described.get("tags", ())),
            description=str(described.get("description") or ""),
        )
        await self.change(AddVhost(vhost))
        if "tracing" in body:
            await self._trace(name, flag_of(body, "tracing"))
        return before is None

    async def _delete_vhost(self, call: Call) -> web.Response:
        self._found_vhost(call.vhost)
        await self.change(DeleteVhost(call.vhost))
        return done()

    # Users

    def found_user(self, name: str) -> User:
        """Return a user. Raises ApiError 404."""
        found = next((each for each in self._users() if each.name == name), None)
        if found is None:
            raise not_found(f"there is no user {name!r}")
        return found

    async def _list_users(self, call: Call) -> web.Response:
        return answer(ListQuery(call).whole([self._user_row(each) for each in self._users()]))

    async def _without(self, _call: Call) -> web.Response:
        return answer([self._user_row(each) for each in self._users() if not each.permissions])

    async def _user(self, call: Call) -> web.Response:
        return answer(self._user_row(self.found_user(call.part("user"))))

    def _user_row(self, user: User) -> JsonRow:
        return user_row(user, self._topology().limits_of_user(user.name), secret=True)

    async def _put_user(self, call: Call) -> web.Response:
        return done(await self.put_user({**await call.body(), "name": call.part("user")}))

    async def put_user(self, body: JsonRow) -> bool:
        """Create a user, or change what is given; return whether it is new. Raises ApiError."""
        created = await self._put_account(body)
        limits = table_of(body, "limits")
        if limits:
            await self.change(SetUserLimits(text_of(body, "name"), limits))
        return created

    async def _put_account(self, body: JsonRow) -> bool:
        """Create or change all but a user's limits.

        Topic filters, SCRAM keys and ``enabled`` are FluxMQ's own; RabbitMQ ignores them.
        """
        name = text_of(body, "name")
        known = next((each for each in self._users() if each.name == name), None)
        if "tags" not in body and known is None:
            raise bad_request("[{key_missing,tags}]: tags are required")
        tags = tags_of(body.get("tags", ()))
        publish, subscribe = filters_of(body, "publish"), filters_of(body, "subscribe")
        enabled = flag_of(body, "enabled", True)
        given = "password" in body or body.get("password_hash")
        stored, keys = "", None
        if given or known is None:
            stored, keys = await self._hashed(body)
        if known is None:
            user = User(name, stored, keys, publish or (), subscribe or (), enabled, tags)
            await self._change_users(USER_ADD, UserAdd(user))
            return True
        # A file that is declared at each start does not bring an imported hash back.
        if stored and not is_upgrade(stored, known.hash):
            await self._change_users(USER_PASSWORD, UserPassword(name, stored, keys))
        if "tags" in body:
            await self._change_users(USER_TAGS, UserTags(name, tags))
        if publish is not None or subscribe is not None:
            await self._change_users(USER_PERMIT, UserPermit(name, publish, subscribe))
        if "enabled" in body:
            await self._change_users(USER_ENABLE, UserEnable(name, enabled))
        return False

    async def _hashed(self, body: JsonRow) -> tuple[str, StoredKeys | None]:
        """Return hash and SCRAM keys of the password in a body. Raises ApiError."""
        if body.get("password_hash"):
            given = text_of(body, "password_hash")
            if given.startswith("$"):
                problem = hash_problem(given)
                if problem is not None:
                    raise bad_request(f"password_hash: {problem}")
                return given, _scram_keys(body)
            algorithm = text_of(body, "hashing_algorithm", RABBITMQ_HASHING)
            try:
                return rabbitmq_hash(algorithm, given), None
            except ValueError as problem:
                raise bad_request(f"password_hash: {problem}") from None
        password = text_of(body, "password", "") or secrets.token_urlsafe(UNUSABLE_BYTES)
        try:
            stored = await asyncio.to_thread(store_password, password, self._parameters())
        except ValueError as problem:
            raise bad_request(str(problem)) from problem
        return stored.hash, stored.scram

    async def _delete_user(self, call: Call) -> web.Response:
        name = self.found_user(call.part("user")).name
        await self._change_users(USER_DELETE, UserDelete(name))
        return done()

    async def _delete_users(self, call: Call) -> web.Response:
        names = (await call.body()).get("users")
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise bad_request("users is not a list of names")
        for name in names:
            if any(each.name == name for each in self._users()):
                await self._change_users(USER_DELETE, UserDelete(name))
        return done()

    # Permissions

    async def _permissions(self, call: Call) -> web.Response:
        rows = [row for each in self._users() for row in permission_rows(each)]
        return answer(ListQuery(call).sorted(rows))

    async def _topic_permissions(self, call: Call) -> web.Response:
        rows = [row for each in self._users() for row in topic_permission_rows(each)]
        return answer(ListQuery(call).sorted(rows))

    async def _of_user(self, call: Call) -> web.Response:
        return answer(permission_rows(self.found_user(call.part("user"))))

    async def _topics_of_user(self, call: Call) -> web.Response:
        return answer(topic_permission_rows(self.found_user(call.part("user"))))

    async def _of_vhost(self, call: Call) -> web.Response:
        self._found_vhost(call.vhost)
        rows = [row for each in self._users() for row in permission_rows(each)]
        return answer([row for row in rows if row["vhost"] == call.vhost])

    async def _topics_of_vhost(self, call: Call) -> web.Response:
        self._found_vhost(call.vhost)
        rows = [row for each in self._users() for row in topic_permission_rows(each)]
        return answer([row for row in rows if row["vhost"] == call.vhost])

    async def _permission(self, call: Call) -> web.Response:
        rows = permission_rows(self.found_user(call.part("user")))
        for row in rows:
            if row["vhost"] == call.vhost:
                return answer(row)
        raise not_found("there are no such permissions")

    async def _topic_permission(self, call: Call) -> web.Response:
        rows = topic_permission_rows(self.found_user(call.part("user")))
        return answer([row for row in rows if row["vhost"] == call.vhost])

    async def _permit(self, call: Call) -> web.Response:
        user = self.found_user(call.part("user"))
        before = any(each.vhost == call.vhost for each in user.permissions)
        await self.permit({**await call.body(), "user": user.name, "vhost": call.vhost})
        return done(created=not before)

    async def permit(self, body: JsonRow) -> None:
        """Set a user's permissions in a virtual host. Raises ApiError."""
        vhost = self._found_vhost(text_of(body, "vhost")).name
        patterns = (text_of(body, each) for each in ("configure", "write", "read"))
        permission = VhostPermission(vhost, *patterns)
        await self._change_users(PERMISSION_SET, PermissionSet(text_of(body, "user"), permission))

    async def _forbid(self, call: Call) -> web.Response:
        user = self.found_user(call.part("user")).name
        await self._change_users(PERMISSION_CLEAR, PermissionClear(user, call.vhost))
        return done()

    async def _permit_topics(self, call: Call) -> web.Response:
        user = self.found_user(call.part("user"))
        body = {**await call.body(), "user": user.name, "vhost": call.vhost}
        exchange = text_of(body, "exchange")
        known = {(each.vhost, each.exchange) for each in user.topic_permissions}
        await self.permit_topics(body)
        return done(created=(call.vhost, exchange) not in known)

    async def permit_topics(self, body: JsonRow) -> None:
        """Set a user's permissions on routing keys. Raises ApiError."""
        vhost = self._found_vhost(text_of(body, "vhost")).name
        patterns = (text_of(body, each) for each in ("exchange", "write", "read"))
        wanted = TopicPermissionSet(text_of(body, "user"), TopicPermission(vhost, *patterns))
        await self._change_users(TOPIC_PERMISSION_SET, wanted)

    async def _forbid_topics(self, call: Call) -> web.Response:
        user = self.found_user(call.part("user")).name
        await self._change_users(TOPIC_PERMISSION_CLEAR, PermissionClear(user, call.vhost))
        return done()

    # Policies

    async def _policies(self, call: Call) -> web.Response:
        operator = call.path.startswith("operator-policies")
        rows = [
            policy_row(each)
            for vhost in self._objects.vhosts(call)
            for each in self._topology().policies(vhost)
            if each.operator is operator
        ]
        return answer(ListQuery(call).whole(rows))

    def _found_policy(self, call: Call) -> Policy:
        operator = call.path.startswith("operator-policies")
        for each in self._topology().policies(call.vhost):
            if each.name == call.part("name") and each.operator is operator:
                return each
        raise not_found(f"there is no policy {call.part('name')!r} in vhost {call.vhost!r}")

    async def _policy(self, call: Call) -> web.Response:
        return answer(policy_row(self._found_policy(call)))

    async def _set_policy(self, call: Call) -> web.Response:
        operator = call.path.startswith("operator-policies")
        named = {"name": call.part("name"), "vhost": call.vhost}
        return done(await self.put_policy({**await call.body(), **named}, operator=operator))

    async def put_policy(self, body: JsonRow, *, operator: bool = False) -> bool:
        """Set a policy; return whether it is new. Raises ApiError."""
        vhost, name = self._found_vhost(text_of(body, "vhost")).name, text_of(body, "name")
        known = self._topology().policies(vhost)
        policy = Policy(
            *(vhost, name, text_of(body, "pattern"), text_of(body, "apply-to", "all")),
            *(number_of(body, "priority", 0), table_of(body, "definition"), operator),
        )
        await self.change(SetPolicy(policy))
        return not any(each.name == name and each.operator is operator for each in known)

    async def _clear_policy(self, call: Call) -> web.Response:
        found = self._found_policy(call)
        await self.change(ClearPolicy(found.vhost, found.name, found.operator))
        return done()

    # Limits

    async def _limits(self, call: Call) -> web.Response:
        found = (self._topology().vhost(each) for each in self._objects.vhosts(call))
        rows = [
            {"vhost": each.name, "value": dict(each.limits)}
            for each in found
            if each is not None and each.limits
        ]
        return answer(rows)

    async def _set_limit(self, call: Call) -> web.Response:
        name = call.part("name")
        if name not in VHOST_LIMITS:
            raise bad_request(f"unknown limit {name!r}: {' or '.join(VHOST_LIMITS)}")
        limits = {**self._found_vhost(call.vhost).limits}
        limits[name] = number_of(await call.body(), "value")
        await self.change(SetVhostLimits(call.vhost, limits))
        return done()

    async def _clear_limit(self, call: Call) -> web.Response:
        limits = {**self._found_vhost(call.vhost).limits}
        limits.pop(call.part("name"), None)
        await self.change(SetVhostLimits(call.vhost, limits))
        return done()


def tags_of(given: object) -> tuple[str, ...]:
    """Return tags given as a list or separated by commas. Raises ApiError."""
    if isinstance(given, str):
        given = [each.strip() for each in given.split(",") if each.strip()]
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise bad_request("tags are neither a list nor separated by commas")
    return tuple(given)


def filters_of(body: JsonRow, name: str) -> tuple[str, ...] | None:
    """Return a list of topic filters; None if it is missing. Raises ApiError."""
    given = body.get(name)
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise bad_request(f"{name} is not a list of topic filters")
    problem = rules_problem(given)
    if problem is not None:
        raise bad_request(f"{name}: {problem}")
    return tuple(given)


def _scram_keys(body: JsonRow) -> StoredKeys | None:
    """Return the keys for SCRAM-SHA-256 beside a hash; None without them. Raises ApiError."""
    row = table_of(body, "scram")
    try:
        return scram_keys(row) if row else None
    except ValueError as problem:
        raise bad_request(f"scram: {problem}") from None


def _queue_type(given: object) -> str:
    """Return a default queue type; RabbitMQ writes ``undefined`` for none."""
    return "classic" if given in (None, "", "undefined") else str(given)
