"""Messages about subscriptions and consumers, of which a cluster keeps a record in etcd.

::

    shard -> control             record_change
    control -> shard             record_again

Nothing is routed by the record: it tells operators, and tools that read etcd, who is subscribed and
who consumes. Pure, like `messages`.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from fluxmq.ipc.messages import MessageBody, Natural
from fluxmq.ipc.owner_messages import CLAIMS_MAX
from fluxmq.ipc.will_messages import Client

RECORD_CHANGE: Final = "record_change"
RECORD_AGAIN: Final = "record_again"

RECORDS_MAX: Final = CLAIMS_MAX
"""Changes in a request."""

Name = Annotated[str, Meta(max_length=65_535)]


class SubscriptionValue(Struct, frozen=True, omit_defaults=True):
    """Value of a subscription's key in etcd, as JSON; the keys in use are those of MQTT 5."""

    node: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    subscription_identifier: int = 0


class SubscriptionChange(Struct, frozen=True, array_like=True):
    """A subscription of a client, by the filter as the client wrote it; None: it has ended."""

    client: Client
    filter: Name
    value: SubscriptionValue | None = None


class ConsumerValue(Struct, frozen=True):
    """Value of a consumer's key in etcd, as JSON: the node that its client is connected to."""

    node: str
    shard: int


class ConsumerChange(Struct, frozen=True, array_like=True):
    """A consumer of a group of a queue; None: it has gone."""

    queue: Name
    group: Name
    consumer: Name
    value: ConsumerValue | None = None


class RecordChanges(MessageBody, frozen=True):
    """Request of a shard to note changes, each of another key. ``anew``: what the shard has told
    before is no longer so."""

    shard: Natural
    anew: bool = False
    subscriptions: Annotated[tuple[SubscriptionChange, ...], Meta(max_length=RECORDS_MAX)] = ()
    consumers: Annotated[tuple[ConsumerChange, ...], Meta(max_length=RECORDS_MAX)] = ()


class RefusedRecords(MessageBody, frozen=True):
    """Answer: clients of whom no subscription was noted, since this node does not own their ids."""

    clients: Annotated[tuple[Client, ...], Meta(max_length=RECORDS_MAX)] = ()


encode_record = msgspec.json.Encoder().encode
