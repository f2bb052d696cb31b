"""The state of one channel: incomplete content, consumers, unacked deliveries, unconfirmed
publishes.

Methods of a channel are executed in order. A method whose answer takes time leaves the channel
``waiting``, and later frames stay in its backlog; when that is full, the connection is not read.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from fluxmq.protocols.amqp091.confirms import ConfirmWindow
from fluxmq.protocols.amqp091.constants import SHORT_STRING_BYTES_MAX, ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, SoftError, error_of
from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp091.methods import Method, frame
from fluxmq.protocols.amqp091.run import PublishRun
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.sessions.amqp091.client import Client

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.consumers import Consumer, Getter
    from fluxmq.sessions.amqp091.content import Content
    from fluxmq.sessions.amqp091.handler import Handler
    from fluxmq.sessions.amqp091.publishing import Prepared
    from fluxmq.sessions.amqp091.replying import ReplyConsumer
    from fluxmq.sessions.amqp091.transactions import Transaction

BACKLOG_MAX: Final = 1024
"""Frames and runs queued behind a method: more than a client sends without awaiting answers."""
BACKLOG_BYTES_MAX: Final = 1 << 20
"""Total backlog bytes of all channels of a connection: equal to its output limit."""
WAITING_BYTES: Final = 64
"""Approximate size of the objects that keep one frame in a backlog, besides its bytes."""

_CUT: Final = "..."

Waiting = tuple[int, bytes] | PublishRun
"""A frame (its type and payload) or a run of publishes, waiting for its turn."""


class State(Enum):
    """State of a channel. ``CLOSING``: channel.close was sent; all but its answer is ignored."""

    OPEN = 1
    CLOSING = 2
    CLOSED = 3


class Channel:
    """One channel of a connection.

    ``last_queue``: meaning of an empty queue name. ``prefetch``: of new consumers;
    ``shared_limit``: of all consumers together; 0 for none. ``window``: numbers of publishes in
    confirm mode. ``content``: of the publish that arrives frame by frame. ``leaving``: consumers
    cancelled by the client with unacked messages. ``deferred``: deliveries that wait for room, in
    order, with their consumer. ``crossed``: in state CLOSING, the client has closed as well.
    ``deleting``: name of the queue that the pending method deletes, and ``cancels``: notifications
    to its consumers here, sent after the answer.
    """

    __slots__ = (
        "backlog",
        "backlog_bytes",
        "cancels",
        "client",
        "consumers",
        "content",
        "crossed",
        "deferred",
        "deleting",
        "getters",
        "handler",
        "holding",
        "last_queue",
        "leaving",
        "ledger",
        "marked",
        "number",
        "paced",
        "prefetch",
        "prepared",
        "reply",
        "shared_limit",
        "state",
        "transaction",
        "waiting",
        "window",
    )

    def __init__(self, handler: Handler, client: Client, number: int) -> None:
        self.handler = handler
        self.client = client
        self.number = number
        self.state = State.OPEN
        self.ledger = ChannelLedger(number, self.mark)
        self.window: ConfirmWindow | None = None
        self.transaction: Transaction | None = None
        self.consumers: dict[str, Consumer] = {}
        self.leaving: list[Consumer] = []
        self.getters: OrderedDict[tuple[str, bool], Getter] = OrderedDict()
        self.reply: ReplyConsumer | None = None
        self.deferred: deque[tuple[Consumer, Any, int, int, int]] = deque()
        self.content: Content | None = None
        self.prepared: Prepared | None = None
        self.last_queue = ""
        self.deleting = ""
        self.cancels: list[Method] = []
        self.prefetch = 0
        self.shared_limit = 0
        self.backlog: deque[Waiting] = deque()
        self.backlog_bytes = 0
        self.waiting = False
        self.holding = False
        self.paced = False
        self.marked = False
        self.crossed = False

    @property
    def is_open(self) -> bool:
        """True while methods are executed."""
        return self.state is State.OPEN

    def send(self, method: Method) -> None:
        """Send a method on this channel."""
        self.client.connection.append(frame(self.number, method))

    def mark(self) -> None:
        """Have the channel flushed before the tick ends."""
        if not self.marked:
            self.marked = True
            self.handler.mark(self)

    def put_in_order(self) -> None:
        """Let the parser settle acknowledgements directly, unless something of the channel comes
        first."""
        first = self.waiting or bool(self.backlog) or self.content is not None
        self.ledger.direct = not first and self.transaction is None

    def later(
        self, method: Method | type[Method], then: Callable[..., None]
    ) -> Callable[..., None]:
        """Return a callback for the answer to ``method``: it calls ``then``, and the channel
        continues.

        It does nothing when the channel is closed by then. ``then`` may raise an AmqpError, and may
        wait again.
        """
        self.waiting = True
        self.put_in_order()

        def done(*answers: Any) -> None:
            if self.state is not State.OPEN:
                return
            self.waiting = False
            try:
                then(*answers)
            except AmqpError as error:
                self.handler.fail(self.client, self, error, method)
                return
            self.handler.proceed(self)

        return done


def error_from(refusal: Refusal) -> AmqpError:
    """Return the error that answers a refusal."""
    return error_of(ReplyCode(refusal.code), refusal.text)


def precondition(text: str) -> SoftError:
    """Return a 406 error."""
    return SoftError(ReplyCode.PRECONDITION_FAILED, text)


def told(error: AmqpError) -> str:
    """Return the text of a close method: the code's name and the cause, truncated as RabbitMQ
    does."""
    text = f"{error.code.name} - {error.text}"
    if len(text.encode("utf-8", "replace")) <= SHORT_STRING_BYTES_MAX:
        return text
    raw = text.encode("utf-8", "replace")[: SHORT_STRING_BYTES_MAX - len(_CUT)]
    return raw.decode("utf-8", "ignore") + _CUT
