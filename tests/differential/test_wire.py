"""The client's own reading of AMQP 0.9.1, held against bytes written by hand from the specification."""

from __future__ import annotations

import pytest

from tests.differential import wire
from tests.differential.wire import Typed


def test_bits_share_an_octet() -> None:
    fields = {"queue": "q", "durable": True, "auto_delete": True, "arguments": {"x": 1}}
    assert wire.method(1, "queue.declare", fields) == bytes.fromhex(
        "01 0001 00000014 0032 000a 0000 0171 0a 00000007 0178 49 00000001 ce"
    )


def test_a_method_is_read_as_it_was_written() -> None:
    fields = {"reply_code": 406, "reply_text": "no", "class_id": 50, "method_id": 10}
    frame = wire.method(3, "channel.close", fields)
    assert wire.read_method(frame[7:-1]) == ("channel.close", fields)


def test_properties_and_table_values() -> None:
    headers = {
        "t": True,
        "i": -5,
        "l": 2**40,
        "d": 1.5,
        "s": "ü",
        "v": None,
        "a": [1, "b"],
        "f": {"k": 1},
    }
    given = {"content_type": "x", "headers": headers, "delivery_mode": 2, "timestamp": 5}
    frame = wire.header(1, 7, given)
    assert wire.read_header(frame[7:-1]) == (7, given)


@pytest.mark.parametrize(
    ("letter", "value"),
    [("b", -3), ("B", 200), ("s", -300), ("u", 60_000), ("i", 2**31), ("l", -1), ("T", 9)],
)
def test_typed_values(letter: str, value: int) -> None:
    written = wire.table({"k": Typed(letter, value)})
    assert written[6:7] == letter.encode()
    assert wire.Reader(written).table() == {"k": value}


def test_a_body_is_cut_by_frame_max() -> None:
    written = wire.content(1, {}, b"x" * 10, 12)
    kinds = []
    while written:
        size = int.from_bytes(written[3:7], "big")
        kinds.append((written[0], size))
        written = written[size + 8 :]
    assert kinds == [(2, 14), (3, 4), (3, 4), (3, 2)]


def test_what_is_too_short_is_said() -> None:
    with pytest.raises(ValueError, match="ends within"):
        wire.read_method(bytes.fromhex("0032000b05"))
    with pytest.raises(ValueError, match="too many"):
        wire.read_method(bytes.fromhex("0014000b0000000000"))


def test_names_a_broker_makes_up() -> None:
    assert wire.plain('queue="amq.gen-aB_1-x" x') == 'queue="amq.gen-*" x'
    assert wire.plain("amq.rabbitmq.reply-to.g1h2AA.x== b") == "amq.rabbitmq.reply-to.* b"
