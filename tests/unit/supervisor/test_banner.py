"""What is said at the start."""

from pathlib import Path

from fluxmq.settings.schema import Settings
from fluxmq.supervisor import banner
from fluxmq.supervisor.placement import plan


def test_everything_a_person_needs_is_there() -> None:
    settings = Settings.model_validate(
        {
            "server": {
                "mqtt": {
                    "tcp": {"addr": "127.0.0.1:1883"},
                    "tls": {
                        "addr": "127.0.0.1:8883",
                        "cert_file": "c",
                        "key_file": "k",
                        "client_auth": "require",
                    },
                    "websocket": {"addr": "127.0.0.1:8083"},
                },
                "http": {"addr": "127.0.0.1:15672"},
            }
        }
    )
    found = banner.facts(
        settings, "built-in defaults", plan(4, [0, 1, 2, 7], []), Path("/srv/data"), "compiled"
    )
    lines = banner.text(found).splitlines()
    assert lines[0].startswith("FluxMQ ")
    assert [line.split(maxsplit=1) for line in lines[1:2]] == [["mqtt", "127.0.0.1:1883"]]
    for expected in (
        "127.0.0.1:8883 (client certificate: require)",
        "ws://127.0.0.1:8083/mqtt",
        "http://127.0.0.1:15672",
        "4 on cores 0-2, 7",
        "built-in defaults",
        "/srv/data",
        "compiled",
    ):
        assert any(line.endswith(f"  {expected}") for line in lines), expected


def test_it_says_when_shards_are_not_bound() -> None:
    placed = plan(2, [0, 1], [], bound=False)
    found = banner.facts(Settings(), "node.yaml", placed, Path("/srv/data"), "compiled")
    assert found["workers"] == "2 on cores chosen by the kernel"
