"""Who is let in at an address for other nodes, before anything is known but where somebody comes from."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from fluxmq.cluster import channels, door
from fluxmq.cluster.door import Door, Visit, plain

MEMBER, STRANGER = "192.0.2.1", "198.51.100.7"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test reaches."""
    monkeypatch.setattr(channels, "SOCKETS_MAX", 6)
    monkeypatch.setattr(channels, "STRANGERS_MAX", 3)
    monkeypatch.setattr(channels, "HANDSHAKES_MAX", 4)
    monkeypatch.setattr(channels, "STRANGERS_HANDSHAKES_MAX", 2)


def let_in(at: Door, address: str, handshake: bool = False) -> Visit:
    found = at.enter(address, handshake)
    assert isinstance(found, Visit), found
    return found


def refused(at: Door, address: str, handshake: bool = False) -> str:
    found = at.enter(address, handshake)
    assert isinstance(found, str)
    return found


def test_strangers_leave_room_for_members() -> None:
    """Review finding 16: they have a share of the connections, and no more."""
    at = Door([MEMBER])
    strangers = [let_in(at, STRANGER) for _ in range(3)]
    assert refused(at, STRANGER) == "there are 3 connections from unknown addresses"
    members = [let_in(at, MEMBER) for _ in range(3)]
    assert refused(at, MEMBER) == "there are 6 connections already"
    members[0].leave()
    assert "unknown addresses" in refused(at, STRANGER)
    let_in(at, MEMBER)
    strangers[0].leave()
    strangers[0].leave()
    assert (at.inside, at.strangers) == (5, 2)
    let_in(at, STRANGER)
    assert (at.inside, at.strangers) == (6, 3)


def test_handshakes_under_way_are_bounded() -> None:
    """Review finding 16: whoever does not finish one holds a share, and no more."""
    at = Door([MEMBER])
    strangers = [let_in(at, STRANGER, True) for _ in range(2)]
    assert "TLS handshakes with unknown addresses" in refused(at, STRANGER, True)
    members = [let_in(at, MEMBER, True) for _ in range(2)]
    assert refused(at, MEMBER, True) == "4 TLS handshakes are under way"
    members[0].shaken()
    let_in(at, MEMBER, True)
    strangers[0].shaken()
    strangers[1].leave()
    assert (at.shaking, at.strangers_shaking, at.inside) == (2, 0, 4)
    for _ in range(2):
        let_in(at, STRANGER, True)


@pytest.mark.parametrize(
    ("host", "address", "known"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("[2001:db8::1]", "2001:db8:0:0::1", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "", False),
        ("192.0.2.1", "/a/path", False),
    ],
)
def test_an_address_is_known_in_whatever_form(host: str, address: str, known: bool) -> None:
    assert Door([host]).knows(address) is known


def test_names_of_members_are_resolved_and_again_when_somebody_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Review finding 16: a member is known by its name's addresses, also when these change."""
    asked: list[str] = []
    addresses: dict[str, list[str]] = {"node2.example": [MEMBER]}

    async def scenario() -> None:
        async def getaddrinfo(name: str, port: Any) -> list[Any]:
            asked.append(name)
            if not addresses[name]:
                raise socket.gaierror(socket.EAI_AGAIN, "try again")
            return [(0, 0, 0, "", (each, 0)) for each in addresses[name]]

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        at = Door(["node2.example"])
        assert not at.knows(MEMBER)
        at.look()
        assert at._resolving is not None
        await at._resolving
        assert at.knows(MEMBER)
        addresses["node2.example"] = [STRANGER]
        for _ in range(3):
            let_in(at, STRANGER)
        refused(at, STRANGER)
        assert len(asked) == 1, "it was looked at just now"
        monkeypatch.setattr(door, "RESOLVE_SECONDS", 0.0)
        refused(at, STRANGER)
        await at._resolving
        let_in(at, STRANGER)
        assert not at.knows(MEMBER)
        addresses["node2.example"] = []
        at.look()
        await at._resolving
        assert at.knows(STRANGER), "what was known holds while nothing better is"
        at.look()
        await at.close()
        assert at._resolving.done()

    asyncio.run(scenario())


def test_plain_addresses() -> None:
    assert plain("::FFFF:1.2.3.4") == "1.2.3.4"
    with pytest.raises(ValueError, match="does not appear"):
        plain("node1")
