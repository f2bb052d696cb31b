"""AMQP sessions without a network connection, for the management interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from fluxmq.auth.logins import BackendLogin
from fluxmq.auth.remote_rights import Decisions
from fluxmq.ipc.amqp_calls import (
    AMQP_CALL,
    CALL_SECONDS,
    CHANNEL,
    OUTPUT_BYTES_MAX,
    AmqpAnswer,
    AmqpCall,
    AmqpFrames,
    MethodId,
)
from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import ERROR_FAILED, ERROR_LIMIT, ERROR_REFUSED, Body, Failure
from fluxmq.ipc.topology_messages import connection_id
from fluxmq.protocols.amqp091.constants import FRAME_METHOD
from fluxmq.protocols.amqp091.method_codec import encode, ids
from fluxmq.protocols.amqp091.methods import ChannelClose, ChannelOpen, ConnectionClose
from fluxmq.protocols.amqp091.run import FRAME_HEADER_BYTES
from fluxmq.protocols.connection import Connection, Tally
from fluxmq.sessions.amqp091.access import Access
from fluxmq.sessions.amqp091.client import AmqpStage
from fluxmq.sessions.amqp091.connection_info import ConnectionInfo
from fluxmq.sessions.amqp091.handler import AmqpSession
from fluxmq.shards.amqp.broker import AmqpBroker

CALLS_MAX: Final = 64
"""Calls under way: each may hold `OUTPUT_BYTES_MAX`."""
LOOK_SECONDS: Final = 0.002
"""Interval at which the output of a call under way is looked at."""
NAME: Final = "management"
CLOSES: Final = (ids(ChannelClose), ids(ConnectionClose))
PUBLISH: Final = b"\0\x3c\0\x28"
"""Beginning of basic.publish."""


class _Call:
    """One call: its session and output."""

    def __init__(self, asked: AmqpCall, tally: Tally) -> None:
        self.asked = asked
        self.until = {*map(tuple, asked.until)}
        self.output = bytearray()
        self.connection = Connection(-1, tally, [], OUTPUT_BYTES_MAX, self._send)
        self.connection.frame_max = OUTPUT_BYTES_MAX
        self.connection.publishing = True  # it is not paused during alarms, but refused
        self.session: AmqpSession

    def _send(self, _fd: int, data: bytes | bytearray, start: int, end: int) -> int:
        """Take a large piece, which is sent without being gathered."""
        self.output += memoryview(data)[start:end]
        return end - start

    def feed(self, frames: AmqpFrames) -> None:
        """Execute frames."""
        for kind, payload in frames:
            self.session.handler.frame(self.connection, kind, CHANNEL, payload)

    def gather(self) -> None:
        """Take what the session has sent."""
        connection = self.connection
        for chunk in connection.chunks or ():
            self.output += chunk
        if connection.out:
            self.output += connection.out
        connection.out, connection.chunks, connection.size = None, None, 0
        connection.dirty = False
        connection.dirty_list.clear()

    @property
    def ended(self) -> bool:
        """True when the answers have come, or the session has been closed."""
        found = list(methods_of(self.output))
        return any(each in CLOSES for each in found) or (
            sum(each in self.until for each in found) >= self.asked.answers
        )


class ManagementCalls:
    """The calls under way on a shard."""

    def __init__(
        self,
        shard: int,
        node: str,
        broker: AmqpBroker,
        decisions: Decisions,
        tally: Tally,
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._shard = shard
        self._node = node
        self._broker = broker
        self._decisions = decisions
        self._tally = tally
        self._call_later = call_later
        self._number = 0
        self._open = 0

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's messages."""
        return {AMQP_CALL: self._on_call}

    def _on_call(self, body: Body, answered: Answered) -> None:
        asked = AmqpCall.from_body(body)
        if self._open >= CALLS_MAX:
            answered(Failure(ERROR_LIMIT, f"{CALLS_MAX} calls are under way: try again later"))
            return
        login = None if asked.login is None else asked.login.login(self._decisions)
        if login is None:
            permissions = self._broker.permissions(asked.user, asked.vhost)
        else:
            permissions = login.permissions(asked.vhost)
        if permissions is None:
            text = f"access to vhost '{asked.vhost}' refused for user '{asked.user}'"
            answered(Failure(ERROR_REFUSED, text))
            return
        alarm = self._broker.handler.alarm.reason
        if alarm and any(payload[:4] == PUBLISH for _, payload in asked.frames):
            answered(Failure(ERROR_FAILED, f"publishers are blocked: {alarm}"))
            return
        self._open += 1
        call = self._begin(asked, login)
        call.feed(asked.frames)
        self._look(call, answered, self._tally.now + CALL_SECONDS)

    def _begin(self, asked: AmqpCall, login: BackendLogin | None) -> _Call:
        """Open a session with the user's permissions, and its channel."""
        self._number += 1
        call = _Call(asked, self._tally)
        connection, handler = call.connection, self._broker.handler
        name = f"{NAME}.{self._number}"
        owner = connection_id(self._shard, os.getpid(), -self._number, self._node)
        info = ConnectionInfo(name, NAME, -1, owner)
        info.user, info.vhost, info.channel_max = asked.user, asked.vhost, CHANNEL
        session = call.session = AmqpSession(handler, connection, info)
        connection.handler = handler
        connection.identity = session
        session.client.stage = AmqpStage.RUNNING
        session.client.access = Access(self._broker, asked.user, asked.vhost, login)
        session.unopened_frame(CHANNEL, FRAME_METHOD, encode(ChannelOpen()))
        call.gather()
        call.output.clear()
        return call

    def _look(self, call: _Call, answered: Answered, deadline: float) -> None:
        """Answer once the session has; look again soon otherwise."""
        self._broker.handler.flush_marked()
        call.gather()
        if not call.ended and len(call.output) < OUTPUT_BYTES_MAX and self._tally.now < deadline:
            self._call_later(LOOK_SECONDS, lambda: self._look(call, answered, deadline))
            return
        in_time = call.ended
        if in_time:
            call.feed(call.asked.after)
            self._broker.handler.flush_marked()
        self._end(call)
        self._open -= 1
        if not in_time:
            answered(Failure(ERROR_FAILED, "no answer in time, or one that is too large"))
        elif len(call.output) > OUTPUT_BYTES_MAX:
            answered(Failure(ERROR_LIMIT, f"the answer takes more than {OUTPUT_BYTES_MAX} bytes"))
        else:
            answered(AmqpAnswer(bytes(call.output)).to_body())

    def _end(self, call: _Call) -> None:
        """Release the session: what is unacknowledged goes back to its queue."""
        self._broker.timers.cancel(call.connection)
        client = call.session.client
        client.stage = AmqpStage.CLOSED
        client.on_release()
        del client.on_release  # it refers back to the client
        call.connection.forget()
        self._broker.wake()


def methods_of(output: bytes | bytearray) -> Iterator[MethodId]:
    """Yield class and number of each method in AMQP frames."""
    at = 0
    while at + FRAME_HEADER_BYTES <= len(output):
        size = int.from_bytes(output[at + 3 : at + 7], "big")
        payload = at + FRAME_HEADER_BYTES
        if output[at] == FRAME_METHOD:
            class_id = int.from_bytes(output[payload : payload + 2], "big")
            yield class_id, int.from_bytes(output[payload + 2 : payload + 4], "big")
        at = payload + size + 1
