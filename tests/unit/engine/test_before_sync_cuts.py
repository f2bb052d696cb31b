"""Queues that deliver before the sync, with a disk that takes its time and power that fails: what anybody was told stays true."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fluxmq.queues.commands import Verb
from tests.unit.engine.asking import Asker, ask, publish
from tests.unit.engine.conftest import MakeQueues
from tests.unit.engine.support import QueueNode
from tests.unit.engine.test_before_sync import EARLY, ORDINARY, step


class Play:
    """Publishers, consumers, checkpoints and a disk that takes its time, until the power fails, again and again.

    `held` are messages that a consumer of this life was given and has not answered.
    """

    def __init__(self, node: QueueNode, random: Random) -> None:
        self.node, self.random = node, random
        node.keeps_synced = True
        self.sent = 0
        self.answers: dict[bytes, list[int]] = {}
        self.published: set[bytes] = set()
        """Published since the power failed last."""
        self.seen: set[bytes] = set()
        """Given to a consumer since the power failed last."""
        self.settled: dict[bytes, list[int]] = {}
        """Answers to settlements, by message."""
        self.early = 0
        """Messages that were given to a consumer before their confirmation."""
        self.consumers: list[Asker] = []
        self.told: dict[Asker, int] = {}
        self.attach()

    def attach(self) -> None:
        """Attach one more consumer."""
        taker = Asker(self.node, 0, limit=self.random.choice((1, 3, 50)))
        self.consumers.append(taker)
        self.told[taker] = 0

    def publish(self) -> None:
        """Publish some messages to each queue."""
        for queue in self.random.choice((["work"], ["work"], ["work", "other"], ["other"])):
            for _ in range(self.random.randint(1, 4)):
                payload = b"%s %d" % (queue.encode(), self.sent)
                self.sent += 1
                self.published.add(payload)
                self.answers[payload] = publish(
                    self.node, 0, payload.ljust(self.random.choice((0, 3000))), queue=queue
                )
        self.node.run()
        self.look()

    def look(self) -> None:
        """Look at what the consumers were given."""
        for taker in self.consumers:
            at = self.told[taker]
            self.told[taker] = len(taker.payloads)
            given = zip(taker.payloads[at:], taker.offsets[at:], taker.attempts[at:], strict=True)
            for padded, offset, attempts in given:
                payload = padded.strip()
                assert (payload in self.seen) <= (attempts > 1), "a redelivery says so"
                self.seen.add(payload)
                self.early += self.answers[payload] != [0]
                assert taker.held is not None
                if self.random.random() < 0.6:
                    done = self.settled.setdefault(payload, [])
                    taker.held.settle(
                        Verb.ACK, [(offset, offset)], 0, b"", self.settles(payload, done)
                    )
                elif self.random.random() < 0.3:
                    taker.settle(Verb.NACK, offset)

    def settles(self, payload: bytes, done: list[int]) -> Callable[[int], None]:
        """Return what hears of the end of a settlement."""

        def answered(reason: int) -> None:
            if payload in self.published:
                assert self.answers[payload] == [0], "settled for good before it was there"
            done.append(reason)

        return answered

    def step(self) -> None:
        """End a sync, if one is in flight."""
        step(self.node)
        self.look()

    def wait(self) -> None:
        """Let time pass."""
        self.node.advance(self.random.choice((0.05, 0.5, 1.5)))
        self.look()

    def leave(self) -> None:
        """Detach a consumer, and attach another."""
        taker = self.random.choice(self.consumers)
        if taker.held is not None:
            taker.held.detach()
            self.consumers.remove(taker)
            self.attach()

    def checkpoint(self) -> None:
        """Take a checkpoint, whatever the log has."""
        self.node.checkpoint()

    def cut(self) -> None:
        """Let the power fail; the disk is slow again afterwards."""
        self.node.cut_power()
        self.seen.clear()
        self.published.clear()
        self.consumers.clear()
        self.attach()
        self.node.hold_syncs()

    def finish(self) -> set[bytes]:
        """Let the power fail, and return what is in the queue of its messages that are not settled for certain."""
        self.cut()
        self.node.hold_syncs(False)
        last = self.consumers[0]
        left: dict[bytes, int] = {}
        for _ in range(self.sent):
            for padded, offset in zip(last.payloads, last.offsets, strict=True):
                if padded.strip() not in left:
                    left[padded.strip()] = offset
                    last.settle(Verb.ACK, offset)
            self.node.advance(0.1)
            if ask(self.node, 0, "status") == ask(self.node, 0, "status")._replace(
                ready=0, unsettled=0
            ):
                break
        order = sorted(left, key=left.__getitem__)
        assert order == sorted(left, key=lambda payload: int(payload.split()[1]))
        return set(left)

    def check(self, left: set[bytes]) -> None:
        """Compare with what everybody was told."""
        assert not self.node.group("work").failed
        for payload, answers in self.answers.items():
            if not payload.startswith(b"work"):
                continue
            certain = self.settled.get(payload) == [0]
            if answers == [0] and payload not in self.settled:
                assert payload in left, f"{payload!r} was confirmed"
            if certain:
                assert payload not in left, f"{payload!r} was settled for good"
        assert left <= self.answers.keys()


def steps_of(play: Play) -> list[Any]:
    """Return the steps that may follow, common ones several times."""
    return [
        *[play.publish] * 4,
        *[play.step] * 3,
        *(play.wait, play.wait, play.leave, play.checkpoint),
    ]


@pytest.mark.parametrize("seed", range(16))
def test_a_power_cut_takes_back_only_what_nobody_was_told_of(
    make_queues: MakeQueues, seed: int
) -> None:
    random = Random(seed)
    node = make_queues(
        {**EARLY, "retry": {"initial_backoff": "10ms"}, "consumer": {"delivery_limit": -1}},
        ORDINARY,
        storage={"segment_bytes": 65536},
        queue_manager={"local_groups": random.choice((1, 8))},
    )
    play = Play(node, random)
    node.hold_syncs()
    for _ in range(60):
        random.choice([*steps_of(play), *[play.cut] * (random.random() < 0.1)])()
    play.check(play.finish())
    if node.settings.queue_manager.local_groups > 1:
        assert play.early


@pytest.mark.parametrize("after", range(18))
def test_the_power_may_fail_after_each_step(make_queues: MakeQueues, after: int) -> None:
    node = make_queues(EARLY, ORDINARY, storage={"segment_bytes": 65536})
    play = Play(node, Random(1))
    publish(node, 0, b"begin", queue="other")
    node.advance(1)
    node.hold_syncs()
    script = [
        *(play.publish, play.publish, play.step, play.publish, play.wait, play.checkpoint),
        *(play.step, play.publish, play.wait, play.step, play.leave, play.publish),
        *(play.step, play.checkpoint, play.publish, play.wait, play.step, play.publish),
    ]
    for each in script[: after + 1]:
        each()
    play.check(play.finish())
