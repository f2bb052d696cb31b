"""The certificates of a listener: by the name asked for, and after a reload."""

import ssl
from pathlib import Path

import pytest

from fluxmq.net import certificates
from fluxmq.net.certificates import ListenerCertificates, chosen
from fluxmq.net.tls import TlsSettingsError
from fluxmq.settings.listeners import HttpsListener, TlsListener, WebSocketTlsListener
from tests.certificate_maker import Authority, replace, shown_to


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def listener(authority: Authority, *more: str) -> TlsListener:
    default = authority.pair("default")
    return TlsListener(
        addr="127.0.0.1:8883",
        cert_file=default.cert_file,
        key_file=default.key_file,
        sni_certificates=tuple(authority.pair(each) for each in more),
    )


def test_names_choose_certificates(authority: Authority) -> None:
    """Exact names before wildcards, earlier certificates before later ones, else the first."""
    authority.issue("default", "a.example.com", "b.example.org")
    authority.issue("wild", "*.example.com")
    authority.issue("exact", "B.example.com", "b.example.org")
    held = ListenerCertificates(listener(authority, "wild", "exact"))
    client = authority.client_context()

    def shown(name: str | None) -> str:
        return shown_to(held.context, client, name)[0]

    assert shown(None) == "default"
    assert shown("a.example.com") == "default"
    assert shown("b.example.org") == "default"
    assert shown("c.example.com") == "wild"
    assert shown("C.EXAMPLE.COM") == "wild"
    assert shown("b.example.com") == "exact"
    assert shown("x.c.example.com") == "default"
    assert shown("example.com") == "default"
    assert shown("elsewhere.net") == "default"


def test_one_certificate_has_no_names_to_choose_by(authority: Authority) -> None:
    authority.issue("default")
    held = ListenerCertificates(listener(authority))
    assert held.context.sni_callback is None
    assert chosen({}, "any.example.com") is None


def test_further_handshakes_get_the_new_certificate(authority: Authority) -> None:
    """A connection of before goes on, one that is made after the reload gets what is new."""
    authority.issue("default")
    authority.issue("other", "old.example.com")
    held = ListenerCertificates(listener(authority, "other"))
    client = authority.client_context()
    _, before = shown_to(held.context, client, None)
    authority.issue("other", "new.example.com")
    assert shown_to(held.context, client, "old.example.com")[0] == "other"
    held.reload()
    assert shown_to(held.context, client, "old.example.com")[0] == "default"
    assert shown_to(held.context, client, "new.example.com")[0] == "other"
    assert before.encode([b"still here"])
    assert not before.closed


def test_a_bad_file_keeps_the_previous_certificates(authority: Authority) -> None:
    default = authority.issue("default")
    other = authority.issue("other", "other.example.com")
    held = ListenerCertificates(listener(authority, "other"))
    kept = held.context
    replace(Path(other.key_file), Path(default.key_file).read_bytes())
    with pytest.raises(TlsSettingsError, match=r"other\.pem"):
        held.reload()
    assert held.context is kept
    authority.issue("other")  # without names
    with pytest.raises(TlsSettingsError, match="names no host"):
        held.reload()
    replace(Path(other.cert_file), b"")
    with pytest.raises(TlsSettingsError, match=r"other\.pem"):
        held.reload()
    assert held.context is kept
    assert shown_to(held.context, authority.client_context(), "other.example.com")[0] == "other"


def test_a_server_that_takes_one_context_for_good(authority: Authority) -> None:
    """Each handshake gets the current certificate, also without a name."""
    default = authority.issue("default")
    authority.issue("other", "other.example.com")
    https = HttpsListener(
        addr="127.0.0.1:15671",
        cert_file=default.cert_file,
        key_file=default.key_file,
        sni_certificates=(authority.pair("other"),),
    )
    held = ListenerCertificates(https)
    fixed, client = held.fixed_context(), authority.client_context()
    assert shown_to(fixed, client, "other.example.com")[0] == "other"
    renewed = authority.issue("renewed")
    replace(Path(default.cert_file), Path(renewed.cert_file).read_bytes())
    replace(Path(default.key_file), Path(renewed.key_file).read_bytes())
    assert shown_to(fixed, client, None)[0] == "default"
    held.reload()
    assert shown_to(fixed, client, None)[0] == "renewed"
    assert shown_to(fixed, client, "else.example.com")[0] == "renewed"
    assert shown_to(fixed, client, "other.example.com")[0] == "other"


def test_client_certificates_are_asked_for_under_every_name(authority: Authority) -> None:
    """A name must not be a way around client_auth."""
    default = authority.issue("default")
    authority.issue("other", "other.example.com")
    own = authority.issue("device")
    required = TlsListener(
        addr="127.0.0.1:8883",
        cert_file=default.cert_file,
        key_file=default.key_file,
        ca_file=str(authority.ca_file),
        client_auth="require",
        sni_certificates=(authority.pair("other"),),
    )
    held = ListenerCertificates(required)
    with_own = authority.client_context()
    with_own.load_cert_chain(own.cert_file, own.key_file)
    for name in (None, "other.example.com"):
        _, stream = shown_to(held.context, with_own, name)
        identity = stream.peer_identity()
        assert identity is not None
        assert identity.common_name == "device"
        without = authority.client_context()
        without.maximum_version = ssl.TLSVersion.TLSv1_2  # which tells it in the handshake
        with pytest.raises((ssl.SSLError, AssertionError)):
            shown_to(held.context, without, name)


def test_protocols_offered(authority: Authority) -> None:
    """Browsers offer http/1.1 for wss, MQTT clients mqtt (or nothing)."""
    default = authority.issue("default")
    wss = WebSocketTlsListener(
        addr="127.0.0.1:8084", cert_file=default.cert_file, key_file=default.key_file
    )
    for each, protocol in ((wss, "http/1.1"), (listener(authority), "mqtt")):
        client = authority.client_context()
        client.set_alpn_protocols([protocol])
        _, stream = shown_to(ListenerCertificates(each).context, client, None)
        assert stream._tls.selected_alpn_protocol() == protocol


def test_facts_of_something_else(tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    with pytest.raises(TlsSettingsError, match=r"x\.pem"):
        certificates.facts_of(str(file))
    file.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(TlsSettingsError, match=r"x\.pem"):
        certificates.facts_of(str(file))
