"""This node's record of its membership in a group, and of the other members that it has met: the
file ``groups/<group>/member`` (see ``incarnation``)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson
import xxhash

from fluxmq.storage.directory import DataPaths
from fluxmq.storage.errors import Corruption, FileMissing
from fluxmq.storage.files import Files

FILE_NAME: Final = "member"
NEVER_FORCED: Final = (0, 0)


def random_number() -> int:
    """Return a number that identifies a directory, a life or a decision."""
    return int.from_bytes(os.urandom(8), "big") >> 1


class Known(NamedTuple):
    """Saved facts about a member. ``mark``: the random number of its life; ``held``: committed
    entries on its disk; ``since``: the commit index at its last readmission, 0 if there was none.
    """

    incarnation: int
    life: int
    mark: int
    held: int = 0
    since: int = 0


class Divergence(NamedTuple):
    """The point from which on a leader of a mirrored group goes on without the others, although the
    group's record in etcd may name them as synchronised: the ``epoch`` in which it leads, the ``commit``
    index, the ``messages`` that its queues had been given, and how often a copy had been declared
    the truth, by that record."""

    epoch: int
    commit: int
    messages: int
    forced: int


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """This node as a member of a group, as stored in the group's directory.

    ``hosted``: True while it is a member, False after it was removed. ``voters`` and
    ``learners``: the membership that its log begins with.
    """

    incarnation: int
    life: int
    mark: int
    hosted: bool
    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    known: Mapping[int, Known] = field(default_factory=dict)
    floor: tuple[int, int] = (0, 0)
    """Term and index of the last entry that it is assumed to hold when it votes."""
    forced: tuple[int, int] = NEVER_FORCED
    """Number of times a copy was declared the truth, and the random number of the last time."""
    diverged: Divergence | None = None
    """Set while this copy may have what was confirmed without the others."""


def record_path(paths: DataPaths, group: str) -> str:
    """Return the path of a group's member record."""
    return f"{paths.group(group)}/{FILE_NAME}"


def write_record(files: Files, paths: DataPaths, group: str, record: MemberRecord) -> None:
    """Replace the record; durable on return. Raises StorageError."""
    content: dict[str, object] = {
        "incarnation": record.incarnation,
        "life": record.life,
        "mark": record.mark,
        "hosted": record.hosted,
        "voters": list(record.voters),
        "learners": list(record.learners),
        "known": {str(number): list(known) for number, known in sorted(record.known.items())},
        "floor": list(record.floor),
    }
    if record.forced != NEVER_FORCED:
        content["forced"] = list(record.forced)
    if record.diverged is not None:
        content["diverged"] = list(record.diverged)
    content["check"] = _check(content)
    files.make_directory(paths.group(group))
    files.write_whole(record_path(paths, group), orjson.dumps(content, option=orjson.OPT_INDENT_2))


def read_record(files: Files, paths: DataPaths, group: str) -> MemberRecord | None:
    """Return the record written last, None if there is none. Raises Corruption, StorageError."""
    path = record_path(paths, group)
    try:
        data = files.read_file(path)
    except FileMissing:
        return None
    try:
        content = orjson.loads(data)
        sound = content.pop("check") == _check(content)
        record = MemberRecord(
            content["incarnation"],
            content["life"],
            content["mark"],
            content["hosted"],
            tuple(content["voters"]),
            tuple(content["learners"]),
            {int(number): Known(*known) for number, known in content["known"].items()},
            pair(content["floor"]),
            pair(content.get("forced", NEVER_FORCED)),
            _divergence(content.get("diverged")),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corruption(path, 0, f"no member record: {error}") from None
    if not sound:
        raise Corruption(path, 0, "the checksum does not match")
    return record


def _check(content: Mapping[str, object]) -> str:
    return xxhash.xxh3_64_hexdigest(orjson.dumps(content, option=orjson.OPT_SORT_KEYS))


def _divergence(value: Sequence[Any] | None) -> Divergence | None:
    """Return a divergence as it is stored. Raises ValueError, TypeError."""
    if value is None:
        return None
    epoch, commit, messages, forced = value
    return Divergence(int(epoch), int(commit), int(messages), int(forced))


def pair(value: Sequence[Any]) -> tuple[int, int]:
    """Return two numbers as they are stored. Raises ValueError, TypeError."""
    term, index = value
    return int(term), int(index)
