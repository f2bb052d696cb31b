"""Requests to the leading control process and its answers: matched by number, bounded in number and
time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fluxmq.control.meta.frames import Request, RequestReply, encode
from fluxmq.control.peers import RequestError
from fluxmq.control.ports import LostError, NotLeadingError
from fluxmq.ipc.messages import ERROR_FAILED, ID_MAX, Body, MessageError
from fluxmq.logs import get_logger

ASKED_MAX: Final = 256
"""Unanswered requests to other nodes: more than all shards and people of a node have open at
once."""
SERVED_MAX: Final = 1024
"""Requests of other nodes in progress: those of four nodes, which bounds the memory."""

UNKNOWN: Final = "unknown"
"""Code of an answer: leadership was lost meanwhile, and the outcome is unknown."""

_log = get_logger(__name__)

Serve = Callable[[str, Body], Awaitable[Mapping[str, Any]]]


class UnknownOutcomeError(Exception):
    """A request was sent, and its outcome is unknown."""


class MetaRequests:
    """Both sides of requests. `serve` decides other nodes' requests here; raises RequestError,
    MessageError, NotLeadingError, LostError."""

    def __init__(self, send: Callable[[int, bytes], bool], serve: Serve) -> None:
        self._send = send
        self._serve = serve
        self._last = 0
        self._asked: dict[int, tuple[int, asyncio.Future[RequestReply]]] = {}
        self._served: set[asyncio.Task[None]] = set()

    async def ask(self, number: int, kind: str, body: Body, seconds: float) -> Mapping[str, Any]:
        """Have a node decide about a request.

        Raises RequestError when it refuses, NotLeadingError when nothing was done,
        UnknownOutcomeError.
        """
        if len(self._asked) >= ASKED_MAX:
            raise RequestError(ERROR_FAILED, f"{ASKED_MAX} requests wait for the leader")
        self._last = self._last % ID_MAX + 1
        answer: asyncio.Future[RequestReply] = asyncio.get_running_loop().create_future()
        if not self._send(number, encode(Request(self._last, kind, body))):
            raise NotLeadingError
        place = self._last
        self._asked[place] = number, answer
        try:
            async with asyncio.timeout(seconds):
                reply = await answer
        except TimeoutError as problem:
            raise UnknownOutcomeError from problem
        finally:
            del self._asked[place]
        if reply.body is not None:
            return reply.body
        if reply.code == UNKNOWN:
            raise UnknownOutcomeError
        if not reply.code:
            raise NotLeadingError
        raise RequestError(reply.code, reply.text)

    def answered(self, number: int, reply: RequestReply) -> None:
        """Handle a node's answer."""
        asked = self._asked.get(reply.number)
        if asked is not None and asked[0] == number and not asked[1].done():
            asked[1].set_result(reply)

    def parted(self, number: int) -> None:
        """Handle the end of the stream to a node."""
        for asked, answer in self._asked.values():
            if asked == number and not answer.done():
                answer.set_exception(UnknownOutcomeError())

    def asked(self, number: int, request: Request) -> None:
        """Handle a node's request."""
        if len(self._served) >= SERVED_MAX:
            text = f"{SERVED_MAX} requests wait"
            self._send(number, encode(RequestReply(request.number, None, ERROR_FAILED, text)))
            return
        task = asyncio.get_running_loop().create_task(self._answer(number, request))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _answer(self, number: int, request: Request) -> None:
        try:
            answer = RequestReply(request.number, await self._serve(request.kind, request.body))
        except NotLeadingError:
            answer = RequestReply(request.number, None)
        except (RequestError, MessageError) as problem:
            answer = RequestReply(request.number, None, problem.code, str(problem))
        except LostError:
            answer = RequestReply(request.number, None, UNKNOWN)
        except Exception:  # noqa: BLE001 - a task's outermost frame: who asked is answered
            _log.exception("a request of another node failed", extra={"kind": request.kind})
            text = "the control process failed; see its log"
            answer = RequestReply(request.number, None, ERROR_FAILED, text)
        self._send(number, encode(answer))

    def stop(self) -> None:
        """Stop answering requests."""
        for task in self._served:
            task.cancel()
