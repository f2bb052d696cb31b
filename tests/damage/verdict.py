"""What a directory has to be after a recovery: exactly what was promised, or refused with the place named."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from xxhash import xxh3_128_digest

from fluxmq.engine.group import ReplicationGroup
from fluxmq.replication.open_group import OpenGroup
from fluxmq.settings.schema import Settings
from fluxmq.storage.errors import StorageError
from tests.damage.shard import Clock, Shard, Tracked
from tests.damage.workload import Place, Record


class WrongError(AssertionError):
    """A recovery gave something that is not what was promised, and said nothing."""


@dataclass
class Promise:
    """What was promised when the directory was copied. States and contents by replication group and queue."""

    record: Record
    applied: dict[str, int] = field(default_factory=dict)
    states: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """The machine's state as of an entry."""
    contents: dict[tuple[str, int], dict[int, dict[int, bytes]]] = field(default_factory=dict)
    """Digests of the messages there were as of an entry, by queue id and offset."""
    names: dict[Place, str] = field(default_factory=dict)


def contents_of(hosted: OpenGroup[ReplicationGroup], queue_id: int) -> dict[int, bytes]:
    """Digest of every message of a queue, read from its log. Raises StorageError."""
    log = hosted.group.logs[queue_id]
    state = hosted.group.machine.queues[queue_id]
    found: dict[int, bytes] = {}
    offset = max(state.start, state.kept)
    while offset < state.next_offset:
        batch = log.read(offset)
        for index in range(offset - batch.base_offset, batch.count):
            message = b"\0".join(
                (batch.key(index), batch.properties(index), bytes(batch.payload(index)))
            )
            found[batch.base_offset + index] = xxh3_128_digest(message)
        offset = batch.base_offset + batch.count
    return found


def note_state(promise: Promise, shard: Shard) -> None:
    """Remember the groups' states as of the entries applied last."""
    for name, hosted in shard.hosted.items():
        group = hosted.group
        promise.states[name, group.applied_index] = xxh3_128_digest(group.machine.snapshot())


def promise_of(promise: Promise, shard: Shard, *, told: bool = True) -> None:
    """Remember what a shard at rest has; with `told`, that this is the least there has to be from now on."""
    note_state(promise, shard)
    for name, hosted in shard.hosted.items():
        group = hosted.group
        if told:
            promise.applied[name] = group.applied_index
        contents = promise.contents[name, group.applied_index] = {}
        for queue_id, queue in group.machine.queues.items():
            contents[queue_id] = contents_of(hosted, queue_id)
            promise.names[name, queue_id] = queue.name


@dataclass
class Verdict:
    """How a recovery ended: "whole", "refused" or "prefix"."""

    outcome: str
    why: str = ""


def recover(settings: Settings, clock: Clock, runner: asyncio.Runner, promise: Promise) -> Verdict:
    """Start on a directory and hold what comes back against what was promised. Raises WrongError."""
    files = Tracked()
    root = settings.storage.data_dir
    try:
        shard = Shard(settings, clock, runner, files)
    except StorageError as error:
        files.close_all()
        return _refused(root, str(error))
    try:
        last = {name: hosted.log.last_index() - 1 for name, hosted in shard.hosted.items()}
        shard.recover()
        if shard.failures:
            return _refused(root, shard.failures[0])
        try:
            return _compare(shard, promise, last)
        except StorageError as error:
            return _refused(root, str(error))
    finally:
        shard.kill()


def _refused(root: str, why: str) -> Verdict:
    if root not in why:
        raise WrongError(f"refused without naming the place: {why}")
    if not any(word in why for word in ("Corruption", ", byte ", "VERSION", "of /")):
        raise WrongError(f"refused for something else than damage: {why}")
    return Verdict("refused", why.replace(root, "", 1))


def _compare(shard: Shard, promise: Promise, last: dict[str, int]) -> Verdict:
    outcome = "whole"
    for name, applied in promise.applied.items():
        hosted = shard.hosted.get(name)
        if hosted is None:
            raise WrongError(f"group {name} is not there")
        if last[name] < applied:
            outcome = "prefix"
        expected = promise.states.get((name, last[name]))
        state = xxh3_128_digest(hosted.group.machine.snapshot())
        if expected is None or state != expected:
            raise WrongError(f"group {name} at entry {last[name]} of {applied} is not what it was")
    for name, index in last.items():
        for queue_id, messages in promise.contents.get((name, index), {}).items():
            _compare_queue(shard.hosted[name], (name, queue_id), messages, promise)
    return Verdict(outcome)


def _compare_queue(
    hosted: OpenGroup[ReplicationGroup], place: Place, messages: dict[int, bytes], promise: Promise
) -> None:
    if place[1] not in hosted.group.machine.queues:
        raise WrongError(f"queue {promise.names[place]} is not there")
    found = contents_of(hosted, place[1])
    for offset, digest in messages.items():
        if found.get(offset) != digest:
            raise WrongError(f"offset {offset} of {promise.names[place]} is not what it was")
    if found.keys() != messages.keys():
        raise WrongError(f"{promise.names[place]} has messages that were never there")
