"""Request and response: section 4.10."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V5


@pytest.mark.statement("v5:3.3.2-15", "v5:3.3.2-16")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_request_and_response(mqtt: Mqtt, qos: int) -> None:
    """The responder answers to the topic and with the correlation data it was given."""
    requests, answers = mqtt.topic("/requests"), mqtt.topic("/answers")
    responder = mqtt.subscriber(V5, requests, qos=qos)
    requester = mqtt.subscriber(V5, answers, qos=qos)
    for number in range(5):
        props = [(wire.RESPONSE_TOPIC, answers), (wire.CORRELATION_DATA, b"\xff%d" % number)]
        requester.publish(requests, b"question", qos=qos, props=props)
        request = responder.receive()
        responder.publish(
            request.property(wire.RESPONSE_TOPIC),
            b"answer",
            qos=qos,
            props=[(wire.CORRELATION_DATA, request.property(wire.CORRELATION_DATA))],
        )
        answer = requester.receive()
        assert answer.payload == b"answer"
        assert answer.property(wire.CORRELATION_DATA) == b"\xff%d" % number


@pytest.mark.statement("v5:3.3.2-15", "v5:3.3.2-16", "v5:4.8.2-1")
def test_requests_shared_among_responders(mqtt: Mqtt) -> None:
    """Responders in a shared subscription see the same properties."""
    requests, answers = mqtt.topic("/requests"), mqtt.topic("/answers")
    responders = [mqtt.subscriber(V5, f"$share/r/{requests}", qos=1) for _ in range(2)]
    requester = mqtt.subscriber(V5, answers, qos=1)
    for number in range(10):
        props = [(wire.RESPONSE_TOPIC, answers), (wire.CORRELATION_DATA, b"%d" % number)]
        requester.publish(requests, b"?", qos=1, props=props)
    answered: set[bytes] = set()
    while len(answered) < 10:
        for responder in responders:
            for packet in responder.ping():
                if packet.kind != wire.PUBLISH:
                    continue
                responder.acknowledge(packet)
                data = packet.property(wire.CORRELATION_DATA)
                topic = packet.property(wire.RESPONSE_TOPIC)
                responder.publish(topic, b"!", qos=1, props=[(wire.CORRELATION_DATA, data)])
                answered.add(requester.receive().property(wire.CORRELATION_DATA))
    assert answered == {b"%d" % number for number in range(10)}


@pytest.mark.statement("v5:3.1.2-28")
@pytest.mark.parametrize("asked", [0, 1])
def test_response_information(mqtt: Mqtt, asked: int) -> None:
    """A server may give none even when asked; never when not."""
    client = mqtt.open(V5)
    props = [(wire.REQUEST_RESPONSE_INFORMATION, asked)]
    connack = client.connect(mqtt.client_id(), props=props)
    assert connack.reason == 0
    assert asked or connack.property(wire.RESPONSE_INFORMATION) is None
