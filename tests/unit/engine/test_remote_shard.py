"""Another shard, which may be the wrong one: it keeps nothing, and says so when it cannot know."""

from __future__ import annotations

from typing import Any

import pytest

from fluxmq.engine.ports import Attached, AttachRequest
from fluxmq.engine.remote_shards import APPEND_HEAD, RemoteShard
from fluxmq.model.outcomes import Outcome
from fluxmq.net import frames
from fluxmq.queues.origins import Identity

WANTED = AttachRequest("q", "g", "member", b"", None, 10, 1)
IDENTITY = Identity(7, 8, 6)


class Link:
    """A link to another shard."""

    up = True
    peer = 300
    backlog_bytes = 0

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.controls: list[tuple[Any, ...]] = []

    def send_frame(self, frame: bytes) -> None:
        """Remember."""
        self.frames.append(frame)

    def send_control(self, name: str, *arguments: object) -> None:
        """Remember."""
        self.controls.append((name, *arguments))


class Port:
    """A client's consumer."""

    ended = False

    def deliver(
        self, batch: Any, first: int, count: int, attempts: int, committed: int = -1
    ) -> None:
        """Not here."""

    def cancelled(self) -> None:
        """The end."""
        self.ended = True


@pytest.fixture
def shard() -> RemoteShard:
    """A shard that is not there yet."""
    return RemoteShard(Link(), lambda: 0.0)


def link_of(shard: RemoteShard) -> Link:
    """Its link."""
    found: Any = shard._link
    assert isinstance(found, Link)
    return found


def test_who_is_not_there_is_asked_nothing(shard: RemoteShard) -> None:
    said: list[int] = []
    shard.append("q", b"batch", said.append, IDENTITY)
    shard.attach(WANTED, Port(), lambda answer, _held: said.append(answer.reason))
    assert said == [Outcome.MOVED, Outcome.MOVED]
    shard.serve()
    assert (link_of(shard).frames, link_of(shard).controls) == ([], [])


def test_an_append_crosses_with_its_identity_and_is_not_kept(shard: RemoteShard) -> None:
    shard.serve()
    said: list[int] = []
    shard.append("q", b"batch", said.append, IDENTITY)
    (frame,) = link_of(shard).frames
    _, number, *identity, length = APPEND_HEAD.unpack_from(frame)
    assert (Identity(*identity), frame[APPEND_HEAD.size :]) == (IDENTITY, b"qbatch")
    assert length == 1
    shard.lose()
    assert said == [Outcome.MOVED]
    shard.serve()
    assert len(link_of(shard).frames) == 1  # the publisher asks the present leader itself
    shard.on_appended([number], [])  # what a former life answers concerns nobody
    assert said == [Outcome.MOVED]


@pytest.mark.parametrize("by_address", [False, True])
def test_an_append_crosses_with_the_way_it_came(shard: RemoteShard, by_address: bool) -> None:
    """Review finding 9: the queue's shard refuses what is sent to the address of an exclusive queue."""
    shard.serve()
    shard.append("q", b"batch", None, IDENTITY, by_address)
    kind = frames.APPEND_BY_ADDRESS if by_address else frames.APPEND
    assert [frame[0] for frame in link_of(shard).frames] == [kind]


def test_answers_of_a_host_that_stays_are_handed_on(shard: RemoteShard) -> None:
    shard.serve()
    said: list[int] = []
    for _ in range(3):
        shard.append("q", b"batch", said.append, IDENTITY)
    first, second, third = (APPEND_HEAD.unpack_from(frame)[1] for frame in link_of(shard).frames)
    shard.on_appended([first], [second, Outcome.MOVED, third, 0x97])
    assert said == [0, Outcome.MOVED, 0x97]
    shard.lose()
    assert said == [0, Outcome.MOVED, 0x97]  # each is answered once


def test_consumers_of_a_host_that_goes_are_told_or_ask_another(shard: RemoteShard) -> None:
    shard.serve()
    attached, waiting, answers = Port(), Port(), list[Attached]()
    for port in (attached, waiting):
        shard.attach(WANTED, port, lambda answer, _held: answers.append(answer))
    (_, number, *_), _ = link_of(shard).controls
    shard.on_attached(number, 0, "g", False, "", 0)
    shard.lose()
    assert [answer.reason for answer in answers] == [0, Outcome.MOVED]
    assert (attached.ended, waiting.ended) == (True, False)
