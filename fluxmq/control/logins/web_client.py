"""Requests of login backends to servers, by HTTP."""

from __future__ import annotations

import ssl
from typing import Final

import aiohttp

from fluxmq.control.logins.backend import BackendError, BackendSettingsError

ANSWER_BYTES_MAX: Final = 256 << 10
"""Bytes read of a server's answer: a hundred keys with their certificates."""
CONNECTIONS_MAX: Final = 64
"""Connections to one server."""


class WebClient:
    """Requests to one server, by HTTP with a deadline, without redirects. Lives on the loop."""

    def __init__(self, ca_file: str | None, seconds: float) -> None:
        """Raise BackendSettingsError when the certificates cannot be loaded."""
        try:
            self._tls = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as problem:
            raise BackendSettingsError(f"ca_file: {ca_file}: {problem}") from problem
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._session: aiohttp.ClientSession | None = None

    async def request(self, method: str, url: str, values: dict[str, str] | None = None) -> bytes:
        """Return the body of a successful answer. ``values``: sent in the address with GET, as a
        form with POST. Raises BackendError."""
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls, limit=CONNECTIONS_MAX)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        form, query = (values, None) if method == "POST" else (None, values)
        try:
            async with self._session.request(
                method, url, data=form, params=query, allow_redirects=False
            ) as answer:
                body = await answer.content.read(ANSWER_BYTES_MAX + 1)
                while len(body) <= ANSWER_BYTES_MAX and (
                    more := await answer.content.read(ANSWER_BYTES_MAX + 1)
                ):
                    body += more
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
            # The text of some errors holds the address, and that may hold a password.
            raise BackendError(f"no answer: {type(problem).__name__}") from problem
        if answer.status not in (200, 201):
            raise BackendError(f"the answer has status {answer.status}")
        if len(body) > ANSWER_BYTES_MAX:
            raise BackendError(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
        return body

    async def stop(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
