"""Whom limits by address count as one."""

from __future__ import annotations

import pytest

from fluxmq.auth.addresses import address_key, is_loopback_key, key_of_peer


@pytest.mark.parametrize(
    ("address", "key", "loopback"),
    [
        ("192.0.2.1", "192.0.2.1", False),
        ("127.3.2.1", "127.3.2.1", True),
        ("::1", "0000000000000000", True),
        ("::ffff:192.0.2.1", "192.0.2.1", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("2001:db8:1:2:3:4:5:6", "20010db800010002", False),
        ("2001:db8:1:2::", "20010db800010002", False),
        ("fe80::1%eth0", "fe80000000000000", False),
    ],
)
def test_address_keys(address: str, key: str, loopback: bool) -> None:
    assert address_key(address) == key
    assert is_loopback_key(key) is loopback


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("192.0.2.1:5000", "192.0.2.1"),
        ("[2001:db8:1:2::9]:5000", "20010db800010002"),
        ("::1:5000", "0000000000000000"),
        ("x:y:z:1", "x:y:z:1"),
        ("", ""),
    ],
)
def test_the_key_of_a_peer(peer: str, key: str) -> None:
    assert key_of_peer(peer) == key
