"""Requests of fluxmqctl over HTTP: those of the control socket, with the same bodies and answers.

One route carries all of them, for administrators. A request is the value of a frame of
`fluxmq.ipc.control_frames`, ``[version, kind, id, body]`` as msgpack; so is the answer, whether the
request was carried out or refused. Requests between the processes of a node are none of these, nor is
a backup, which writes to the node's own disk.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from fluxmq.control.management.requests import (
    HEADERS,
    ApiError,
    ApiRoute,
    Ask,
    Call,
    Right,
    bad_request,
)
from fluxmq.control.peers import RequestError
from fluxmq.ipc import (
    cluster_nodes,
    clusters,
    migrations,
    mirror_messages,
    permission_messages,
    placements,
    row_messages,
)
from fluxmq.ipc.backups import BACKUP
from fluxmq.ipc.control_frames import FramingError, decode_value, encode_value
from fluxmq.ipc.definition_messages import EXPORT_DEFINITIONS, IMPORT_DEFINITIONS
from fluxmq.ipc.door_messages import BAN, LIST_BANS, UNBAN
from fluxmq.ipc.messages import (
    ERROR_FAILED,
    ERROR_REFUSED,
    ERROR_UNKNOWN_KIND,
    HASHING,
    PING,
    STATUS,
    USER_ADD,
    USER_DELETE,
    USER_ENABLE,
    USER_LIST,
    USER_PASSWORD,
    USER_PERMIT,
    ControlMessage,
    MessageError,
    VersionMismatchError,
    error,
    reply,
)
from fluxmq.ipc.node_messages import DESCRIBE_NODE, HTTP_PATH, LISTENING, MEDIA_TYPE, SETTINGS
from fluxmq.ipc.queue_backups import RESTORE_BATCH, RESTORE_QUEUE
from fluxmq.ipc.topology_messages import TOPOLOGY_CHANGE

KINDS: Final = frozenset(
    {
        *(PING, STATUS, HASHING, DESCRIBE_NODE, SETTINGS, LISTENING),
        *(BAN, UNBAN, LIST_BANS),
        *(USER_LIST, USER_ADD, USER_PASSWORD, USER_PERMIT, USER_ENABLE, USER_DELETE),
        *permission_messages.KINDS,
        TOPOLOGY_CHANGE,
        *(row_messages.LIST, row_messages.CLOSE_CONNECTIONS, row_messages.CLOSE_SESSION),
        *(row_messages.PURGE_QUEUE, row_messages.DELETE_QUEUE),
        *(placements.GROUPS, placements.QUEUES, placements.PIN, placements.UNPIN),
        *(clusters.RAFT, clusters.TRANSFER, clusters.REBALANCE, clusters.CAN_STOP),
        *(clusters.MEMBER_CHANGE, clusters.FORGET_NODE, clusters.AUDIT),
        *(cluster_nodes.ADMIT_NODE, cluster_nodes.LEAVE),
        *(migrations.MIGRATE_QUEUE, migrations.MIGRATION),
        *mirror_messages.KINDS,
        *(EXPORT_DEFINITIONS, IMPORT_DEFINITIONS),
        *(RESTORE_QUEUE, RESTORE_BATCH),
    }
)
"""Requests that are carried out."""


def control_routes(ask: Ask) -> list[ApiRoute]:
    """Return the route. `ask` has the control process carry a request out."""

    async def serve(call: Call) -> web.Response:
        # No page of another site can send this type without being asked for permission first.
        if call.request.content_type != MEDIA_TYPE:
            raise ApiError(415, "unsupported_media_type", f"the body has to be {MEDIA_TYPE}")
        answer = await _answered(ask, await call.request.read())
        return web.Response(
            body=encode_value(answer.to_wire()), content_type=MEDIA_TYPE, headers=HEADERS
        )

    return [ApiRoute("POST", HTTP_PATH.removeprefix("/api/"), serve, Right.ADMINISTRATOR)]


async def _answered(ask: Ask, raw: bytes) -> ControlMessage:
    try:
        message = ControlMessage.from_wire(decode_value(raw))
    except VersionMismatchError as problem:
        return error(problem.id, problem.code, str(problem))
    except (FramingError, MessageError) as problem:
        raise bad_request(str(problem)) from None
    if message.kind == BACKUP:
        text = "a backup is written to the node's own disk: run fluxmqctl backup there"
        return error(message.id, ERROR_REFUSED, text)
    if message.kind not in KINDS:
        text = f"{message.kind} is not supported over HTTP"
        return error(message.id, ERROR_UNKNOWN_KIND, text)
    try:
        answer = reply(message, await ask(message.kind, message.body))
        encode_value(answer.to_wire())
    except (RequestError, MessageError) as problem:
        return error(message.id, problem.code, str(problem))
    except FramingError as problem:
        return error(message.id, ERROR_FAILED, str(problem))
    return answer
