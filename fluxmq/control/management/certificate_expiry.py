"""The health check that no listener's certificate expires soon, as RabbitMQ has it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.overview import PROTOCOLS, NodeView
from fluxmq.control.management.requests import ApiRoute, Call, answer, bad_request
from fluxmq.net.certificates import facts_of
from fluxmq.net.tls import TlsSettingsError
from fluxmq.settings.listeners import AnyTlsListener, ClientTlsListener, ListenSettings

_DAY: Final = 86_400.0
UNITS: Final = {"days": _DAY, "weeks": 7 * _DAY, "months": 365 / 12 * _DAY, "years": 365 * _DAY}
"""Seconds of RabbitMQ's units."""
DIGITS_MAX: Final = 5
"""Digits of the number of units: far beyond the age of any certificate."""


class CertificateExpiry:
    """Serves the route."""

    def __init__(self, node: NodeView) -> None:
        self._node = node

    def routes(self) -> list[ApiRoute]:
        """Return the route."""
        path = "health/checks/certificate-expiration/{within}/{unit}"
        return [ApiRoute("GET", path, self._check)]

    async def _check(self, call: Call) -> web.Response:
        number, unit = call.part("within"), call.part("unit").lower()
        if not (number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX):
            raise bad_request("Invalid expiration value.")
        if unit not in UNITS:
            raise bad_request(f"Time unit not recognised. Supported units: {', '.join(UNITS)}.")
        until = time.time() + int(number) * UNITS[unit]
        expired = await asyncio.to_thread(self._expiring, until)
        if not expired:
            return answer({"status": "ok"})
        return answer(
            {"status": "failed", "reason": "Certificates expiring", "expired": expired}, 503
        )

    def _expiring(self, until: float) -> list[JsonRow]:
        """Return the listeners with certificates that expire before ``until``, or cannot be read."""
        found = []
        for path, listener in self._node.settings.endpoints():
            files, authorities = _files_of(listener)
            ends = [each for name in files for each in _ends(name, until)]
            authority_ends = [each for name in authorities for each in _ends(name, until)]
            if ends or authority_ends:
                row = {
                    "node": self._node.name,
                    "protocol": PROTOCOLS.get(path, path),
                    "interface": listener.host or "::",
                    "port": listener.port,
                    "certfile": ", ".join(files),
                    "cacertfile": ", ".join(authorities),
                    "certfile_expires_on": ends,
                    "cacertfile_expires_on": authority_ends,
                }
                found.append(row)
        return found


def _files_of(listener: ListenSettings) -> tuple[list[str], list[str]]:
    """Return a listener's files of certificates, and those of authorities for its clients."""
    if not isinstance(listener, AnyTlsListener):
        return [], []
    files = [listener.cert_file, *(each.cert_file for each in listener.sni_certificates)]
    trusted = listener.ca_file if isinstance(listener, ClientTlsListener) else None
    return files, [] if trusted is None else [trusted]


def _ends(name: str, until: float) -> list[str]:
    """Return the end of a certificate's validity if it lies before ``until``."""
    try:
        expires = facts_of(name).expires
    except TlsSettingsError as problem:
        return [str(problem)]
    if expires >= until:
        return []
    return [f"{datetime.fromtimestamp(expires, UTC):%Y-%m-%d %H:%M:%S}"]
