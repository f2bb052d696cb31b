"""One channel: the order of its methods, and the parts that execute them.

Methods of a channel are executed in order. A method whose answer takes time leaves the channel
``waiting``, and later frames stay in its backlog; when that is full, the connection is not read.

Source: AMQP 0-9-1 sections 1.5 to 1.9 (classes channel, exchange, queue, basic, tx).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from fluxmq.protocols.amqp091 import methods
from fluxmq.protocols.amqp091.constants import FRAME_METHOD, ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, HardError
from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp091.method_codec import decode, frame
from fluxmq.protocols.amqp091.methods import BasicPublish, Method
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.sessions.amqp091.basic_consume import Consumers
from fluxmq.sessions.amqp091.content import IncomingContent, check_method_due
from fluxmq.sessions.amqp091.declarations import Entities
from fluxmq.sessions.amqp091.publishing import Publisher
from fluxmq.sessions.amqp091.refusals import close_text, not_implemented
from fluxmq.sessions.amqp091.settlements import Settlements

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.client import AmqpClient
    from fluxmq.sessions.amqp091.ports import AmqpBrokerPort

BACKLOG_MAX: Final = 1024
"""Frames and runs queued behind a method: more than a client sends without awaiting answers."""
BACKLOG_BYTES_MAX: Final = 1 << 20
"""Total backlog bytes of all channels of a connection: equal to its output limit."""
WAITING_BYTES: Final = 64
"""Approximate size of the objects that keep one frame in a backlog, besides its bytes."""

Waiting = tuple[int, bytes] | AmqpPublishRun
"""A frame (its type and payload) or a run of publishes, waiting for its turn."""


class ChannelState(Enum):
    """State of a channel. ``CLOSING``: channel.close was sent; all but its answer is ignored.
    ``CROSSED``: the client has closed meanwhile as well."""

    OPEN = 1
    CLOSING = 2
    CROSSED = 3
    CLOSED = 4


class Channel:
    """One channel of a connection. ``content``: of the publish that arrives frame by frame.
    ``holding``: its backlog is a reason not to read the connection."""

    def __init__(self, client: AmqpClient, number: int) -> None:
        self.client = client
        self.broker: AmqpBrokerPort = client.broker
        self.number = number
        self.state = ChannelState.OPEN
        self.ledger = ChannelLedger(number, self.mark)
        self.content: IncomingContent | None = None
        self.entities: Entities = Entities(self)
        self.settlements: Settlements = Settlements(self)
        self.consumers: Consumers = Consumers(self)
        self.publisher: Publisher = Publisher(self)
        self.backlog: deque[Waiting] = deque()
        self.backlog_bytes = 0
        self.waiting = False
        self.holding = False
        self.marked = False

    @property
    def is_open(self) -> bool:
        """True while methods are executed."""
        return self.state is ChannelState.OPEN

    def send(self, method: Method) -> None:
        """Send a method on this channel."""
        self.client.connection.append(frame(self.number, method))

    def answer(self, method: Method | None) -> None:
        """Send an answer; None: the client does not wait for one."""
        if method is not None:
            self.send(method)

    # --- input, in order ---

    def on_run(self, run: AmqpPublishRun) -> None:
        """Handle publishes in the receive buffer."""
        if self.waiting or self.backlog:
            run.detach()
            self._keep(run, run.payload_bytes)
        else:
            self._publish(run)

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Handle any other frame."""
        if self.waiting or self.backlog:
            self._keep((kind, payload), len(payload))
        else:
            self._handle(kind, payload)

    def _publish(self, run: AmqpPublishRun) -> None:
        """Handle publishes whose turn has come."""
        try:
            if self.content is not None:
                self.content.add(FRAME_METHOD, b"", 0)
            self.publisher.publish(run)
        except AmqpError as error:
            self.client.fail(self, error, BasicPublish)

    def _handle(self, kind: int, payload: bytes) -> None:
        """Handle a frame whose turn has come."""
        method: Method | type[Method] | None = None
        try:
            content = self.content
            if content is not None:
                if content.add(kind, payload, self.broker.limits.max_message):
                    self.content = None
                    content.share.release()
                    self.put_in_order()
                    method = BasicPublish
                    self.publisher.publish(content.run(self.number))
                return
            check_method_due(kind)
            method = decode(payload)
            if isinstance(method, BasicPublish):
                self.content = IncomingContent(method, self.client.budget.share(self.broker))
                self.put_in_order()
                if not self.client.connection.publishing:
                    self.client.handler.began(self.client)
                return
            self.broker.count_method(type(method).__name__)
            execute = _METHODS.get(type(method))
            if execute is None:
                raise HardError(ReplyCode.COMMAND_INVALID, "unimplemented method")
            execute(self, method)
        except AmqpError as error:
            self.client.fail(self, error, method)

    def _keep(self, item: Waiting, size: int) -> None:
        """Queue input behind the method in progress."""
        client = self.client
        self.backlog.append(item)
        self.backlog_bytes += size + WAITING_BYTES
        client.backlog_bytes += size + WAITING_BYTES
        if not self.holding and (
            len(self.backlog) >= BACKLOG_MAX or client.backlog_bytes >= BACKLOG_BYTES_MAX
        ):
            self.holding = True
            client.pause()

    def _proceed(self) -> None:
        """Process the backlog."""
        while self.backlog and not self.waiting and self.is_open:
            item = self.backlog.popleft()
            size = item.payload_bytes if isinstance(item, AmqpPublishRun) else len(item[1])
            self.backlog_bytes -= size + WAITING_BYTES
            self.client.backlog_bytes -= size + WAITING_BYTES
            if isinstance(item, AmqpPublishRun):
                self._publish(item)
            else:
                self._handle(item[0], item[1])
        self.put_in_order()
        if self.holding and not self.backlog:
            self.holding = False
            self.client.resume()

    def put_in_order(self) -> None:
        """Let the parser settle acknowledgements directly, unless something of the channel comes
        first."""
        first = self.waiting or bool(self.backlog) or self.content is not None
        self.ledger.direct = not first and self.publisher.transaction is None

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
            if not self.is_open:
                return
            self.waiting = False
            try:
                then(*answers)
            except AmqpError as error:
                self.client.fail(self, error, method)
                return
            self._proceed()

        return done

    # --- class channel ---

    def on_open(self) -> None:
        """Reject channel.open on an open channel."""
        raise HardError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")

    def on_close(self) -> None:
        """Close at the client's request."""
        self.release()
        self.send(methods.ChannelCloseOk())
        self._let_go()

    def on_flow(self, method: methods.ChannelFlow) -> None:
        """Answer channel.flow; clients may not stop the flow but limit it with prefetch (as in
        RabbitMQ)."""
        if not method.active:
            raise not_implemented("active=false")
        self.send(methods.ChannelFlowOk(True))

    # --- once per tick, and the end ---

    def mark(self) -> None:
        """Have the channel flushed before the tick ends."""
        if not self.marked:
            self.marked = True
            self.client.handler.mark(self)

    def flush(self) -> None:
        """Pass on acknowledgements, write due confirms; take a released channel apart."""
        self.marked = False
        if self.is_open:
            self.consumers.flush()
            self.publisher.flush()
        elif self.ledger.mark is not None:
            # Channel, ledger and parts form cycles, and the garbage collector does not run during
            # traffic. Nothing of the channel is running now.
            self.ledger.mark = None
            del self.entities.channel, self.settlements.channel
            del self.consumers.channel, self.publisher.channel

    def fail(self, error: AmqpError) -> None:
        """Close from our side, and await the answer."""
        self.release()
        self.state = ChannelState.CLOSING
        self.client.channels[self.number] = self
        text = close_text(error)
        self.send(methods.ChannelClose(error.code, text, error.class_id, error.method_id))
        self._let_go()

    def incomplete_bytes(self) -> int:
        """Return the bytes of an incomplete message and an uncommitted transaction."""
        kept = (self.content, self.publisher.transaction)
        return sum(each.share.bytes for each in kept if each is not None)

    def release(self) -> None:
        """Release a channel that is no longer open, and ignore its pending answers."""
        if self.state is ChannelState.CLOSED:
            return
        client = self.client
        client.channels.pop(self.number, None)
        if client.connection.ledgers is not None:
            client.connection.ledgers.pop(self.number, None)
        was_open, self.state = self.is_open, ChannelState.CLOSED
        if was_open:
            self.consumers.release()
            self.mark()
        if self.content is not None:
            self.content.share.release()
            self.content = None
        self.publisher.release()
        self.backlog.clear()
        client.backlog_bytes -= self.backlog_bytes
        self.backlog_bytes = 0

    def _let_go(self) -> None:
        """Stop a released channel from keeping its connection unread.

        Input received earlier is handled within this call, so it comes last.
        """
        reasons = self.holding + self.publisher.paced
        self.holding = self.publisher.paced = False
        for _ in range(reasons):
            self.client.resume()


_METHODS: Final[dict[type, Callable[[Channel, Any], None]]] = {
    methods.ChannelOpen: lambda channel, _: channel.on_open(),
    methods.ChannelClose: lambda channel, _: channel.on_close(),
    methods.ChannelFlow: lambda channel, method: channel.on_flow(method),
    # AMQP 0-8's ticket, which nothing checks.
    methods.AccessRequest: lambda channel, _: channel.send(methods.AccessRequestOk(1)),
    methods.ConfirmSelect: lambda channel, method: channel.publisher.on_confirm_select(method),
    methods.TxSelect: lambda channel, _: channel.publisher.on_tx_select(),
    methods.TxCommit: lambda channel, method: channel.publisher.on_commit(method),
    methods.TxRollback: lambda channel, _: channel.publisher.on_rollback(),
    methods.ExchangeDeclare: lambda channel, method: channel.entities.on_exchange_declare(method),
    methods.ExchangeDelete: lambda channel, method: channel.entities.on_exchange_delete(method),
    methods.ExchangeBind: lambda channel, method: channel.entities.on_exchange_bind(method),
    methods.ExchangeUnbind: lambda channel, method: channel.entities.on_exchange_unbind(method),
    methods.QueueDeclare: lambda channel, method: channel.entities.on_queue_declare(method),
    methods.QueueDelete: lambda channel, method: channel.entities.on_queue_delete(method),
    methods.QueuePurge: lambda channel, method: channel.entities.on_queue_purge(method),
    methods.QueueBind: lambda channel, method: channel.entities.on_queue_bind(method),
    methods.QueueUnbind: lambda channel, method: channel.entities.on_queue_unbind(method),
    methods.BasicQos: lambda channel, method: channel.consumers.on_qos(method),
    methods.BasicConsume: lambda channel, method: channel.consumers.on_consume(method),
    methods.BasicCancel: lambda channel, method: channel.consumers.on_cancel(method),
    methods.BasicGet: lambda channel, method: channel.consumers.on_get(method),
    methods.BasicAck: lambda channel, method: channel.settlements.on_ack(method),
    methods.BasicNack: lambda channel, method: channel.settlements.on_nack(method),
    methods.BasicReject: lambda channel, method: channel.settlements.on_reject(method),
    methods.BasicRecover: lambda channel, method: channel.settlements.on_recover(method),
    methods.BasicRecoverAsync: lambda channel, method: channel.settlements.on_recover(method),
}
