"""SIGHUP: what is taken over, what waits, what is refused."""

from pathlib import Path

import pytest

from fluxmq.settings import Settings, load
from fluxmq.supervisor.settings_reload import SettingsReload, merge

FILE = """
server: {{mqtt: {{tcp: {{addr: "127.0.0.1:{port}"}}}}}}
broker: {{max_qos: {qos}, max_packet_size: {packet}}}
log: {{level: {level}}}
ratelimit: {{connection: {{rate: {rate}}}}}
storage: {{data_dir: "{data}"}}
"""


def write(path: Path, **changed: object) -> None:
    values = {"port": 1883, "qos": 2, "packet": "1MiB", "level": "info", "rate": 500.0}
    path.write_text(FILE.format(**{**values, "data": path.parent, **changed}))


@pytest.fixture
def reloading(tmp_path: Path) -> SettingsReload:
    path = tmp_path / "fluxmq.yaml"
    write(path)
    return SettingsReload(path, load(path, {}))


def test_live_settings_are_taken_over_and_the_rest_waits(
    reloading: SettingsReload, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "fluxmq.yaml", port=1999, qos=1, packet="2MiB", rate=7.0)
    payload = reloading.read()
    assert payload is not None
    handed = Settings.model_validate_json(payload)
    assert handed == reloading.settings
    assert (handed.broker.max_qos, handed.ratelimit.connection.rate) == (1, 7.0)
    tcp = handed.server.mqtt.tcp
    assert tcp is not None
    assert tcp.addr == "127.0.0.1:1883"
    assert handed.broker.max_packet_size == 1 << 20
    waiting = [record for record in caplog.records if "restart" in record.message]
    assert [record.__dict__["settings"] for record in waiting] == [
        ["server.mqtt.tcp.addr", "broker.max_packet_size"]
    ]
    # The next reload compares with what is in force.
    write(tmp_path / "fluxmq.yaml", qos=0)
    assert reloading.read() is not None
    assert reloading.settings.broker.max_qos == 0


def test_a_wrong_file_changes_nothing_and_all_is_said(
    reloading: SettingsReload, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = reloading.settings
    write(tmp_path / "fluxmq.yaml", qos=9, rate=-1)
    assert reloading.read() is None
    assert reloading.settings is old
    said = " ".join(record.message for record in caplog.records)
    assert "broker.max_qos" in said
    assert "ratelimit.connection.rate" in said
    (tmp_path / "fluxmq.yaml").unlink()
    assert reloading.read() is None


def test_what_this_version_cannot_do_is_refused(reloading: SettingsReload, tmp_path: Path) -> None:
    path = tmp_path / "fluxmq.yaml"
    path.write_text(
        path.read_text() + "cluster: {enabled: true, transport: {bind_addr: '10.0.0.1:7948'}}\n"
    )
    assert reloading.read() is None


def test_merging_equal_settings_changes_nothing(reloading: SettingsReload) -> None:
    assert merge(reloading.settings, reloading.settings) == reloading.settings
