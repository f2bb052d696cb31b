"""Log lines and bans of this node over HTTP, below ``/api/fluxmq/v1``."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from fluxmq.control.management.group_routes import V1
from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.requests import (
    ApiRoute,
    Ask,
    Call,
    Right,
    answer,
    bad_request,
    done,
    text_of,
)
from fluxmq.ipc.door_messages import BAN, LIST_BANS, UNBAN, BanList, BanRequest, UnbanRequest
from fluxmq.ipc.log_messages import RECENT_LOG, LogLines

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
"""Levels of lines, the least severe first."""
LINES_DEFAULT: Final = 200


class NodeRoutes:
    """Serves the routes; `ask` has the control process carry a request out."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        admin, ban = Right.ADMINISTRATOR, f"{V1}/bans/{{kind}}/{{value}}"
        return [
            ApiRoute("GET", f"{V1}/log", self._log, admin),
            ApiRoute("GET", f"{V1}/bans", self._bans, admin),
            ApiRoute("PUT", ban, self._ban, admin),
            ApiRoute("DELETE", ban, self._unban, admin),
        ]

    async def _log(self, call: Call) -> web.Response:
        """Return the most recent lines, the last one first."""
        level, text = call.text("level", LEVELS[0]), call.text("text").lower()
        if level not in LEVELS:
            raise bad_request(f"level is one of {', '.join(LEVELS)}")
        try:
            most = int(call.text("lines", str(LINES_DEFAULT)))
        except ValueError:
            raise bad_request("lines is a number") from None
        severe = LEVELS[LEVELS.index(level) :]
        lines = LogLines.from_body(await self._ask(RECENT_LOG, {})).lines
        found = [
            each.to_body()
            for each in reversed(lines)
            if each.level in severe and (text in each.text.lower() or text in each.process)
        ]
        return answer(found[: max(0, most)])

    async def _bans(self, _call: Call) -> web.Response:
        found = BanList.from_body(await self._ask(LIST_BANS, {}))
        rows: list[JsonRow] = found.to_body()["bans"]
        return answer(rows)

    async def _ban(self, call: Call) -> web.Response:
        body = await call.body()
        seconds = body.get("seconds")
        if seconds is not None and not isinstance(seconds, int | float):
            raise bad_request("seconds is a number")
        wanted = BanRequest(
            *(call.part("kind"), call.part("value")), seconds, text_of(body, "reason", "")
        )
        await self._ask(BAN, wanted.to_body())
        return done()

    async def _unban(self, call: Call) -> web.Response:
        wanted = UnbanRequest(call.part("kind"), call.part("value"))
        await self._ask(UNBAN, wanted.to_body())
        return done()
