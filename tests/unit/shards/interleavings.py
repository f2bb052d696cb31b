"""All orders in which things can happen on a node, tried one after the other.

A `Story` is a node on which some scripts are to be played, each in its order, while records cross from shard to shard
in theirs: which of all these comes next is a choice. `explore` makes every choice, playing a story anew for every path,
and stops where it comes to a state it has seen. Stories with too many paths for every run are sampled by random walks,
always the same ones; `FLUXMQ_EXHAUSTIVE=1` explores those in full too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Hashable, Sequence

from tests.unit.shards.node import Node

Step = Callable[[], None]
Choice = tuple[str, int, int]


class Story:
    """A node that holds its records, and scripts of steps."""

    def __init__(self, node: Node, scripts: Sequence[Sequence[Step]]) -> None:
        self.node = node
        self._scripts = [list(script) for script in scripts]
        node.hold()

    def choices(self) -> list[Choice]:
        """What may happen next."""
        script = [("script", at, len(steps)) for at, steps in enumerate(self._scripts) if steps]
        return script + [("let", *pair) for pair in self.node.waiting()]

    def play(self, choice: Choice) -> None:
        """Let it happen."""
        kind, first, second = choice
        if kind == "script":
            self._scripts[first].pop(0)()
            self.node.run()
        else:
            self.node.let(first, second)

    def state(self) -> Hashable:
        """What the future depends on."""
        return (
            tuple(map(len, self._scripts)),
            tuple(tuple(pipe.records) for pipe in self.node.pipes.values()),
            tuple(repr(view(self.node, index)) for index in range(self.node.workers)),
        )

    def end(self) -> None:
        """Let everything pass, and time for what is noticed by it."""
        self.node.release()
        self.node.advance(0.3)


def view(node: Node, index: int) -> object:
    """A shard's part of the state."""
    shard = node.shards[index]
    if shard is None:
        return None
    ownership, peers = shard.ownership, shard.peers
    store = shard.broker.retained.store
    return (
        [link.up for link in peers.links.values()],
        sorted(ownership._owners.items()),
        sorted(
            (name, entry.owner, len(entry.ownership)) for name, entry in ownership._pending.items()
        ),
        ownership._early,
        sorted((number, asked.client_id) for number, asked in ownership._asked.items()),
        sorted(
            (name, session.client is not None, len(session.subscriptions))
            for name, session in shard.broker.sessions.by_id.items()
        ),
        len(shard.reactor.connections),
        [(topic, kept.stamp) for topic, kept in store.snapshot()],
        list(store.tombstones()),
        peers._confirmations._known,
        peers.complete,
    )


Tell = Callable[[], Story]
Check = Callable[[Story], None]


def explore(tell: Tell, check: Check, walks: int = 0) -> int:
    """Play every story, or `walks` of them; `check` is called at each end. Returns how many ends there were."""
    if walks and os.environ.get("FLUXMQ_EXHAUSTIVE") != "1":
        choose = random.Random(1).choice
        for _ in range(walks):
            play(tell, check, [], choose)
        return walks
    seen: set[Hashable] = set()
    ends = 0
    paths: list[list[Choice]] = [[]]
    while paths:
        ends += _follow(tell, check, paths.pop(), paths, seen)
    return ends


def _follow(
    tell: Tell, check: Check, path: list[Choice], paths: list[list[Choice]], seen: set[Hashable]
) -> bool:
    """Play a story along `path` and on from there until it ends or comes to a state in `seen`; whether it ends.

    Where there are choices it takes the last, and adds the paths of the others.
    """
    story = tell()
    try:
        for choice in path:
            story.play(choice)
        while (state := story.state()) not in seen:
            seen.add(state)
            choices = story.choices()
            if not choices:
                story.end()
                check(story)
                return True
            paths += [[*path, choice] for choice in choices[:-1]]
            path = [*path, choices[-1]]
            story.play(path[-1])
    except BaseException as problem:
        problem.add_note("after " + ", ".join(map(str, path)))
        raise
    finally:
        story.node.close()
    return False


def play(
    tell: Tell, check: Check, path: list[Choice], choose: Callable[[list[Choice]], Choice]
) -> None:
    """Play one story along `path` and on from there to its end, as chosen, and check it."""
    story = tell()
    path = list(path)
    try:
        for choice in path:
            story.play(choice)
        while choices := story.choices():
            path.append(choose(choices))
            story.play(path[-1])
        story.end()
        check(story)
    except BaseException as problem:
        problem.add_note("after " + ", ".join(map(str, path)))
        raise
    finally:
        story.node.close()
