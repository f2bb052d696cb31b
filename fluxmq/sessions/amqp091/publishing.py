"""Publishes: checked once per run, routed by the broker, returned, confirmed, or held by a
transaction until it is committed.

All messages of a run have the same exchange, routing key, flags and properties, so one check covers
all; and the result for a channel's last run is reused for the next while those, the topology and
the permissions are the same. In confirm mode every message has a number, routed or not. A commit
sends a transaction's parts to their queues at once and is answered when all are durable; if a queue
refuses a part, the channel is closed with "partial tx completion", as in RabbitMQ: there is no
rollback across queues.

Source: AMQP 0-9-1 sections 1.8.3.7 (publish), 1.8.3.8 (return) and 1.9 (tx), RabbitMQ's publisher
confirms, validated user-id, per-message TTL, and sender-selected distribution (CC, BCC).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fluxmq.auth.permissions import Permissions
from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.confirms import NACK, REFUSED_MIN, Confirmation, ConfirmWindow
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.content import (
    HEADERS,
    TIMESTAMP,
    BasicProperties,
    read_fields,
    write_fields,
)
from fluxmq.protocols.amqp091.delivery import encode_return
from fluxmq.protocols.amqp091.errors import HardError, SoftError
from fluxmq.protocols.amqp091.message_properties import to_block
from fluxmq.protocols.amqp091.methods import (
    ConfirmSelect,
    ConfirmSelectOk,
    TxCommit,
    TxCommitOk,
    TxRollbackOk,
    TxSelectOk,
)
from fluxmq.protocols.amqp091.run import AmqpPublishRun
from fluxmq.protocols.connection import Tally
from fluxmq.queues.commands import Verb
from fluxmq.routing.topology.records import EXCHANGE, Exchange
from fluxmq.routing.topology.refusals import not_found
from fluxmq.sessions.amqp091 import direct_reply
from fluxmq.sessions.amqp091.access import TOPIC
from fluxmq.sessions.amqp091.content import check_size
from fluxmq.sessions.amqp091.headers import (
    BCC,
    CC,
    DEDUPLICATION_ID,
    Headers,
    all_keys,
    expiry_of,
    identity_in,
)
from fluxmq.sessions.amqp091.ports import PendingConfirm, Routing
from fluxmq.sessions.amqp091.refusals import error_from, not_implemented, precondition
from fluxmq.sessions.amqp091.settlements import REQUEUE, grouped
from fluxmq.sessions.amqp091.transactions import Transaction

if TYPE_CHECKING:
    from fluxmq.sessions.amqp091.channel import Channel
    from fluxmq.sessions.amqp091.client import AmqpClient
    from fluxmq.sessions.amqp091.ports import AmqpBrokerPort

UNANSWERED_MAX: Final = 65_536
"""Maximum unconfirmed publishes of a channel in confirm mode: beyond it the connection is not
read."""

PREPARED_BYTES_MAX: Final = 4096
"""Longest properties for which a channel caches the result of its checks: the result holds several
copies of them, and a connection may have two thousand channels."""

_ANSWER_BYTES: Final = 21
_KIND_AT: Final = 10
_NUMBER_AT: Final = 11
_MULTIPLE_AT: Final = 19
"""Size of a basic.ack or basic.nack frame, and offsets in it: low byte of the method, number,
``multiple``."""

_CORRELATION_ID: Final = BasicProperties._fields.index("correlation_id")
_DELIVERY_MODE: Final = BasicProperties._fields.index("delivery_mode")
_DELIVERY_MODES: Final = (b"\x01", b"\x02")
"""Transient and persistent."""
_REPLY_TO: Final = BasicProperties._fields.index("reply_to")
_EXPIRATION: Final = BasicProperties._fields.index("expiration")
_MESSAGE_ID: Final = BasicProperties._fields.index("message_id")
_USER_ID: Final = BasicProperties._fields.index("user_id")
_PSEUDO_QUEUE: Final = direct_reply.PSEUDO_QUEUE.encode()


class Prepared(NamedTuple):
    """Result of checking a run, and the run it belongs to.

    ``reply``: address of direct replies that the messages are for, None for routed messages.
    ``returned``: properties of returned messages, without BCC. ``singly``: some messages of a run
    may be refused, so that each is confirmed by itself.
    """

    exchange_name: bytes
    routing_key: bytes
    given: bytes
    revision: int
    permissions: Permissions
    routing: Routing
    returned: bytes
    reply: str | None
    singly: bool


class Publisher:
    """Publishes of a channel. ``window``: numbers of publishes in confirm mode. ``paced``: too many
    are unanswered, which is a reason not to read the connection."""

    __deletable__ = ("channel",)

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.client: AmqpClient = channel.client
        self.broker: AmqpBrokerPort = channel.broker
        self.tally: Tally = channel.client.connection.tally
        self.window: ConfirmWindow | None = None
        self.transaction: Transaction | None = None
        self.prepared: Prepared | None = None
        self.paced = False

    def publish(self, run: AmqpPublishRun) -> None:
        """Publish a run. Raises AmqpError; then nothing of the run was published."""
        if run.immediate:
            raise not_implemented("immediate=true")
        client, channel = self.client, self.channel
        check_size(run.largest, self.broker.limits.max_message)
        prepared = self._prepare(run)
        self.tally.published(run.count, run.payload_bytes)
        if not client.connection.publishing:
            client.handler.began(client)
        if self.transaction is not None:
            self._hold(self.transaction, prepared, run)
            return
        window = self.window
        if window is None:
            self._send(prepared, run, None)
            return
        first = window.publish(run.count)
        runs = _each_of(run) if prepared.singly and run.count > 1 else (run,)
        for number, each in enumerate(runs, first):
            confirmation = Confirmation(window, number, each.count, channel.mark)
            # Held until a possible return, so that the return precedes the confirm.
            confirmation.hold()
            self._send(prepared, each, confirmation)
            confirmation.done()
        if window.unanswered > UNANSWERED_MAX and not self.paced:
            self.paced = True
            client.pause()

    def _send(
        self, prepared: Prepared, run: AmqpPublishRun, confirmation: PendingConfirm | None
    ) -> None:
        """Route a run, and return it when it is mandatory and unroutable."""
        broker = self.broker
        if prepared.reply is not None:
            # Sent to the requester, yet not routed to a queue, which is what mandatory demands.
            if broker.reply(prepared.reply, run, prepared.routing.block):
                self.tally.amqp_replies += run.count
            else:
                broker.count_drop("reply_gone", run.count)
            if run.mandatory:
                self._return(prepared, run)
        elif not broker.publish(self.channel, run, prepared.routing, confirmation):
            if run.mandatory:
                self._return(prepared, run)
            else:
                broker.count_drop("unroutable", run.count)

    def _return(self, prepared: Prepared, run: AmqpPublishRun) -> None:
        """Send basic.return for every message of the run."""
        self.tally.amqp_returned += run.count
        code = ReplyCode.NO_ROUTE
        for payload in run.payloads():
            self.client.connection.append(
                encode_return(
                    self.channel.number,
                    code,
                    code.name.encode(),
                    run.exchange,
                    run.routing_key,
                    prepared.returned,
                    payload,
                    self.client.connection.frame_max,
                )
            )

    # --- confirms ---

    def on_confirm_select(self, method: ConfirmSelect) -> None:
        """Number and confirm publishes from now on. Raises SoftError 406 in tx mode."""
        if self.transaction is not None:
            raise precondition("cannot switch from tx to confirm mode")
        if self.window is None:
            self.window = ConfirmWindow()
        if not method.no_wait:
            self.channel.send(ConfirmSelectOk())

    def flush(self) -> None:
        """Write the confirms that are due."""
        window = self.window
        if window is None:
            return
        waiting = window.unanswered
        answers = window.answers(self.channel.number)
        if answers:
            self.client.connection.append(answers)
            answered = waiting - window.unanswered
            if len(answers) == _ANSWER_BYTES and answers[_KIND_AT] != NACK:
                self.tally.amqp_confirmed += answered
            else:
                nacked = count_nacked(answers, answered)
                self.tally.amqp_confirmed += answered - nacked
                self.tally.amqp_nacked += nacked
        if self.paced and 2 * window.unanswered <= UNANSWERED_MAX:
            self.paced = False
            self.client.resume()

    # --- transactions ---

    def on_tx_select(self) -> None:
        """Hold publishes and settlements for a commit from now on. Raises SoftError 406 in confirm
        mode."""
        if self.window is not None:
            raise precondition("cannot switch from confirm to tx mode")
        if self.transaction is None:
            share = self.client.budget.share(self.broker)
            self.transaction = Transaction(self.broker.limits, share)
            # The parser passes everything on frame by frame: it must not settle past the
            # transaction.
            self.channel.put_in_order()
        self.channel.send(TxSelectOk())

    def _required(self) -> Transaction:
        """Return the transaction. Raises SoftError 406 when there is none."""
        if self.transaction is None:
            raise precondition("channel is not transactional")
        return self.transaction

    def _hold(self, transaction: Transaction, prepared: Prepared, run: AmqpPublishRun) -> None:
        """Keep the run until the transaction commits. Raises SoftError 406 when it is too large, or
        memory is low."""
        if self.broker.short_of_memory:
            self.broker.refused_for_memory("transaction")
            raise precondition("the node is low on memory: a transaction cannot grow")
        run.detach()
        transaction.publish(prepared, run)

    def on_rollback(self) -> None:
        """Drop the publishes; deliveries are unacked again."""
        self._required().roll_back()
        self.tally.amqp_rolled_back += 1
        self.channel.send(TxRollbackOk())

    def on_commit(self, method: TxCommit) -> None:
        """Send all parts to their queues; answer when every one is durable."""
        transaction = self._required()
        publishes, settled = transaction.publishes, transaction.settled
        transaction.clear()
        failed = False
        parts = 1
        answer = self.channel.later(method, lambda: self._committed(failed))

        def ended(reason: int = 0) -> None:
            nonlocal failed, parts
            failed = failed or reason >= REFUSED_MIN
            parts -= 1
            if parts == 0:
                answer()

        for prepared, run in publishes:
            parts += 1
            window = ConfirmWindow()
            confirmation = Confirmation(window, window.publish(run.count), run.count)
            confirmation.mark = _ending(confirmation, ended)
            confirmation.hold()
            self._send(prepared, run, confirmation)
            confirmation.done()
        for verb in (Verb.ACK, Verb.REJECT, REQUEUE):
            told = [(each.taker, each.offset, each.offset) for each in settled if each.verb is verb]
            self.channel.settlements.note(verb, len(told))
            for taker, ranges in grouped(told):
                parts += 1
                taker.reserved -= sum(last - first + 1 for first, last in ranges)
                taker.settle(verb, ranges, ended)
        self.channel.mark()
        ended()

    def _committed(self, failed: bool) -> None:
        """Answer the commit once all parts are."""
        if failed:
            raise precondition("partial tx completion")
        self.tally.amqp_committed += 1
        self.channel.send(TxCommitOk())

    def release(self) -> None:
        """Drop what a closed channel holds."""
        if self.transaction is not None:
            self.transaction.share.release()
        self.transaction = None
        self.prepared = None

    # --- checks ---

    def _prepare(self, run: AmqpPublishRun) -> Prepared:
        """Check a run, or reuse the result of a similar one. Raises AmqpError."""
        permissions = self.client.access.permissions()
        prepared = self.prepared
        if (
            prepared is not None
            and prepared.permissions is permissions
            and prepared.revision == self.broker.topology.revision
            and prepared.routing_key == run.routing_key
            and prepared.exchange_name == run.exchange
            and prepared.given == run.properties
        ):
            return prepared
        prepared = self._checked(run, permissions)
        self.prepared = prepared if len(run.properties) <= PREPARED_BYTES_MAX else None
        return prepared

    def _checked(self, run: AmqpPublishRun, permissions: Permissions | None) -> Prepared:
        """Make all of RabbitMQ's checks, in its order. Raises AmqpError."""
        client, broker = self.client, self.broker
        name, key = _text(run.exchange), _text(run.routing_key)
        if permissions is None or not permissions.write(name):
            raise client.access.refused(EXCHANGE, name)
        exchange = self._exchange(name)
        fields = read_fields(run.properties)
        given = run.properties
        if fields[_REPLY_TO] == _PSEUDO_QUEUE:
            fields[_REPLY_TO] = self.channel.consumers.reply_to().encode()
            given = write_fields(fields)
        _check_user(fields[_USER_ID], client.user)
        expiration = fields[_EXPIRATION]
        expiry_ms = None if expiration is None else expiry_of(_shown(expiration))
        keys: tuple[str, ...] = (key,)
        drop: tuple[str, ...] = ()
        returned = given
        raw_headers = fields[HEADERS]
        headers = Headers(raw_headers) if raw_headers else None
        if headers is not None and (headers.may_have(CC) or headers.may_have(BCC)):
            keys = all_keys(key, headers)
            if BCC in headers:
                drop = (BCC,)
                fields[HEADERS] = headers.without(BCC)
                returned = write_fields(fields)
        if exchange.type == TOPIC:
            for each in keys:
                if not permissions.topic_write(name, each):
                    raise client.access.topic_refused(name, each)
        identity = None
        if headers is not None and headers.may_have(DEDUPLICATION_ID):
            identity = identity_in(headers)
            if identity is not None:
                drop += (DEDUPLICATION_ID,)
        mode = fields[_DELIVERY_MODE]
        if mode is not None and mode not in _DELIVERY_MODES:
            raise precondition(f"invalid message: {{delivery_mode_unknown,{mode[0]}}}")
        reply = direct_reply.address_in(name, key)
        block = to_block(given, name, client.user, drop=drop)
        routing = Routing(exchange, block, keys, headers, _hashed(fields), expiry_ms, identity)
        return Prepared(
            run.exchange,
            run.routing_key,
            run.properties,
            broker.topology.revision,
            permissions,
            routing,
            returned,
            reply,
            reply is None and broker.may_refuse(routing),
        )

    def _exchange(self, name: str) -> Exchange:
        """Return the exchange to publish to. Raises SoftError 404, or 403 for an internal one."""
        vhost = self.client.vhost
        exchange = self.broker.topology.exchange(vhost, name)
        if exchange is None:
            raise error_from(not_found(EXCHANGE, name, vhost))
        if exchange.internal:
            text = f"cannot publish to internal exchange '{name}' in vhost '{vhost}'"
            raise SoftError(ReplyCode.ACCESS_REFUSED, text)
        return exchange


def _each_of(run: AmqpPublishRun) -> Iterator[AmqpPublishRun]:
    """Yield the messages of a run as runs of one."""
    for payload in run.payloads():
        yield AmqpPublishRun.of(
            run.channel,
            run.exchange,
            run.routing_key,
            run.mandatory,
            run.immediate,
            run.properties,
            payload,
        )


def _ending(confirmation: Confirmation, ended: Callable[[int], None]) -> Callable[[], None]:
    """Return the callback of a confirmation whose run is complete."""

    def mark() -> None:
        confirmation.mark = None
        ended(confirmation.reason)

    return mark


def count_nacked(answers: bytes, answered: int) -> int:
    """Return how many of the publishes answered by these frames get a basic.nack.

    Where several frames answer many of both kinds, numbers between them that were answered one by
    one earlier count for the frame that passes over them, and less for the first.
    """
    kinds = answers[_KIND_AT::_ANSWER_BYTES]
    nacks = kinds.count(NACK)
    if not nacks or nacks == len(kinds):
        return answered if nacks else 0
    counts = []
    before = 0
    for at in range(0, len(answers), _ANSWER_BYTES):
        number = int.from_bytes(answers[at + _NUMBER_AT : at + _NUMBER_AT + 8], "big")
        many = answers[at + _MULTIPLE_AT]
        counts.append(number - before if many and before else 1)
        before = number
    # The first frame does not tell how far back it reaches: it gets what the others leave.
    counts[0] = max(answered - sum(counts[1:]), 1)
    return min(
        sum(count for count, kind in zip(counts, kinds, strict=True) if kind == NACK), answered
    )


def _check_user(user_id: bytes | None, user: str) -> None:
    """Raise SoftError 406 for a user-id other than the sender's."""
    if user_id is not None and user_id != user.encode():
        text = f"user_id property set to '{_shown(user_id)}' but authenticated user was '{user}'"
        raise precondition(text)


def _text(raw: bytes) -> str:
    """Decode a name or routing key. Raises HardError 501 unless it is UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise HardError(ReplyCode.FRAME_ERROR, "Malformed UTF-8 in shortstr") from None


def _shown(raw: bytes) -> str:
    """Return a property's text, with invalid UTF-8 replaced."""
    return raw.decode("utf-8", "replace")


def _hashed(fields: Sequence[bytes | None]) -> Mapping[str, object] | None:
    """Return the properties that an exchange may hash."""
    hashed: dict[str, object] = {}
    for index in (_CORRELATION_ID, _MESSAGE_ID):
        raw = fields[index]
        if raw is not None:
            hashed[BasicProperties._fields[index]] = raw.decode("utf-8", "surrogateescape")
    moment = fields[TIMESTAMP]
    if moment is not None:
        hashed["timestamp"] = Timestamp.from_bytes(moment, "big")
    return hashed or None
