"""Attaching: from the termini of an attach to a link on an exchange or a queue.

What a terminus asks for and is not served is refused with a condition: filters of messages that are
taken from a queue which others consume too. Filters of an unknown kind are left out of the answer.
Dynamic nodes are exclusive queues, which end with the link or the connection, or topics of their own.

Source: OASIS AMQP 1.0 part 3, section 3.5 (termini), RabbitMQ's addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from fluxmq.auth.remote_rights import UndecidedError
from fluxmq.protocols.amqp091.errors import AmqpError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.addresses import (
    TEMPORARY_TOPIC,
    TOPIC_SCHEME,
    AddressError,
    AddressTarget,
    Source,
    jms_address,
    queue_address,
    source_of,
    target_of,
)
from fluxmq.protocols.amqp10.conditions import LinkConditionError
from fluxmq.protocols.amqp10.filters import FilterError, SourceFilters, read_filters
from fluxmq.protocols.amqp10.performatives import (
    RECEIVER,
    SENDER,
    AttachFrame,
    CoordinatorTerminus,
    ReleasedState,
    SourceTerminus,
    TargetTerminus,
    names,
)
from fluxmq.protocols.amqp10.types import Described, Symbol, symbols
from fluxmq.routing.topology.arguments import QUORUM, STREAM
from fluxmq.routing.topology.changes import Bind, Change, DeclareQueue, DeleteQueue
from fluxmq.routing.topology.records import EXCHANGE, QUEUE, Arguments, Binding, QueueRecord
from fluxmq.routing.topology.refusals import Refusal, not_found
from fluxmq.sessions.amqp091.consume_request import PRIORITY_MAX, SINGLE_ACTIVE, stream_start
from fluxmq.sessions.amqp091.ports import AmqpConsumerHandle, ConsumeRequest
from fluxmq.sessions.amqp10.link_deliveries import SETTLED
from fluxmq.sessions.amqp10.management import ADDRESS
from fluxmq.sessions.amqp10.management_links import ManagementRequests, ResponseLink
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.publisher import LinkPublisher
from fluxmq.sessions.amqp10.receiver_links import COPY, NO_LIMIT_LEFT, OutgoingLink
from fluxmq.sessions.amqp10.refused import link_error
from fluxmq.sessions.amqp10.sender_links import IncomingLink
from fluxmq.sessions.amqp10.subscriptions import LinkSubscription, recall, subscription_of
from fluxmq.sessions.amqp10.transactions import Coordinator

PAIRED: Final = Symbol("paired")
"""Property of an attach: the link is one of a pair, with the other of the same name."""
LOCAL_TRANSACTIONS: Final = "amqp:local-transactions"
"""Capability of the coordinator."""
MOVE: Final = Symbol("move")
OFFSET_FILTER: Final = "rabbitmq:stream-offset-spec"
PRIORITY: Final = Symbol("rabbitmq:priority")
TEMPORARY: Final = "amq.gen-"
"""Beginning of the names of dynamic nodes, as of the queues that a server names."""
DELETE_ON_CLOSE: Final = Described(Symbol("amqp:delete-on-close:list"), [])
OUTCOMES: Final = (
    *("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list"),
)


# --- publishers ---


def attach_publisher(session: LinkSession, attach: AttachFrame) -> None:
    """Attach a link on which the client publishes. Raises LinkConditionError."""
    terminus = attach.target
    if isinstance(terminus, CoordinatorTerminus):
        terminus.capabilities = symbols(LOCAL_TRANSACTIONS)
        _answer_publisher(session, attach, Coordinator(session, attach).link)
        return
    if not isinstance(terminus, TargetTerminus):
        raise LinkConditionError(conditions.INVALID_FIELD, "an attach without a target")
    if terminus.address == ADDRESS:
        _check_paired(attach)
        link = ManagementRequests(session, attach).link
        _answer_publisher(session, attach, link)
        return
    if terminus.dynamic and TEMPORARY_TOPIC in names(terminus.capabilities):
        _temporary_topic(session, attach, terminus)
        return
    if terminus.dynamic:
        _declare(session, attach, _dynamic(session, auto_delete=False), _dynamic_target)
        return
    target: AddressTarget | None = None
    if terminus.address is not None:
        target = _target(terminus, session.broker.limits.version_1_addresses)
        _check_target(session, target)
        if target.declare and _lacks(session, target.queue):
            _declare(session, attach, [_durable(session, target.queue)], _open_publisher)
            return
    _open_publisher(session, attach, target)


def _target(terminus: TargetTerminus, version_1: bool) -> AddressTarget:
    if not isinstance(terminus.address, str):
        raise LinkConditionError(conditions.INVALID_FIELD, "an address that is no string")
    address = jms_address(terminus.address, names(terminus.capabilities))
    try:
        return target_of(address, version_1=version_1)
    except AddressError as error:
        raise LinkConditionError(Symbol(error.condition), str(error)) from None


def _check_target(session: LinkSession, target: AddressTarget) -> None:
    """Check that the client may publish there. Raises LinkConditionError."""
    client, name = session.client, target.exchange
    vhost = client.info.vhost
    try:
        client.access.write(EXCHANGE, name)
        exchange = client.broker.topology.exchange(vhost, name)
        if exchange is None:
            raise link_error(not_found(EXCHANGE, name, vhost))
    except AmqpError as error:
        raise link_error(error) from None
    if exchange.internal:
        text = f"cannot publish to internal exchange '{name}' in vhost '{vhost}'"
        raise LinkConditionError(conditions.UNAUTHORIZED_ACCESS, text)


def _temporary_topic(session: LinkSession, attach: AttachFrame, terminus: TargetTerminus) -> None:
    """Attach a publisher to a topic of its own, which needs no queue. Raises LinkConditionError."""
    address = TOPIC_SCHEME + TEMPORARY + session.client.broker.unique()
    terminus.address = address
    terminus.dynamic_node_properties = {Symbol("lifetime-policy"): DELETE_ON_CLOSE}
    target = _target(terminus, session.broker.limits.version_1_addresses)
    _check_target(session, target)
    _open_publisher(session, attach, target)


def _dynamic_target(session: LinkSession, attach: AttachFrame, target: AddressTarget) -> None:
    terminus = attach.target
    assert isinstance(terminus, TargetTerminus)
    terminus.address = queue_address(target.queue)
    terminus.dynamic_node_properties = {Symbol("lifetime-policy"): DELETE_ON_CLOSE}
    _open_publisher(session, attach, target)


def _open_publisher(
    session: LinkSession, attach: AttachFrame, target: AddressTarget | None
) -> None:
    """Answer the attach of a publisher, and give it credit."""
    _answer_publisher(session, attach, LinkPublisher(session, attach, target).link)


def _answer_publisher(session: LinkSession, attach: AttachFrame, link: IncomingLink) -> None:
    session.links[attach.handle] = link
    session.client.send(
        session.channel,
        AttachFrame(
            attach.name,
            attach.handle,
            RECEIVER,
            attach.snd_settle_mode,
            0,
            attach.source,
            attach.target,
            None if attach.unsettled is None else {},
            max_message_size=session.client.broker.limits.max_message,
            properties=_paired(attach),
        ),
    )
    link.renew_credit()


def _check_paired(attach: AttachFrame) -> None:
    """Raise LinkConditionError for a link to management that is none of a pair."""
    if _paired(attach) is None:
        text = f"a link to {ADDRESS} is one of a pair, with the property 'paired'"
        raise LinkConditionError(conditions.PRECONDITION_FAILED, text)


def _paired(attach: AttachFrame) -> dict[object, object] | None:
    """Return the property of a pair, if the client has sent it."""
    return {PAIRED: True} if (attach.properties or {}).get(PAIRED) is True else None


# --- consumers ---


def attach_consumer(session: LinkSession, attach: AttachFrame) -> None:
    """Attach a link on which the client consumes. Raises LinkConditionError."""
    terminus = attach.source
    if terminus is None:
        recall(session, attach)
        return
    if not isinstance(terminus, SourceTerminus):
        raise LinkConditionError(conditions.INVALID_FIELD, "an attach without a source")
    if terminus.address == ADDRESS:
        _check_paired(attach)
        session.links[attach.handle] = ResponseLink(session, attach)
        session.client.send(
            session.channel,
            AttachFrame(
                *(attach.name, attach.handle, SENDER, SETTLED, 0, terminus, attach.target),
                initial_delivery_count=0,
                max_message_size=session.client.broker.limits.max_message,
                properties=_paired(attach),
            ),
        )
        return
    if terminus.dynamic:
        _declare(session, attach, _dynamic(session, auto_delete=True), _dynamic_source)
        return
    if not isinstance(terminus.address, str):
        raise LinkConditionError(conditions.INVALID_FIELD, "a source without an address")
    try:
        version_1 = session.broker.limits.version_1_addresses
        source = source_of(_address_of(terminus), version_1=version_1)
    except AddressError as error:
        raise LinkConditionError(Symbol(error.condition), str(error)) from None
    if source.exchange:
        # JMS asks for a copy of what an exchange routes; each subscription has its own, and takes it.
        terminus.distribution_mode = MOVE
        subscription = subscription_of(session, attach)
        changes = _bound(session, source, subscription)
        if changes:
            _declare(session, attach, changes, _open_consumer)
        elif subscription is not None:
            _open_consumer(
                session, attach, AddressTarget("", subscription.queue, subscription.queue)
            )
    elif source.declare and _lacks(session, source.queue):
        _declare(session, attach, [_durable(session, source.queue)], _open_consumer)
    else:
        _open_consumer(session, attach, AddressTarget("", source.queue, source.queue))


def _address_of(terminus: SourceTerminus) -> str:
    """Return the address of a source, of which JMS says by a capability that it is a topic."""
    assert isinstance(terminus.address, str)
    return jms_address(terminus.address, names(terminus.capabilities))


def _dynamic_source(session: LinkSession, attach: AttachFrame, target: AddressTarget) -> None:
    terminus = attach.source
    assert isinstance(terminus, SourceTerminus)
    terminus.address = queue_address(target.queue)
    terminus.dynamic_node_properties = {Symbol("lifetime-policy"): DELETE_ON_CLOSE}
    _open_consumer(session, attach, target)


def _open_consumer(session: LinkSession, attach: AttachFrame, target: AddressTarget) -> None:
    """Attach to a queue, and answer when it has answered. Raises LinkConditionError."""
    client, terminus = session.client, attach.source
    assert isinstance(terminus, SourceTerminus)
    info, broker = client.info, client.broker
    try:
        client.access.read(QUEUE, target.queue)
        queue = broker.topology.require_queue(info.vhost, target.queue, info.owner)
        exchange = _is_subscription(terminus)
        subscription = subscription_of(session, attach) if exchange else None
        shared = subscription is not None and subscription.shared
        filters = _filters(terminus, queue, alone=exchange and not shared)
        start = stream_start(filters.offset, queue) if queue.type == STREAM else None
    except (AmqpError, Refusal) as error:
        raise link_error(error) from None
    link = OutgoingLink(session, attach, queue, _priority(attach), filters.messages)
    session.links[attach.handle] = link
    single = queue.arguments.get(SINGLE_ACTIVE) is True and not link.browsing
    if queue.type == QUORUM and not single and not link.browsing:
        link.credit.active = True
    wanted = ConsumeRequest(
        queue,
        attach.name,
        link.member,
        NO_LIMIT_LEFT,
        priority=link.priority,
        exclusive=subscription is not None and not shared,
        start=start,
        asker=info.owner,
        browsing=link.browsing,
        activity=single,
    )
    broker.consume(wanted, link, partial(_consuming, session, attach, link))


def _consuming(
    session: LinkSession,
    attach: AttachFrame,
    link: OutgoingLink,
    answer: AmqpConsumerHandle | Refusal,
) -> None:
    """Complete the attach of a consumer with the queue's answer."""
    there = session.links.get(attach.handle) is link
    if isinstance(answer, Refusal):
        if there:
            session.refuse(attach, link_error(answer))
            if link.ending is not None:
                del session.links[attach.handle]
        return
    if not there:
        answer.detach()
        return
    terminus = attach.source
    assert isinstance(terminus, SourceTerminus)
    stream = link.queue.type == STREAM
    terminus.distribution_mode = COPY if stream or link.browsing else MOVE
    terminus.default_outcome = ReleasedState()
    terminus.outcomes = symbols(*OUTCOMES)
    session.client.send(
        session.channel,
        AttachFrame(
            attach.name,
            attach.handle,
            SENDER,
            1 if link.settles else 0,
            attach.rcv_settle_mode,
            terminus,
            attach.target,
            None if attach.unsettled is None else {},
            initial_delivery_count=0,
            max_message_size=session.client.broker.limits.max_message,
        ),
    )
    about = {"exclusive": False, "ack_required": not link.settles, "prefetch_count": 0}
    session.client.broker.events.consumer_created(
        session.client.info, session.channel, link.queue.name, link.name, about
    )
    link.open(answer)
    if link.ending is not None:
        session.ended_by_client(link.ending)


def consumer_gone(session: LinkSession, link: OutgoingLink) -> None:
    """Tell the end of a consumer."""
    if link.attached:
        session.client.broker.events.consumer_deleted(
            session.client.info, session.channel, link.queue.name, link.name
        )


def _priority(attach: AttachFrame) -> int:
    """Return a consumer's priority. Raises LinkConditionError unless it is a number."""
    value = (attach.properties or {}).get(PRIORITY, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise LinkConditionError(conditions.INVALID_FIELD, f"{PRIORITY} is no integer")
    return max(-PRIORITY_MAX, min(int(value), PRIORITY_MAX))


def _filters(terminus: SourceTerminus, queue: QueueRecord, *, alone: bool) -> SourceFilters:
    """Return the filters of a source, and leave in the terminus those that are in place. Raises
    LinkConditionError for an invalid one, and for one that this queue cannot have unless the link is
    ``alone``: what one consumer does not want, others get. A browser takes nothing from others."""
    try:
        filters = read_filters(terminus.filter)
    except FilterError as error:
        raise LinkConditionError(error.condition, str(error)) from None
    stream = queue.type == STREAM
    if filters.offset is not None and not stream:
        raise _not_implemented(f"filter {OFFSET_FILTER} on queue '{queue.name}'")
    alone = alone or stream or terminus.distribution_mode == COPY
    if filters.messages is not None and not alone:
        raise _not_implemented(f"a filter of messages on queue '{queue.name}'")
    terminus.filter = filters.effective or None
    return filters


def _is_subscription(terminus: SourceTerminus) -> bool:
    """Return whether the address is an exchange's, to which a queue is bound for the link."""
    return isinstance(terminus.address, str) and source_of(_address_of(terminus)).exchange != ""


# --- queues that a link declares ---


def _declare(
    session: LinkSession,
    attach: AttachFrame,
    changes: list[Change],
    then: Callable[[LinkSession, AttachFrame, AddressTarget], None],
) -> None:
    """Declare the queue of a link, and go on when it exists."""
    (name,) = [each.queue.name for each in changes if isinstance(each, DeclareQueue)]
    session.links[attach.handle] = attach

    def done(refusal: Refusal | None) -> None:
        if session.links.get(attach.handle) is not attach:
            return  # the client has gone on
        try:
            if refusal is not None:
                raise link_error(refusal)
            then(session, attach, AddressTarget("", name, name))
        except UndecidedError as undecided:
            session.client.wait(undecided, partial(done, None))
        except LinkConditionError as error:
            session.refuse(attach, error)

    broker = session.client.broker
    # A queue that takes the place of another is declared when that has gone: a change of both at once
    # would leave its messages.
    former = [each for each in changes if isinstance(each, DeleteQueue)]
    new = [each for each in changes if not isinstance(each, DeleteQueue)]

    def ended(refusal: Refusal | None) -> None:
        if refusal is None:
            broker.change(new, done)
        else:
            done(refusal)

    if former:
        broker.change(former, ended)
    else:
        broker.change(new, done)


def _lacks(session: LinkSession, name: str) -> bool:
    client = session.client
    return client.broker.topology.queue(client.info.vhost, name) is None


def _durable(session: LinkSession, name: str) -> Change:
    """Return the declaration of a queue that an address of version 1 names."""
    return _declaration(session, name, durable=True)


def _dynamic(session: LinkSession, *, auto_delete: bool) -> list[Change]:
    """Return the declaration of a dynamic node."""
    name = TEMPORARY + session.client.broker.unique()
    return [_declaration(session, name, exclusive=True, auto_delete=auto_delete)]


def _bound(
    session: LinkSession, source: Source, subscription: LinkSubscription | None
) -> list[Change]:
    """Return the declaration of a queue that is bound to an exchange, for a link alone or for a
    subscription; nothing if the subscription is there. One of another address begins anew, as JMS has
    it. Raises LinkConditionError if that is shared."""
    client = session.client
    vhost, topology = client.info.vhost, client.broker.topology
    try:
        client.access.read(EXCHANGE, source.exchange)
        exchange = topology.exchange(vhost, source.exchange)
        if exchange is None:
            raise link_error(not_found(EXCHANGE, source.exchange, vhost))
        client.access.read_topic(exchange, source.binding_key)
    except AmqpError as error:
        raise link_error(error) from None
    name = TEMPORARY + client.broker.unique() if subscription is None else subscription.queue
    binding = Binding(vhost, source.exchange, name, QUEUE, source.binding_key)
    bind = Bind(binding, client.info.owner)
    if subscription is None:
        return [_declaration(session, name, exclusive=True, auto_delete=True), bind]
    arguments = {"x-expires": subscription.expires * 1000} if subscription.expires else {}
    durable = subscription.durable
    declared = _declaration(session, name, durable, auto_delete=not durable, arguments=arguments)
    if topology.queue(vhost, name) is None:
        return [declared, bind]
    if [each.key for each in topology.bindings_to(vhost, QUEUE, name)] == [binding.key]:
        return []
    if subscription.shared:
        text = f"the subscription of queue '{name}' is of another address: delete it before"
        raise LinkConditionError(conditions.NOT_ALLOWED, text)
    return [DeleteQueue(vhost, name, client.info.owner), declared, bind]


def _declaration(
    session: LinkSession,
    name: str,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    arguments: Arguments | None = None,
) -> DeclareQueue:
    """Return a declaration by the client. Raises LinkConditionError."""
    client = session.client
    info, broker = client.info, client.broker
    vhost = broker.topology.vhost(info.vhost)
    kind = "classic" if not durable or vhost is None else vhost.default_queue_type
    owner = info.owner if exclusive else ""
    queue = QueueRecord(
        *(info.vhost, name, kind, durable, exclusive, auto_delete, arguments or {}, owner)
    )
    try:
        client.access.configure(QUEUE, name)
        queue = replace(queue, group=broker.group_for(queue))
    except (AmqpError, Refusal) as error:
        raise link_error(error) from None
    if exclusive:
        client.exclusive = True
    return DeclareQueue(queue)


def _not_implemented(what: str) -> LinkConditionError:
    return LinkConditionError(conditions.NOT_IMPLEMENTED, f"{what} is not supported")
