"""Runtime parameters as RabbitMQ has them: other names of what is kept as limits and policies.

Components are ``vhost-limits`` and ``operator_policy``; ``policy`` is shown only. Those of plug-ins, as shovels and
federation, are refused as an unknown component. Global parameters are records of their own.

Source: RabbitMQ's rabbit_runtime_parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from fluxmq.routing.topology.changes import Change, ClearPolicy, SetPolicy, SetVhostLimits
from fluxmq.routing.topology.records import Policy
from fluxmq.routing.topology.refusals import NO_PARAMETER, NOT_FOUND, Refusal, precondition
from fluxmq.routing.topology.topology import Topology

VHOST_LIMITS: Final = "vhost-limits"
OPERATOR_POLICY: Final = "operator_policy"
POLICY: Final = "policy"
LIMITS: Final = "limits"
"""Name of the only parameter of ``vhost-limits``."""
CLUSTER_NAME: Final = "cluster_name"
"""Global parameter with the name of the cluster."""


class RuntimeParameter(NamedTuple):
    """A parameter; ``value`` is an object of JSON."""

    vhost: str
    component: str
    name: str
    value: Mapping[str, Any]


def parameters(
    topology: Topology, vhosts: list[str], component: str = ""
) -> Iterator[RuntimeParameter]:
    """Yield the parameters of virtual hosts, of one component or of all; policies only if they are
    asked for."""
    for name in vhosts:
        vhost = topology.vhost(name)
        if component in ("", VHOST_LIMITS) and vhost is not None and vhost.limits:
            yield RuntimeParameter(name, VHOST_LIMITS, LIMITS, vhost.limits)
        if component in ("", OPERATOR_POLICY, POLICY):
            for policy in topology.policies(name):
                if policy.operator or component == POLICY:
                    kind = OPERATOR_POLICY if policy.operator else POLICY
                    if component in ("", kind):
                        yield RuntimeParameter(name, kind, policy.name, value_of(policy))


def value_of(policy: Policy) -> dict[str, Any]:
    """Return a policy as the value of a parameter."""
    return {
        "pattern": policy.pattern,
        "definition": dict(policy.definition),
        "priority": policy.priority,
        "apply-to": policy.apply_to,
    }


def setting(vhost: str, component: str, name: str, value: object) -> Change:
    """Return the change that sets a parameter. Raises `Refusal`, with RabbitMQ's texts."""
    if component == POLICY:
        raise precondition("policies may not be set using this method")
    _check_component(component)
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise precondition(f"Validation failed\n\nthe value of {component} is not an object\n")
    if component == VHOST_LIMITS:
        if name != LIMITS:
            text = f"Validation failed\n\n{VHOST_LIMITS} has one parameter, named {LIMITS}\n"
            raise precondition(text)
        return SetVhostLimits(vhost, dict(value))
    return SetPolicy(_policy(vhost, name, value))


def _policy(vhost: str, name: str, value: Mapping[str, Any]) -> Policy:
    unknown = sorted(value.keys() - {"pattern", "definition", "priority", "apply-to"})
    if unknown:
        raise precondition(f"Validation failed\n\nUnrecognised terms {unknown} in {name}\n")
    pattern, definition = value.get("pattern"), value.get("definition")
    priority, apply_to = value.get("priority", 0), value.get("apply-to", "all")
    if not isinstance(pattern, str) or not isinstance(definition, Mapping):
        text = "an operator policy has a pattern (text) and a definition (object)"
        raise precondition(f"Validation failed\n\n{text}\n")
    if type(priority) is not int or not isinstance(apply_to, str):
        text = "priority should be a number, and apply-to a text"
        raise precondition(f"Validation failed\n\n{text}\n")
    return Policy(vhost, name, pattern, apply_to, priority, dict(definition), operator=True)


def clearing(vhost: str, component: str, name: str) -> Change:
    """Return the change that removes a parameter. Raises `Refusal`; 404 if there cannot be one."""
    if component == POLICY:
        raise precondition("policies may not be cleared using this method")
    if component == VHOST_LIMITS and name == LIMITS:
        return SetVhostLimits(vhost, {})
    if component == OPERATOR_POLICY:
        return ClearPolicy(vhost, name, operator=True)
    raise Refusal(NOT_FOUND, NO_PARAMETER)


def _check_component(component: str) -> None:
    if component not in (VHOST_LIMITS, OPERATOR_POLICY):
        raise precondition(f"Validation failed\n\ncomponent {component} not found\n")
