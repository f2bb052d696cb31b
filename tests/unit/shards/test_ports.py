"""Who implements the ports of the loop and of the protocols: the types are compared by the checker, the names here."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.engine.clients import QueueClients
from fluxmq.engine.consumers import QueueConsumer
from fluxmq.engine.queue_targets import QueueTarget
from fluxmq.net.links import Link
from fluxmq.net.ports import Inbound, ReactorHost, RunLink, RunSink
from fluxmq.net.reactor import Reactor
from fluxmq.net.secure_websocket import SecureWebSocketStream
from fluxmq.net.tls import TlsStream
from fluxmq.net.websocket import WebSocketStream
from fluxmq.protocols.amqp091.ports import AmqpHandler
from fluxmq.protocols.connection import StreamFilter
from fluxmq.protocols.mqtt.ports import AnswerSink, FlowControl, MqttHandler, RunJournal
from fluxmq.sessions.mqtt import ports as mqtt
from fluxmq.sessions.mqtt.handler import MqttConnectionHandler
from fluxmq.shards.amqp.broker import ShardHandler
from fluxmq.shards.authentication import Authentication
from fluxmq.shards.bans import CurrentBans
from fluxmq.shards.broker import ShardBroker
from fluxmq.shards.connections import ClientConnections
from fluxmq.shards.counts import MqttCounts
from fluxmq.shards.durable.persistent_links import PersistentLink
from fluxmq.shards.durable.session_journal import SessionJournal, Undelivered
from fluxmq.shards.groups import SharedSubscription
from fluxmq.shards.peers import Peers
from fluxmq.shards.retained import RetainedMessages
from fluxmq.shards.session_ownership import Sessions
from fluxmq.shards.session_table import SessionTable
from fluxmq.shards.session_takeover import SessionTakeover
from fluxmq.shards.subscriptions import Subscriptions

HOST: type[ReactorHost] = ShardBroker
MQTT: type[MqttHandler] = MqttConnectionHandler
AMQP: type[AmqpHandler] = ShardHandler
READING: type[FlowControl] = Reactor
KEEPER: type[RunJournal] = SessionJournal
SINKS: tuple[type[RunSink], ...] = (QueueTarget, SharedSubscription)
LINKS: tuple[type[RunLink], ...] = (Link, PersistentLink)
INBOUND: type[Inbound] = Link
ANSWERS: tuple[type[AnswerSink], ...] = (Undelivered, QueueConsumer)
LOGINS: type[mqtt.LoginPort] = Authentication
BANS: type[mqtt.BansPort] = CurrentBans
TAKEOVER: type[mqtt.TakeoverPort] = SessionTakeover
YIELDING: type[Sessions] = SessionTakeover
SESSIONS: type[mqtt.SessionPort] = SessionTable
SUBSCRIPTIONS: type[mqtt.SubscriptionPort] = Subscriptions
PEERS: type[mqtt.PeersPort] = Peers
QUEUES: type[mqtt.QueuePort] = QueueClients
ROUTING: type[mqtt.PublishPort] = Reactor
RETAINED: type[mqtt.RetainedPort] = RetainedMessages
CONNECTIONS: type[mqtt.ConnectionPort] = ClientConnections
COUNTS: type[mqtt.CountPort] = MqttCounts
STREAMS: tuple[type[StreamFilter], ...] = (TlsStream, WebSocketStream, SecureWebSocketStream)

PAIRS: list[tuple[Any, Any]] = [
    (ReactorHost, HOST),
    (MqttHandler, MQTT),
    (AmqpHandler, AMQP),
    (FlowControl, READING),
    (RunJournal, KEEPER),
    *((RunSink, each) for each in SINKS),
    *((RunLink, each) for each in LINKS),
    (Inbound, INBOUND),
    *((AnswerSink, each) for each in ANSWERS),
    *((StreamFilter, each) for each in STREAMS),
    (mqtt.LoginPort, LOGINS),
    (mqtt.BansPort, BANS),
    (mqtt.TakeoverPort, TAKEOVER),
    (Sessions, YIELDING),
    (mqtt.SessionPort, SESSIONS),
    (mqtt.SubscriptionPort, SUBSCRIPTIONS),
    (mqtt.PeersPort, PEERS),
    (mqtt.QueuePort, QUEUES),
    (mqtt.PublishPort, ROUTING),
    (mqtt.RetainedPort, RETAINED),
    (mqtt.ConnectionPort, CONNECTIONS),
    (mqtt.CountPort, COUNTS),
]


@pytest.mark.parametrize(
    ("port", "kind"), PAIRS, ids=[f"{port.__name__}-{kind.__name__}" for port, kind in PAIRS]
)
def test_a_port_is_implemented(port: Any, kind: Any) -> None:
    names = {name for name in vars(port) if not name.startswith("_")}
    assert names
    assert {name for name in names if not hasattr(kind, name)} == set()
