"""Shared subscriptions: section 4.8.2."""

from __future__ import annotations

import pytest

from tests.conformance import wire
from tests.conformance.client import Client, payloads
from tests.conformance.conftest import Mqtt
from tests.conformance.test_mqtt_qos1 import persistent
from tests.conformance.wire import V5, Filter


def drain(members: list[Client]) -> list[list[bytes]]:
    """The payloads that each member has been sent by now, acknowledged."""
    got: list[list[bytes]] = []
    for member in members:
        messages = [packet for packet in member.ping() if packet.kind == wire.PUBLISH]
        for message in messages:
            member.acknowledge(message)
        got.append(payloads(messages))
    return got


def publish_all(publisher: Client, topic: str, count: int, qos: int) -> list[bytes]:
    """Publish numbered messages; everything is acknowledged when this returns."""
    sent = [b"%d" % number for number in range(count)]
    for each in sent:
        publisher.publish(topic, each, qos=qos)
    publisher.ping()
    return sent


@pytest.mark.statement("v5:4.8.2-1", "v5:4.8.2-2")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(mqtt: Mqtt, qos: int) -> None:
    """Members divide the messages; none is lost, none comes twice, everyone gets some."""
    topic = mqtt.topic()
    members = [mqtt.subscriber(V5, f"$share/g/{topic}", qos=qos) for _ in range(3)]
    publisher = mqtt.connect(V5)
    sent = [b"%d" % number for number in range(60)]
    got: list[list[bytes]] = [[], [], []]
    for each in sent:
        publisher.publish(topic, each, qos=qos)
    while sum(len(part) for part in got) < len(sent):
        for part, more in zip(got, drain(members), strict=True):
            part += more
    assert sorted(each for part in got for each in part) == sorted(sent)
    assert all(got)
    assert drain(members) == [[], [], []]


@pytest.mark.statement("v5:4.8.2-1")
def test_groups_and_plain_subscriptions_each_get_a_copy(mqtt: Mqtt) -> None:
    """One copy for each share name and one for each plain subscription."""
    root = mqtt.topic()
    topic = f"{root}/a"
    one = mqtt.subscriber(V5, f"$share/one/{topic}", qos=1)
    two = mqtt.subscriber(V5, f"$share/two/{topic}", qos=1)
    wild = mqtt.subscriber(V5, f"$share/one/{root}/+", qos=1)
    plain = mqtt.subscriber(V5, topic, qos=1)
    sent = publish_all(mqtt.connect(V5), topic, 10, 1)
    for client in (one, two, wild, plain):
        assert payloads(client.receive() for _ in sent) == sent
        assert client.ping() == []


@pytest.mark.statement("v5:3.3.4-3")
def test_shared_and_plain_subscription_of_one_client(mqtt: Mqtt) -> None:
    """They do not overlap in the sense of 3.3.4: a client in both gets a copy by each."""
    topic = mqtt.topic()
    client = mqtt.connect(V5)
    client.subscribe(f"$share/g/{topic}", qos=1, props=[(wire.SUBSCRIPTION_IDENTIFIER, 1)])
    client.subscribe(topic, qos=1, props=[(wire.SUBSCRIPTION_IDENTIFIER, 2)])
    mqtt.connect(V5).publish(topic, b"x", qos=1)
    got = [client.receive(), client.receive()]
    assert payloads(got) == [b"x", b"x"]
    assert sorted(m.property(wire.SUBSCRIPTION_IDENTIFIER) for m in got) == [1, 2]
    assert client.ping() == []


@pytest.mark.statement("v5:4.8.2-1", "v5:4.8.2-2")
@pytest.mark.parametrize(
    "entry",
    [
        "$share//a",
        "$share/g+/a",
        "$share/g#/a",
        "$share/+/a",
        "$share/#/a",
        "$share/g",
        "$share/g/",
    ],
)
def test_wrong_share_names(mqtt: Mqtt, entry: str) -> None:
    """A share name is at least one character, without wildcards, and a filter follows it."""
    client = mqtt.connect(V5)
    client.send(wire.subscribe(V5, 1, [Filter(entry)]))
    answer = client.next()
    if answer.kind == wire.SUBACK:
        assert answer.reasons == [0x8F]
        assert client.ping() == []
    else:
        assert answer.kind == wire.DISCONNECT
        assert answer.reason in (0x81, 0x82, 0x8F)
        client.expect_closed()


@pytest.mark.statement("v5:4.8.2-3")
def test_granted_qos_of_each_member(mqtt: Mqtt) -> None:
    """Members of one group may have different QoS; each is sent by its own."""
    topic = mqtt.topic()
    members = [mqtt.subscriber(V5, f"$share/g/{topic}", qos=qos) for qos in (0, 1, 2)]
    publish_all(mqtt.connect(V5), topic, 30, 2)
    seen = 0
    while seen < 30:
        for qos, member in enumerate(members):
            for packet in member.ping():
                if packet.kind == wire.PUBLISH:
                    assert packet.qos == qos
                    member.acknowledge(packet)
                    seen += 1


@pytest.mark.statement("v5:3.8.4-3")
def test_subscribing_again_is_one_membership(mqtt: Mqtt) -> None:
    """The same shared filter twice does not make a client two members."""
    topic = mqtt.topic()
    client = mqtt.subscriber(V5, f"$share/g/{topic}", qos=1)
    client.subscribe(f"$share/g/{topic}", qos=1)
    sent = publish_all(mqtt.connect(V5), topic, 6, 1)
    assert payloads(client.receive() for _ in sent) == sent
    assert client.ping() == []


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("how", ["unsubscribe", "disconnect", "drop"])
def test_member_that_leaves_gets_nothing_more(mqtt: Mqtt, how: str, qos: int) -> None:
    """The others take over what is published from then on."""
    topic = mqtt.topic()
    staying, leaving = (mqtt.subscriber(V5, f"$share/g/{topic}", qos=qos) for _ in range(2))
    publisher = mqtt.connect(V5)
    if how == "unsubscribe":
        leaving.unsubscribe(f"$share/g/{topic}")
    elif how == "disconnect":
        leaving.disconnect()
    else:
        leaving.drop()
        # The server has noticed when the client identifier is free: a new session is not taken over.
        mqtt.connect(V5, leaving.client_id).disconnect()
    sent = publish_all(publisher, topic, 20, qos)
    assert payloads(staying.receive() for _ in sent) == sent
    if how == "unsubscribe":
        assert leaving.ping() == []


def test_unacknowledged_messages_are_handed_over(mqtt: Mqtt) -> None:
    """QoS 1 messages of a member whose session ends go to another one (4.8.2)."""
    topic = mqtt.topic()
    leaving, staying = (mqtt.subscriber(V5, f"$share/g/{topic}", qos=1) for _ in range(2))
    sent = publish_all(mqtt.connect(V5), topic, 20, 1)
    assert [packet for packet in leaving.ping() if packet.kind == wire.PUBLISH]
    leaving.disconnect()
    got = payloads(staying.receive() for _ in sent)
    assert sorted(got) == sorted(sent)
    assert staying.ping() == []


@pytest.mark.statement("v5:4.8.2-4")
def test_qos_2_delivery_is_completed_with_its_client(mqtt: Mqtt) -> None:
    """A QoS 2 message under way to a member that reconnects stays with that member."""
    topic = mqtt.topic()
    client = persistent(mqtt, V5)
    client.subscribe(f"$share/g/{topic}", qos=2)
    mqtt.connect(V5).publish(topic, b"x", qos=2)
    first = client.expect(wire.PUBLISH)
    other = mqtt.subscriber(V5, f"$share/g/{topic}", qos=2)
    client.drop()
    client = persistent(mqtt, V5, client.client_id)
    again = client.receive()
    assert (again.packet_id, again.payload, again.dup) == (first.packet_id, b"x", True)
    assert other.ping() == []


@pytest.mark.statement("v5:4.8.2-5")
def test_qos_2_message_is_not_given_to_another(mqtt: Mqtt) -> None:
    """If that member's session ends instead, the message under way is sent to nobody else."""
    topic, marker = mqtt.topic(), mqtt.topic()
    client = mqtt.subscriber(V5, f"$share/g/{topic}", qos=2)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"x", qos=2)
    client.expect(wire.PUBLISH)
    other = mqtt.subscriber(V5, f"$share/g/{topic}", marker, qos=2)
    client.disconnect()
    publisher.publish(marker, b"marker", qos=2)
    assert other.receive_until(b"marker") == []


@pytest.mark.statement("v5:4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_refused_message_is_not_given_to_another(mqtt: Mqtt, qos: int) -> None:
    """A member's PUBACK or PUBREC of 0x80 or above is the end of the message."""
    topic, marker = mqtt.topic(), mqtt.topic()
    client = mqtt.subscriber(V5, f"$share/g/{topic}", qos=qos)
    publisher = mqtt.connect(V5)
    publisher.publish(topic, b"x", qos=qos)
    message = client.expect(wire.PUBLISH)
    other = mqtt.subscriber(V5, f"$share/g/{topic}", marker, qos=qos)
    kind = wire.PUBACK if qos == 1 else wire.PUBREC
    client.send(wire.acknowledge(kind, message.packet_id, 0x83, []))
    assert client.ping() == []
    client.disconnect()
    publisher.publish(marker, b"marker", qos=qos)
    assert other.receive_until(b"marker") == []


def test_absent_members_do_not_hold_messages_while_others_are_there(mqtt: Mqtt) -> None:
    """New messages go to members that are connected, not to one that is away."""
    topic = mqtt.topic()
    away = persistent(mqtt, V5)
    away.subscribe(f"$share/g/{topic}", qos=1)
    present = mqtt.subscriber(V5, f"$share/g/{topic}", qos=1)
    away.disconnect()
    sent = publish_all(mqtt.connect(V5), topic, 10, 1)
    assert payloads(present.receive() for _ in sent) == sent


def test_messages_wait_when_every_member_is_away(mqtt: Mqtt) -> None:
    """With nobody connected they wait in a session, and are not lost."""
    topic = mqtt.topic()
    members = [persistent(mqtt, V5) for _ in range(2)]
    for member in members:
        member.subscribe(f"$share/g/{topic}", qos=1)
        member.disconnect()
    sent = publish_all(mqtt.connect(V5), topic, 10, 1)
    got: list[bytes] = []
    back = [persistent(mqtt, V5, member.client_id) for member in members]
    while len(got) < len(sent):
        for part in drain(back):
            got += part
    assert sorted(got) == sorted(sent)


def test_order_within_a_member(mqtt: Mqtt) -> None:
    """What one member is sent keeps the publisher's order."""
    topic = mqtt.topic()
    members = [mqtt.subscriber(V5, f"$share/g/{topic}", qos=1) for _ in range(3)]
    publish_all(mqtt.connect(V5), topic, 90, 1)
    got: list[list[bytes]] = [[], [], []]
    while sum(len(part) for part in got) < 90:
        for part, more in zip(got, drain(members), strict=True):
            part += more
    for part in got:
        assert [int(each) for each in part] == sorted(int(each) for each in part)
