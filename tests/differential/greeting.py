"""The opening of a connection, step by step, so that a script can see where a broker refuses it."""

from __future__ import annotations

import struct
import time
from typing import Any

from tests.differential import wire
from tests.differential.peer import FRAME_MAX, Event, Peer, shown

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
"""What the client of the scripts can do, unless a script says otherwise."""

REFUSED_S = 8.0
"""RabbitMQ takes its time to answer a wrong password."""


def response(settings: dict[str, Any]) -> bytes:
    """What start-ok says in proof of who is there."""
    if "response" in settings:
        return str(settings["response"]).encode()
    user, password = str(settings.get("user", "guest")), str(settings.get("password", "guest"))
    if settings.get("mechanism") == "AMQPLAIN":
        return wire.table({"LOGIN": user, "PASSWORD": password})[4:]
    return f"\0{user}\0{password}".encode()


def offered(start: Event) -> str:
    """The broker's offer: capabilities and mechanisms, without its name and version."""
    capabilities = start.fields["server_properties"].get("capabilities", {})
    mechanisms = sorted(start.fields["mechanisms"].split())
    version = f"{start.fields['version_major']}-{start.fields['version_minor']}"
    locales = start.fields["locales"]
    return (
        f"connection.start {version} mechanisms={shown(mechanisms)} locales={shown(locales)}"
        f" capabilities={shown(capabilities)}"
    )


def open_peer(peer: Peer, settings: dict[str, Any]) -> list[str]:
    """Greet; the outcome ends with ``connection.open-ok`` or with what refused it.

    ``header``: other first bytes, in hexadecimal. ``show``: the offer is part of the outcome.
    """
    found: list[str] = []
    peer.send(bytes.fromhex(settings.get("header", wire.PROTOCOL_HEADER.hex())))
    start = peer.until(0, ("connection.start",))
    if start.name != "connection.start":
        return [start.text()]
    if settings.get("show"):
        found.append(offered(start))
    properties: dict[str, Any] = {
        "product": "differential",
        "capabilities": settings.get("capabilities", CAPABILITIES),
    }
    answer = {
        "client_properties": properties,
        "mechanism": settings.get("mechanism", "PLAIN"),
        "response": response(settings),
        "locale": settings.get("locale", "en_US"),
    }
    peer.send(wire.method(0, "connection.start-ok", answer))
    tune = peer.until(0, ("connection.tune", "connection.secure"), REFUSED_S)
    if tune.name != "connection.tune":
        return [*found, tune.text()]
    if settings.get("show"):
        found.append(tune.text())
    tuned = {
        "channel_max": settings.get("channel_max", tune.fields["channel_max"]),
        "frame_max": settings.get("frame_max", tune.fields["frame_max"]),
        "heartbeat": settings.get("heartbeat", 0),
    }
    peer.frame_max = min(tuned["frame_max"] or FRAME_MAX, FRAME_MAX)
    peer.send(wire.method(0, "connection.tune-ok", tuned))
    vhost = str(settings.get("vhost", "/"))
    peer.send(wire.method(0, "connection.open", {"virtual_host": vhost}))
    return [*found, peer.until(0, ("connection.open-ok",), REFUSED_S).text()]


def heartbeats(peer: Peer, seconds: float) -> int:
    """Heartbeat frames that come within so many seconds on a connection that is otherwise silent."""
    count = 0
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        peer.socket.settimeout(left)
        try:
            data = peer.socket.recv(65_536)
        except OSError:
            break
        if not data:
            break
        peer.received += data
        while len(peer.received) >= 8:
            size = struct.unpack(">I", peer.received[3:7])[0]
            if len(peer.received) < size + 8:
                break
            count += peer.received[0] == wire.HEARTBEAT
            del peer.received[: size + 8]
    return count
