"""The machine against a model of single messages, under any commands, with restarts at any point."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.model.batch_format import PRODUCER
from fluxmq.queues import commands
from fluxmq.queues.commands import encode_entry
from fluxmq.queues.config import Overflow, QueueConfig
from fluxmq.queues.groups import ConsumerGroup
from fluxmq.queues.machine import VERSION, Machine
from fluxmq.queues.results import Applied
from tests.props.queue_model import Message, ModelGroup, ModelQueue, Rules
from tests.unit.queues.support import NOW, SECOND, batch_of

RULES = st.builds(
    Rules,
    max_depth=st.sampled_from([0, 0, 30]),
    max_length=st.sampled_from([0, 0, 8]),
    reject_publish=st.booleans(),
    retention_messages=st.sampled_from([0, 0, 25]),
    retention_age=st.sampled_from([0, 0, 40 * SECOND]),
    max_retries=st.sampled_from([0, 1, 10]),
    dead_letter=st.booleans(),
    delivery_limit=st.sampled_from([0, 0, 2]),
)

SMALL = st.integers(0, 15)
ACTIONS = st.sampled_from(
    [
        *["append", "claim", "claim", "again", "settle", "settle", "settle"] * 2,
        *["produce", "wait", "join", "leave", "bury", "dead_lettered", "dead_lettered", "purge"],
        *["create", "delete_group", "seek", "sweep", "trim", "restart", "mixed"],
    ]
)
STEPS = st.lists(
    st.tuples(ACTIONS, SMALL, SMALL, SMALL, SMALL, st.booleans()), min_size=5, max_size=60
)


def config_of(rules: Rules) -> QueueConfig:
    """The machine's configuration for the model's rules."""
    return QueueConfig(
        "q",
        max_depth=rules.max_depth,
        max_length=rules.max_length,
        overflow=Overflow.REJECT_PUBLISH if rules.reject_publish else Overflow.DROP_HEAD,
        retention_messages=rules.retention_messages,
        retention_age=rules.retention_age,
        max_retries=rules.max_retries,
        initial_backoff=rules.backoff,
        multiplier_thousandths=1_000,
        dead_letter=rules.dead_letter,
        visibility_timeout=rules.visibility,
        delivery_limit=rules.delivery_limit,
        message_ttl=0,
    )


class Pair:
    """A machine, a second one that is never restarted, and the model."""

    def __init__(self, rules: Rules, exact: bool) -> None:
        self.now = NOW
        self.exact = exact
        """Whether the machine works as version 2: limits of length hold when messages come back too."""
        self.model = ModelQueue(rules)
        self.machine, self.other = Machine(), Machine()
        self.pieces: list[bytes] = [commands.declare(config_of(rules))]
        self.expected: list[tuple[int, int]] = [(0, 1)]
        if exact:
            self.put(commands.raise_version(VERSION), (0, 0))
        self.stored = 0
        self.released = 0
        self.flush()

    def put(self, command: bytes, expected: tuple[int, int]) -> None:
        """One command, and what the model says of it."""
        self.pieces.append(command)
        self.expected.append(expected)

    def flush(self) -> None:
        """Apply what was put, to all three, and compare."""
        if not self.pieces:
            return
        entry = encode_entry(self.now, self.pieces)
        index = self.machine.applied + 1
        applied = self.machine.apply(index, 1, entry)
        self.other.apply(index, 1, entry)
        self.model.after_entry()
        results = [(int(result.code), result.value) for result in applied.results]
        assert results == self.expected
        self.pieces, self.expected = [], []
        self._compare_effects(applied)
        self._compare()

    def _compare_effects(self, applied: Applied) -> None:
        for _, batch in applied.batches:
            assert batch.base_offset == self.stored, "an offset was left out or used again"
            self.stored += batch.count
        for _, start in applied.trims:
            assert start > self.released
            self.released = start

    def _compare(self) -> None:
        queue, model = self.machine.queues[1], self.model
        assert (queue.start, queue.next_offset, self.released) == (
            model.start,
            model.end,
            model.kept,
        )
        assert list(queue.groups) == list(model.groups)
        for id_, group in queue.groups.items():
            compare_group(group, model.groups[id_])
        compare_dead(queue.nobodys, model.nobodys)

    def restart(self) -> None:
        """Begin again from a snapshot."""
        self.flush()
        content = self.machine.snapshot()
        self.machine = Machine()
        self.machine.restore(content)
        assert self.machine.snapshot() == content


def compare_group(group: ConsumerGroup, model: ModelGroup) -> None:
    """One group's state, message by message."""
    assert (group.cursor, group.floor) == (model.cursor, model.floor)
    found = {
        offset: Message(each.state.holder, each.state.due, each.state.attempts)
        for each in group.pending
        for offset in range(each.first, each.last + 1)
    }
    assert found == model.pending
    assert group.pending.count == len(model.pending)
    assert group.pending.waiting == sum(each.holder == 0 for each in model.pending.values())
    neighbours = list(group.pending)
    for one, two in pairwise(neighbours):
        assert one.last < two.first
        assert one.last + 1 < two.first or one.state != two.state, "neighbours of one fate are one"
    compare_dead(group, model)


def compare_dead(group: ConsumerGroup, model: ModelGroup) -> None:
    """One group's dead messages."""
    found = {
        offset: Message(0, each.state.due, each.state.attempts, each.state.reason)
        for each in group.dead
        for offset in range(each.first, each.last + 1)
    }
    assert found == model.dead


def act(pair: Pair, step: tuple[Any, ...]) -> None:
    """One step: numbers become offsets, groups and holders that are near to what there is."""
    action, a, b, c, d, flag = step
    model, now = pair.model, pair.now
    ids = [*model.groups, 99]
    id_ = ids[a % len(ids)] if flag else ids[0]
    group = model.groups.get(id_)
    cursor = group.cursor if group else 0
    near = max(0, (group.floor if group else model.start) + b - 2)
    near_range = [(near, near + c)]
    holder = 1 + d % 3
    if action == "append":
        payloads = [b"x"] * (a + 1)
        pair.put(
            commands.append(1, batch_of(payloads)), model.append(now, [(0, 0)] * len(payloads))
        )
        model.give_way(now)
    elif action == "produce":
        identities = [(1 + each % 2, (c + each) % 16) for each in range(a % 4 + 1)]
        columns = [[each[0] for each in identities], [each[1] for each in identities]]
        data = batch_of([b"x"] * len(identities), flags=PRODUCER, eights=columns)
        pair.put(commands.append(1, data), model.append(now, identities))
        model.give_way(now)
    elif action == "claim":
        target = min(model.end, cursor + b) if flag else cursor + b
        ranges = [(cursor, cursor + b - 1)] if b else []
        automatic = bool(d & 1)
        result = model.claim(now, id_, holder, cursor, target, ranges, [], automatic)
        pair.put(commands.claim(1, id_, holder, cursor, target, ranges, (), automatic), result)
    elif action == "mixed":
        base = max(0, cursor + d - 1)
        ranges = [(base, base + b), (base + b + 2, base + b + 2 + c)]
        others = [(base + b + 1, base + b + 1, -1 if c & 1 else now + c * SECOND)]
        target = min(base + a + 3, model.end) if flag else base + a + 3
        automatic = bool(c & 2)
        result = model.claim(now, id_, holder, base, target, ranges, others, automatic)
        pair.put(commands.claim(1, id_, holder, base, target, ranges, others, automatic), result)
    elif action == "again":
        automatic = bool(d & 1)
        result = model.claim(now, id_, holder, cursor, cursor, near_range, [], automatic)
        pair.put(commands.claim(1, id_, holder, cursor, cursor, near_range, (), automatic), result)
    elif action == "settle":
        delay = -1 if b & 1 else d * SECOND
        verb = 1 + a % 4
        ranges = near_range if c & 1 else [*near_range, (near + c + 2, near + c + 4)]
        result = model.settle(now, id_, verb, holder, ranges, delay)
        pair.put(commands.settle(1, id_, verb, holder, ranges, delay), result)
        if pair.exact and verb != 1 and id_ in model.groups:
            model.give_way(now)
    elif action == "bury":
        reason = 2 + a % 2
        pair.put(
            commands.dead_letter(1, id_, reason, near_range),
            model.dead_letter(now, id_, reason, near_range),
        )
    else:
        act_rarely(pair, step, id_)


def act_rarely(pair: Pair, step: tuple[Any, ...], id_: int) -> None:
    """Steps that change groups, time or everything."""
    action, a, b, c, d, _ = step
    model, now = pair.model, pair.now
    group = model.groups.get(id_)
    holder = 1 + d % 3
    if action == "wait":
        pair.flush()
        pair.now += [1, SECOND // 7, SECOND, 6 * SECOND, 31 * SECOND][a % 5]
    elif action == "restart":
        pair.restart()
    elif action == "create" and len(model.groups) < 3:
        name = f"g{model.made + 1}"
        pair.put(commands.create_group(1, name), model.create_group())
        for each in (1, 2):
            pair.put(commands.join(1, name, each, "m"), (0, 0))
            model.groups[model.made].members.add(each)
    elif action == "delete_group" and c > 10:
        known = model.groups.pop(id_, None)
        pair.put(commands.delete_group(1, id_), (19, 0) if known is None else (0, id_))
    elif action == "join" and group is not None:
        pair.put(commands.join(1, f"g{id_}", holder, "m"), (0, 0))
        group.members.add(holder)
    elif action == "leave" and group is not None:
        result = model.leave(now, id_, holder)
        pair.put(commands.leave(1, f"g{id_}", holder), result)
        if pair.exact and result[0] == 0:
            model.give_way(now)
    elif action == "dead_lettered":
        target = id_ if c & 1 else 0
        of = model.groups.get(target) if target else model.nobodys
        first = min(of.dead, default=0) if of else 0
        ranges = [(first, first + b)]
        pair.put(commands.dead_lettered(1, target, ranges), model.dead_lettered(target, ranges))
    elif action == "purge" and c > 10:
        pair.put(commands.purge(1), model.purge())
    elif action == "seek":
        offset = max(0, model.start + b * 3 - 4)
        pair.put(commands.seek(1, id_, (3, offset)), model.seek(id_, offset))
    elif action == "sweep":
        pair.put(commands.sweep(1), (0, 0))
        model.give_way(now)
    elif action == "trim":
        offset = max(0, model.start + b - 8)
        model.forget_below(offset)
        pair.put(commands.trim(1, offset), (0, model.start))


@given(RULES, STEPS, st.integers(1, 4), st.booleans())
def test_any_commands_do_what_the_model_says(
    rules: Rules, steps: list[tuple[Any, ...]], per_entry: int, exact: bool
) -> None:
    """Results, cursors, floors, every pending and dead message, what is kept; and two machines agree byte for byte."""
    pair = Pair(rules, exact)
    act(pair, ("create", 0, 0, 0, 0, False))
    for number, step in enumerate(steps):
        act(pair, step)
        if number % per_entry == 0:
            pair.flush()
    pair.flush()
    assert pair.machine.snapshot() == pair.other.snapshot()
    assert pair.machine.state_hash() == pair.other.state_hash()
