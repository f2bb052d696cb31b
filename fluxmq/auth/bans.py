"""Bans: addresses, users and client ids that may not connect, for a time or for good.

Pure: time is an argument. A ban of an address is of one address or of a network; the two forms of
an IPv4 address (``192.0.2.1``, ``::ffff:192.0.2.1``) are one. Networks are looked up by their
prefix lengths, of which few are in use, so a connection costs some dictionary look-ups however many
bans there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

ADDRESS: Final = "address"
USER: Final = "user"
CLIENT_ID: Final = "client_id"
KINDS: Final = (ADDRESS, USER, CLIENT_ID)

BANS_MAX: Final = 4096
"""Bans that there may be: all of them travel in one message to each process, and people keep the list. Use
a firewall for more addresses than that."""
VALUE_CHARACTERS_MAX: Final = 512
REASON_CHARACTERS_MAX: Final = 200
"""Longest banned name, and note: one frame of 16 MiB holds `BANS_MAX` of them."""

_MAPPED: Final = IPv6Network("::ffff:0:0/96")


@dataclass(frozen=True, slots=True)
class Ban:
    """One ban. ``kind``: of `KINDS`; ``until``: its end as Unix time, None for good; ``reason``: a
    note for people."""

    kind: str
    value: str
    until: float | None = None
    reason: str = ""

    def holds(self, now: float) -> bool:
        """Return whether it is in force."""
        return self.until is None or now < self.until


def ban_problem(kind: str, value: str) -> str | None:
    """Return why a thing cannot be banned, as the end of a sentence for people; None if it can."""
    if kind not in KINDS:
        return f"{kind!r} cannot be banned: it is none of {', '.join(KINDS)}"
    if kind == ADDRESS:
        try:
            network_of(value)
        except ValueError:
            return f"{value!r} is no address and no network such as 192.0.2.0/24"
    elif not value:
        return f"an empty {kind} cannot be banned"
    elif len(value) > VALUE_CHARACTERS_MAX:
        return f"a {kind} of more than {VALUE_CHARACTERS_MAX} characters cannot be banned"
    return None


def canonical(kind: str, value: str) -> str:
    """Return the one spelling of a banned thing: an address without a prefix length, a network
    with its host bits cleared."""
    if kind != ADDRESS:
        return value
    network = network_of(value)
    whole = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if whole else str(network)


def network_of(text: str) -> IPv4Network | IPv6Network:
    """Return the network that an address or a network in CIDR notation stands for. Raises
    ValueError."""
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        address = network.network_address.ipv4_mapped
        assert address is not None, "it is in the network of mapped addresses"
        return IPv4Network((address, network.prefixlen - 96))
    return network


class BanTable:
    """Bans by what they concern; ended ones are passed over."""

    def __init__(self, bans: Iterable[Ban] = ()) -> None:
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}
        """Networks by version and prefix length, each with its leading bits."""
        self._names: dict[tuple[str, str], Ban] = {}
        for ban in bans:
            if ban.kind == ADDRESS:
                network = network_of(ban.value)
                shift = network.max_prefixlen - network.prefixlen
                found = self._networks.setdefault((network.version, shift), {})
                found[int(network.network_address) >> shift] = ban
            else:
                self._names[ban.kind, ban.value] = ban

    @property
    def of_addresses(self) -> bool:
        """Whether any address is banned."""
        return bool(self._networks)

    def address(self, peer: str, now: float) -> bool:
        """Return whether the address in ``address:port`` is banned."""
        if not self._networks:
            return False
        try:
            address = ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        bits, version = int(address), address.version
        for (of_version, shift), found in self._networks.items():
            if of_version == version:
                ban = found.get(bits >> shift)
                if ban is not None and ban.holds(now):
                    return True
        return False

    def user(self, name: str, now: float) -> bool:
        """Return whether a user is banned."""
        return self._named(USER, name, now)

    def client_id(self, name: str, now: float) -> bool:
        """Return whether an MQTT client id is banned."""
        return self._named(CLIENT_ID, name, now)

    def _named(self, kind: str, name: str, now: float) -> bool:
        ban = self._names.get((kind, name))
        return ban is not None and ban.holds(now)
