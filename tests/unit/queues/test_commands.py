"""Entries: what is written is understood, anything else is refused by name."""

from __future__ import annotations

import random

import pytest

from fluxmq.queues import commands
from fluxmq.queues.commands import CommandError, Verb, encode_entry
from fluxmq.queues.machine import VERSION, Machine
from fluxmq.queues.origins import Identity
from tests.unit.queues.support import NOW, Host, batch_of


def every_command() -> list[bytes]:
    """One of each kind."""
    return [
        commands.append(1, batch_of([b"x"])),
        commands.claim(1, 1, 2, 0, 1, [(0, 0)], [(1, 1, 5)]),
        commands.settle(1, 1, Verb.REJECT, 2, [(0, 0), (2, 3)], 5, b"because"),
        commands.delete(1),
        commands.purge(1),
        commands.create_group(1, "g", filter_=b"a/#"),
        commands.delete_group(1, 1),
        commands.join(1, "g", 1, "member"),
        commands.leave(1, "g", 1),
        commands.seek(1, 1, commands.NEXT),
        commands.commit(1, 1, 5),
        commands.dead_letter(1, 1, 2, [(0, 1)]),
        commands.dead_lettered(1, 1, [(0, 1)]),
        commands.sweep(1),
        commands.trim(1, 5),
        commands.raise_version(VERSION),
    ]


@pytest.mark.parametrize("command", every_command())
def test_commands_are_padded_to_eight_bytes(command: bytes) -> None:
    assert len(command) % 8 == 0


def test_every_command_for_a_queue_that_is_gone_says_so() -> None:
    machine = Machine()
    applied = machine.apply(1, 1, encode_entry(NOW, every_command()))
    assert [result.code for result in applied.results] == [18] * 15 + [0]


def test_an_unknown_kind_stops_the_machine() -> None:
    known = {1, 2, 3, *range(16, 36)}
    for kind in set(range(256)) - known:
        host = Host()
        host.declare()
        command = commands.COMMAND.pack(kind, 1, 0, 16, 1, 0)
        with pytest.raises(CommandError, match="kind"):
            host.machine.apply(9, 1, encode_entry(NOW, [command]))


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\1\0\0",
        commands.ENTRY.pack(2, NOW),
        commands.ENTRY.pack(1, NOW) + b"\1\1\0\0",
        encode_entry(NOW, [commands.COMMAND.pack(1, 3, 0, 16, 1, 0)]),
        encode_entry(NOW, [commands.COMMAND.pack(1, 1, 0, 8, 1, 0)]),
        encode_entry(NOW, [commands.COMMAND.pack(1, 1, 0, 24, 1, 0)]),
        encode_entry(NOW, [commands.COMMAND.pack(27, 1, 0, 20, 1, 0) + b"\0\0\0\0"]),
        encode_entry(NOW, [commands.raise_version(VERSION + 1)]),
    ],
)
def test_what_is_not_an_entry_stops_the_machine(entry: bytes) -> None:
    with pytest.raises(CommandError):
        Machine().apply(1, 1, entry)


def understood(machine: Machine, entry: bytes) -> bool:
    """Apply an entry; gives whether the machine took it."""
    try:
        machine.apply(9, 1, entry)
    except CommandError:
        return False
    return True


def test_damaged_entries_raise_nothing_but_the_named_error() -> None:
    random_ = random.Random(3)
    host = Host()
    host.declare()
    content = host.machine.snapshot()
    good = encode_entry(NOW, every_command()[:3] + every_command()[4:])
    refused = 0
    for _ in range(1_500):
        damaged = bytearray(good)
        for _ in range(random_.randrange(1, 4)):
            damaged[random_.randrange(len(damaged))] = random_.randrange(256)
        machine = Machine()
        machine.restore(content)
        refused += not understood(machine, bytes(damaged[: random_.randrange(16, len(good) + 1)]))
    assert 0 < refused < 1_500


def test_the_messages_of_an_entry_are_counted() -> None:
    """Appends of both versions, and nothing else."""
    several, one = batch_of([b"a", b"bb", b"ccc"]), batch_of([b"d"])
    identity = Identity(7, 1, 0)
    entry = encode_entry(
        NOW,
        [
            *(commands.append_header(1, len(several)), several, commands.purge(1)),
            *(commands.append_header_once(2, len(one), 0, identity), one),
        ],
    )
    assert commands.appended(entry) == 4
    assert commands.appended(encode_entry(NOW, [commands.touch(1)])) == 0


def test_ranges_upside_down_stop_the_machine() -> None:
    host = Host()
    host.declare()
    for command in (
        commands.claim(1, 1, 2, 0, 1, [(5, 4)]),
        commands.claim(1, 1, 2, 0, 1, [], [(5, 4, 0)]),
        commands.settle(1, 1, Verb.ACK, 2, [(5, 4)]),
        commands.dead_lettered(1, 0, [(5, 4)]),
    ):
        with pytest.raises(CommandError):
            host.machine.apply(9, 1, encode_entry(NOW, [command]))
