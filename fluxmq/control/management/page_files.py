"""The pages of the management interface: files that a browser loads, which then uses the API.

They are the same for everyone and need no password; what they show comes from the API. Browsers run and
load nothing but these files (Content Security Policy Level 3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

from aiohttp import web

TYPES: Final = {
    "index.html": "text/html",
    "app.js": "text/javascript",
    "views.js": "text/javascript",
    "views_groups.js": "text/javascript",
    "views_mirrors.js": "text/javascript",
    "views_mqtt.js": "text/javascript",
    "views_node.js": "text/javascript",
    "live.js": "text/javascript",
    "dom.js": "text/javascript",
    "api.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def add_pages(router: web.UrlDispatcher) -> None:
    """Add the routes of the pages, the first one at ``/``."""
    folder = files(__package__) / "pages"
    for name, kind in TYPES.items():
        path = "/" if name == "index.html" else f"/{name}"
        router.add_get(path, _file((folder / name).read_bytes(), kind))


def _file(content: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def served(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)

    return served
