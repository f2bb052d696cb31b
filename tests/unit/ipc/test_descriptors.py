"""How descriptors are shared out."""

from __future__ import annotations

import pytest

from fluxmq.ipc.descriptors import (
    LIMIT_MIN,
    STORAGE_MAX,
    STORAGE_MIN,
    Shares,
    notes,
    shares,
    spell,
)
from fluxmq.settings.schema import Settings


@pytest.mark.parametrize(
    ("limit", "workers", "nodes", "expected"),
    [
        (4_096, 1, 1, Shares(4_096, 2_992, 1_024, 80)),
        (4_096, 8, 1, Shares(4_096, 2_964, 1_024, 108)),
        (4_096, 8, 3, Shares(4_096, 2_900, 1_024, 172)),
        (300, 1, 1, Shares(300, 145, 75, 80)),
        (1_048_576, 1, 1, Shares(1_048_576, 1_032_112, STORAGE_MAX, 80)),
        (64, 4, 1, Shares(64, 8, STORAGE_MIN, 92)),
    ],
)
def test_shares(limit: int, workers: int, nodes: int, expected: Shares) -> None:
    """Review finding 4: connections leave storage what it needs."""
    found = shares(limit, workers, nodes)
    assert found == expected
    if limit >= LIMIT_MIN:
        assert found.connections + found.storage + found.reserve == limit


def test_what_the_limit_allows_is_said() -> None:
    settings = Settings.model_validate(
        {
            "server": {
                "mqtt": {"tcp": {"addr": "127.0.0.1:1883", "max_connections": 5_000}},
                "amqp": {"tcp": {"addr": "127.0.0.1:5672", "max_connections": 6_000}},
            }
        }
    )
    found = shares(4_096, 2)
    assert spell(found, 2) == (
        "4096 for each shard: connections 2988, storage 1024, reserve 84; 5976 connections altogether"
    )
    (said,) = notes(settings, found, 2)
    assert said.startswith(
        "server.amqp.tcp.max_connections is 6000: the limit of open files (4096)"
    )
    assert "allows 5976 connections" in said
    assert notes(settings, shares(20_000, 2), 2) == []
    low = notes(settings, shares(200, 1), 1)
    assert len(low) == 2
    assert "is 200" in low[1]
