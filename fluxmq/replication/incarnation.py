"""Recognition of members: a member's directory may have been lost, or an old one may be back.

A member's promises (votes, acknowledgements) are on its disk. A member that returns without them
has broken them; together with a member that was away it may form a majority that knows nothing of
acknowledged entries. So every member has an *incarnation*, a random number made with its directory,
and counts its *lives*, the times that the directory was opened, each with a random number of its
own. All are in ``groups/<group>/member``, durable before the member sends anything. Members save
these numbers of each other before they accept a message from a stream, and a leader also saves what
a member had acknowledged when its stream ended. A member with another incarnation, an earlier life,
or a log that ends too soon is **not believed**: nothing is sent to it and nothing is accepted from
it, so its votes and acknowledgements do not count, and while any member doubts it, it votes for
nobody. Once it is committed that it is no voter, its earlier promises no longer matter: any
majority of the voters without it meets each majority with it in a member that keeps its promises. A
leader that a majority has confirmed then readmits it in its present state and fills it anew. Others
believe it when they hear of that. Some of them may not know yet that it is no voter, and ask for
its vote; so it gets a *floor*, the leader's term and commit index, which it keeps durably: it votes
as if its log ended there, for no candidate that knows less.

A group whose majority is lost for good may be *forced*: an operator declares one copy the truth
(``storage.force``). The record counts that, with a random number, and so do greetings. A member
that meets one that was forced more often is *superseded*: it believes nobody and votes for nobody,
and its copy is retired. The other one does not believe those left behind.

A member that nobody remembers cannot be recognised: of three, a member that never met another
cannot tell it from its successor. This takes the loss of one directory while the only other member
that has the group is down.

A control record begins with `GREETING`, where a Raft message has its version, and is a map in
MessagePack: ``incarnation, life, mark, persisted, known, forced`` as a stream's first record,
``doubt`` whenever the verdict on the other changes, ``floor`` with ``incarnation`` and ``life`` to
a readmitted member, ``news`` to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from fluxmq.raft.errors import MalformedMessage
from fluxmq.raft.memberships import MEMBERS_MAX
from fluxmq.replication.member_record import (
    NEVER_FORCED,
    Divergence,
    Known,
    MemberRecord,
    pair,
)

GREETING: Final = 0xFE
GREETING_BYTES_MAX: Final = 16 << 10
"""Maximum size of a control record: the state of `MEMBERS_MAX` members takes a third of it."""
DOUBT_CHARACTERS_MAX: Final = 200
_OF_MET: Final = frozenset(("doubt", "news", "floor"))


class GroupView(NamedTuple):
    """A group's state for this member: commit index, committed voters, voters by its log."""

    commit: int
    committed_voters: tuple[int, ...]
    voters: tuple[int, ...]


@dataclass(slots=True)
class _Met:
    """The other end of a stream: its greeting, and the doubts of each side about the other."""

    incarnation: int
    life: int
    mark: int
    persisted: int
    forced: tuple[int, int] = NEVER_FORCED
    doubt: str = ""
    reported_doubt: str = ""


class Acquaintances:
    """The members of one group that this one has met, and whether it believes them.

    ``save`` makes a record durable, ``persisted`` returns the last index of the own log on disk,
    ``group_view`` the group's state, ``acknowledged`` the last committed index that a member has
    acknowledged to this node as leader, 0 for unknown. ``say`` sends a control record to a member.
    ``readmit`` is called with a member that may be readmitted: it calls `take_back` once a majority
    has confirmed this node as leader. ``start_over`` is called with a member whose incarnation has
    changed, before it is believed. ``hold`` gets the floor by which votes are weighed from then on.
    """

    def __init__(
        self,
        record: MemberRecord,
        save: Callable[[MemberRecord], None],
        persisted: Callable[[], int],
        group_view: Callable[[], GroupView],
        acknowledged: Callable[[int], int],
        say: Callable[[int, bytes], None],
        readmit: Callable[[int], None],
        start_over: Callable[[int], None],
        hold: Callable[[int, int], None],
    ) -> None:
        self.record = record
        self._save = save
        self._persisted = persisted
        self._group_view = group_view
        self._acknowledged = acknowledged
        self._say = say
        self._readmit = readmit
        self._start_over = start_over
        self._hold = hold
        self._met: dict[int, _Met] = {}
        self.superseded = NEVER_FORCED
        """Number of the copy declared the truth while this one was away; `NEVER_FORCED` if none
        was.
        """
        self.closed = False
        """True once the group is no longer hosted here: another shard may have its record now."""

    # Called by the transport

    def believed(self, member: int) -> bool:
        """Return whether messages to and from a member count."""
        met = self._met.get(member)
        return (
            met is not None
            and not met.doubt
            and not met.reported_doubt
            and self.superseded == NEVER_FORCED
            and self.record.diverged is None
        )

    def doubt(self, member: int) -> str:
        """Return why a member is not believed, or does not believe this one; empty otherwise."""
        met = self._met.get(member)
        if met is None:
            return ""
        return met.doubt or (
            f"says that this node {met.reported_doubt}" if met.reported_doubt else ""
        )

    @property
    def abstains(self) -> bool:
        """True while this member votes for nobody, itself included: it is doubted or superseded."""
        if self.superseded != NEVER_FORCED:
            return True
        for met in self._met.values():  # noqa: SIM110 (asked with every message)
            if met.reported_doubt:
                return True
        return False

    @property
    def doubted(self) -> list[int]:
        """Members that are not believed."""
        return [number for number, met in self._met.items() if met.doubt]

    def diverge(self, mark: Divergence | None) -> None:
        """Believe nobody from now on, since this copy goes on without the others; None: believe them
        again. Durable on return. Raises StorageError."""
        record = replace(self.record, diverged=mark)
        self._save(record)
        self.record = record

    # Streams

    def greeting(self) -> bytes:
        """Return the first record of a stream."""
        record = self.record
        return _encode(
            {
                "incarnation": record.incarnation,
                "life": record.life,
                "mark": record.mark,
                "persisted": self._persisted(),
                "known": {number: list(known) for number, known in record.known.items()},
                "forced": list(record.forced),
            }
        )

    def take(self, member: int, frame: bytes) -> None:
        """Handle a member's control record. Raises MalformedMessage, StorageError."""
        if self.closed:
            return
        content = _decode(frame)
        if not content.keys().isdisjoint(_OF_MET):
            self._take_of_met(member, content)
            return
        met = _Met(
            _number(content, "incarnation"),
            _number(content, "life"),
            _number(content, "mark"),
            _number(content, "persisted"),
            _forced(content),
        )
        known = _known(content)
        before = self._met.get(member)
        if before is not None:  # it has greeted again, and has to hear what changes by that
            met.doubt, met.reported_doubt = before.doubt, before.reported_doubt
        if met.forced[0] > self.record.forced[0]:
            self._met[member] = met
            self._yield(member, met)
            return
        self._judge(member, met)
        self._met[member] = met
        if not met.doubt:
            self._learn(member, known)
        elif self._may_be_readmitted(member, met):
            self._readmit(member)

    def _yield(self, member: int, met: _Met) -> None:
        """Give way to a copy that was declared the truth. Raises StorageError.

        An empty copy has promised nothing, and joins the new group as soon as it has said so.
        """
        if self._persisted():
            self.superseded = met.forced
            return
        record = replace(self.record, forced=met.forced, known={}, floor=(0, 0))
        self._save(record)
        self.record = record
        self._say(member, self.greeting())
        self._judge(member, met)

    def _take_of_met(self, member: int, content: Mapping[str, Any]) -> None:
        """Handle a record that only a member that has greeted may send."""
        met = self._met.get(member)
        if met is None:
            raise MalformedMessage("a verdict before the greeting")
        if "doubt" in content:
            met.reported_doubt = _text(content, "doubt")
        elif "news" in content:
            if not met.doubt:
                self._learn(member, _known(content, "news"))
        elif (_number(content, "incarnation"), _number(content, "life")) == (
            self.record.incarnation,
            self.record.life,
        ):
            floor = max(self.record.floor, _floor(content))
            record = replace(self.record, floor=floor)
            self._save(record)
            self.record = record
            self._hold(*floor)

    def gone(self, member: int) -> None:
        """Forget a stream that has ended, and save what the member held. Raises StorageError."""
        if self._met.pop(member, None) is None or self.closed:
            return
        held = self._acknowledged(member)
        known = self.record.known.get(member)
        if known is not None and held > known.held:
            self._remember({member: known._replace(held=held)})

    def look_again(self) -> None:
        """Judge doubted members again: the group's state may have changed. Raises StorageError."""
        for member in self.doubted:
            met = self._met[member]
            self._judge(member, met)
            if met.doubt and self._may_be_readmitted(member, met):
                self._readmit(member)

    def take_back(self, member: int, term: int) -> None:
        """Believe a readmissible member in its present state; a majority has confirmed this
        leader's term since the member came. Raises StorageError.
        """
        met = self._met.get(member)
        if met is None or not met.doubt or not self._may_be_readmitted(member, met):
            return
        index = max(self._group_view().commit, 1)
        known = Known(met.incarnation, met.life, met.mark, 0, index)
        self._start_over(member)
        self._remember({member: known})
        met.doubt = ""
        floor = {"floor": [term, index], "incarnation": met.incarnation, "life": met.life}
        self._say(member, _encode(floor))
        self._say(member, _encode({"doubt": ""}))
        news = _encode({"news": {member: list(known)}})
        for other in self._met:
            if other != member and self.believed(other):
                self._say(other, news)

    def _may_be_readmitted(self, member: int, met: _Met) -> bool:
        """Return whether a member is no voter, committed or pending, and is not left behind."""
        if met.forced != self.record.forced:
            return False
        group_view = self._group_view()
        if self.record.diverged is not None:
            return False
        return member not in group_view.committed_voters and member not in group_view.voters

    # Verdicts

    def _judge(self, member: int, met: _Met) -> None:
        known = self.record.known.get(member)
        why = self._left_behind(met) or ("" if known is None else self._why_not(member, met, known))
        if known is None and not why:
            self._remember({member: Known(met.incarnation, met.life, met.mark)})
        elif known is not None and not why and met.life > known.life:
            self._remember({member: known._replace(life=met.life, mark=met.mark)})
        if why != met.doubt:
            met.doubt = why
            self._say(member, _encode({"doubt": why}))

    def _left_behind(self, met: _Met) -> str:
        """Return why another's copy is not of the group as last forced; empty if it is."""
        if met.forced == self.record.forced:
            return ""
        if met.forced[0] == self.record.forced[0]:
            return "was also declared authoritative, and only one copy can be"
        return "was superseded when another copy was declared authoritative"

    def _why_not(self, member: int, met: _Met, known: Known) -> str:
        if met.incarnation != known.incarnation:
            return "has lost its data directory"
        if met.life < known.life or (met.life == known.life and met.mark != known.mark):
            return "has an older data directory"
        held = max(known.held, self._acknowledged(member))
        if met.persisted < held:
            return f"has acknowledged entry {held}, and its log ends at {met.persisted}"
        return ""

    def _learn(self, teller: int, known: Mapping[int, Known]) -> None:
        """Merge a believed member's knowledge of others; its more recent readmissions win."""
        news: dict[int, Known] = {}
        for member, theirs in known.items():
            if member in (teller, 0):
                continue
            ours = self.record.known.get(member)
            if ours is None or theirs.since > ours.since:
                news[member] = theirs
                if ours is not None:
                    self._start_over(member)
            elif ours.incarnation == theirs.incarnation:
                later = theirs if theirs.life > ours.life else ours
                merged = later._replace(held=max(ours.held, theirs.held), since=ours.since)
                if merged != ours:
                    news[member] = merged
        if news:
            self._remember(news)
            self.look_again()

    def _remember(self, news: Mapping[int, Known]) -> None:
        known = {**self.record.known, **news}
        if len(known) > MEMBERS_MAX:
            group_view = self._group_view()
            keep = {*group_view.committed_voters, *group_view.voters, *news, *self._met}
            known = {number: each for number, each in known.items() if number in keep}
        record = replace(self.record, known=known)
        self._save(record)
        self.record = record


def is_control(frame: bytes) -> bool:
    """Return whether a frame of a Raft stream is a control record."""
    return bool(frame) and frame[0] == GREETING


def _encode(content: Mapping[str, object]) -> bytes:
    packed: bytes = msgpack.packb(dict(content), use_bin_type=True)
    return bytes((GREETING,)) + packed


def _decode(frame: bytes) -> dict[str, Any]:
    if len(frame) > GREETING_BYTES_MAX:
        raise MalformedMessage(f"a control record of {len(frame)} bytes")
    try:
        content = msgpack.unpackb(frame[1:], raw=False, strict_map_key=False)
    except Exception as error:
        raise MalformedMessage(f"a control record that is none: {error}") from error
    if not isinstance(content, dict):
        raise MalformedMessage("a control record that is no map")
    return content


def _number(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    if not _is_number(value):
        raise MalformedMessage(f"a greeting without {name}")
    return int(value)  # type: ignore[arg-type]


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise MalformedMessage(f"a control record without {name}")
    return value[:DOUBT_CHARACTERS_MAX]


def _forced(content: Mapping[str, Any]) -> tuple[int, int]:
    """Return how often the other's group was forced; earlier versions omit that."""
    value = content.get("forced", list(NEVER_FORCED))
    if not isinstance(value, list) or len(value) != 2 or not all(map(_is_number, value)):
        raise MalformedMessage("a greeting with a forced that is none")
    return pair(value)


def _floor(content: Mapping[str, Any]) -> tuple[int, int]:
    value = content.get("floor")
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(_is_number(each) for each in value)
    ):
        raise MalformedMessage("a floor that is none")
    return pair(value)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _known(content: Mapping[str, Any], name: str = "known") -> dict[int, Known]:
    known = content.get(name)
    if not isinstance(known, dict) or len(known) > 2 * MEMBERS_MAX:
        raise MalformedMessage("a greeting without the member's knowledge")
    found: dict[int, Known] = {}
    for number, values in known.items():
        numbers = (number, *values) if isinstance(values, list) else ()
        if len(numbers) != 1 + len(Known._fields) or not all(map(_is_number, numbers)):
            raise MalformedMessage("a greeting with a malformed record of a member")
        found[number] = Known(*numbers[1:])
    return found
