"""Web pages: which may connect, and which are nobody's."""

from __future__ import annotations

import pytest

from fluxmq.auth.origins import PageOrigin, origin_allowed, page_of


@pytest.mark.parametrize(
    ("origin", "allowed", "expected"),
    [
        ("https://a.example.test", ["https://a.example.test"], True),
        ("HTTPS://A.example.test", ["https://a.EXAMPLE.test"], True),
        ("https://a.example.test:8443", ["https://a.example.test"], False),
        ("http://a.example.test", ["https://a.example.test"], False),
        ("https://a.example.test", ["*.example.test"], True),
        ("http://b.a.example.test:81", ["*.example.test"], True),
        ("https://example.test", ["*.example.test"], False),
        ("https://evilexample.test", ["*.example.test"], False),
        ("https://example.test.evil.test", ["*.example.test"], False),
        ("https://evil.test/.example.test", ["*.example.test"], False),
        ("https://[::1", ["*.example.test"], False),
        ("null", ["*.example.test"], False),
        ("https://x.test", ["*"], True),
    ],
)
def test_origins(origin: str, allowed: list[str], expected: bool) -> None:
    assert origin_allowed(origin, allowed) is expected


@pytest.mark.parametrize(
    ("origin", "host", "page"),
    [
        ("http://localhost:8083", "localhost:8083", PageOrigin.LOCAL),
        ("http://127.0.0.1:8083", "127.0.0.1:8083", PageOrigin.LOCAL),
        ("http://[::1]:8083", "[::1]:8083", PageOrigin.LOCAL),
        ("HTTP://LocalHost", "localhost:80", PageOrigin.LOCAL),
        ("http://app.localhost", "app.localhost", PageOrigin.LOCAL),
        ("https://broker.example.com", "broker.example.com", PageOrigin.SAME),
        ("https://broker.example.com", "broker.example.com:443", PageOrigin.SAME),
        ("http://10.0.0.1:8083", "10.0.0.1:8083", PageOrigin.SAME),
        ("http://localhost:8000", "localhost:8083", None),
        ("http://localhost", "127.0.0.1", None),
        ("https://localhost", "localhost:80", None),
        ("https://evil.example", "localhost:8083", None),
        ("null", "localhost:8083", None),
        ("null", "null", None),
        ("file://", "localhost:8083", None),
        ("http://localhost:8083", "localhost:what", None),
        ("http://localhost:8083", "", None),
        ("http://[::1", "[::1", None),
    ],
)
def test_without_settings_only_pages_of_the_same_origin_connect(
    origin: str, host: str, page: PageOrigin | None
) -> None:
    """Review finding 6."""
    assert page_of([origin], [host], ()) is page


def test_what_settings_allow() -> None:
    """Review finding 6: what a wildcard lets in stays foreign; a name in full is somebody known."""
    here = ["localhost:8083"]
    assert page_of([], here, ()) is PageOrigin.NONE
    assert page_of([], [], ("https://a.example",)) is PageOrigin.NONE
    assert page_of(["https://a.example"], here, ("*",)) is PageOrigin.FOREIGN
    assert page_of(["https://a.b.example"], here, ("*.b.example",)) is PageOrigin.FOREIGN
    assert page_of(["https://A.example"], here, ("*", "https://a.EXAMPLE")) is PageOrigin.NAMED
    assert page_of(["http://localhost:8083"], here, ("*",)) is PageOrigin.LOCAL
    assert page_of(["http://localhost:8083"], here, ("https://a.example",)) is None
    assert page_of(["http://localhost:8083"] * 2, here, ("*",)) is None
    assert page_of(["http://localhost:8083"], here * 2, ("*",)) is PageOrigin.FOREIGN
    assert page_of(["http://localhost:8083"], here * 2, ()) is None
