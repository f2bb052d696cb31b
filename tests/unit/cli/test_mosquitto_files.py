"""Conversion of mosquitto's configuration, passwords and rules."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

import pytest
import yaml

from fluxmq.auth.credentials import SALT_BYTES, HashParameters, PasswordVerifier, hash_problem
from fluxmq.cli.main import run
from fluxmq.cli.mosquitto_files import convert
from fluxmq.settings.load import load

HASH = "$7$101$" + base64.b64encode(b"s" * 12).decode() + "$" + base64.b64encode(b"h" * 64).decode()
VERIFIER = PasswordVerifier(HashParameters(1, 8), b"d" * SALT_BYTES)

CONF = """
# A comment
listener 1883 0.0.0.0
max_connections 500
listener 9001 ::1
protocol websockets

allow_anonymous true
password_file passwords
acl_file rules
persistence true
persistent_client_expiration 2w
max_queued_messages 50
max_queued_bytes 0
max_inflight_messages 20
message_size_limit 100000
max_keepalive 120
log_dest stdout
"""
RULES = """
topic read public/#
topic $SYS/broker/uptime

user ann
topic readwrite home/#
topic write alarm/new
user cleo
topic cleo's own/#
pattern readwrite devices/%c/#
pattern write users/%u/state
"""


def test_everything_is_converted(tmp_path: Path) -> None:
    made = convert(CONF, f"ann:{HASH}\n\n# Bob has no rules of his own\nbob:{HASH}\n", RULES)
    assert made.settings == {
        "server": {
            "mqtt": {
                "tcp": {"addr": ":1883", "max_connections": 500},
                "websocket": {"addr": "[::1]:9001"},
            }
        },
        "auth": {
            "anonymous": {
                "allow": "always",
                "publish": ["$SYS/broker/uptime", "devices/{client_id}/#"],
                "subscribe": ["public/#", "$SYS/broker/uptime", "devices/{client_id}/#"],
            }
        },
        "session": {
            "default_expiry_interval": "14d",
            "max_expiry_interval": "14d",
            "max_offline_queue_size": 50,
            "max_inflight_messages": 20,
        },
        "broker": {"max_packet_size": 100000, "keep_alive_maximum": "120s"},
    }
    ann, bob = made.definitions["users"]
    assert ann == {
        "name": "ann",
        "password_hash": HASH,
        "tags": [],
        "publish": ["home/#", "alarm/new", "devices/{client_id}/#", "users/{username}/state"],
        "subscribe": ["home/#", "devices/{client_id}/#"],
    }
    assert bob["publish"] == ["devices/{client_id}/#", "users/{username}/state"]
    assert made.notes == [
        "line 14: max_queued_bytes 0: the limit is FluxMQ's default",
        "line 18: log_dest is not taken over",
        "user cleo has rules and no password, and is left out",
    ]
    file = tmp_path / "fluxmq.yaml"
    file.write_text(yaml.safe_dump(made.settings))
    settings = load(file, {})
    assert settings.server.mqtt.tcp is not None
    assert settings.session.max_expiry_interval == 14 * 86400


def test_tls_listeners_and_users_of_certificates() -> None:
    conf = (
        "listener 8883\ncertfile c.pem\nkeyfile k.pem\ncafile ca.pem\nrequire_certificate true\n"
        "use_identity_as_username true\ntls_version tlsv1.3\nlistener 8884\ncertfile d.pem\nacl_file f\n"
    )
    made = convert(conf, "", "user device\ntopic read a\n")
    assert made.settings["server"]["mqtt"] == {
        "tls": {
            "addr": ":8883",
            "cert_file": "c.pem",
            "key_file": "k.pem",
            "ca_file": "ca.pem",
            "client_auth": "require",
            "min_version": "1.3",
        }
    }
    assert made.settings["auth"]["anonymous"]["allow"] == "never"
    assert made.notes == ["listener :8884: only one of kind tls is supported"]
    assert made.definitions["users"] == [
        {"name": "device", "tags": [], "publish": [], "subscribe": ["a"]}
    ]


def test_a_websocket_listener_with_a_certificate_is_wss() -> None:
    conf = "listener 9001\nprotocol websockets\ncertfile c.pem\nkeyfile k.pem\n"
    assert convert(conf, "", "").settings["server"]["mqtt"] == {
        "websocket_tls": {"addr": ":9001", "cert_file": "c.pem", "key_file": "k.pem"}
    }


@pytest.mark.parametrize(
    ("conf", "addr", "allow"),
    [
        ("", "127.0.0.1:1883", "always"),
        ("allow_anonymous false", "127.0.0.1:1883", "never"),
        ("port 1884", ":1884", "never"),
        ("bind_address 127.0.0.2\nport 1884", "127.0.0.2:1884", "never"),
    ],
)
def test_defaults_are_mosquittos(conf: str, addr: str, allow: str) -> None:
    made = convert(conf, "", "")
    assert made.settings["server"]["mqtt"]["tcp"]["addr"] == addr
    assert made.settings["auth"]["anonymous"] == {
        "allow": allow,
        "publish": ["#"],
        "subscribe": ["#", "$SYS/#"],
    }


@pytest.mark.parametrize(
    ("conf", "passwords", "rules", "reason"),
    [
        ("per_listener_settings true", "", "", "line 1: per_listener_settings"),
        ("\ninclude_dir /etc/m", "", "", "line 2: include_dir"),
        ("listener 0 /run/m.sock", "", "", "line 1: only listeners on a TCP port"),
        ("persistent_client_expiration long", "", "", "line 1: long is not a time"),
        ("", "a:plain", "", "password file, line 1: the password is not hashed"),
        ("", "a:$7$0$AAAA$AAAA", "", "password file, line 1: hash is not usable"),
        ("", f"a b :{HASH}", "", "password file, line 1: name"),
        ("acl_file f", "", "topic deny secret/#", "ACL file, line 1: FluxMQ only permits"),
        ("acl_file f", "", "topic read a/#/b", "ACL file, line 1: filter"),
        ("acl_file f", "", "allow everything", "ACL file, line 1: allow is not known"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    conf: str, passwords: str, rules: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        convert(conf, passwords, rules)


def test_persistence_cannot_be_switched_off() -> None:
    made = convert("persistence false\n", "", "")
    assert made.notes == ["line 1: FluxMQ always stores what it acknowledges"]


def test_both_kinds_of_hashes_verify() -> None:
    salt, password = b"s" * 12, b"secret"
    digest = hashlib.sha512(password + salt).digest()
    pbkdf2 = hashlib.pbkdf2_hmac("sha512", password, salt, 101)
    text = base64.b64encode(salt).decode()
    for stored in (
        f"$6${text}${base64.b64encode(digest).decode()}",
        f"$7$101${text}${base64.b64encode(pbkdf2).decode()}",
    ):
        assert hash_problem(stored) is None
        assert VERIFIER.verify(password, stored)
        assert not VERIFIER.verify(b"other", stored)


@pytest.mark.parametrize(
    "stored", ["$7$1000001$AAAA$AAAA", "$7$101$AAAA$AAAA", "$6$AAAA$!", "$7$x$AAAA$AAAA", "$6$A"]
)
def test_damaged_hashes_are_refused(stored: str) -> None:
    assert hash_problem(stored)
    assert not VERIFIER.verify(b"secret", stored)


def test_the_command_writes_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The password file is one that mosquitto's own program wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mosquitto.conf").write_text("listener 1883\npassword_file passwords\n")
    command = ["mosquitto_passwd", "-b", "-c", "passwords", "ann", "secret of ann"]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "passwords").chmod(0o644)
    assert run(["import-mosquitto", "mosquitto.conf"]) == 0
    assert "1 user(s): definitions.json" in capsys.readouterr().out
    settings = load(tmp_path / "fluxmq.yaml", {})
    assert settings.auth.anonymous.allow == "never"
    assert (tmp_path / "definitions.json").stat().st_mode & 0o777 == 0o600
    assert run(["import-mosquitto", "mosquitto.conf"]) == 1, "the files exist"
    assert "fluxmq.yaml" in capsys.readouterr().err
    assert run(["import-mosquitto", "absent.conf"]) == 1
    assert "absent.conf" in capsys.readouterr().err
