"""Address keys: the unit in which per-address limits count."""

from __future__ import annotations

from ipaddress import IPv6Address


def address_key(address: str) -> str:
    """Return the part of a peer's address that limits count: IPv4 whole, IPv6 by its first 64 bits.

    A single IPv6 customer owns at least a /64; counting single addresses would be futile. Raises
    ValueError.
    """
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else parsed.packed[:8].hex()


def is_loopback_key(key: str) -> bool:
    """Return whether an ``address_key`` is this machine's. ``::1`` shares its /64 only with
    reserved addresses."""
    return key.startswith("127.") or key == "0" * 16


def key_of_peer(peer: str) -> str:
    """Return the address key of ``address:port``; any other text is its own key."""
    try:
        return address_key(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return peer
