"""MQTT.js over WebSocket, what browsers and Node.js programs use."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker import Broker
from tests.interop.npm import installed

SCRIPT = Path(__file__).with_name("exchange.mjs")
PACKAGE = "mqtt@5"
SIZES = [0, 1, 125, 126, 65535, 65536, 300_000]


@pytest.fixture(scope="session")
def mqtt_js(pytestconfig: pytest.Config) -> Path:
    """The installed package's entry file."""
    return installed(pytestconfig, PACKAGE, "build/index.js")


@pytest.mark.statement("v4:7.0.0-2", "v5:6.0.0-4", "v4:6.0.0-4")
@pytest.mark.parametrize("version", ["4", "5"], ids=["3.1.1", "5.0"])
def test_exchange(broker: Broker, mqtt_js: Path, topic: Callable[[], str], version: str) -> None:
    """Messages of all sizes and QoS, a retained message, properties, a will."""
    root = topic()
    url = f"ws://{broker.host}:{broker.ws_port}/mqtt"
    done = subprocess.run(
        ["node", str(SCRIPT), str(mqtt_js), url, version, root],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["messages"] == [
        {"topic": f"{root}/data/{qos}", "size": size, "qos": qos, "whole": True}
        for qos in (0, 1, 2)
        for size in SIZES
    ]
    assert seen["retained"] == {"payload": "kept", "retain": True}
    assert seen["will"] == "gone"
    if version == "5":
        assert seen["properties"] == {
            "contentType": "text/plain",
            "userProperties": {"a": ["1", "2"], "b": "3"},
            "responseTopic": "back",
            "correlationData": [0, 255],
        }
