"""Runs a case against one broker and writes down what came, a list of lines per step.

Where a method has no answer of its own, a passive declare of ``amq.direct`` follows it on the same channel: what the
broker thinks of the method has come when that is answered. Deliveries come when they come; scripts wait for them by
number.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tests.differential import wire
from tests.differential.greeting import heartbeats, open_peer
from tests.differential.peer import ANSWER_S, ENDED, Event, Peer
from tests.differential.script import Case, ScriptError, Step

QUIET_S = 0.25
"""How long nothing has to come for a script's ``quiet``."""

POLL_S = 0.01
NOT_FOUND = 404
DELIVERIES = ("basic.deliver", "basic.return")
CONFIRMS = ("basic.ack", "basic.nack")

Outcome = list[list[str]]
Control = Callable[[Sequence[str]], bool]
Verb = Callable[[Step], list[str]]


@dataclass(frozen=True)
class Target:
    """A broker under test. ``control``: its command line with these words; whether it did what was asked.
    ``ports``: of the nodes of a cluster, by the letter with which the names of connections to them begin."""

    name: str
    host: str
    port: int
    control: Control
    ports: Mapping[str, int] = field(default_factory=dict)

    def connect(self, connection: str) -> Peer:
        """A connection of that name."""
        return Peer(self.host, self.ports.get(connection[:1], self.port))


@dataclass
class Run:
    """One case under way. ``verbs``: further ones, by name."""

    target: Target
    case: Case
    peers: dict[str, Peer] = field(default_factory=dict)
    verbs: Mapping[str, Verb] = field(default_factory=dict)

    def run(self) -> Outcome:
        """All steps, then the case's names are deleted."""
        try:
            return [self.step(step) for step in self.case.steps]
        finally:
            for peer in self.peers.values():
                with contextlib.suppress(OSError):
                    peer.cut()
            self.clean()

    def step(self, step: Step) -> list[str]:
        """One line of the script."""
        verb = self.verbs.get(step.verb) or getattr(self, f"do_{step.verb}", None)
        if verb is not None:
            return [wire.plain(line) for line in verb(step)]
        if step.verb not in wire.BY_NAME:
            raise ScriptError(f"{self.case.identifier}: no verb {step.verb}")
        return self.method(step)

    # --- connections -------------------------------------------------------------------------------------------

    def peer(self, step: Step) -> Peer:
        """The step's connection, opened where it is not, with its channel unless the step is bare."""
        peer = self.peers.get(step.connection)
        if peer is None or peer.closed:
            peer = self.peers[step.connection] = self.target.connect(step.connection)
            opened = open_peer(peer, {})
            if opened[-1] != "connection.open-ok":
                raise ScriptError(f"{self.case.identifier}: not let in: {opened[-1]}")
        opens = step.bare or step.verb == "channel.open"
        if not opens and step.channel and step.channel not in peer.channels:
            answer = peer.call(step.channel, "channel.open", {})
            if answer.name == "channel.open-ok":
                peer.channels.add(step.channel)
        return peer

    def do_open(self, step: Step) -> list[str]:
        """Open a connection with settings of its own."""
        peer = self.peers[step.connection] = self.target.connect(step.connection)
        return open_peer(peer, step.settings)

    def do_cut(self, step: Step) -> list[str]:
        """End a connection without a word."""
        self.peers[step.connection].cut()
        return []

    def do_heartbeats(self, step: Step) -> list[str]:
        """Whether at least one heartbeat comes in so many seconds."""
        count = heartbeats(self.peers[step.connection], step.settings["seconds"])
        return ["heartbeats come" if count else "no heartbeats"]

    def do_ended(self, step: Step) -> list[str]:
        """How a connection ends by itself within so many seconds."""
        peer = self.peers[step.connection]
        return [peer.until(0, (), step.settings.get("seconds", ANSWER_S)).text()]

    # --- methods -----------------------------------------------------------------------------------------------

    def method(self, step: Step) -> list[str]:
        """A method as it stands in the specification."""
        settings = dict(step.settings)
        peer = self.peer(step)
        if step.verb == "connection.close":
            settings.setdefault("reply_code", 200)
            step_channel = 0
        elif step.verb.startswith("connection."):
            step_channel = 0
        else:
            step_channel = step.channel
        if step.verb == "channel.open":
            peer.channels.add(step.channel)
        answered = wire.BY_NAME.get(f"{step.verb}-ok") or step.verb == "basic.get"
        if answered and not settings.get("nowait"):
            answer = peer.call(step_channel, step.verb, settings)
            if step.verb == "channel.close":
                peer.channels.discard(step.channel)
            return [answer.text()]
        peer.send(wire.method(step_channel, step.verb, settings))
        return self.barrier(peer, step.channel)

    def barrier(self, peer: Peer, channel: int) -> list[str]:
        """What the broker has to say of what was sent on a channel; nothing where all is well."""
        passive = {"exchange": "amq.direct", "passive": True}
        answer = peer.call(channel, "exchange.declare", passive)
        return [] if answer.name == "exchange.declare-ok" else [answer.text()]

    def do_publish(self, step: Step) -> list[str]:
        """``count`` messages: basic.publish with its content. ``size``: that many bytes instead of a body."""
        peer = self.peer(step)
        settings = dict(step.settings)
        count = settings.pop("count", 1)
        properties = settings.pop("properties", {})
        frame_max = settings.pop("frame_max", peer.frame_max)
        size = settings.pop("size", None)
        body = str(settings.pop("body", "body")).encode() if size is None else b"x" * size
        publish = wire.method(step.channel, "basic.publish", settings)
        # In one write: a broker that hands out what came together gets all of it together.
        peer.send(
            b"".join(
                publish
                + wire.content(
                    step.channel, properties, body.replace(b"%", b"%d" % number), frame_max
                )
                for number in range(1, count + 1)
            )
        )
        return self.barrier(peer, step.channel)

    def do_frame(self, step: Step) -> list[str]:
        """A frame of any kind; ``payload`` in hexadecimal. What follows is awaited for a moment."""
        peer = self.peer(step)
        payload = bytes.fromhex(str(step.settings.get("payload", "")))
        size = step.settings.get("size")
        if size is not None:
            payload = bytes(size)
        end = step.settings.get("end", wire.FRAME_END)
        peer.send(wire.frame(step.settings["kind"], step.channel, payload, end))
        return []

    def do_header(self, step: Step) -> list[str]:
        """A content header of its own."""
        settings = step.settings
        properties = settings.get("properties", {})
        class_id = settings.get("class_id", 60)
        header = wire.header(step.channel, settings["size"], properties, class_id)
        self.peer(step).send(header)
        return []

    def do_body(self, step: Step) -> list[str]:
        """A body frame."""
        text = str(step.settings["text"]).encode()
        self.peer(step).send(wire.frame(wire.BODY, step.channel, text))
        return []

    def do_begin(self, step: Step) -> list[str]:
        """basic.publish alone: its content is the script's business."""
        fields = {str(k): v for k, v in step.settings.items()}
        self.peer(step).send(wire.method(step.channel, "basic.publish", fields))
        return []

    def do_settled(self, step: Step) -> list[str]:
        """What the broker says of what was sent on this channel."""
        return self.barrier(self.peers[step.connection], step.channel)

    # --- waiting -----------------------------------------------------------------------------------------------

    def do_take(self, step: Step) -> list[str]:
        """So many deliveries or returns, in order; ``sorted``: their order does not matter. Then they are settled."""
        peer = self.peers[step.connection]
        count = int(step.words[0])
        seconds = step.settings.get("seconds", ANSWER_S)
        events = peer.take(DELIVERIES, count, seconds)
        how = step.settings.get("settle")
        for event in events:
            if how is not None and event.name == "basic.deliver":
                peer.send(settlement(event, str(how)))
        found = [self.told(event) for event in events]
        found += ["nothing more"] if len(events) < count else []
        return sorted(found) if "sorted" in step.words else found

    def told(self, event: Event) -> str:
        """An event, on other channels than 1 with the channel's number."""
        return event.text() if event.channel == 1 else f"#{event.channel} {event.text()}"

    def do_bodies(self, step: Step) -> list[str]:
        """So many deliveries by their bodies alone, with a mark on those that came before."""
        events = self.peers[step.connection].take(
            DELIVERIES, int(step.words[0]), step.settings.get("seconds", ANSWER_S)
        )
        how = step.settings.get("settle")
        found = []
        for event in events:
            again = " again" if event.fields.get("redelivered") else ""
            found.append(f"{event.fields.get('consumer_tag', '')}: {event.body.decode()}{again}")
            if how is not None:
                self.peers[step.connection].send(settlement(event, str(how)))
        return sorted(found) if "sorted" in step.words else found

    def do_confirms(self, step: Step) -> list[str]:
        """What becomes of the publishes up to this number: confirmed and refused, as sets."""
        peer = self.peers[step.connection]
        last = int(step.words[0])
        state = peer.confirmed
        deadline = time.monotonic() + step.settings.get("seconds", ANSWER_S)
        while len(state) < last and step.channel in peer.channels and time.monotonic() < deadline:
            for event in peer.take((*CONFIRMS, "channel.close"), 1, QUIET_S):
                tag = event.fields.get("delivery_tag", 0)
                first = 1 if event.fields.get("multiple") else tag
                for each in range(first, tag + 1):
                    state.setdefault(each, event.name)
        sets = {name: sorted(tag for tag, how in state.items() if how == name) for name in CONFIRMS}
        return [f"{name} {tags}" for name, tags in sets.items() if tags]

    def do_await(self, step: Step) -> list[str]:
        """The next event of a name, or nothing."""
        seconds = step.settings.get("seconds", ANSWER_S)
        events = self.peers[step.connection].take((step.words[0],), 1, seconds)
        return [self.told(event) for event in events] or ["no answer"]

    def do_quiet(self, step: Step) -> list[str]:
        """Whatever comes within a moment in which nothing should."""
        peer = self.peers[step.connection]
        names = (*wire.BY_NAME, ENDED)
        return [self.told(event) for event in peer.take(names, 1000, QUIET_S)]

    def do_wait(self, step: Step) -> list[str]:
        """Time that the broker needs to pass: that of a message's or a queue's life."""
        time.sleep(int(step.words[0]) / 1000)
        return []

    def do_until(self, step: Step) -> list[str]:
        """Wait until a queue holds so many messages (and has so many consumers); what it has in the end."""
        wanted = {
            k: v for k, v in step.settings.items() if k in ("message_count", "consumer_count")
        }
        deadline = time.monotonic() + step.settings.get("seconds", ANSWER_S)
        with Probe(self.target, step.connection) as probe:
            while True:
                event = probe.look(str(step.settings["queue"]))
                if "gone" in step.words:
                    reached = event.fields.get("reply_code") == NOT_FOUND  # 405: it is there still
                else:
                    reached = all(event.fields.get(k) == v for k, v in wanted.items())
                if reached or time.monotonic() > deadline:
                    return [event.text()]
                time.sleep(POLL_S)

    def do_ctl(self, step: Step) -> list[str]:
        """The broker's command line; only whether it did what was asked is compared."""
        return ["done" if self.target.control(step.words) else "refused"]

    def clean(self) -> None:
        """Delete what the case made."""
        with Probe(self.target) as probe:
            for short, name in self.case.names.items():
                if short.startswith("q"):
                    probe.call("queue.delete", {"queue": name})
                elif short.startswith("x"):
                    probe.call("exchange.delete", {"exchange": name})


class Probe:
    """A connection of the runner's own: looks at queues and deletes, whatever becomes of its channel."""

    def __init__(self, target: Target, connection: str = "1") -> None:
        self.peer = target.connect(connection)
        open_peer(self.peer, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.peer.cut()

    def call(self, name: str, fields: dict[str, Any]) -> Event:
        """A method on a channel that is open for it."""
        if 1 not in self.peer.channels:
            self.peer.call(1, "channel.open", {})
            self.peer.channels.add(1)
        return self.peer.call(1, name, fields)

    def look(self, queue: str) -> Event:
        """A passive declare."""
        return self.call("queue.declare", {"queue": queue, "passive": True})


def settlement(event: Event, how: str) -> bytes:
    """The frame that settles a delivery: ack, nack, reject, or one of the latter with ``-requeue``."""
    tag = {"delivery_tag": event.fields["delivery_tag"]}
    verb, _, requeue = how.partition("-")
    fields = tag if verb == "ack" else {**tag, "requeue": bool(requeue)}
    return wire.method(event.channel, f"basic.{verb}", fields)


def run(target: Target, case: Case) -> Outcome:
    """One case against one broker."""
    return Run(target, case).run()
