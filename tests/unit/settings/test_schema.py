"""The schema as a whole: it travels as JSON, prints as YAML that loads again, and is documented."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.settings import Settings, effective, load, reference
from fluxmq.settings.decode import decode, parse
from fluxmq.settings.section import Section, Shape, leaves, shape_at, spell
from fluxmq.settings.values import FROM_FILE

ROOT = Path(__file__).resolve().parents[3]


def changed() -> Settings:
    """Settings that differ from the defaults in values of every kind."""
    return Settings.model_validate(
        {
            "server": {
                "mqtt": {"tcp": {"addr": ":1883", "connect_timeout": "1.5s"}},
                "http": {"addr": "127.0.0.1:1"},
            },
            "broker": {"max_packet_size": "12345", "max_qos": 1},
            "auth": {"anonymous": {"publish": ("a/#", "${x}")}},
            "ratelimit": {"connection": {"rate": 0.5}},
            "cluster": {
                "raft": {"groups": {"hot": {"bind_addr": ":2", "snapshot_interval": "1m"}}}
            },
            "queues": ({"name": "q", "topics": ("a",), "retention": {"max_age": "1d"}},),
        },
        context=FROM_FILE,
    )


def test_settings_travel_as_json() -> None:
    for settings in (Settings(), changed()):
        text = settings.model_dump_json()
        assert Settings.model_validate_json(text) == settings
    plain = json.loads(changed().model_dump_json())
    assert plain["server"]["mqtt"]["tcp"]["connect_timeout"] == 1.5
    assert plain["broker"]["max_packet_size"] == 12345


def test_a_secret_travels_as_json_and_is_hidden_when_printed() -> None:
    tls = {"addr": ":1", "cert_file": "c", "key_file": "k", "key_password": "hunter2"}
    settings = Settings.model_validate({"server": {"mqtt": {"tls": tls}}})
    again = Settings.model_validate_json(settings.model_dump_json())
    assert again == settings
    assert again.server.mqtt.tls is not None
    assert again.server.mqtt.tls.key_password is not None
    assert again.server.mqtt.tls.key_password.reveal() == "hunter2"
    for shown in (repr(settings), str(settings), effective(settings)):
        assert "hunter2" not in shown
    assert "key_password: '********'" in effective(settings)


def test_a_secret_from_a_file_is_shown_by_its_file() -> None:
    tls = {
        "addr": ":1",
        "cert_file": "c",
        "key_file": "k",
        "key_password": "x",
        "key_password_file": "f",
    }
    shown = yaml.safe_load(effective(Settings.model_validate({"server": {"mqtt": {"tls": tls}}})))
    assert shown["server"]["mqtt"]["tls"]["key_password_file"] == "f"
    assert "key_password" not in shown["server"]["mqtt"]["tls"]


def test_effective_settings_load_to_the_same(tmp_path: Path) -> None:
    file = tmp_path / "effective.yaml"
    for settings in (Settings(), changed()):
        file.write_text(effective(settings))
        assert load(file, {}) == settings


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().broker.max_qos = 1  # type: ignore[misc]


def sections(section: type[Section]) -> list[type[Section]]:
    """A section and all below it."""
    found = [section]
    for name, field in section.model_fields.items():
        shape = Shape(field.annotation, field)
        below = shape if shape.section else shape.below(name)
        if below is not None and below.section is not None:
            found += sections(below.section)
    return found


def test_every_field_has_a_sentence_and_every_number_its_bounds() -> None:
    everything = sections(Settings)
    assert len(everything) > 25
    for section in everything:
        sentences = reference._sentences(section)
        for name, field in section.model_fields.items():
            place = f"{section.__name__}.{name}"
            assert sentences.get(name, "").endswith("."), f"{place} has no sentence"
            shape = Shape(field.annotation, field)
            if shape.type in (int, float):
                low = [
                    item
                    for item in shape.field.metadata
                    if hasattr(item, "ge") or hasattr(item, "gt")
                ]
                high = [item for item in shape.field.metadata if hasattr(item, "le")]
                assert low, f"{place} has no lower bound"
                assert high, f"{place} has no upper bound"


def test_defaults_obey_their_own_bounds() -> None:
    for path, value, shape in leaves(changed(), Shape(Settings)):
        for item in shape.field.metadata:
            if value is not None and hasattr(item, "ge"):
                assert value >= item.ge, spell(path)
            if value is not None and hasattr(item, "le"):
                assert value <= item.le, spell(path)
    assert decode({})[1] == []


def test_the_documentation_is_fresh() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == reference.page(), "run: make docs"


def test_shapes_by_path() -> None:
    def kind(*path: str | int) -> object:
        shape = shape_at(Settings, path)
        return shape and (shape.kind or shape.type)

    assert kind("server", "mqtt", "tcp", "connect_timeout") == "duration"
    assert kind("cluster", "raft", "groups", "any", "bind_addr") == "address"
    assert kind("cluster", "raft", "peers", "any") == "address"
    assert kind("queues", 3, "topics", 0) == "topic filter"
    assert kind("broker", "max_qos") is int
    assert kind("broker", "nonsense", "deeper") is None
    assert kind("broker", "max_qos", "deeper") is None


KEYS = st.sampled_from(
    [
        "server",
        "mqtt",
        "tcp",
        "tls",
        "addr",
        "broker",
        "max_qos",
        "queues",
        "name",
        "topics",
        "cluster",
        "raft",
        "groups",
        "peers",
        "default",
        "session",
        "auth",
        "anonymous",
        "publish",
        "log",
        "x",
    ]
)
SCALARS = st.one_of(st.text(max_size=8), st.integers(), st.floats(allow_nan=False), st.booleans())
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_plain_values_decode_or_are_reported(data: dict[str, Any]) -> None:
    settings, problems = decode(data)
    assert isinstance(settings, Settings)
    assert all(problem.message for problem in problems)
    assert len({problem.path for problem in problems}) == len(problems)


@given(st.one_of(st.text(max_size=60), VALUES.map(yaml.safe_dump)))
def test_any_text_parses_or_is_reported(text: str) -> None:
    data, problems = parse(text, {})
    assert isinstance(data, dict)
    assert all(problem.message for problem in problems)
