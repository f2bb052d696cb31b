"""Addresses of AMQP 1.0: both versions, and what is refused with which condition."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.amqp10.addresses import (
    ADDRESS_BYTES_MAX,
    AddressError,
    AddressTarget,
    Missing,
    Source,
    exchange_address,
    jms_address,
    queue_address,
    source_of,
    target_of,
    target_of_message,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
SUBJECT = Missing.SUBJECT


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("/queues/orders", AddressTarget("", "orders", "orders")),
        ("/queues/a%2Fb%20%C3%BC", AddressTarget("", "a/b ü", "a/b ü")),
        ("/exchanges/e/key", AddressTarget("e", "key")),
        ("/exchanges/e", AddressTarget("e", "")),
        ("/exchanges/e/", AddressTarget("e", "")),
        ("/exchanges/my%2Fe/a.b%25", AddressTarget("my/e", "a.b%")),
        ("orders", AddressTarget("", "orders", "orders", declare=True)),
        ("a%2Fb", AddressTarget("", "a/b", "a/b", declare=True)),
        ("/queue/orders", AddressTarget("", "orders", "orders", declare=True)),
        ("/queue", AddressTarget("", "", missing=SUBJECT)),
        ("/amq/queue/amq.gen-1", AddressTarget("", "amq.gen-1", "amq.gen-1")),
        ("/exchange/e", AddressTarget("e", "", missing=SUBJECT)),
        ("/exchange/amq.default", AddressTarget("", "", missing=SUBJECT)),
        ("/exchange/e/k", AddressTarget("e", "k")),
        ("/topic/a.b", AddressTarget("amq.topic", "a.b")),
        ("queue://orders", AddressTarget("", "orders", "orders", declare=True)),
        ("queue://a/b", AddressTarget("", "a/b", "a/b", declare=True)),
        ("topic://a.b", AddressTarget("amq.topic", "a.b", topic=True)),
    ],
)
def test_targets(address: str, target: AddressTarget) -> None:
    assert target_of(address) == target


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("/queues/a%2Fb", Source("a/b")),
        ("orders", Source("orders", declare=True)),
        ("/queue/orders", Source("orders", declare=True)),
        ("/amq/queue/amq.gen-1", Source("amq.gen-1")),
        ("/exchange/e/k", Source(exchange="e", binding_key="k")),
        ("/exchange/e", Source(exchange="e")),
        ("/topic/a.#", Source(exchange="amq.topic", binding_key="a.#")),
        ("queue://orders", Source("orders", declare=True)),
        ("topic://a.b", Source(exchange="amq.topic", binding_key="a.b")),
    ],
)
def test_sources(address: str, source: Source) -> None:
    assert source_of(address) == source


BAD = [
    "",
    "/",
    "/queues/",
    "/queues/a/b",
    "/queues/%",
    "/queues/%4",
    "/queues/%zz",
    "/queues/%ff",
    "/queues/" + "q" * 256,
    "/nothing/x",
    "/exchange",
    "/exchange/",
    "/exchange/e/k/more",
    "/topic",
    "/topic/",
    "/queue/",
    "/queue/a/b",
    "/amq/queue",
    "/amq/other/q",
    "queue://",
    "topic://",
    "a/b",
    "q" * 256,
    "q" * (ADDRESS_BYTES_MAX + 1),
]


@pytest.mark.parametrize(
    "address",
    [
        *BAD,
        "/exchanges/",
        "/exchanges//k",
        "/exchanges/amq.default/k",
        "/exchanges/e/k/more",
        "/exchanges/e/%",
    ],
)
def test_bad_targets(address: str) -> None:
    with pytest.raises(AddressError) as refused:
        target_of(address)
    assert refused.value.condition == "amqp:invalid-field"


@pytest.mark.parametrize(
    "address", [*BAD, "/exchanges/e/k", "/exchange/amq.default/k", "/queue", "/exchange//k"]
)
def test_bad_sources(address: str) -> None:
    with pytest.raises(AddressError) as refused:
        source_of(address)
    assert refused.value.condition == "amqp:invalid-field"


@pytest.mark.parametrize("address", ["orders", "/queue/q", "/topic/t", "queue://q", "/exchange/e"])
def test_version_1_can_be_turned_off(address: str) -> None:
    for parse in (target_of, source_of):
        with pytest.raises(AddressError, match="version 1, which is turned off") as refused:
            parse(address, version_1=False)
        assert refused.value.condition == "amqp:not-allowed"


def test_version_2_needs_no_setting() -> None:
    assert target_of("/exchanges/e/k", version_1=False) == AddressTarget("e", "k")
    assert source_of("/queues/q", version_1=False) == Source("q")


@pytest.mark.parametrize(
    ("address", "capabilities", "expected"),
    [
        ("news", ("topic",), "topic://news"),
        ("news", ("temporary-topic",), "topic://news"),
        ("news", ("queue", "shared"), "news"),
        ("topic://news", ("topic",), "topic://news"),
        ("/queues/news", ("topic",), "/queues/news"),
    ],
)
def test_a_capability_says_that_a_name_is_a_topics(
    address: str, capabilities: tuple[str, ...], expected: str
) -> None:
    assert jms_address(address, capabilities) == expected


def test_a_target_of_each_message() -> None:
    assert target_of_message(b"/queues/q") == AddressTarget("", "q", "q")
    assert target_of_message(b"/exchanges/e/k") == AddressTarget("e", "k")


@pytest.mark.parametrize(
    "to",
    [None, b"", b"q", b"/queue/q", b"/queues/", b"/queues/%", b"\xff", b"/exchanges/amq.default"],
)
def test_a_message_to_nowhere_is_rejected_and_the_link_stays(to: bytes | None) -> None:
    with pytest.raises(AddressError) as refused:
        target_of_message(to)
    assert refused.value.condition == "amqp:precondition-failed"


@given(NAMES, NAMES)
def test_any_name_has_an_address(name: str, key: str) -> None:
    assert source_of(queue_address(name)) == Source(name)
    assert target_of(queue_address(name)) == AddressTarget("", name, name)
    if name != "amq.default":
        assert target_of(exchange_address(name, key)) == AddressTarget(name, key)
        assert target_of_message(exchange_address(name).encode()) == AddressTarget(name, "")


@given(st.text(max_size=40) | st.text("/%aqueuestopicxchng:.2F", max_size=40))
def test_only_the_standards_errors_escape(address: str) -> None:
    for parse in (target_of, source_of):
        with suppress(AddressError):
            parse(address)
