"""One channel's methods: their order, and the parts that execute them.

Methods of a channel are executed in order. A method whose answer takes time leaves the channel
``waiting``, and later frames stay in its backlog; when that is full, the connection is not read. A
method whose permission another backend has to decide is executed again once it has.

Source: AMQP 0-9-1 sections 1.5 to 1.9 (classes channel, exchange, queue, basic, tx).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.protocols.amqp091 import methods
from fluxmq.protocols.amqp091.constants import FRAME_METHOD, ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, HardError, SoftError
from fluxmq.protocols.amqp091.method_codec import decode
from fluxmq.protocols.amqp091.methods import BasicPublish, Method
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.sessions.amqp091.basic_consume import Consumers
from fluxmq.sessions.amqp091.basic_get import Getters
from fluxmq.sessions.amqp091.channel import Channel, ChannelState
from fluxmq.sessions.amqp091.client import AmqpClient
from fluxmq.sessions.amqp091.content import IncomingContent, check_method_due
from fluxmq.sessions.amqp091.declarations import Entities
from fluxmq.sessions.amqp091.deliveries import DeliveryHeads
from fluxmq.sessions.amqp091.publishing import Publisher
from fluxmq.sessions.amqp091.refusals import close_text, not_implemented
from fluxmq.sessions.amqp091.settlements import Settlements

BACKLOG_MAX: Final = 1024
"""Frames and runs queued behind a method: more than a client sends without awaiting answers."""
BACKLOG_BYTES_MAX: Final = 1 << 20
"""Total backlog bytes of all channels of a connection: equal to its output limit."""
WAITING_BYTES: Final = 64
"""Approximate size of the objects that keep one frame in a backlog, besides its bytes."""

Waiting = tuple[int, bytes] | AmqpPublishRun
"""A frame (its type and payload) or a run of publishes, waiting for its turn."""


class ChannelMethods:
    """Executes the methods of one channel. ``channels``: of the connection, by number; ``mark``:
    has the channel flushed.

    ``content``: of the publish that arrives frame by frame. ``holding``: the backlog is a reason
    not to read the connection.
    """

    def __init__(
        self,
        client: AmqpClient,
        number: int,
        channels: dict[int, ChannelMethods],
        heads: DeliveryHeads,
        mark: Callable[[ChannelMethods], None],
    ) -> None:
        channel = Channel(client, number, self.mark, self._answered)
        self.channel = channel
        self.client = client
        self.entities = Entities(channel)
        self.publisher = Publisher(channel)
        self.settlements = Settlements(channel, self.publisher)
        self.getters = Getters(channel, heads, self.entities, self.settlements)
        self.consumers = Consumers(
            channel, heads, self.entities, self.publisher, self.settlements, self.getters
        )
        self.content: IncomingContent | None = None
        self.backlog: deque[Waiting] = deque()
        self.backlog_bytes = 0
        self.holding = False
        self.marked = False
        self._channels = channels
        self._mark = mark

    @property
    def is_open(self) -> bool:
        """True while methods are executed."""
        return self.channel.state is ChannelState.OPEN

    # --- input, in order ---

    def on_run(self, run: AmqpPublishRun) -> None:
        """Handle publishes in the receive buffer."""
        if self.channel.waiting or self.backlog:
            run.detach()
            self._keep(run, run.payload_bytes)
        else:
            self._publish(run)

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Handle any other frame."""
        if self.channel.waiting or self.backlog:
            self._keep((kind, payload), len(payload))
        else:
            self._handle(kind, payload)

    def _publish(self, run: AmqpPublishRun) -> None:
        """Handle publishes whose turn has come."""
        try:
            if self.content is not None:
                self.content.add(FRAME_METHOD, b"", 0)
            self._publish_run(run)
        except AmqpError as error:
            self.fail(error, BasicPublish)

    def _publish_run(self, run: AmqpPublishRun) -> None:
        """Publish, at once or when it is decided whether the user may. Raises AmqpError."""
        try:
            self.publisher.publish(run)
        except UndecidedError as undecided:
            run.detach()
            self._wait(undecided, BasicPublish, partial(self._publish_run, run))

    def _wait(
        self,
        undecided: UndecidedError,
        method: Method | type[Method] | None,
        retry: Callable[[], None],
    ) -> None:
        """Have a permission decided, then try again."""
        done = self.channel.later(BasicPublish if method is None else method, retry)

        def decided() -> None:
            done()
            self.mark()  # what was answered is sent

        undecided.ask(decided)

    def _handle(self, kind: int, payload: bytes) -> None:
        """Handle a frame whose turn has come."""
        broker = self.client.broker
        method: Method | type[Method] | None = None
        try:
            content = self.content
            if content is not None:
                if content.add(kind, payload, broker.limits.max_message):
                    self.content = None
                    content.share.release()
                    self.put_in_order()
                    method = BasicPublish
                    self._publish_run(content.run(self.channel.number))
                return
            check_method_due(kind)
            method = decode(payload)
            if isinstance(method, BasicPublish):
                self.content = IncomingContent(method, self.client.budget.share(broker))
                self.put_in_order()
                if not self.client.connection.publishing:
                    self.client.began()
                return
            broker.count_method(type(method).__name__)
            execute = _METHODS.get(type(method))
            if execute is None:
                raise HardError(ReplyCode.COMMAND_INVALID, "unimplemented method")
            self._execute(execute, method)
        except AmqpError as error:
            self.fail(error, method)

    def _execute(self, execute: Callable[[ChannelMethods, Any], None], method: Method) -> None:
        """Execute a method, at once or when it is decided whether the user may. Raises AmqpError."""
        try:
            execute(self, method)
        except UndecidedError as undecided:
            self._wait(undecided, method, partial(self._execute, execute, method))

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
        while self.backlog and not self.channel.waiting and self.is_open:
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
        first = self.channel.waiting or bool(self.backlog) or self.content is not None
        self.channel.ledger.direct = not first and self.publisher.transaction is None

    def _answered(
        self, method: Method | type[Method], then: Callable[..., None], *answers: Any
    ) -> None:
        """Continue with the answer to ``method``, see ``Channel.later``."""
        if not self.is_open:
            return
        self.channel.waiting = False
        try:
            then(*answers)
        except UndecidedError as undecided:
            self._wait(undecided, method, partial(then, *answers))
            return
        except AmqpError as error:
            self.fail(error, method)
            return
        self._proceed()

    # --- class channel ---

    def on_open(self) -> None:
        """Reject channel.open on an open channel."""
        raise HardError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")

    def on_close(self) -> None:
        """Close at the client's request."""
        self.release()
        self.channel.send(methods.ChannelCloseOk())
        self._let_go()

    def on_flow(self, method: methods.ChannelFlow) -> None:
        """Answer channel.flow; clients may not stop the flow but limit it with prefetch (as in
        RabbitMQ)."""
        if not method.active:
            raise not_implemented("active=false")
        self.channel.send(methods.ChannelFlowOk(True))

    # --- once per tick, and the end ---

    def mark(self) -> None:
        """Have the channel flushed before the tick ends."""
        if not self.marked:
            self.marked = True
            self._mark(self)

    def flush(self) -> None:
        """Pass on acknowledgements, write due confirms; take a released channel apart."""
        self.marked = False
        if self.is_open:
            self.consumers.flush()
            self.publisher.flush()
        else:
            self.channel.let_go()  # nothing of the channel is running now

    def fail(self, error: AmqpError, method: Method | type[Method] | None) -> None:
        """Answer an error: close the channel, and await the answer; or close the connection."""
        if not isinstance(error, SoftError):
            self.client.fail(error, method)
        elif self.client.count_error(error, method) and self.is_open:
            self.release()
            self.channel.state = ChannelState.CLOSING
            self._channels[self.channel.number] = self
            text = close_text(error)
            close = methods.ChannelClose(error.code, text, error.class_id, error.method_id)
            self.channel.send(close)
            self._let_go()

    def incomplete_bytes(self) -> int:
        """Return the bytes of an incomplete message and an uncommitted transaction."""
        kept = (self.content, self.publisher.transaction)
        return sum(each.share.bytes for each in kept if each is not None)

    def release(self) -> None:
        """Release a channel that is no longer open, and ignore its pending answers."""
        client, channel = self.client, self.channel
        if channel.state is ChannelState.CLOSED:
            return
        self._channels.pop(channel.number, None)
        if client.connection.ledgers is not None:
            client.connection.ledgers.pop(channel.number, None)
        was_open, channel.state = self.is_open, ChannelState.CLOSED
        if was_open:
            if client.info.is_client:
                client.broker.user_limits.close_channel(client.info.user)
            self.consumers.release()
            self.getters.release()
            client.broker.events.channel_closed(client.info, channel.number)
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


_METHODS: Final[dict[type, Callable[[ChannelMethods, Any], None]]] = {
    methods.ChannelOpen: lambda parts, _: parts.on_open(),
    methods.ChannelClose: lambda parts, _: parts.on_close(),
    methods.ChannelFlow: lambda parts, method: parts.on_flow(method),
    # AMQP 0-8's ticket, which nothing checks.
    methods.AccessRequest: lambda parts, _: parts.channel.send(methods.AccessRequestOk(1)),
    methods.ConfirmSelect: lambda parts, method: parts.publisher.on_confirm_select(method),
    methods.TxSelect: lambda parts, _: parts.publisher.on_tx_select(),
    methods.TxCommit: lambda parts, method: parts.publisher.on_commit(method),
    methods.TxRollback: lambda parts, _: parts.publisher.on_rollback(),
    methods.ExchangeDeclare: lambda parts, method: parts.entities.on_exchange_declare(method),
    methods.ExchangeDelete: lambda parts, method: parts.entities.on_exchange_delete(method),
    methods.ExchangeBind: lambda parts, method: parts.entities.on_exchange_bind(method),
    methods.ExchangeUnbind: lambda parts, method: parts.entities.on_exchange_unbind(method),
    methods.QueueDeclare: lambda parts, method: parts.entities.on_queue_declare(method),
    methods.QueueDelete: lambda parts, method: parts.entities.on_queue_delete(method),
    methods.QueuePurge: lambda parts, method: parts.entities.on_queue_purge(method),
    methods.QueueBind: lambda parts, method: parts.entities.on_queue_bind(method),
    methods.QueueUnbind: lambda parts, method: parts.entities.on_queue_unbind(method),
    methods.BasicQos: lambda parts, method: parts.consumers.on_qos(method),
    methods.BasicConsume: lambda parts, method: parts.consumers.on_consume(method),
    methods.BasicCancel: lambda parts, method: parts.consumers.on_cancel(method),
    methods.BasicGet: lambda parts, method: parts.getters.on_get(method),
    methods.BasicAck: lambda parts, method: parts.settlements.on_ack(method),
    methods.BasicNack: lambda parts, method: parts.settlements.on_nack(method),
    methods.BasicReject: lambda parts, method: parts.settlements.on_reject(method),
    methods.BasicRecover: lambda parts, method: parts.settlements.on_recover(method),
    methods.BasicRecoverAsync: lambda parts, method: parts.settlements.on_recover(method),
}
