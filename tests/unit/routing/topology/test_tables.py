"""Bindings of one exchange: headers as RabbitMQ 3.10 matches them, shares of a consistent hash, counting."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.routing.topology.records import Binding, Exchange
from fluxmq.routing.topology.tables import BindingTable, table_for


def _headers_match(arguments: dict[str, Any], headers: dict[str, Any] | None) -> bool:
    table = table_for(Exchange("/", "h", "headers"))
    table.add(Binding("/", "h", "q", arguments=arguments))
    return bool(list(table.find("", headers, None)))


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        # As RabbitMQ 3.10.8 answered.
        ({}, None, True),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {}, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 1 << 40}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, None, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": None}, {"a": "zz"}, True),
        ({"a": None}, {}, False),
        ({"x-a": 1}, {}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {}, False),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 1}, False),
        ({"x-match": "any", "a": None, "b": 2}, {"a": 7}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
        ({"a": [1, "b"]}, {"a": [1, "b"]}, True),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, True),
        ({"a": {"b": 1}}, {"a": {"b": True}}, False),
        ({"a": "é"}, {"a": "é"}, True),
    ],
)
def test_headers(arguments: dict[str, Any], headers: dict[str, Any] | None, matches: bool) -> None:
    assert _headers_match(arguments, headers) is matches


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_a_destination_is_found_until_its_last_binding_is_gone(kind: str) -> None:
    table = table_for(Exchange("/", "e", kind))
    one = Binding("/", "e", "q", routing_key="k", arguments={"x-match": "all"})
    other = Binding("/", "e", "q", routing_key="k", arguments={"x-match": "all", "x-other": 1})
    table.add(one)
    table.add(other)
    assert list(table.find("k", None, None)) == [("queue", "q")]
    table.remove(one)
    assert list(table.find("k", None, None)) == [("queue", "q")]
    table.remove(other)
    assert not list(table.find("k", None, None))


@pytest.mark.parametrize(
    ("kind", "arguments", "by_key"),
    [
        ("direct", {}, True),
        ("fanout", {}, True),
        ("topic", {}, True),
        ("headers", {}, False),
        ("x-consistent-hash", {}, True),
        ("x-consistent-hash", {"hash-header": "h"}, False),
        ("x-consistent-hash", {"hash-property": "message_id"}, False),
    ],
)
def test_what_may_be_kept_by_routing_key(
    kind: str, arguments: dict[str, Any], by_key: bool
) -> None:
    assert table_for(Exchange("/", "e", kind, arguments=arguments)).by_key is by_key


def _hash_table(weights: dict[str, str], **arguments: str) -> BindingTable:
    table = table_for(
        Exchange(
            "/",
            "e",
            "x-consistent-hash",
            arguments={key.replace("_", "-"): value for key, value in arguments.items()},
        )
    )
    for queue, weight in weights.items():
        table.add(Binding("/", "e", queue, routing_key=weight))
    return table


def _chosen(table: BindingTable, count: int = 4000) -> list[str]:
    return [name for number in range(count) for _, name in table.find(f"key-{number}", None, None)]


def test_a_consistent_hash_gives_shares_by_weight() -> None:
    shares = Counter(_chosen(_hash_table({"a": "1", "b": "2", "c": "1"})))
    assert abs(shares["a"] - 1000) < 150
    assert abs(shares["b"] - 2000) < 150
    assert abs(shares["c"] - 1000) < 150


def test_a_new_destination_takes_only_its_own_share() -> None:
    table = _hash_table({"a": "1", "b": "1"})
    before = _chosen(table)
    added = Binding("/", "e", "c", routing_key="1")
    table.add(added)
    moved = {new for old, new in zip(before, _chosen(table), strict=True) if old != new}
    assert moved == {"c"}
    table.remove(added)
    assert _chosen(table) == before


@given(st.permutations([("a", "1"), ("b", "3"), ("c", "1000000"), ("d", "2")]))
def test_the_order_of_bindings_does_not_matter(bindings: list[tuple[str, str]]) -> None:
    wanted = _chosen(_hash_table({"a": "1", "b": "3", "c": "1000000", "d": "2"}), 50)
    assert _chosen(_hash_table(dict(bindings)), 50) == wanted


def test_a_destination_bound_twice_has_its_greatest_weight() -> None:
    table = _hash_table({"a": "1", "b": "9"})
    wanted = _chosen(table)
    table.add(Binding("/", "e", "b", routing_key="2"))
    assert _chosen(table) == wanted
    table.remove(Binding("/", "e", "b", routing_key="9"))
    assert _chosen(table) == _chosen(_hash_table({"a": "1", "b": "2"}))


def test_a_hash_of_a_header_or_property_does_not_see_the_key() -> None:
    weights = {"a": "1", "b": "1", "c": "1"}
    by_header = _hash_table(weights, hash_header="h")
    by_property = _hash_table(weights, hash_property="message_id")
    for value in ("x", "y", "z", 5, b"\xff"):
        chosen = {tuple(by_header.find(key, {"h": value}, None)) for key in "abcdef"}
        assert len(chosen) == 1
        assert chosen == {tuple(by_property.find("k", None, {"message_id": value}))}
    assert len({tuple(by_header.find(key, {}, None)) for key in "abcdef"}) == 1
    several = {tuple(by_header.find("k", {"h": number}, None)) for number in range(50)}
    assert len(several) == 3
    assert list(by_header.find("k", None, None))


def test_a_hash_without_bindings_leads_nowhere() -> None:
    assert not list(_hash_table({}).find("k", None, None))
