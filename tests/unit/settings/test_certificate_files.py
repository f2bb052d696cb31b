"""Certificates in the settings: several on a listener, and the facts in their files."""

from pathlib import Path

import pytest

from fluxmq.settings import SettingsError, load, refusals
from fluxmq.settings.certificate_files import certificate_facts
from fluxmq.settings.listeners import SNI_CERTIFICATES_MAX
from fluxmq.settings.schema import Settings
from tests.certificate_maker import Authority

SERVER = Path(__file__).parents[2] / "certificates" / "server.pem"


def loaded(directory: Path, text: str) -> Settings:
    file = directory / "fluxmq.yaml"
    file.write_text(text)
    return load(file, {})


def problems(directory: Path, text: str) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        loaded(directory, text)
    return {problem.path: problem.message for problem in caught.value.problems}


def spelled(directory: Path, file: str) -> str:
    return f"cert_file: {directory / file}.pem, key_file: {directory / file}.key"


def test_facts() -> None:
    """Names in lower case, wildcards included, and the end in Unix time."""
    facts = certificate_facts(SERVER.read_bytes())
    assert facts.names == ("localhost",)
    assert facts.expires > 4e9  # a hundred years
    for wrong in (b"", b"nonsense", SERVER.read_bytes()[:300]):
        with pytest.raises(ValueError, match="PEM"):
            certificate_facts(wrong)


def test_facts_of_the_first_certificate(tmp_path: Path) -> None:
    """A server's own stands before its intermediates."""
    authority = Authority(tmp_path)
    first = Path(authority.issue("first", "A.example.com", "*.B.example.com").cert_file)
    without = Path(authority.issue("without").cert_file)
    facts = certificate_facts(first.read_bytes() + SERVER.read_bytes())
    assert facts.names == ("a.example.com", "*.b.example.com")
    assert certificate_facts(without.read_bytes()).names == ()


def test_several_certificates_survive_the_way_to_the_children(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("one", "one.example.com")
    authority.issue("two", "two.example.com")
    settings = loaded(
        tmp_path,
        f"""
        server:
          mqtt:
            websocket_tls:
              addr: ":8084"
              {spelled(tmp_path, "one").replace(", ", chr(10) + " " * 14)}
              sni_certificates: [{{{spelled(tmp_path, "two")}}}]
        """,
    )
    wss = settings.server.mqtt.websocket_tls
    assert wss is not None
    assert wss.path == "/mqtt"
    assert [Path(pair.cert_file).name for pair in wss.sni_certificates] == ["two.pem"]
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert [path for path, _ in settings.tls_listeners()] == ["server.mqtt.websocket_tls"]
    assert refusals(settings) == []


def test_each_wrong_certificate_is_named_by_its_path(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name in ("one", "two"):
        authority.issue(name, f"{name}.example.com")
    authority.issue("nameless")
    mixed = f"cert_file: {tmp_path}/one.pem, key_file: {tmp_path}/two.key"
    pairs = (
        f"{{{mixed}}}, {{{spelled(tmp_path, 'nameless')}}}, {{cert_file: {tmp_path}/none.pem,"
        f" key_file: {tmp_path}/one.key, key_password_file: {tmp_path}/absent}}"
    )
    found = problems(
        tmp_path,
        f"server: {{https: {{addr: ':443', {spelled(tmp_path, 'one')}, sni_certificates: [{pairs}]}}}}",
    )
    start = "server.https.sni_certificates"
    assert set(found) == {
        f"{start}[0].cert_file",
        f"{start}[1].cert_file",
        f"{start}[2].cert_file",
        f"{start}[2].key_password_file",
    }
    assert found[f"{start}[0].cert_file"].startswith("cannot be used with key_file")
    assert found[f"{start}[1].cert_file"].startswith("names no host")
    assert found[f"{start}[2].cert_file"].endswith("none.pem: no such file")


def test_the_number_of_certificates_is_bounded(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("one", "one.example.com")
    pairs = ", ".join([f"{{{spelled(tmp_path, 'one')}}}"] * (SNI_CERTIFICATES_MAX + 1))
    for section in ("amqp: {tls", "https"):
        end = "}" * (2 + section.count("{"))
        found = problems(
            tmp_path,
            f"server: {{{section}: {{addr: ':5671', {spelled(tmp_path, 'one')}, sni_certificates: [{pairs}]{end}",
        )
        [message] = found.values()
        assert message == f"may hold at most {SNI_CERTIFICATES_MAX} certificates"


def test_an_encrypted_listener_is_not_noted_as_plain(tmp_path: Path) -> None:
    from fluxmq.settings import notes

    authority = Authority(tmp_path)
    authority.issue("one", "one.example.com")
    settings = loaded(
        tmp_path,
        f"server: {{mqtt: {{websocket_tls: {{addr: ':8084', {spelled(tmp_path, 'one')}}}}}}}",
    )
    assert not any("unencrypted" in note for note in notes(settings))
