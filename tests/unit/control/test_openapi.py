"""The OpenAPI document: every route is described, and the document is one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fluxmq.control.management.events import path_pattern
from fluxmq.control.management.openapi import document
from fluxmq.control.management.requests import ApiRoute, Right
from fluxmq.control.management.route_texts import ROUTE_TEXTS
from tests.unit.control.management import make_api


def made() -> dict[str, Any]:
    """The document as it is sent."""
    found: dict[str, Any] = orjson.loads(orjson.dumps(document(make_api().routes)))
    return found


def test_every_route_is_described_and_nothing_else() -> None:
    routes = {f"{each.method} {each.path}" for each in make_api().routes}
    assert routes == ROUTE_TEXTS.keys()
    with pytest.raises(KeyError, match="GET unheard-of"):
        document([ApiRoute("GET", "unheard-of", make_api().routes[0].handler)])


def test_the_document_conforms_to_the_specification() -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(made())


def test_every_schema_is_used_and_every_operation_has_a_name_of_its_own() -> None:
    found = made()
    text = orjson.dumps(found).decode()
    unused = {
        name
        for name in found["components"]["schemas"]
        if f'"#/components/schemas/{name}"' not in text
    }
    assert unused == set()
    operations = [each for path in found["paths"].values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
    assert all(each["summary"] and each["responses"] for each in operations)


def test_rights_are_those_of_the_routes() -> None:
    found = made()["paths"]
    for route in make_api().routes:
        if "{" not in route.path:
            told = found[f"/{route.path}"][route.method.lower()]["x-right"]
            assert Right[told.upper()] is route.right


def test_paths_are_matched_as_the_server_matches_them() -> None:
    """Streams of events find the route of a path themselves."""
    routes = [each for each in make_api().routes if each.method == "GET"]
    patterns = [(path_pattern(each.path), each.path) for each in routes]
    examples = {
        "queues/%2F/a%2Fb": "queues/{vhost}/{name}",
        "exchanges/v/x/bindings/source": "exchanges/{vhost}/{name}/bindings/{end:source|destination}",
        "bindings/v/e/x/q/y/~": "bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}/{props}",
        "users/without-permissions": "users/without-permissions",
        "fluxmq/v1/sessions/a/subscriptions": "fluxmq/v1/sessions/{client}/subscriptions",
    }
    for path, expected in examples.items():
        assert next(name for pattern, name in patterns if pattern.fullmatch(path)) == expected
    assert not [name for pattern, name in patterns if pattern.fullmatch("queues/v/q/x")]
