"""Every named limit of queues holds."""

from __future__ import annotations

import pytest

import fluxmq.queues.groups
import fluxmq.queues.machine
import fluxmq.queues.work_dispatcher
from fluxmq.model.batch_format import DELAY
from fluxmq.queues import commands, limits
from fluxmq.queues.commands import CommandError, Mode, Verb
from fluxmq.queues.config import QueueConfig
from fluxmq.queues.results import Code
from tests.unit.queues.support import SECOND, Host, group_of, offsets, pending

LONG = "n" * (limits.NAME_BYTES_MAX + 1)


@pytest.mark.uncompiled
@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("QUEUES_MAX", 1, commands.declare(QueueConfig("other"))),
        ("GROUPS_MAX", 1, commands.create_group(1, "other")),
        ("MEMBERS_MAX", 1, commands.join(1, "g", 9, "other")),
        ("FILTER_BYTES_MAX", 2, commands.create_group(1, "other", filter_=b"abc")),
        ("NAME_BYTES_MAX", 3, commands.create_group(1, "other")),
        ("NAME_BYTES_MAX", 3, commands.join(1, "g", 9, "other")),
    ],
)
def test_what_would_be_one_too_many_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int, command: bytes
) -> None:
    host = Host()
    queue = host.declare()
    host.attach(queue)
    if name != "MEMBERS_MAX":
        monkeypatch.setattr(fluxmq.queues.machine, "GROUPS_MAX", 2)
    monkeypatch.setattr(fluxmq.queues.machine, name, value)
    assert host.do(command)[0].code == Code.LIMIT


def test_names_are_bounded() -> None:
    with pytest.raises(ValueError, match="1024"):
        QueueConfig(LONG)


@pytest.mark.uncompiled
def test_pending_ranges_are_bounded_and_delivery_goes_on_when_some_are_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host()
    queue = host.declare(claim_batch=1)
    first = host.attach(queue, "a", limit=2)
    host.attach(queue, "b", limit=2)
    monkeypatch.setattr(fluxmq.queues.work_dispatcher, "_COMMAND_RANGES", 1)
    monkeypatch.setattr(fluxmq.queues.work_dispatcher, "PENDING_RANGES_MAX", 2)
    monkeypatch.setattr(fluxmq.queues.groups, "PENDING_RANGES_MAX", 3)
    host.publish(queue, 9)
    assert offsets(host.run()) == [0, 1]
    assert len(pending(group_of(queue))) == 2
    host.settle(first, Verb.ACK, (0, 0))
    assert offsets(host.run()) == [2]


@pytest.mark.uncompiled
def test_a_claim_beyond_the_pending_ranges_claims_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    queue = host.declare()
    host.do(commands.create_group(1, "g"), commands.join(1, "g", 7, "m"))
    host.publish(queue, 9)
    monkeypatch.setattr(fluxmq.queues.groups, "PENDING_RANGES_MAX", 1)
    claim = commands.claim(1, 1, 7, 0, 9, [(0, 1), (3, 4)])
    assert host.do(claim)[0].code == Code.LIMIT
    assert (group_of(queue).cursor, pending(group_of(queue))) == (0, [])


@pytest.mark.uncompiled
def test_nothing_is_claimed_while_too_many_dead_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    queue = host.declare(dead_letter=True, message_ttl=9 * SECOND)
    consumer = host.attach(queue, limit=3)
    host.publish(queue, 9)
    host.run()
    monkeypatch.setattr(fluxmq.queues.work_dispatcher, "DEAD_RANGES_MAX", 1)
    host.settle(consumer, Verb.REJECT, (0, 2))
    assert host.run() == []
    host.pass_time(9 * SECOND)
    letters = host.dead
    assert host.run() == []
    host.dead = letters
    host.bury_dead()
    host.run()
    assert [letter.offset for letter in host.dead] == [3, 4, 5, 6, 7, 8]


@pytest.mark.uncompiled
def test_one_run_passes_over_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fluxmq.queues.work_dispatcher, "SCANNED_MAX", 100)
    host = Host()
    queue = host.declare()
    host.attach(queue, filter=b"rare")
    for _ in range(10):
        host.publish(queue, 100, keys=b"often")
    host.publish(queue, 1, keys=b"rare")
    host.flush()
    host.dispatch.due(host.now)
    step = host.dispatch.run(queue.id, host.now, 10)
    assert (step.deliveries, step.more) == ([], True)
    host.proposed += step.commands
    assert offsets(host.run()) == [1_000]


def test_a_reason_is_cut() -> None:
    host = Host()
    queue = host.declare(dead_letter=True)
    consumer = host.attach(queue)
    host.publish(queue, 1)
    host.run()
    host.settle(consumer, Verb.REJECT, (0, 0), reason=b"r" * 1_000)
    host.run()
    assert host.dead[0].text == b"r" * limits.REASON_BYTES_MAX


def test_more_ranges_than_a_command_holds_are_not_read() -> None:
    with pytest.raises(CommandError):
        commands.unpack_ranges(bytes(10), 0, 1 << 40, limits.RANGES_PER_COMMAND_MAX + 1)
    with pytest.raises(CommandError):
        commands.unpack_others(bytes(10), 0, 1 << 40, limits.RANGES_PER_COMMAND_MAX + 1)


@pytest.mark.uncompiled
def test_a_settlement_of_more_ranges_is_several_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fluxmq.queues.attachments, "RANGES_PER_COMMAND_MAX", 2)
    host = Host()
    queue = host.declare()
    consumer = host.attach(queue)
    host.publish(queue, 9)
    host.run()
    odd = [(offset, offset) for offset in range(0, 9, 2)]
    assert len(host.dispatch.consumers.settle(consumer, Verb.ACK, odd, host.now).commands) == 3


@pytest.mark.uncompiled
def test_a_streams_delayed_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fluxmq.queues.stream_dispatcher, "PENDING_RANGES_MAX", 2)
    host = Host()
    queue = host.declare("s", type=2)
    host.attach(queue, mode=Mode.STREAM)
    for number in range(4):
        host.publish(queue, 1, flags=DELAY, eights=[[host.now + (9 - number) * SECOND]])
    host.publish(queue, 1)
    assert host.run() == []
    host.pass_time(7 * SECOND)
    assert host.run() == []
    host.pass_time(2 * SECOND)
    assert sorted(offsets(host.run())) == [0, 1, 2, 3, 4]
