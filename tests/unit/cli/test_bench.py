"""The bytes of `fluxmqctl bench`, and its command line. Against a broker: `tests.integration.test_remote_control`."""

import pytest

from fluxmq.cli.arguments import parser
from fluxmq.cli.bench_command import CaseResult, table_lines
from fluxmq.cli.bench_wire import BATCH, AmqpQueue, BenchError, ListenerLogin, MqttTopic
from fluxmq.protocols.amqp091 import method_codec
from fluxmq.protocols.amqp091.content import BasicProperties, encode_properties, frames_of_content
from fluxmq.protocols.amqp091.methods import BasicAck, BasicDeliver, BasicNack

LOGIN = ListenerLogin("localhost", 1)


def delivery(tag: int, payload: bytes) -> bytes:
    properties = encode_properties(BasicProperties(delivery_mode=2))
    method = method_codec.frame(1, BasicDeliver("b", tag, False, "", "q"))
    return method + b"".join(frames_of_content(1, properties, payload, 0))


def test_mqtt_messages_of_qos_1_have_their_own_numbers_and_are_acknowledged() -> None:
    topic = MqttTopic(LOGIN, "t", 20, 1, 1000)
    first, second = topic.batch(3, 5), topic.batch(BATCH, 9)
    length = len(first) // 3
    assert len(second) == length * BATCH
    assert first[: length - 20] == b"\x32\x19\0\x01t\0\x01"
    inbound = bytearray(first + second + b"\x32")
    stamps, answer = topic.arrived(inbound)
    assert list(stamps) == [5] * 3 + [9] * BATCH
    numbers = [int.from_bytes(answer[at + 2 : at + 4], "big") for at in range(0, len(answer), 4)]
    assert numbers == list(range(1, BATCH + 4))
    assert answer[:4] == b"\x40\x02\0\x01"
    assert inbound == b"\x32"
    assert topic.confirmed(bytearray(answer[:8])) == 2
    with pytest.raises(BenchError):
        topic.confirmed(bytearray(b"\xe0\x02\0\0"))
    with pytest.raises(BenchError):
        topic.arrived(bytearray(b"\x40" + bytes(length)))


def test_packet_identifiers_begin_again() -> None:
    topic = MqttTopic(LOGIN, "t", 8, 1, 1000)
    seen = []
    for _ in range(65_535 // BATCH + 2):
        _, answer = topic.arrived(bytearray(topic.batch(BATCH, 1)))
        seen += [int.from_bytes(answer[at + 2 : at + 4], "big") for at in range(0, len(answer), 4)]
    assert seen[:65_535] == list(range(1, 65_536))
    assert seen[65_535] == 1


def test_amqp_deliveries_are_counted_and_acknowledged_together() -> None:
    queue = AmqpQueue(LOGIN, "q", 16, 1000)
    stamp = (7).to_bytes(8, "little") + bytes(8)
    inbound = bytearray(delivery(1, stamp)[:20])
    assert queue.arrived(inbound).answer == b""
    inbound += delivery(1, stamp)[20:] + delivery(2, stamp) + b"\x01"
    stamps, answer = queue.arrived(inbound)
    assert list(stamps) == [7, 7]
    assert answer == method_codec.frame(1, BasicAck(2, True))
    assert inbound == b"\x01"
    with pytest.raises(BenchError):
        queue.arrived(bytearray(500))


def test_confirms_count_the_messages_up_to_theirs() -> None:
    queue = AmqpQueue(LOGIN, "q", 16, 1000)
    confirms = bytearray(b"".join(method_codec.frame(1, BasicAck(tag, True)) for tag in (3, 10)))
    assert queue.confirmed(confirms) == 10
    assert queue.confirmed(bytearray(method_codec.frame(1, BasicAck(12)))) == 2
    with pytest.raises(BenchError, match="refused a message"):
        queue.confirmed(bytearray(method_codec.frame(1, BasicNack(13))))


@pytest.mark.parametrize(
    "arguments",
    ["--seconds 0", "--clients 65", "--size 7", "--size x", "--mqtt here", "--amqp h:0"],
)
def test_wrong_options(arguments: str, capsys) -> None:
    with pytest.raises(SystemExit):
        parser("bench").parse_args(["bench", *arguments.split()])
    assert "error: argument --" in capsys.readouterr().err


def test_the_table() -> None:
    lines = table_lines([CaseResult("mqtt-qos0", 2, 123_456.7, 123_000.2, 250.0, 9000.0, 3)])
    assert lines[1].split("  ")[0] == "MQTT QoS 0"
    assert lines[1].split()[-8:] == ["2", "123,457", "123,000", "0.25", "ms", "9.00", "ms", "3"]
