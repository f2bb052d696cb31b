"""Errors: their scope, their texts."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.constants import HARD, ReplyCode
from fluxmq.protocols.amqp091.errors import (
    OCTETS_SHOWN_MAX,
    HardError,
    SoftError,
    error_of,
    octets,
    reply_text,
    shortened,
    unknown_frame,
)

SOFT = {311, 312, 313, 403, 404, 405, 406}


@pytest.mark.parametrize("code", ReplyCode)
def test_scope(code: ReplyCode) -> None:
    """Section 1.2: a class is named with every code; 200 is none of an error."""
    if code is ReplyCode.REPLY_SUCCESS:
        assert code not in HARD
        return
    error = error_of(code, "text", 50, 10)
    assert isinstance(error, SoftError if code in SOFT else HardError)
    assert (error.code, error.text, error.class_id, error.method_id) == (code, "text", 50, 10)


def test_reply_text() -> None:
    error = error_of(ReplyCode.NOT_FOUND, "no queue 'q' in vhost '/'")
    assert reply_text(error) == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert str(error) == "404 NOT_FOUND - no queue 'q' in vhost '/'"


def test_a_reply_text_is_a_short_string() -> None:
    assert shortened("a" * 256) == "a" * 255
    assert shortened("é" * 128) == "é" * 127
    assert shortened("\ud800") == "?"
    assert len(reply_text(error_of(ReplyCode.NOT_FOUND, "x" * 300))) == 255


def test_octets() -> None:
    assert octets(b"") == "<<>>"
    assert octets(b"\x01\xff") == "<<1,255>>"
    assert octets(b"\xff" * OCTETS_SHOWN_MAX) == "<<" + ",".join(["255"] * OCTETS_SHOWN_MAX) + ">>"
    assert octets(bytes(OCTETS_SHOWN_MAX + 1)).endswith(",0,...>>")
    assert len(reply_text(unknown_frame(1, b"\xff" * 999))) < 255
