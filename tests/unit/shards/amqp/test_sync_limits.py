"""Limits on what is copied to mirrors: messages in a batch, bytes per second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxmq.model.batch_format import parse
from fluxmq.queues import migration
from fluxmq.routing.topology.changes import SetPolicy
from fluxmq.routing.topology.records import Policy
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.schema import Settings
from fluxmq.shards.amqp.sync_limits import (
    SAVED_SECONDS,
    WINDOW_BYTES,
    CopyRate,
    CopyWindow,
    SyncLimits,
)
from tests.unit.queues.support import batch_of
from tests.unit.shards.amqp.test_migrations import Link, Shard

MIRRORS = "mirrors-0123456789abcdef"
MESSAGES = 50


def filled(cold: str, limits: SyncLimits, **definition: Any) -> tuple[Shard, Link]:
    """A shard with one batch of messages that moves, and the way to where it moves."""
    shard = Shard("classic", cold, limits)
    shard.change(SetPolicy(Policy("/", "ha", "^q", definition={"ha-mode": "all", **definition})))
    bodies = [b"%d" % number for number in range(MESSAGES)]
    answers: list[int] = []
    shard.groups["hot"].append("q", batch_of(bodies), answers.append)
    shard.tick()
    assert answers == [0]
    shard.link = Link(shard.groups)
    shard.move()
    shard.link.pass_on()  # messages that are there already
    return shard, shard.link


def finish(shard: Shard, link: Link) -> None:
    """The queue arrives whole."""
    shard.link = None
    link.pass_on(len(link.waiting))
    shard.run()
    shard.check(MIRRORS)


def in_flight(link: Link) -> list[int]:
    """Messages of each batch that waits for its answer."""
    skipped = len(migration.import_body(0, b""))
    return [parse(body, skipped).count for _, _, _, body, _ in link.waiting]


@pytest.mark.parametrize(
    ("definition", "batch"),
    [({}, 20), ({"ha-sync-batch-size": 8}, 8), ({"ha-sync-batch-size": 1}, 20)],
)
def test_no_more_messages_are_sent_to_mirrors_than_a_batch_holds(
    definition: dict[str, Any], batch: int
) -> None:
    """S4-71: by the policy, else by the node's settings; a batch that is stored as one is cut."""
    shard, link = filled(MIRRORS, SyncLimits(20, 0), **definition)
    left = MESSAGES
    while left:
        shard.tick()
        assert in_flight(link) == [min(batch, left)]
        left -= min(batch, left)
        link.pass_on()
    finish(shard, link)


def test_batches_to_other_groups_are_as_stored() -> None:
    shard, link = filled("cold", SyncLimits(20, 1))
    shard.tick()
    assert in_flight(link) == [MESSAGES]


def test_mirrors_get_no_more_bytes_than_the_rate_allows() -> None:
    """S4-73: and they get more as soon as it does."""
    shard, link = filled(MIRRORS, SyncLimits(10, 100))
    timers: list[tuple[float, Callable[[], None]]] = []
    shard.migrations.call_later = lambda seconds, step: timers.append((seconds, step))
    began = shard.now
    sizes: list[int] = []
    while len(sizes) < MESSAGES // 10:
        shard.tick()
        if not link.waiting:
            seconds, step = timers.pop()
            shard.now += seconds
            step()
        sizes.append(len(link.waiting[0][3]))
        link.pass_on()
    assert shard.now - began == pytest.approx(sum(sizes[:-1]) / 100 - SAVED_SECONDS)
    finish(shard, link)


def test_a_rate_is_kept_over_time_and_a_pause_saves_little() -> None:
    rate = CopyRate(1000)
    for now in (0.0, 100.0):
        sent = 0
        moment = now
        while moment < now + 10:
            while not rate.wait(moment):
                rate.note(100, moment)
                sent += 100
            moment += 0.05
        assert 10_000 <= sent <= 10_000 + 1000 * SAVED_SECONDS + 100
    free = CopyRate(0)
    free.note(1 << 40, 0.0)
    assert free.wait(0.0) == 0


def test_what_is_left_behind_the_fence_is_sent_at_any_rate() -> None:
    """Publishers wait then."""
    window = CopyWindow(CopyRate(1))
    window.limit = 10
    window.sent(1000, 4, 0.0)
    assert window.room(1.0, paced=True) == 0
    assert window.room(1.0, paced=False) == 6
    window.sent(WINDOW_BYTES, 1, 1.0)
    assert window.room(1.0, paced=False) == 0
    window.answered(WINDOW_BYTES, 1)
    window.answered(1000, 4)
    assert window.batches == 0
    assert window.room(1.0, paced=False) == 10


def test_each_shard_of_a_node_has_its_share() -> None:
    """S4-73"""
    cluster = ClusterSettings(mirroring_sync_max_throughput=1000)
    limits = SyncLimits.of(Settings(cluster=cluster), 4)
    limits.rate.note(250, 10.0)
    limits.rate.note(250, 10.0)
    assert limits.rate.wait(10.0) == pytest.approx(2 - SAVED_SECONDS)
    assert limits.rate.wait(12.0) == 0
