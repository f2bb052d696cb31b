"""The supervisor's start message, for a person on a terminal or as one log line."""

from __future__ import annotations

import os
from pathlib import Path

from fluxmq import __version__
from fluxmq.settings.listeners import ClientTlsListener
from fluxmq.settings.schema import Settings
from fluxmq.supervisor.placement import Plan


def facts(
    settings: Settings, source: str, plan: Plan, data_dir: Path, hot_path: str
) -> dict[str, str]:
    """Return names and values in display order. ``source`` is the file the settings come from."""
    found: dict[str, str] = {}
    mqtt = settings.server.mqtt
    if mqtt.tcp is not None:
        found["mqtt"] = mqtt.tcp.addr
    if mqtt.tls is not None:
        found["mqtt tls"] = mqtt.tls.addr + _client_certificate(mqtt.tls)
    if mqtt.websocket is not None:
        found["websocket"] = f"ws://{mqtt.websocket.addr}{mqtt.websocket.path}"
    if mqtt.websocket_tls is not None:
        wss = mqtt.websocket_tls
        found["websocket tls"] = f"wss://{wss.addr}{wss.path}" + _client_certificate(wss)
    amqp = settings.server.amqp
    if amqp.tcp is not None:
        found["amqp"] = amqp.tcp.addr
    if amqp.tls is not None:
        found["amqp tls"] = amqp.tls.addr + _client_certificate(amqp.tls)
    for path, listener in settings.http_listeners():
        name = path.rpartition(".")[2]
        found[name] = f"{'https' if name == 'https' else 'http'}://{listener.addr}"
    where = f"cores {spell_cores(plan)}" if plan.bound else "cores chosen by the kernel"
    found["workers"] = f"{plan.workers} on {where}"
    found["settings"] = source
    found["data"] = str(data_dir)
    found["hot path"] = hot_path
    found["pid"] = str(os.getpid())
    return found


def _client_certificate(listener: ClientTlsListener) -> str:
    """Return the listener's requirement for client certificates, if any."""
    wanted = listener.client_auth
    return "" if wanted == "none" else f" (client certificate: {wanted})"


def spell_cores(plan: Plan) -> str:
    """Return the cores in use, as ``0-3, 8``."""
    ranges: list[list[int]] = []
    for core in sorted(set(plan.cores)):
        if ranges and core == ranges[-1][-1] + 1:
            ranges[-1].append(core)
        else:
            ranges.append([core])
    return ", ".join(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in ranges)


def text(found: dict[str, str]) -> str:
    """Return the banner for a terminal."""
    width = max(len(name) for name in found)
    lines = [
        f"FluxMQ {__version__}",
        *(f"  {name:<{width}}  {value}" for name, value in found.items()),
    ]
    return "\n".join(lines)
