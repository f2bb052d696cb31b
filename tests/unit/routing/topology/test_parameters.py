"""Runtime parameters, which are limits and operator policies by other names, and global parameters."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.routing.topology import rules
from fluxmq.routing.topology.changes import (
    AddVhost,
    Change,
    ClearGlobalParameter,
    ClearPolicy,
    SetGlobalParameter,
    SetPolicy,
    SetVhostLimits,
)
from fluxmq.routing.topology.fields import JSON_BYTES_MAX
from fluxmq.routing.topology.parameters import RuntimeParameter, clearing, parameters, setting
from fluxmq.routing.topology.records import GlobalParameter, Policy, Vhost, record_of, row_of
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.topology import Topology, global_parameters

OPERATOR = {"pattern": "^q", "definition": {"max-length": 5}, "priority": 2, "apply-to": "queues"}
NOT_FOUND = "Validation failed\n\ncomponent shovel not found\n"


@pytest.fixture
def topology() -> Topology:
    """Two virtual hosts with limits and policies."""
    topology = Topology()
    for change in (
        AddVhost(Vhost("/")),
        AddVhost(Vhost("b")),
        SetVhostLimits("/", {"max-queues": 5}),
        SetPolicy(Policy("/", "p", "^q", definition={"max-length": 7})),
        SetPolicy(Policy("b", "o", "^q", "queues", 2, {"max-length": 5}, operator=True)),
    ):
        topology.apply(change)
    return topology


def set_to(name: str, value: str) -> SetGlobalParameter:
    return SetGlobalParameter(GlobalParameter(name, value))


def test_limits_and_operator_policies_are_parameters(topology: Topology) -> None:
    limits = RuntimeParameter("/", "vhost-limits", "limits", {"max-queues": 5})
    operator = RuntimeParameter("b", "operator_policy", "o", OPERATOR)
    assert list(parameters(topology, ["/", "b"])) == [limits, operator]
    assert list(parameters(topology, ["b"])) == [operator]
    assert list(parameters(topology, ["/", "b"], "vhost-limits")) == [limits]
    assert list(parameters(topology, ["/", "b"], "operator_policy")) == [operator]
    assert [each.name for each in parameters(topology, ["/", "b"], "policy")] == ["p"]
    assert list(parameters(topology, ["/", "b"], "shovel")) == []


@pytest.mark.parametrize(
    ("component", "name", "value", "change"),
    [
        ("vhost-limits", "limits", {"max-queues": 1}, SetVhostLimits("/", {"max-queues": 1})),
        (
            *("operator_policy", "o", OPERATOR),
            SetPolicy(Policy("/", "o", "^q", "queues", 2, {"max-length": 5}, operator=True)),
        ),
        (
            *("operator_policy", "o", {"pattern": "", "definition": {}}),
            SetPolicy(Policy("/", "o", "", definition={}, operator=True)),
        ),
    ],
)
def test_what_sets_them(component: str, name: str, value: Any, change: Change) -> None:
    assert setting("/", component, name, value) == change


@pytest.mark.parametrize(
    ("component", "name", "value", "text"),
    [
        ("shovel", "s", {}, NOT_FOUND),
        ("policy", "p", {}, "policies may not be set using this method"),
        ("vhost-limits", "limits", [], "not an object"),
        ("vhost-limits", "other", {}, "one parameter, named limits"),
        ("operator_policy", "o", {"pattern": "^q"}, "a pattern"),
        ("operator_policy", "o", {**OPERATOR, "priority": True}, "priority should be a number"),
        ("operator_policy", "o", {**OPERATOR, "apply-to": 1}, "apply-to a text"),
        ("operator_policy", "o", {**OPERATOR, "cats": 1}, "Unrecognised terms ['cats']"),
    ],
)
def test_what_is_refused(component: str, name: str, value: Any, text: str) -> None:
    with pytest.raises(Refusal) as raised:
        setting("/", component, name, value)
    assert raised.value.code == 406
    assert text in raised.value.text


def test_what_removes_them() -> None:
    assert clearing("/", "vhost-limits", "limits") == SetVhostLimits("/", {})
    assert clearing("/", "operator_policy", "o") == ClearPolicy("/", "o", operator=True)
    for component, code in (("shovel", 404), ("vhost-limits", 404), ("policy", 406)):
        with pytest.raises(Refusal) as raised:
            clearing("/", component, "s")
        assert raised.value.code == code


def test_global_parameters_are_set_replaced_and_removed(topology: Topology) -> None:
    copy = Topology()
    copy.take(topology.snapshot())
    for change in (set_to("a", "[1]"), set_to("b", '"x"'), set_to("a", "{}")):
        copy.take(topology.apply(change))
    assert not topology.apply(set_to("a", "{}")).rows, "it is so already"
    assert global_parameters(copy) == {
        "a": GlobalParameter("a", "{}"),
        "b": GlobalParameter("b", '"x"'),
    }
    copy.take(topology.apply(ClearGlobalParameter("a")))
    again = Topology()
    again.take(topology.snapshot())
    assert global_parameters(again) == global_parameters(copy) == {"b": GlobalParameter("b", '"x"')}
    assert topology.is_durable("global_parameter", ("b",))
    with pytest.raises(Refusal) as raised:
        topology.apply(ClearGlobalParameter("a"))
    assert raised.value == Refusal(404, "Parameter does not exist")


def test_global_parameters_are_bounded(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "GLOBAL_PARAMETERS_MAX", 1)
    topology.apply(set_to("a", "1"))
    topology.apply(set_to("a", "2"))
    for name, text in (("b", "there are 1 global parameters already"), ("", "has a name")):
        with pytest.raises(Refusal, match=text):
            topology.apply(set_to(name, "1"))
    assert list(global_parameters(topology)) == ["a"]


@pytest.mark.parametrize(
    "value", ["", "{", "NaN", "[" * 100_000, '"' + "a" * JSON_BYTES_MAX + '"', b"1", 1]
)
def test_a_value_is_json_of_bounded_size(value: Any) -> None:
    row = {**row_of(GlobalParameter("a", "1")), "value": value}
    with pytest.raises(ValueError, match="value of a GlobalParameter"):
        record_of("global_parameter", ("a",), row)
