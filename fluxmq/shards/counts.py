"""Counts of messages that are not delivered, and of MQTT connections, packets, errors and wills."""

from __future__ import annotations

import logging
from collections import Counter

from fluxmq.logs import RateLimited, get_logger
from fluxmq.sessions.mqtt.session import MqttClient, Will


class Drops:
    """Messages not delivered. ``denied``: requests that permissions forbade, by operation."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()

    def __getitem__(self, reason: str) -> int:
        return self.by_reason[reason]

    def count(self, reason: str, count: int) -> None:
        """Count messages not delivered."""
        self.by_reason[reason] += count
        if reason == "no_permission":
            self.denied["publish"] += 1


class MqttCounts:
    """Counts of MQTT on one shard; ``drops`` are those of the whole shard."""

    def __init__(self, drops: Drops) -> None:
        self.drops = drops
        self.packets: Counter[int] = Counter()
        """Control packets off the hot path, by type."""
        self.closed: Counter[str] = Counter()
        """Connections that have ended, by reason."""
        self.errors: Counter[int] = Counter()
        """Clients' errors, by reason code."""
        self.wills = 0
        """Number of published wills."""
        self.log = RateLimited(get_logger("fluxmq.mqtt"), per_second=1, burst=10)

    def packet_received(self, kind: int, count: int = 1) -> None:
        """Count control packets."""
        self.packets[kind] += count

    def connection_closed(self, reason: str) -> None:
        """Count the end of a connection."""
        self.closed[reason] += 1

    def client_error(self, client: MqttClient, reason: int, text: str) -> None:
        """Count a client's error; log some."""
        self.errors[reason] += 1
        session, connect = client.session, client.connect
        client_id = connect.client_id if connect is not None else ""
        self.log.event(
            logging.INFO,
            f"error-{reason}",
            "%s (0x%02X)",
            text,
            reason,
            peer=client.peer,
            client_id=session.client_id if session is not None else client_id,
        )

    def messages_dropped(self, reason: str, count: int) -> None:
        """Count messages not delivered."""
        self.drops.count(reason, count)

    def will_published(self) -> None:
        """Count a will."""
        self.wills += 1

    def will_refused(self, client_id: str, principal: str, will: Will) -> None:
        """Count a will that its client may no longer publish; log some."""
        self.drops.count("no_permission", 1)
        self.log.event(
            logging.WARNING,
            "will-refused",
            "a will is not published: its client may no longer publish to the topic",
            client_id=client_id,
            user=principal,
            topic=will.topic.decode(),
        )
