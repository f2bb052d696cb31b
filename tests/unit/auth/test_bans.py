"""Bans of addresses, users and client ids."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.auth.bans import (
    ADDRESS,
    CLIENT_ID,
    USER,
    VALUE_CHARACTERS_MAX,
    Ban,
    BanTable,
    ban_problem,
    canonical,
)

NETWORKS = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 32)),
    st.tuples(st.ip_addresses(v=6), st.integers(0, 128)),
)


def peer(address: object) -> str:
    text = str(address)
    return f"[{text}]:1" if ":" in text else f"{text}:1"


def of(*values: str) -> BanTable:
    return BanTable(Ban(ADDRESS, canonical(ADDRESS, value)) for value in values)


def test_addresses_and_networks() -> None:
    table = of("192.0.2.1", "198.51.100.0/24", "2001:db8::/32")
    for banned in (
        "192.0.2.1:1",
        "198.51.100.77:50000",
        "[2001:db8:1::1]:1",
        "[2001:db8::%eth0]:1",
    ):
        assert table.address(banned, 0.0), banned
    for free in ("192.0.2.2:1", "198.51.101.1:1", "[2001:db9::1]:1", "", "somewhere", "[::1]:1"):
        assert not table.address(free, 0.0), free
    assert table.of_addresses
    assert not BanTable([Ban(USER, "192.0.2.1")]).of_addresses
    assert not BanTable().address("192.0.2.1:1", 0.0)


def test_an_ipv4_address_has_two_forms() -> None:
    assert of("192.0.2.0/24").address("[::ffff:192.0.2.9]:1", 0.0)
    assert of("::ffff:192.0.2.9").address("192.0.2.9:1", 0.0)
    assert of("::ffff:192.0.2.0/120").address("192.0.2.200:1", 0.0)
    assert canonical(ADDRESS, "::ffff:192.0.2.9") == "192.0.2.9"


@given(st.lists(NETWORKS, max_size=6), st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_the_table_agrees_with_the_library(
    networks: list[tuple[object, int]], address: object
) -> None:
    texts = [f"{base}/{length}" for base, length in networks]
    mapped = getattr(address, "ipv4_mapped", None) or ip_address(str(address))
    expected = any(mapped in ip_network(canonical(ADDRESS, text)) for text in texts)
    assert of(*texts).address(peer(address), 0.0) is expected


def test_names() -> None:
    table = BanTable([Ban(USER, "eve"), Ban(CLIENT_ID, "sensor")])
    assert table.user("eve", 0.0)
    assert table.client_id("sensor", 0.0)
    assert not table.user("sensor", 0.0)
    assert not table.client_id("eve", 0.0)
    assert not table.user("Eve", 0.0)


def test_bans_end() -> None:
    table = BanTable([Ban(USER, "eve", 100.0), Ban(ADDRESS, "192.0.2.0/24", 100.0)])
    assert table.user("eve", 99.9)
    assert table.address("192.0.2.1:1", 99.9)
    assert not table.user("eve", 100.0)
    assert not table.address("192.0.2.1:1", 100.0)
    # Another ban of a wider network does not end with it.
    both = BanTable([Ban(ADDRESS, "192.0.2.1", 100.0), Ban(ADDRESS, "192.0.2.0/24")])
    assert both.address("192.0.2.1:1", 200.0)


@pytest.mark.parametrize(
    ("kind", "value", "spelled"),
    [
        (ADDRESS, "192.0.2.77/24", "192.0.2.0/24"),
        (ADDRESS, "192.0.2.1/32", "192.0.2.1"),
        (ADDRESS, "2001:DB8::0:1", "2001:db8::1"),
        (USER, "192.0.2.1/32", "192.0.2.1/32"),
    ],
)
def test_one_spelling(kind: str, value: str, spelled: str) -> None:
    assert ban_problem(kind, value) is None
    assert canonical(kind, value) == spelled


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("host", "a", "none of address, user, client_id"),
        (ADDRESS, "eve", "no address and no network"),
        (ADDRESS, "192.0.2.1/33", "no address and no network"),
        (ADDRESS, "", "no address and no network"),
        (USER, "", "an empty user"),
        (CLIENT_ID, "x" * (VALUE_CHARACTERS_MAX + 1), "more than 512 characters"),
    ],
)
def test_what_cannot_be_banned(kind: str, value: str, problem: str) -> None:
    found = ban_problem(kind, value)
    assert found is not None
    assert problem in found
    assert ban_problem(CLIENT_ID, "x" * VALUE_CHARACTERS_MAX) is None
