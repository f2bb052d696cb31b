"""Management over a pair of links to ``/management``: queues, exchanges, bindings, tokens.

``ManagementNode.handle`` takes a request's message and answers it with another, at once or when the
broker has answered. Rules, checks and texts are those of AMQP 0.9.1's methods (`Entities`); statuses
are RabbitMQ 4's, which its clients expect:

=========================================  =================================  =====================
request                                    effect                             statuses
=========================================  =================================  =====================
GET ``/queues/:queue``                     returns the queue                  200, 404
PUT ``/queues/:queue``                     declares it                        200, 201, 403, 409
DELETE ``/queues/:queue``                  deletes it                         200
DELETE ``/queues/:queue/messages``         drops its ready messages           200, 404
PUT ``/exchanges/:exchange``               declares it                        204, 403, 409
DELETE ``/exchanges/:exchange``            deletes it                         204, 403
POST ``/bindings``                         binds                              204, 403
DELETE ``/bindings/:binding``              unbinds                            204, 403
GET ``/bindings?src=&dstq=|dste=&key=``    returns equal bindings             200, 403
PUT ``/auth/tokens``                       renews the connection's login      204
=========================================  =================================  =====================

All else is 400, 404 for another path, 405 for another method. A missing permission ends the session,
as in RabbitMQ, with amqp:unauthorized-access. Knows nothing of links and frames.

Source: RabbitMQ 4.3's behaviour and its clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.protocols.amqp091.constants import ReplyCode
from fluxmq.protocols.amqp091.errors import AmqpError, SoftError
from fluxmq.protocols.amqp091.methods import (
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
)
from fluxmq.protocols.amqp10.conditions import (
    TRANSFER_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    ConditionError,
    ConnectionConditionError,
    LinkConditionError,
    SessionConditionError,
)
from fluxmq.protocols.amqp10.http_requests import (
    HttpRequest,
    StatusError,
    decoded,
    read_request,
    write_response,
)
from fluxmq.protocols.amqp10.types import Array, UInt, ULong
from fluxmq.routing.topology.records import EXCHANGE, QUEUE, Binding, QueueRecord
from fluxmq.sessions.amqp091.declarations import Entities, EntityClient
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort
from fluxmq.sessions.amqp10.management_bodies import (
    arguments_hash,
    binding_map,
    check_default_exchange,
    check_name,
    check_reserved,
    entries_of,
    map_of_table,
    not_empty,
)

ADDRESS: Final = "/management"
"""Address of both links of a pair."""
CREDIT: Final = 8
"""Requests of a link that may be under way: its credit, as in RabbitMQ."""
_STRINGS: Final = 0xB1
"""Constructor of an array of strings."""
_BINDING: Final = re.compile(
    r"src=([0-9A-Za-z\-._~%]+);dst([eq])=([0-9A-Za-z\-._~%]+);"
    r"key=([0-9A-Za-z\-._~%]*);args=([0-9A-Za-z\-_]*)"
)

Renew = Callable[[bytes, Callable[[bool], None]], None]
"""Renews the login of the connection with a token; the callback gets whether it was accepted."""


class QueuePlaces(NamedTuple):
    """Names of the nodes of a queue: its leader, empty for none, and all members."""

    leader: str
    replicas: tuple[str, ...]


class ManagementNode:
    """The management links of one session.

    `renew`: see `Renew`. `places`: where a queue is; by default on this node.
    """

    def __init__(
        self,
        client: EntityClient,
        broker: AmqpBrokerPort,
        renew: Renew,
        places: Callable[[QueueRecord], QueuePlaces] | None = None,
    ) -> None:
        self.client = client
        self.broker = broker
        self.renew = renew
        self._places = places
        self._pending = 0
        self._closed = False

    def handle(
        self, data: bytes, answer: Callable[[bytes], None], fail: Callable[[ConditionError], None]
    ) -> None:
        """Execute a request: exactly one of `answer`, with the response's message, and `fail` is
        called, now or later; neither after `close`."""

        def ended(response: bytes | ConditionError) -> None:
            self._pending -= 1
            if self._closed:
                return
            if isinstance(response, bytes):
                answer(response)
            else:
                fail(response)

        self._pending += 1
        if self._pending > CREDIT:
            text = f"more than {CREDIT} requests under way"
            ended(LinkConditionError(TRANSFER_LIMIT_EXCEEDED, text))
            return
        try:
            request = read_request(data)
        except ConditionError as error:
            ended(error)
            return
        _HttpCall(self, request, ended).start()

    def close(self) -> None:
        """Forget the requests under way: the session has ended."""
        self._closed = True

    def places(self, queue: QueueRecord) -> QueuePlaces:
        """Return where a queue is."""
        if self._places is not None:
            return self._places(queue)
        node = self.broker.limits.node_name
        return QueuePlaces(node, (node,))


class _HttpCall:
    """One request, as the channel that `Entities` answers."""

    def __init__(
        self,
        management: ManagementNode,
        request: HttpRequest,
        ended: Callable[[bytes | ConditionError], None],
    ) -> None:
        self._management = management
        self._request = request
        self._ended: Callable[[bytes | ConditionError], None] | None = ended
        self._statuses: Mapping[int, int] = {}
        self._respond: Callable[[Method], tuple[int, object]] = _no_content
        self.entities = Entities(self)

    @property
    def client(self) -> EntityClient:
        """The connection."""
        return self._management.client

    @property
    def broker(self) -> AmqpBrokerPort:
        """The shard."""
        return self._management.broker

    # What `Entities` calls

    def later(
        self, _method: Method | type[Method], then: Callable[..., None]
    ) -> Callable[..., None]:
        """Return a callback for the broker's answer."""
        return lambda *answer: self._run(partial(then, *answer))

    def answer(self, method: Method | None) -> None:
        """Take an answer."""
        if method is not None:
            self.send(method)

    def send(self, method: Method) -> None:
        """Answer the request with what a method says."""
        self._end(*self._respond(method))

    # Running

    def start(self) -> None:
        """Execute the request."""
        self._run(self._execute)

    def _run(self, do: Callable[[], None]) -> None:
        if self._ended is None:
            return
        try:
            do()
        except UndecidedError as undecided:
            undecided.ask(partial(self._run, do))
        except StatusError as error:
            self._end(error.status, error.text)
        except AmqpError as error:
            self._refused(error)

    def _refused(self, error: AmqpError) -> None:
        """Answer a refusal. A permission that is missing ends the session."""
        if error.code == ReplyCode.ACCESS_REFUSED:
            self._finish(SessionConditionError(UNAUTHORIZED_ACCESS, error.text))
        elif "queue limit in vhost" in error.text:
            self._end(403, error.text)
        else:
            status = self._statuses.get(error.code, 400)
            self._end(status, None if status == 204 else error.text)

    def _end(self, status: int, body: object) -> None:
        self._finish(write_response(self._request.message_id, status, body))

    def _finish(self, response: bytes | ConditionError) -> None:
        if self._ended is not None:
            ended, self._ended = self._ended, None
            ended(response)

    def _execute(self) -> None:
        match self._request.path:
            case ("queues", name):
                handlers = {
                    "GET": self._get_queue,
                    "PUT": self._declare_queue,
                    "DELETE": self._delete_queue,
                }
                self._handler(handlers)(decoded(name))
            case ("queues", name, "messages"):
                self._handler({"DELETE": self._purge_queue})(decoded(name))
            case ("exchanges", name):
                handlers = {"PUT": self._declare_exchange, "DELETE": self._delete_exchange}
                self._handler(handlers)(decoded(name))
            case ("bindings",):
                self._handler({"GET": self._get_bindings, "POST": self._bind})("")
            case ("bindings", segment):
                self._handler({"DELETE": self._unbind})(segment)
            case ("auth", "tokens"):
                self._handler({"PUT": self._renew})("")
            case _:
                raise StatusError(404, "no such path")

    def _handler(self, handlers: Mapping[str, Callable[[str], None]]) -> Callable[[str], None]:
        method = self._request.method
        if method not in handlers:
            raise StatusError(405, f"{method} is not allowed: {', '.join(handlers)} are")
        if method in ("GET", "DELETE") and self._request.body is not None:
            raise StatusError(400, f"{method} takes no body")
        return handlers[method]

    # Queues

    def _get_queue(self, name: str) -> None:
        self._check_any_access(name)
        self._statuses = {ReplyCode.NOT_FOUND: 404}
        self._respond = partial(self._queue_response, 200, None)
        self.entities.on_queue_declare(QueueDeclare(name, passive=True))

    def _check_any_access(self, name: str) -> None:
        access = self.client.access
        for check in (access.read, access.write):
            try:
                check(QUEUE, name)
            except SoftError:
                continue
            return
        access.configure(QUEUE, name)

    def _declare_queue(self, name: str) -> None:
        given = entries_of(
            self._request.body, "queue property", ("durable", "exclusive", "auto_delete")
        )
        if not name:
            raise StatusError(400, "declare queue with empty name not allowed")
        check_name(name)
        check_reserved(QUEUE, name, self.client.info.vhost)
        method = QueueDeclare(
            name,
            durable=given.get("durable", True),
            exclusive=given.get("exclusive", False),
            auto_delete=given.get("auto_delete", False),
            arguments=given.get("arguments", {}),
        )
        known = self.broker.topology.queue(self.client.info.vhost, name) is not None
        self._statuses = {ReplyCode.PRECONDITION_FAILED: 409}
        self._respond = partial(self._queue_response, 200 if known else 201, method)
        self.entities.on_queue_declare(method)

    def _queue_response(
        self, status: int, declared: QueueDeclare | None, answer: Method
    ) -> tuple[int, object]:
        """Return a queue's properties, from what was declared if it has ended since."""
        assert isinstance(answer, QueueDeclareOk), "the answer to queue.declare"
        vhost = self.client.info.vhost
        queue = self.broker.topology.queue(vhost, answer.queue)
        if queue is None:
            if declared is None:
                raise StatusError(404, f"queue '{answer.queue}' in vhost '{vhost}' not found")
            queue = QueueRecord(
                vhost,
                declared.queue,
                durable=declared.durable,
                exclusive=declared.exclusive,
                auto_delete=declared.auto_delete,
                arguments=declared.arguments,
            )
        places = self._management.places(queue)
        leader = {"leader": places.leader} if places.leader else {}
        return status, {
            **leader,
            "message_count": ULong(answer.message_count),
            "consumer_count": UInt(answer.consumer_count),
            "name": queue.name,
            "vhost": queue.vhost,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.exclusive,
            "type": queue.type,
            "arguments": map_of_table(queue.arguments),
            "replicas": Array(_STRINGS, list(places.replicas)),
        }

    def _delete_queue(self, name: str) -> None:
        check_name(name)
        self._respond = _message_count
        self.entities.on_queue_delete(QueueDelete(not_empty(name)))

    def _purge_queue(self, name: str) -> None:
        self._statuses = {ReplyCode.NOT_FOUND: 404}
        self._respond = _message_count
        self.entities.on_queue_purge(QueuePurge(not_empty(name)))

    # Exchanges

    def _declare_exchange(self, name: str) -> None:
        given = entries_of(
            self._request.body,
            "exchange property",
            ("durable", "auto_delete", "internal"),
            ("type",),
        )
        check_default_exchange(name)
        vhost = self.client.info.vhost
        if self.broker.topology.exchange(vhost, name) is None:
            check_name(name)
            check_reserved(EXCHANGE, name, vhost)
        self._statuses = {ReplyCode.PRECONDITION_FAILED: 409}
        self.entities.on_exchange_declare(
            ExchangeDeclare(
                name,
                given.get("type", "direct"),
                durable=given.get("durable", True),
                auto_delete=given.get("auto_delete", False),
                internal=given.get("internal", False),
                arguments=given.get("arguments", {}),
            )
        )

    def _delete_exchange(self, name: str) -> None:
        check_name(name)
        check_default_exchange(name)
        check_reserved(EXCHANGE, name, self.client.info.vhost)
        self.entities.on_exchange_delete(ExchangeDelete(name))

    # Bindings

    def _bind(self, _: str) -> None:
        texts = ("source", "destination_queue", "destination_exchange", "binding_key")
        given = entries_of(self._request.body, "binding field", (), texts)
        kind = QUEUE if "destination_queue" in given else EXCHANGE
        if "source" not in given or len(given.keys() & set(texts[1:3])) != 1:
            raise StatusError(400, "a binding has a source and one destination")
        source, destination = given["source"], given[f"destination_{kind}"]
        key, arguments = given.get("binding_key", ""), given.get("arguments", {})
        self._check_ends(source, kind, destination)
        if kind == QUEUE:
            method = QueueBind(destination, source, key, arguments=arguments)
            self.entities.on_queue_bind(method)
        else:
            self.entities.on_exchange_bind(
                ExchangeBind(destination, source, key, arguments=arguments)
            )

    def _unbind(self, segment: str) -> None:
        found = _BINDING.fullmatch(segment)
        if found is None:
            raise StatusError(400, f"bad binding path segment '{segment}'")
        source, destination, key = decoded(found[1]), decoded(found[3]), decoded(found[4])
        kind = QUEUE if found[2] == "q" else EXCHANGE
        self._check_ends(source, kind, destination)
        equal = [
            binding.arguments
            for binding in self._bindings(source, kind, destination, key)
            if arguments_hash(binding.arguments) == found[5]
        ]
        arguments = dict(equal[0]) if equal else {}
        if not equal:
            wanted = Binding(self.client.info.vhost, source, destination, kind, key)
            self.entities.check_binding(wanted)
            self._end(204, None)
        elif kind == QUEUE:
            self.entities.on_queue_unbind(QueueUnbind(destination, source, key, arguments))
        else:
            self.entities.on_exchange_unbind(
                ExchangeUnbind(destination, source, key, arguments=arguments)
            )

    def _get_bindings(self, _: str) -> None:
        query = self._request.query
        if "src" not in query or "key" not in query:
            raise StatusError(400, "missing 'src' or 'key' in query")
        if "dste" not in query and "dstq" not in query:
            raise StatusError(400, "missing 'dste' or 'dstq' in query")
        kind = EXCHANGE if "dste" in query else QUEUE
        source, key = query["src"], query["key"]
        destination = query["dste" if kind == EXCHANGE else "dstq"]
        self._check_ends(source, kind, destination)
        self.entities.check_binding(Binding(self.client.info.vhost, source, destination, kind, key))
        found = self._bindings(source, kind, destination, key)
        self._end(200, [binding_map(each) for each in found])

    def _check_ends(self, source: str, kind: str, destination: str) -> None:
        check_default_exchange(source)
        if kind == EXCHANGE:
            check_default_exchange(destination)
        for name in (source, destination):
            check_name(name)
        not_empty(destination)

    def _bindings(self, source: str, kind: str, destination: str, key: str) -> list[Binding]:
        bindings = self.broker.topology.bindings_from(self.client.info.vhost, source)
        return [
            each
            for each in bindings
            if (each.destination_kind, each.destination, each.routing_key)
            == (kind, destination, key)
        ]

    # Tokens

    def _renew(self, _: str) -> None:
        token = self._request.body
        if not isinstance(token, bytes):
            raise StatusError(400, "a token is binary")

        def done(accepted: bool) -> None:
            if accepted:
                self._end(204, None)
            else:
                text = "the token was refused"
                self._finish(ConnectionConditionError(UNAUTHORIZED_ACCESS, text))

        self._management.renew(token, done)


def _no_content(_: Method) -> tuple[int, object]:
    return 204, None


def _message_count(answer: Method) -> tuple[int, object]:
    assert isinstance(answer, QueueDeleteOk | QueuePurgeOk), "the answer to a deletion"
    return 200, {"message_count": ULong(answer.message_count)}
