"""Retained messages that are too large for etcd: fetched from the nodes that have them.

A topic's home asks the node that published a message, or another one if that is away: every node
that has fetched it can pass it on. Until the message has come, there is none: never an older one.

Frames beside the control frames::

    NODE_RETAINED  u8 kind, u64 0, f64 seconds until it expires (0: never), then as RETAINED

Control frames: ``retained wanted`` [topics].
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container

from fluxmq.net import frames
from fluxmq.protocols.mqtt.run import PublishRun
from fluxmq.shards.node_paths import QOS_0_BACKLOG_MAX, PublishLink
from fluxmq.shards.retained import RetainedMessages, frame_of, is_committed, is_deletion, stamp_of

ASKED_MAX = 32
"""Messages asked for at once."""
OWED_MAX = 1024
"""Requests that wait for what they ask for."""
ANSWER_SECONDS = 2.0
"""Time for an answer; then another node is asked, at once and then at growing intervals."""
PAUSE_SECONDS_MAX = 60.0
"""Longest interval."""


class _Missing:
    """A message that this node does not have, as committed at ``revision`` by ``node``."""

    def __init__(self, revision: int, node: str) -> None:
        self.revision = revision
        self.node = node
        self.attempts = 0


class RetainedFetch:
    """The messages that this shard, as home of their topics, fetches; and what it passes on."""

    def __init__(self, retained: RetainedMessages, now: Callable[[], float]) -> None:
        self._retained = retained
        self._now = now
        self._links: dict[int, PublishLink] = {}
        self._missing: dict[bytes, _Missing] = {}
        self._due: list[tuple[float, bytes]] = []
        """Heap of moments and topics to ask for then, which may be missing no longer."""
        self._asked: dict[bytes, float] = {}
        """Topics that were asked for, and until when an answer is awaited."""
        self._owed: dict[tuple[int, bytes], float] = {}
        """Links and topics that were asked for and could not be answered, and until when that is
        tried."""
        self.fetched = 0

    @property
    def missing(self) -> int:
        """Number of messages that this node does not have."""
        return len(self._missing)

    def announce(self, run: PublishRun) -> None:
        """Note that a run of another node, delivered next, is retained, if nodes share what is."""
        if run.retain and self._retained.shared:
            self._retained.announce(run)

    # What is missing

    def want(self, topic: bytes, revision: int, node: str) -> None:
        """Fetch a topic's message, as committed at a revision by a node."""
        known = self._missing.get(topic)
        if known is None or known.revision < revision:
            self._missing[topic] = _Missing(revision, node)
            heapq.heappush(self._due, (self._now(), topic))
            self._ask()

    def forget(self, topic: bytes, revision: int) -> None:
        """Fetch a topic's message no longer if it was committed before ``revision``."""
        known = self._missing.get(topic)
        if known is not None and known.revision < revision:
            del self._missing[topic]

    def retain_only(self, topics: Container[bytes]) -> None:
        """Fetch the messages of no other topics."""
        for topic in [topic for topic in self._missing if topic not in topics]:
            del self._missing[topic]

    def _ask(self) -> None:
        """Ask for what is missing, within `ASKED_MAX`."""
        now = self._now()
        for topic in [topic for topic, until in self._asked.items() if until <= now]:
            del self._asked[topic]
            if topic in self._missing:
                pause = 2 ** min(self._missing[topic].attempts, 16) - 2
                heapq.heappush(self._due, (now + min(pause, PAUSE_SECONDS_MAX), topic))
        up = [link for link in self._links.values() if link.up]
        wanted: dict[int, list[bytes]] = {}
        while up and self._due and self._due[0][0] <= now and len(self._asked) < ASKED_MAX:
            _, topic = heapq.heappop(self._due)
            missing = self._missing.get(topic)
            if missing is None or topic in self._asked:
                continue
            owner = [link for link in up if link.node == missing.node]
            others = [link for link in up if link.node != missing.node]
            links = owner + others
            wanted.setdefault(links[missing.attempts % len(links)].peer, []).append(topic)
            missing.attempts += 1
            self._asked[topic] = now + ANSWER_SECONDS
        for peer, topics in wanted.items():
            self._links[peer].send_control("retained wanted", topics)

    def housekeeping(self) -> None:
        """Ask again, and answer what could not be answered; called by the shard's timer."""
        now = self._now()
        for (peer, topic), until in list(self._owed.items()):
            link = self._links.get(peer)
            if link is None or until <= now or self._send(link, topic):
                del self._owed[peer, topic]
        self._ask()

    # Links

    def came(self, link: PublishLink) -> None:
        """Ask over a new stream for what its node has published."""
        self._links[link.peer] = link
        now = self._now()
        for topic, missing in self._missing.items():
            if missing.node == link.node:
                missing.attempts = 0
                self._asked.pop(topic, None)
                heapq.heappush(self._due, (now, topic))
        self._ask()

    def gone(self, link: PublishLink) -> None:
        """Ask others."""
        self._links.pop(link.peer, None)

    def _on_wanted(self, link: PublishLink, topics: list[bytes]) -> None:
        """Send those messages that are here, or come soon: the other node may have heard of the
        commit before this one."""
        until = self._now() + ANSWER_SECONDS
        for topic in topics[:ASKED_MAX]:
            if not self._send(link, topic) and len(self._owed) < OWED_MAX:
                self._owed[link.peer, topic] = until

    def _send(self, link: PublishLink, topic: bytes) -> bool:
        """Send a message; return False if it is not here, not committed, or too much waits to be
        sent."""
        found = self._retained.store.get(topic)
        if found is None or not is_committed(found.stamp) or link.backlog_bytes > QOS_0_BACKLOG_MAX:
            return False
        message = found.message
        left = max(message.deadline - self._now(), 1e-6) if message.deadline else 0.0
        link.send_frame(
            frames.encode_node_head(frames.NODE_RETAINED, 0, left)
            + frame_of(message, stamp_of(found.stamp))
        )
        return True

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"retained wanted": self._on_wanted}

    def frame_handlers(self) -> dict[int, Callable[[PublishLink, bytes], None]]:
        """Return the handlers of frames by kind."""
        return {frames.NODE_RETAINED: self._received}

    def _received(self, _link: PublishLink, frame: bytes) -> None:
        """Take a message that another node has sent, if it is wanted. Raises ValueError."""
        _, _, left = frames.node_head(frame)
        stamp, message = frames.decode_retained(frame, frames.NODE_HEAD_BYTES)
        if not is_committed(stamp) or is_deletion(message):
            raise ValueError("a retained message of another node is not committed")
        known = self._missing.get(message.topic)
        if known is not None and stamp[0] >= known.revision:
            message.deadline = self._now() + left if left else 0.0
            del self._missing[message.topic]
            self._asked.pop(message.topic, None)
            self.fetched += 1
            self._retained.tell_committed(message, stamp)
        self._ask()
