"""Subscriptions that outlive their links, or have several of them.

Each is a queue with a name of its own, made of the container's id and the link's name: a link that
attaches under them again goes on with it. A durable subscription stays when its link is detached, and
ends when it is closed; with ``expiry-policy`` other than ``never`` it expires ``timeout`` seconds after
its last use. A link of the same name with no source finds a subscription that is there, to close it.
Links of a ``shared`` subscription share its messages; with ``global``, of all containers. One that is
not durable ends with its last link.

Qpid JMS adds a suffix behind ``|`` to the name of a link for each of several links of a subscription.

Source: OASIS AMQP 1.0 part 3, sections 3.5.3 (source), 3.5.6 (expiry); part 2, section 2.6.3 (resuming
links); AMQP JMS mapping, section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote

from fluxmq.protocols.amqp091.errors import AmqpError
from fluxmq.protocols.amqp10 import conditions
from fluxmq.protocols.amqp10.addresses import exchange_address
from fluxmq.protocols.amqp10.conditions import LinkConditionError
from fluxmq.protocols.amqp10.performatives import SENDER, AttachFrame, SourceTerminus, names
from fluxmq.protocols.amqp10.types import Symbol
from fluxmq.routing.topology.changes import DeleteQueue
from fluxmq.routing.topology.names import NAME_BYTES_MAX
from fluxmq.routing.topology.records import QUEUE
from fluxmq.sessions.amqp10.link_deliveries import SETTLED
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.receiver_links import OutgoingLink
from fluxmq.sessions.amqp10.refused import link_error

NEVER: Final = "never"
"""Expiry policy of a terminus that stays for good."""
DURABLE: Final = 2
"""Terminus durability: with its unsettled state."""
SHARED: Final = "shared"
GLOBAL: Final = "global"
"""Capabilities of a source: several links have the subscription, of one container or of all."""
CONTAINER_ID: Final = "container_id"
"""The property of a connection that has the id of its container, in listings too."""
NAME: Final = "subscription:"
"""Beginning of the names of their queues."""
VOLATILE: Final = ":volatile"
"""End of the names of those that are not durable."""


class LinkSubscription(NamedTuple):
    """A subscription that a source asks for. ``expires``: seconds after its last use, 0 for never."""

    queue: str
    durable: bool
    shared: bool
    expires: int


class RecalledSubscription:
    """A link without source, by which a client finds a durable subscription in order to close it."""

    def __init__(self, handle: int, queue: str) -> None:
        self.handle = handle
        self.queue = queue


def subscription_of(session: LinkSession, attach: AttachFrame) -> LinkSubscription | None:
    """Return the subscription that a link to an exchange asks for; None if it is the link's alone and
    ends with it. Raises LinkConditionError for a name that is too long."""
    source = attach.source
    assert isinstance(source, SourceTerminus)
    never = source.expiry_policy == NEVER
    durable = never or bool(source.durable and source.timeout)
    wanted = names(source.capabilities)
    shared = SHARED in wanted
    if not (durable or shared):
        return None
    everyone = shared and GLOBAL in wanted
    queue = _queue_name(session, attach.name, everyone=everyone, durable=durable)
    return LinkSubscription(queue, durable, shared, 0 if never else source.timeout)


def _queue_name(session: LinkSession, link: str, *, everyone: bool, durable: bool) -> str:
    container = "" if everyone else str(session.client.info.properties[CONTAINER_ID])
    name = NAME + quote(container, safe="") + ":" + quote(link.partition("|")[0], safe="")
    name += "" if durable else VOLATILE
    if len(name) > NAME_BYTES_MAX:
        text = f"the queue's name of the subscription, {name[:NAME_BYTES_MAX]}..., is too long"
        raise LinkConditionError(conditions.INVALID_FIELD, text)
    return name


def recall(session: LinkSession, attach: AttachFrame) -> None:
    """Attach a link without source to the subscription of its name. Raises LinkConditionError."""
    client = session.client
    vhost, topology = client.info.vhost, client.broker.topology
    everyone = GLOBAL in attach.name.partition("|")[2]
    queue = _queue_name(session, attach.name, everyone=everyone, durable=True)
    if topology.queue(vhost, queue) is None:
        text = f"there is no durable subscription of the link's name, '{attach.name}'"
        raise LinkConditionError(conditions.NOT_FOUND, text)
    try:
        client.access.configure(QUEUE, queue)
    except AmqpError as error:
        raise link_error(error) from None
    session.links[attach.handle] = RecalledSubscription(attach.handle, queue)
    bindings = topology.bindings_to(vhost, QUEUE, queue)
    address = exchange_address(bindings[0].source, bindings[0].routing_key) if bindings else None
    found = SourceTerminus(address, durable=DURABLE, expiry_policy=Symbol(NEVER))
    session.client.send(
        session.channel,
        AttachFrame(
            *(attach.name, attach.handle, SENDER, SETTLED, 0, found, attach.target),
            initial_delivery_count=0,
        ),
    )


def ends(session: LinkSession, link: object, done: Callable[[], None]) -> bool:
    """Delete the durable subscription of a link that its client has closed, and call ``done`` then;
    return False if there is none, or if it is shared: that ends only by a link without source."""
    if isinstance(link, RecalledSubscription):
        queue = link.queue
    elif isinstance(link, OutgoingLink) and link.queue.name.startswith(NAME):
        queue = link.queue.name
        wanted = subscription_of(session, link.attach)
        if wanted is None or wanted != (queue, True, False, wanted.expires):
            return False
    else:
        return False
    info = session.client.info
    # It may have been deleted by others; then it has ended as well.
    session.broker.change([DeleteQueue(info.vhost, queue, info.owner)], lambda _refusal: done())
    return True
