"""Exchanges, queues and bindings over HTTP, and messages published and got by hand."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from fluxmq.control.columns import MIRROR_PIDS, QUEUE_MIRRORS
from fluxmq.control.listings import Listings
from fluxmq.control.management.amqp_calls import GET_MAX, AmqpCaller, AmqpContent
from fluxmq.control.management.list_query import JsonRow, ListQuery, value_of
from fluxmq.control.management.rates import SAMPLED, MessageRates, span_of
from fluxmq.control.management.requests import (
    ApiError,
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
from fluxmq.control.management.rows import binding_row, exchange_row, properties_key
from fluxmq.control.peers import RequestError
from fluxmq.ipc.messages import ERROR_INVALID, MessageError
from fluxmq.ipc.mirror_messages import CANCEL_SYNC_QUEUE, SYNC_QUEUE, MirroredQueue
from fluxmq.ipc.row_messages import TableRow, plain
from fluxmq.model.properties import Timestamp
from fluxmq.protocols.amqp091.content import BasicProperties
from fluxmq.protocols.amqp091.methods import (
    BasicGetOk,
    BasicPublish,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from fluxmq.routing.topology.effective import explain, policy_of
from fluxmq.routing.topology.records import EXCHANGE, QUEUE, Binding, Exchange, QueueRecord
from fluxmq.routing.topology.topology import Topology

DEFAULT_EXCHANGE: Final = "amq.default"
"""Name of the default exchange in paths, where an empty one cannot be."""
STATIC: Final = ("name", "vhost", "type", "durable", "auto_delete", "exclusive")
"""Columns that need no shard: a list sorted by them costs only its page."""
RECOVERABLE: Final = "recoverable_slaves"
ACTIONS: Final = {"sync": SYNC_QUEUE, "cancel_sync": CANCEL_SYNC_QUEUE}
"""Actions on mirrored queues, and the requests that carry them out."""
QUEUES_MAX: Final = 100_000
"""Queues listed at once without paging, or sorted by a column that shards have."""


class MessagingObjects:
    """Serves the routes. ``node``: this node's name; ``ask`` has the control process carry a request
    out."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        listings: Listings,
        caller: AmqpCaller,
        rates: MessageRates,
        node: str,
        ask: Ask,
    ) -> None:
        self._topology = topology
        self._listings = listings
        self.rates = rates
        self._caller = caller
        self._node = node
        self._ask = ask

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        exchange, queue = "exchanges/{vhost}/{name}", "queues/{vhost}/{name}"
        between = "bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}"
        return [
            ApiRoute("GET", "exchanges", self._exchanges),
            ApiRoute("GET", "exchanges/{vhost}", self._exchanges),
            ApiRoute("GET", exchange, self._exchange),
            ApiRoute("PUT", exchange, self._declare_exchange, enters=True),
            ApiRoute("DELETE", exchange, self._delete_exchange, enters=True),
            ApiRoute("POST", f"{exchange}/publish", self._publish, enters=True),
            ApiRoute("GET", f"{exchange}/bindings/{{end:source|destination}}", self._of_exchange),
            ApiRoute("GET", "queues", self._queues),
            ApiRoute("GET", "queues/{vhost}", self._queues),
            ApiRoute("GET", queue, self._queue),
            ApiRoute("PUT", queue, self._declare_queue, enters=True),
            ApiRoute("DELETE", queue, self._delete_queue, enters=True),
            ApiRoute("GET", f"{queue}/bindings", self._of_queue),
            ApiRoute("DELETE", f"{queue}/contents", self._purge, enters=True),
            ApiRoute("POST", f"{queue}/get", self._get, enters=True),
            ApiRoute("POST", f"{queue}/actions", self._act, Right.ADMINISTRATOR),
            ApiRoute("GET", "fluxmq/v1/explain/{vhost}/{name}", self._explain),
            ApiRoute("GET", "bindings", self._bindings),
            ApiRoute("GET", "bindings/{vhost}", self._bindings),
            ApiRoute("GET", between, self._between),
            ApiRoute("POST", between, self._bind, enters=True),
            ApiRoute("GET", f"{between}/{{props}}", self._binding),
            ApiRoute("DELETE", f"{between}/{{props}}", self._unbind, enters=True),
        ]

    def vhosts(self, call: Call) -> list[str]:
        """Return the virtual hosts that a list is about: that of the path, or all the user sees.
        Raises ApiError."""
        topology = self._topology()
        if "vhost" in call.parts:
            if topology.vhost(call.vhost) is None:
                raise not_found(f"virtual host {call.vhost!r} does not exist")
            return [call.vhost]
        return [each.name for each in topology.vhosts() if call.caller.sees(each.name)]

    def without_mirrors(self) -> list[QueueRecord]:
        """Return the mirrored queues that this node leads while no synchronised mirror is online."""
        return self._listings.without_mirrors()

    # Exchanges

    def _exchange_row(self, exchange: Exchange) -> JsonRow:
        policy = policy_of(self._topology(), exchange)
        return exchange_row(exchange, "" if policy is None else policy.name)

    async def _exchanges(self, call: Call) -> web.Response:
        topology = self._topology()
        rows = [
            self._exchange_row(each)
            for vhost in self.vhosts(call)
            for each in topology.exchanges(vhost)
        ]
        await self.rates.add_to_exchanges(rows)
        return answer(ListQuery(call).whole(rows))

    def _found_exchange(self, call: Call, part: str = "name") -> Exchange:
        name = _exchange_name(call.part(part))
        found = self._topology().exchange(call.vhost, name)
        if found is None:
            raise not_found(f"no exchange {name!r} in vhost {call.vhost!r}")
        return found

    async def _exchange(self, call: Call) -> web.Response:
        span = span_of(call)
        row = self._exchange_row(self._found_exchange(call))
        await self.rates.add_to_exchanges([row], span)
        return answer(row)

    async def _declare_exchange(self, call: Call) -> web.Response:
        body = await call.body()
        name = call.part("name")
        before = self._topology().exchange(call.vhost, name)
        method = ExchangeDeclare(
            name,
            text_of(body, "type", "direct"),
            False,
            flag_of(body, "durable", True),
            flag_of(body, "auto_delete"),
            flag_of(body, "internal"),
            False,
            table_of(body, "arguments"),
        )
        await self._execute(call, method, ExchangeDeclareOk)
        return done(created=before is None)

    async def _delete_exchange(self, call: Call) -> web.Response:
        name = self._found_exchange(call).name
        unused = call.flag("if-unused")
        await self._execute(call, ExchangeDelete(name, unused), ExchangeDeleteOk)
        return done()

    async def _execute(self, call: Call, method: Method, ok: type[Method]) -> Method:
        return await self._caller.execute(call.caller.user.name, call.vhost, method, ok)

    # Queues

    async def _queues(self, call: Call) -> web.Response:
        """Answer with a list. It is sorted by one column of all queues; only those of the page have
        rows."""
        listing, topology = ListQuery(call), self._topology()
        every = [each for vhost in self.vhosts(call) for each in topology.queues(vhost)]
        found = listing.wanted(every)
        if listing.sort and listing.sort not in STATIC and len(found) > QUEUES_MAX:
            raise bad_request(f"more than {QUEUES_MAX} queues: sort by one of {', '.join(STATIC)}")
        if listing.sort:
            found = listing.ordered(found, await self._values(found, listing.sort))
        chosen = listing.page_of(found)
        if len(chosen) > QUEUES_MAX:
            raise bad_request(f"more than {QUEUES_MAX} queues: ask for pages")
        told, _missing = await self._listings.queue_rows(chosen)
        rows = [self._queue_row(each) for each in told]
        await self.rates.add_to(rows)
        return answer(listing.content(rows, len(found), len(every)))

    async def _values(self, queues: Sequence[QueueRecord], column: str) -> Sequence[Any]:
        """Return the values of a column, which may lie deeper in the rows."""
        head = column.partition(".")[0]
        if head in SAMPLED:
            return await self.rates.column(queues, column)
        values = await self._listings.columns.values(queues, "leader" if head == "node" else head)
        return [value_of({head: each}, column) for each in values] if head != column else values

    def _queue_row(self, row: TableRow) -> JsonRow:
        """Return a queue's row; the node is its leader's."""
        leader = row.get("leader") or ""
        if not isinstance(leader, str) or leader.startswith("shard-"):
            leader = ""
        node = leader or self._node
        found = {**row, "node": node}
        if not leader:
            found |= {"leader": node, "members": [node], "online": [node]}
        # As in RabbitMQ, which has nodes here instead of identifiers.
        for column in QUEUE_MIRRORS:
            if column in MIRROR_PIDS or (found[column] is None and column != RECOVERABLE):
                del found[column]
        found["state"] = row.get("state") or "down"
        for column in ("messages", "messages_ready", "messages_unacknowledged", "consumers"):
            found[column] = row.get(column) or 0
        return found

    def _found_queue(self, call: Call, part: str = "name") -> QueueRecord:
        name = call.part(part)
        found = self._topology().queue(call.vhost, name)
        if found is None:
            raise not_found(f"no queue {name!r} in vhost {call.vhost!r}")
        return found

    async def _queue(self, call: Call) -> web.Response:
        queue = self._found_queue(call)
        span = span_of(call)
        rows, _missing = await self._listings.queue_rows([queue])
        row = self._queue_row(rows[0])
        await self.rates.add_to([row], span)
        return answer(row)

    async def _explain(self, call: Call) -> web.Response:
        """Return the settings of a queue, or of an exchange, and where each comes from."""
        name, topology = _exchange_name(call.part("name")), self._topology()
        found: QueueRecord | Exchange | None = topology.queue(call.vhost, name)
        found = found or topology.exchange(call.vhost, name)
        if found is None:
            raise not_found(f"no queue or exchange {name!r} in vhost {call.vhost!r}")
        return answer([plain(each._asdict()) for each in explain(topology, found)])

    async def _declare_queue(self, call: Call) -> web.Response:
        body = await call.body()
        name = call.part("name")
        before = self._topology().queue(call.vhost, name)
        method = QueueDeclare(
            name,
            durable=flag_of(body, "durable", True),
            auto_delete=flag_of(body, "auto_delete"),
            arguments=table_of(body, "arguments"),
        )
        await self._execute(call, method, QueueDeclareOk)
        return done(created=before is None)

    async def _delete_queue(self, call: Call) -> web.Response:
        name = self._found_queue(call).name
        method = QueueDelete(name, call.flag("if-unused"), call.flag("if-empty"))
        await self._execute(call, method, QueueDeleteOk)
        return done()

    async def _purge(self, call: Call) -> web.Response:
        await self._execute(call, QueuePurge(self._found_queue(call).name), QueuePurgeOk)
        return done()

    async def _act(self, call: Call) -> web.Response:
        """Have the mirrors of a queue synchronised, or no longer. One that is not mirrored has none, which
        is no error, as in RabbitMQ."""
        queue = self._found_queue(call)
        action = text_of(await call.body(), "action")
        if action not in ACTIONS:
            raise bad_request(f"unknown action {action!r}")
        try:
            await self._ask(ACTIONS[action], MirroredQueue(queue.vhost, queue.name).to_body())
        except (RequestError, MessageError) as problem:
            if problem.code != ERROR_INVALID:
                raise error_of(problem) from problem
        return done()

    # Bindings

    def _all_bindings(self, vhost: str) -> Iterator[Binding]:
        topology = self._topology()
        yield from topology.implied_bindings(vhost)
        yield from topology.bindings(vhost)

    async def _bindings(self, call: Call) -> web.Response:
        rows = [
            binding_row(each) for vhost in self.vhosts(call) for each in self._all_bindings(vhost)
        ]
        return answer(ListQuery(call).whole(rows))

    async def _of_queue(self, call: Call) -> web.Response:
        queue = self._found_queue(call)
        found = [Binding(queue.vhost, "", queue.name, QUEUE, queue.name)]
        found += self._topology().bindings_to(queue.vhost, QUEUE, queue.name)
        return answer([binding_row(each) for each in found])

    async def _of_exchange(self, call: Call) -> web.Response:
        exchange = self._found_exchange(call)
        if call.part("end") == "destination":
            found = self._topology().bindings_to(exchange.vhost, EXCHANGE, exchange.name)
        elif exchange.name:
            found = self._topology().bindings_from(exchange.vhost, exchange.name)
        else:
            found = list(self._topology().implied_bindings(exchange.vhost))
        return answer([binding_row(each) for each in found])

    def _found_between(self, call: Call) -> list[Binding]:
        source, name = _exchange_name(call.part("source")), call.part("destination")
        kind = QUEUE if call.part("kind") == "q" else EXCHANGE
        if source and self._topology().exchange(call.vhost, source) is None:
            raise not_found(f"no exchange {source!r} in vhost {call.vhost!r}")
        if kind == QUEUE:
            self._found_queue(call, "destination")
        else:
            self._found_exchange(call, "destination")
        if not source and kind == QUEUE:
            return [Binding(call.vhost, "", name, QUEUE, name)]
        found = self._topology().bindings_to(call.vhost, kind, name)
        return [each for each in found if each.source == source]

    async def _between(self, call: Call) -> web.Response:
        return answer([binding_row(each) for each in self._found_between(call)])

    def _found_binding(self, call: Call) -> Binding:
        # The key is percent-encoded in itself, and was decoded with the path.
        for each in self._found_between(call):
            key = properties_key(each)
            if call.part("props") in (key, each.routing_key + key[len(quote_key(each)) :]):
                return each
        raise not_found("no such binding")

    async def _binding(self, call: Call) -> web.Response:
        return answer(binding_row(self._found_binding(call)))

    async def _bind(self, call: Call) -> web.Response:
        body = await call.body()
        source, name = _exchange_name(call.part("source")), call.part("destination")
        key, arguments = text_of(body, "routing_key", ""), table_of(body, "arguments")
        if call.part("kind") == "q":
            await self._execute(call, QueueBind(name, source, key, False, arguments), QueueBindOk)
            made = Binding(call.vhost, source, name, QUEUE, key, arguments)
        else:
            await self._execute(
                call, ExchangeBind(name, source, key, False, arguments), ExchangeBindOk
            )
            made = Binding(call.vhost, source, name, EXCHANGE, key, arguments)
        return done(created=True, location=f"{quote(name, safe='')}/{properties_key(made)}")

    async def _unbind(self, call: Call) -> web.Response:
        found = self._found_binding(call)
        key, arguments = found.routing_key, found.arguments
        if found.destination_kind == QUEUE:
            unbind: Method = QueueUnbind(found.destination, found.source, key, dict(arguments))
            await self._execute(call, unbind, QueueUnbindOk)
        else:
            unbind = ExchangeUnbind(found.destination, found.source, key, False, dict(arguments))
            await self._execute(call, unbind, ExchangeUnbindOk)
        return done()

    # Messages

    async def _publish(self, call: Call) -> web.Response:
        body = await call.body()
        exchange = _exchange_name(call.part("name"))
        payload = text_of(body, "payload")
        encoding = text_of(body, "payload_encoding", "string")
        if encoding == "base64":
            try:
                raw = base64.b64decode(payload, validate=True)
            except binascii.Error as problem:
                raise bad_request(f"payload is not base64: {problem}") from None
        elif encoding == "string":
            raw = payload.encode()
        else:
            raise bad_request(f"unsupported encoding {encoding!r}: string or base64")
        publish = BasicPublish(exchange, text_of(body, "routing_key"), mandatory=True)
        properties = _properties(table_of(body, "properties"))
        user = call.caller.user.name
        routed = await self._caller.publish(user, call.vhost, publish, properties, raw)
        return answer({"routed": routed})

    async def _get(self, call: Call) -> web.Response:
        queue = self._found_queue(call)
        body = await call.body()
        mode = text_of(body, "ackmode", "ack_requeue_true")
        if mode not in ACK_MODES:
            raise bad_request(f"ackmode is none of {', '.join(ACK_MODES)}")
        keep, reject = ACK_MODES[mode]
        count = number_of(body, "count", 1)
        if not 0 < count <= GET_MAX:
            raise bad_request(f"count is not from 1 to {GET_MAX}")
        encoding = text_of(body, "encoding", "auto")
        cut = number_of(body, "truncate", 0)
        user = call.caller.user.name
        found = await self._caller.get(
            user, call.vhost, queue.name, count, keep=keep, reject=reject
        )
        return answer([_message(each, encoding, cut) for each in found])


ACK_MODES: Final = {
    "ack_requeue_true": (True, False),
    "reject_requeue_true": (True, True),
    "ack_requeue_false": (False, False),
    "reject_requeue_false": (False, True),
}
"""Whether messages go back to the queue, and whether they are rejected."""


def quote_key(binding: Binding) -> str:
    """Return the part of a binding's key that is its routing key."""
    return quote(binding.routing_key, safe="")


def _exchange_name(name: str) -> str:
    return "" if name == DEFAULT_EXCHANGE else name


def _properties(given: Mapping[str, Any]) -> BasicProperties:
    """Return a message's properties. Raises ApiError for one that there is not."""
    unknown = given.keys() - set(BasicProperties._fields)
    if unknown:
        raise bad_request(f"properties: there is no {min(unknown)!r}")
    values = dict(given)
    for name in ("timestamp", "delivery_mode", "priority"):
        if name in values:
            values[name] = number_of(values, name)
    if "timestamp" in values:
        values["timestamp"] = Timestamp(values["timestamp"])
    texts = set(values) - {"headers", "timestamp", "delivery_mode", "priority"}
    for name in texts:
        values[name] = str(values[name])
    if "headers" in values:
        values["headers"] = table_of(values, "headers")
    return BasicProperties(**values)


def _message(content: AmqpContent, encoding: str, cut: int) -> JsonRow:
    """Return a message."""
    got, properties = content.method, content.properties or BasicProperties()
    if not isinstance(got, BasicGetOk):
        raise ApiError(500, "internal_error", "not a message")
    payload = content.payload[:cut] if cut > 0 else content.payload
    text = None
    if encoding != "base64":
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            text = None
    return {
        "payload_bytes": len(content.payload),
        "redelivered": got.redelivered,
        "exchange": got.exchange,
        "routing_key": got.routing_key,
        "message_count": got.message_count,
        "properties": {
            name: plain(value) for name, value in properties._asdict().items() if value is not None
        },
        "payload": base64.b64encode(payload).decode() if text is None else text,
        "payload_encoding": "base64" if text is None else "string",
    }
