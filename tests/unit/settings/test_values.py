"""Durations, sizes, addresses, secrets: what is read, what is refused, what is shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fluxmq.settings.values import (
    ANNOUNCED_MAX,
    Announced,
    Secret,
    Version,
    addresses_clash,
    check_filter,
    format_duration,
    format_size,
    is_loopback,
    parse_duration,
    parse_size,
    split_address,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0),
        ("20ms", 0.02),
        ("1h30m", 5400.0),
        ("7d", 604_800.0),
        ("1.5s", 1.5),
        ("1m30s500ms", 90.5),
        ("0s", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "30m1h", "5s5s", "-5s", "5 s", "1h 30m", "5sec", "٥s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(st.integers(0, 10**12))
def test_durations_read_back(microseconds: int) -> None:
    seconds = microseconds / 1_000_000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=2e-6)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("8KiB", 8192), ("1MiB", 1 << 20), ("1.5 MiB", 3 << 19), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1MB", "binary: MiB"),
        ("1k", "binary: KiB"),
        ("x", "is not a size"),
        ("-1", "is not a size"),
        ("", "is not a size"),
        ("0.3B", "whole number of bytes"),
    ],
)
def test_what_is_no_size(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_sizes_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:1883", "127.0.0.1", 1883),
        (":1883", "", 1883),
        ("[::1]:1", "::1", 1),
        ("[0:0::1]:1", "::1", 1),
        ("localhost:65535", "localhost", 65_535),
        ("broker-1.example.org:80", "broker-1.example.org", 80),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "1883",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "host:-1",
        "::1:1",
        "[::1:1",
        "[x]:1",
        "[1.2.3.4]:1",
        "1.2.3:1",
        "256.0.0.1:1",
        "a_b!:1",
        "-a:1",
        "http://a:1",
        "host:1a",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) "):
        split_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        (":1", "127.0.0.1:1", True),
        (":1", "[::1]:1", True),
        ("[::]:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "[::1]:1", False),
        ("0.0.0.0:1", "[::]:1", True),
        ("0.0.0.0:1", "broker.example.org:1", True),
        ("localhost:1", "127.0.0.1:1", True),
        ("localhost:1", "[::1]:1", True),
        ("localhost:1", "127.0.0.2:1", False),
        ("Broker:1", "broker:1", True),
    ],
)
def test_clashes(one: str, other: str, expected: bool) -> None:
    assert addresses_clash(one, other) is expected
    assert addresses_clash(other, one) is expected


@pytest.mark.parametrize("text", ["#", "+", "a/+/b", "a/#", "/", "$SYS/#", "+/+", "a//b"])
def test_filters(text: str) -> None:
    assert check_filter(text) == text


@pytest.mark.parametrize("text", ["", "a#", "#/a", "a/#/b", "a+", "+a/b", "a\0b", "a" * 65_536])
def test_what_is_no_filter(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is "):
        check_filter(text)


def test_a_secret_is_never_printed_but_travels_as_json() -> None:
    secret = Secret("hunter2")
    adapter = TypeAdapter(Secret)
    for shown in (
        repr(secret),
        str(secret),
        f"{secret}",
        f"{[secret]}",
        repr(adapter.dump_python(secret)),
    ):
        assert "hunter2" not in shown
    assert json.loads(adapter.dump_json(secret)) == "hunter2"
    assert adapter.validate_json(b'"hunter2"') == secret
    assert hash(adapter.validate_python(secret)) == hash(secret)
    assert secret != "hunter2"
    assert secret.reveal() == "hunter2"


@pytest.mark.parametrize("text", ["3.10", "3.10.8", "4.0.0.1", "0.0", "123456789.0"])
def test_versions(text: str) -> None:
    assert TypeAdapter(Version).validate_python(text) == text


@pytest.mark.parametrize(
    "text", ["", "3", "3.", ".3", "3.x", "v3.10", "3.10-rc1", "1.2.3.4.5", "3.²"]
)
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version; write two to four numbers"):
        TypeAdapter(Version).validate_python(text)


@pytest.mark.parametrize("text", ["", "a" * (ANNOUNCED_MAX + 1), "Rabbit\nMQ", "Hase\N{RABBIT}"])
def test_a_name_that_clients_are_not_greeted_with(text: str) -> None:
    with pytest.raises(ValueError, match="is not 1 to 64 printable ASCII characters"):
        TypeAdapter(Announced).validate_python(text)
    assert TypeAdapter(Announced).validate_python("a" * ANNOUNCED_MAX)
