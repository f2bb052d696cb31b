"""SASL responses: who they say somebody is."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.errors import HardError
from fluxmq.protocols.amqp091.sasl import RESPONSE_BYTES_MAX, Credentials, parse, refused

LOGIN = b"\x05LOGINS\0\0\0\x05guest"
PASSWORD = b"\x08PASSWORDS\0\0\0\x01p"


@pytest.mark.parametrize(
    ("mechanism", "response", "credentials"),
    [
        ("PLAIN", b"\0guest\0p", Credentials("", "guest", b"p")),
        ("PLAIN", b"guest\0guest\0p", Credentials("guest", "guest", b"p")),
        ("PLAIN", b"\0\xc3\xbc\0\xff", Credentials("", "ü", b"\xff")),
        ("PLAIN", b"\0\0", Credentials("", "", b"")),
        ("AMQPLAIN", LOGIN + PASSWORD, Credentials("", "guest", b"p")),
        ("AMQPLAIN", PASSWORD + LOGIN, Credentials("", "guest", b"p")),
        (
            "AMQPLAIN",
            LOGIN + b"\x08PASSWORDS\0\0\0\x01\xff",
            Credentials("", "guest", b"\xff"),
        ),
        ("EXTERNAL", b"", Credentials("", "", b"")),
        ("EXTERNAL", b"somebody", Credentials("somebody", "", b"")),
    ],
)
def test_credentials(mechanism: str, response: bytes, credentials: Credentials) -> None:
    assert parse(mechanism, response) == credentials


@pytest.mark.parametrize(
    ("mechanism", "response", "code"),
    [
        ("PLAIN", b"", 502),
        ("PLAIN", b"guest", 502),
        ("PLAIN", b"\0guest", 502),
        ("PLAIN", b"\0guest\0p\0", 502),
        ("PLAIN", b"\0\xff\0p", 403),
        ("PLAIN", b"other\0guest\0p", 403),
        ("AMQPLAIN", b"", 502),
        ("AMQPLAIN", b"zzz", 502),
        ("AMQPLAIN", LOGIN, 502),
        ("AMQPLAIN", PASSWORD, 502),
        ("AMQPLAIN", b"\x05LOGINS\0\0\0\x01\xff" + PASSWORD, 403),
        ("AMQPLAIN", LOGIN + b"\x08PASSWORDI\0\0\0\x05", 403),
        ("EXTERNAL", b"\xff", 403),
        ("", b"", 503),
        ("plain", b"\0guest\0p", 503),
        ("SCRAM-SHA-256", b"", 503),
    ],
)
def test_refused(mechanism: str, response: bytes, code: int) -> None:
    with pytest.raises(HardError) as caught:
        parse(mechanism, response)
    assert caught.value.code == code
    assert "guest" not in caught.value.text


def test_the_longest_response() -> None:
    password = b"p" * (RESPONSE_BYTES_MAX - 3)
    assert parse("PLAIN", b"\0u\0" + password).password == password
    with pytest.raises(HardError, match="too long"):
        parse("PLAIN", b"\0u\0p" + password)


def test_the_text_of_a_refusal() -> None:
    assert refused("PLAIN").text == (
        "Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )
