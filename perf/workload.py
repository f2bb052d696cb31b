"""Workloads: the load to generate, one immutable description per run, passed to the generator
processes as JSON.

A workload says who publishes to whom, how messages leave (many in one send, or each in its own), and what
bounds the unfinished ones. It knows no broker, address or process; those are ``perf.run``'s.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from perf.codec import HEAD_BYTES

CHUNK_BYTES = 65_536
"""Most bytes a streaming publisher hands to one send: a quarter of a usual loopback socket buffer."""

OUTSTANDING_BYTES = 16 * 1024 * 1024
"""Most bytes published and not yet delivered in a run, whatever the message size."""

OUTSTANDING = 3_840
"""Deliveries under way unless told otherwise: 1 MiB of 256-byte messages, which is as much output as brokers
usually keep for one slow subscriber before they drop at QoS 0."""

PUBLISHERS_MAX = 10_000
SUBSCRIBERS_MAX = 10_000
"""More connections than this need more descriptors than a process usually gets."""


PROTOCOLS = ("mqtt", "nats", "queue", "amqp", "amqp10", "amqp10-stamped", "jetstream")
"""Protocols of publishers and subscribers. ``queue`` is MQTT to and from ``$queue/<name>``; over ``amqp10-stamped`` each
message has an id and a creation time of its own."""

DURABLE = frozenset({"queue", "amqp", "amqp10", "amqp10-stamped", "jetstream"})
"""Protocols whose messages go through a durable queue: confirmed when kept, acknowledged when taken."""


BY_LINK = "by-link"
"""Type of a queue that is not declared: the broker makes it when a link is attached."""
QUEUE_TYPES = ("classic", "quorum", "stream", BY_LINK)
"""Kinds of queues that AMQP declares."""

CHURNS = ("connection", "channel", "consumer", "queue", "binding")
"""Kinds of AMQP churn."""

ACK_EVERY_MAX = 1000
"""Deliveries before an acknowledgement: fewer than a consumer's prefetch."""


class WorkloadError(ValueError):
    """A description that cannot be run, with the reason."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One run of a generator.

    ``kind`` is ``messages`` or ``churn``; for churn ``publishers`` is the number of connections being set
    up at once and the message fields do not apply. ``shape`` is ``all`` (every subscriber receives every
    message) or ``pairs`` (publisher i to subscriber i). ``mode`` is ``stream`` (one send takes a chunk of
    messages) or ``single`` (one send per message). ``window`` bounds unacknowledged messages per publisher
    above QoS 0. ``outstanding`` bounds deliveries under way in the whole run. ``rate`` is in messages per
    second over all publishers; 0 means as fast as the bounds allow. ``subscriber_protocol`` is what the
    subscribers speak where it is not the publishers' ``protocol``. With a durable queue between them, pair i
    has queue i, and with shape ``all`` (one subscriber) all publishers have queue 0. An AMQP consumer
    acknowledges every ``ack_every`` deliveries (0: every read); ``queue_type`` is what AMQP declares, and
    ``retention`` what a JetStream stream keeps. Subscribers declare their queues unless ``declares`` is false: then they
    are there already, and are emptied. ``churn`` over AMQP is of what ``churn_of`` names.
    """

    kind: str = "messages"
    protocol: str = "mqtt"
    version: int = 4
    qos: int = 0
    subscriber_qos: int | None = None
    publishers: int = 1
    subscribers: int = 1
    shape: str = "all"
    mode: str = "stream"
    payload: int = 256
    window: int = 100
    outstanding: int = OUTSTANDING
    rate: float = 0.0
    chunk_bytes: int = CHUNK_BYTES
    topic: str = "perf"
    client_prefix: str = "perf"
    publisher_ids: tuple[str, ...] = ()
    subscriber_ids: tuple[str, ...] = ()
    subscriber_protocol: str = ""
    ack_every: int = 0
    queue_type: str = "quorum"
    churn_of: str = "connection"
    retention: str = "limits"
    declares: bool = True

    def check(self) -> None:
        """Raise ``WorkloadError`` when the description makes no sense."""
        rules = (
            (self.kind in ("messages", "churn"), "kind is messages or churn"),
            (self.protocol in PROTOCOLS, f"protocol is one of {', '.join(PROTOCOLS)}"),
            (self.consumes() in PROTOCOLS, f"subscribers speak one of {', '.join(PROTOCOLS)}"),
            (self.version in (4, 5), "version is 4 (MQTT 3.1.1) or 5"),
            (self.qos in (0, 1, 2), "qos is 0, 1 or 2"),
            (self.subscriber_qos in (None, 0, 1, 2), "subscriber_qos is 0, 1 or 2"),
            (self.protocol != "nats" or self.qos == 0, "NATS core has no QoS above 0"),
            (not self.durable or self.qos == 1, "messages to a durable queue are confirmed: QoS 1"),
            (
                not self.durable or self.shape == "pairs" or self.subscribers <= 1,
                "a durable queue has a pair, or one subscriber: shape pairs",
            ),
            (
                self.protocol in ("mqtt", "amqp") or self.kind == "messages",
                "churn is measured over MQTT and AMQP",
            ),
            (self.queue_type in QUEUE_TYPES, f"queue_type is one of {', '.join(QUEUE_TYPES)}"),
            (self.churn_of in CHURNS, f"churn_of is one of {', '.join(CHURNS)}"),
            (0 <= self.ack_every <= ACK_EVERY_MAX, f"ack_every is 0 to {ACK_EVERY_MAX}"),
            (1 <= self.publishers <= PUBLISHERS_MAX, f"publishers are 1 to {PUBLISHERS_MAX}"),
            (0 <= self.subscribers <= SUBSCRIBERS_MAX, f"subscribers are 0 to {SUBSCRIBERS_MAX}"),
            (self.kind == "churn" or self.subscribers > 0, "messages need a subscriber"),
            (self.shape in ("all", "pairs"), "shape is all or pairs"),
            (
                self.shape == "all" or self.publishers == self.subscribers,
                "pairs need as many subscribers as publishers",
            ),
            (self.mode in ("stream", "single"), "mode is stream or single"),
            (HEAD_BYTES <= self.payload <= 1 << 20, f"payload is {HEAD_BYTES} to 1048576 bytes"),
            (1 <= self.window <= 32_767, "window is 1 to 32767"),
            (self.outstanding >= 1, "outstanding is at least 1"),
            (self.rate >= 0, "rate is not negative"),
            (
                len(self.publisher_ids) in (0, self.publishers)
                and len(self.subscriber_ids) in (0, self.subscribers),
                "client ids are given for all or for none",
            ),
        )
        for holds, sentence in rules:
            if not holds:
                raise WorkloadError(sentence)

    def consumes(self) -> str:
        """Return the subscribers' protocol."""
        return self.subscriber_protocol or self.protocol

    @property
    def durable(self) -> bool:
        """Return whether a durable queue is between publishers and subscribers."""
        return self.kind == "messages" and self.consumes() in DURABLE

    def queue_name(self, index: int) -> str:
        """The durable queue of pair ``index``, or the one of all."""
        return f"{self.topic}-{index if self.shape == 'pairs' else 0}"

    @property
    def fan_out(self) -> int:
        """Deliveries of one published message."""
        return self.subscribers if self.shape == "all" else 1

    def deliveries_max(self) -> int:
        """The bound on deliveries under way: ``outstanding`` and ``OUTSTANDING_BYTES``, at least one message."""
        return max(self.fan_out, min(self.outstanding, OUTSTANDING_BYTES // self.payload))

    def publisher_topic(self, index: int) -> str:
        """Return a publisher's topic: the topic itself for a lone publisher, else one of its own."""
        separator = "." if self.protocol == "nats" else "/"
        return f"{self.topic}{separator}{index}"

    def subscriber_filter(self, index: int) -> str:
        """Return a subscriber's filter: the exact topic where there is one, else a wildcard."""
        separator = "." if self.protocol == "nats" else "/"
        if self.shape == "pairs":
            return self.publisher_topic(index)
        if self.publishers == 1:
            return self.publisher_topic(0)
        wildcard = "*" if self.protocol == "nats" else "+"
        return f"{self.topic}{separator}{wildcard}"

    def client_id(self, role: str, index: int) -> str:
        """The client identifier of a publisher (role ``p``) or subscriber (``s``)."""
        given = self.publisher_ids if role == "p" else self.subscriber_ids
        return given[index] if given else f"{self.client_prefix}-{role}{index}"

    def chunk_messages(self, stride: int) -> int:
        """Messages in one send of a publisher, given the size of one: at most half of what may be under way."""
        if self.mode == "single":
            return 1
        half = self.deliveries_max() // self.fan_out // 2
        return max(1, min(self.chunk_bytes // stride, half))

    def to_json(self) -> str:
        """JSON that ``from_json`` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The inverse of ``to_json``; raises ``WorkloadError`` for what ``check`` refuses."""
        given: dict[str, Any] = json.loads(text)
        known = {field.name for field in fields(cls)}
        if unknown := set(given) - known:
            raise WorkloadError(f"unknown fields: {', '.join(sorted(unknown))}")
        for name in ("publisher_ids", "subscriber_ids"):
            given[name] = tuple(given.get(name, ()))
        workload = cls(**given)
        workload.check()
        return workload

    def changed(self, **changes: Any) -> Workload:
        """A copy with some fields replaced."""
        return replace(self, **changes)
