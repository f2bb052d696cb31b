"""MQTT on a broker of two shards, from outside: what must not depend on where a client happens to be.

Which shard a client identifier belongs to is read off the connection counts of `/metrics`.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.broker import Broker, client_tls, running_broker
from tests.conformance import wire
from tests.conformance.client import Client, Packet, eventually, payloads, tcp
from tests.conformance.conftest import Mqtt
from tests.conformance.wire import V4, V5, Filter, Will

KEEP = [(wire.SESSION_EXPIRY_INTERVAL, 120)]
BOTH_WAYS = pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of two shards."""
    directory = tmp_path_factory.mktemp("two")
    with running_broker(directory, workers=2, tls=True) as started:
        yield started


class Shards(Mqtt):
    """Makes clients on a shard of one's choice."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        super().__init__(broker, stack)
        self.pools: dict[int, list[str]] = {0: [], 1: []}

    def counts(self) -> list[float]:
        """Open connections by shard."""
        samples = self.broker.metrics("fluxmq_connections")
        return [
            sum(value for labels, value in samples.items() if ("shard", str(shard)) in labels)
            for shard in (0, 1)
        ]

    def settle(self) -> list[float]:
        """The counts, once the connections of earlier tests have been noticed to be gone."""
        seen = [self.counts(), self.counts()]
        eventually(lambda: seen.append(self.counts()) or seen[-1] == seen[-2], "steady counts")
        return seen[-1]

    def home(self, identifier: str) -> int:
        """The shard that a client identifier belongs to."""
        before = self.settle()
        with Client(tcp(self.broker.host, self.broker.port), V5) as probe:
            assert probe.connect(identifier).reason == 0
            after: list[float] = eventually(
                lambda: (now := self.counts()) != before and now, "the new connection"
            )
            probe.disconnect()
        eventually(lambda: self.counts() == before, "the end of the connection")
        return 0 if after[0] > before[0] else 1

    def id_on(self, shard: int) -> str:
        """A client identifier that belongs to a shard."""
        while not self.pools[shard]:
            candidate = self.client_id()
            self.pools[self.home(candidate)].append(candidate)
        return self.pools[shard].pop()

    def on(self, shard: int, version: int = V5, **fields: Any) -> Client:
        """A client connected to a shard."""
        return self.connect(version, self.id_on(shard), **fields)


@pytest.fixture(scope="module")
def found_ids(node: Broker) -> dict[int, list[str]]:
    """Client identifiers by shard, enough for the module."""
    with ExitStack() as stack:
        shards = Shards(node, stack)
        for shard in (0, 1):
            shards.pools[shard] = [shards.id_on(shard) for _ in range(8)]
    return shards.pools


@pytest.fixture
def shards(node: Broker, found_ids: dict[int, list[str]]) -> Iterator[Shards]:
    """Clients of the broker with two shards."""
    with ExitStack() as stack:
        made = Shards(node, stack)
        # The identifiers of the module are used by test after test; each begins with a clean start.
        made.pools = {shard: list(found) for shard, found in found_ids.items()}
        yield made
        for found in found_ids.values():
            for identifier in found:
                with Client(tcp(node.host, node.port), V5) as cleaner:
                    cleaner.connect(identifier)
                    cleaner.disconnect()


@BOTH_WAYS
@pytest.mark.parametrize("version", [V4, V5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_cross(shards: Shards, here: int, there: int, version: int, qos: int) -> None:
    """Publisher on one shard, subscriber on the other: all arrive, in order, once."""
    topic = shards.topic()
    subscriber = shards.on(there, version)
    subscriber.subscribe(topic, qos=qos)
    publisher = shards.on(here, version)
    sent = [b"%d" % number for number in range(300)]
    for each in sent:
        publisher.publish(topic, each, qos=qos)
    assert payloads(subscriber.receive() for _ in sent) == sent
    assert subscriber.ping() == []


@BOTH_WAYS
def test_suback_means_everywhere(shards: Shards, here: int, there: int) -> None:
    """A message published after SUBACK is delivered, on whatever shard it is published."""
    publisher, subscriber = shards.on(here), shards.on(there)
    for number in range(50):
        topic = shards.topic()
        subscriber.subscribe(topic, qos=1)
        publisher.publish(topic, b"%d" % number, qos=1)
        assert subscriber.receive().payload == b"%d" % number
        subscriber.unsubscribe(topic)
        publisher.publish(topic, b"after", qos=1)
    assert subscriber.ping() == []


@pytest.mark.statement("v5:4.6.0-5", "v4:4.6.0-6")
def test_order_of_each_publisher(shards: Shards) -> None:
    """Publishers on both shards, subscribers on both: each stream stays in order everywhere."""
    topic = shards.topic()
    subscribers = [shards.on(shard) for shard in (0, 1)]
    for subscriber in subscribers:
        subscriber.subscribe(topic, qos=1)
    publishers = [shards.on(shard) for shard in (0, 1, 0, 1)]
    for start in range(0, 200, 20):
        for name, publisher in enumerate(publishers):
            publisher.send(
                *(
                    wire.publish(V5, topic, b"%d:%d" % (name, n), qos=1, packet_id=n + 1)
                    for n in range(start, start + 20)
                )
            )
    for subscriber in subscribers:
        got = [subscriber.receive().payload for _ in range(800)]
        for name in range(4):
            mine = [each for each in got if each.startswith(b"%d:" % name)]
            assert mine == [b"%d:%d" % (name, n) for n in range(200)]


@BOTH_WAYS
def test_large_messages_cross(shards: Shards, here: int, there: int) -> None:
    """Messages of up to a packet's maximum, together more than the link between shards holds."""
    topic = shards.topic()
    subscriber, publisher = shards.on(there), shards.on(here)
    subscriber.subscribe(topic, qos=1)
    sizes = [1, 1000, 65_536, 1_000_000] * 5
    for number, size in enumerate(sizes):
        publisher.publish(topic, bytes([number]) * size, qos=1)
    for number, size in enumerate(sizes):
        assert subscriber.receive().payload == bytes([number]) * size


@pytest.mark.statement("v5:4.8.2-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_shared_subscription_across_shards(shards: Shards, qos: int) -> None:
    """Members on both shards, publishers on both: each message to one member, all members used."""
    topic = shards.topic()
    members = [shards.on(shard) for shard in (0, 1, 0, 1)]
    for member in members:
        member.subscribe(f"$share/g/{topic}", qos=qos)
    publishers = [shards.on(shard) for shard in (0, 1)]
    for number in range(100):
        publishers[number % 2].publish(topic, b"%d" % number, qos=qos)
    got: list[list[bytes]] = [[] for _ in members]
    end = time.monotonic() + 15
    while sum(len(part) for part in got) < 100 and time.monotonic() < end:
        for part, member in zip(got, members, strict=True):
            for packet in member.ping():
                if packet.kind == wire.PUBLISH:
                    member.acknowledge(packet)
                    part.append(packet.payload)
    assert sorted(itertools.chain(*got)) == sorted(b"%d" % number for number in range(100))
    assert all(got), [len(part) for part in got]


@BOTH_WAYS
@pytest.mark.parametrize("how", ["disconnect", "drop", "unsubscribe"])
def test_unacknowledged_messages_are_handed_over(
    shards: Shards, here: int, there: int, how: str
) -> None:
    """QoS 1 messages of a member that leaves go to the member on the other shard."""
    topic = shards.topic()
    leaving, staying = shards.on(here), shards.on(there)
    for member in (leaving, staying):
        member.subscribe(f"$share/g/{topic}", qos=1)
    publisher = shards.on(there)
    sent = [b"%d" % number for number in range(40)]
    for each in sent:
        publisher.publish(topic, each, qos=1)
    held = [packet for packet in leaving.ping() if packet.kind == wire.PUBLISH]
    assert held
    if how == "unsubscribe":
        leaving.unsubscribe(f"$share/g/{topic}")
        # What is under way to a client that stays connected is completed with it (MQTT-3.10.4-3).
        for message in held:
            leaving.acknowledge(message)
        expected = sorted(set(sent) - set(payloads(held)))
    else:
        leaving.disconnect() if how == "disconnect" else leaving.drop()
        expected = sorted(sent)
    assert sorted(staying.receive().payload for _ in expected) == expected
    assert staying.ping() == []


@BOTH_WAYS
@pytest.mark.statement("v5:3.3.1-5", "v4:3.3.1-5", "v5:3.3.1-6", "v4:3.3.1-10")
def test_retained_messages_cross(shards: Shards, here: int, there: int) -> None:
    """Stored, replaced and cleared from either shard, found from either."""
    topic = shards.topic()
    one, other = shards.on(here), shards.on(there)
    for writer, payload in ((one, b"first"), (other, b"second"), (one, b"third"), (other, b"")):
        writer.publish(topic, payload, qos=1, retain=True)
        for reader in (one, other):

            def found(reader: Client = reader, payload: bytes = payload) -> bool:
                messages = shards.retained(V5, topic, client=reader)
                reader.unsubscribe(topic)
                return payloads(messages) == ([payload] if payload else [])

            # The publisher's acknowledgement does not wait for the other shard's copy.
            eventually(found, f"{payload!r} from either shard")


def test_many_retained_messages_cross(shards: Shards) -> None:
    """A wildcard finds the retained messages of both shards, each once."""
    root = shards.topic()
    writers = [shards.on(0), shards.on(1)]
    for number in range(400):
        writers[number % 2].publish(f"{root}/{number}", b"x", qos=1, retain=True)
    for shard in (0, 1):

        def complete(shard: int = shard) -> bool:
            reader = shards.on(shard)
            found = shards.retained(V5, f"{root}/#", client=reader)
            reader.disconnect()
            topics = [message.topic for message in found]
            assert len(set(topics)) == len(topics), "a retained message twice"
            return len(topics) == 400

        eventually(complete, "400 retained messages")


@BOTH_WAYS
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.statement("v5:3.1.2-8", "v4:3.1.2-8")
def test_wills_cross(shards: Shards, here: int, there: int, delay: int) -> None:
    """A client of one shard breaks off, a client of the other is told."""
    topic = shards.topic()
    watcher = shards.on(there)
    watcher.subscribe(topic, qos=1)
    will = Will(topic, b"gone", 1, True, [(wire.WILL_DELAY_INTERVAL, delay)])
    shards.on(here, will=will, props=KEEP).drop()
    message = watcher.receive()
    assert (message.payload, message.qos) == (b"gone", 1)


# --- one session, several transports ------------------------------------------------------------


def plain(shards: Shards) -> Client:
    """A connection over TCP, placed by client identifier."""
    return shards.open(V5)


def secure(shards: Shards) -> Client:
    """A connection over TLS, placed before the client identifier is known."""
    stream = tcp(shards.broker.host, shards.broker.tls_port, client_tls())
    return shards.over(stream, V5)


def browser(shards: Shards) -> Client:
    """A connection over WebSocket."""
    return shards.over(shards.web_socket(), V5)


@pytest.mark.statement("v5:3.1.4-3", "v4:3.1.4-2", "v5:3.1.2-5", "v5:4.4.0-1")
@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize(
    ("first", "second"), [*itertools.permutations([plain, secure, browser], 2), (secure, secure)]
)
def test_take_over_between_transports(
    shards: Shards,
    shard: int,
    first: Callable[[Shards], Client],
    second: Callable[[Shards], Client],
) -> None:
    """Wherever the connections are placed there is one session: taken over, nothing lost, again
    and again."""
    topic = shards.topic()
    identifier = shards.id_on(shard)
    publisher = shards.on(0)
    client = first(shards)
    client.connect(identifier, clean=False, props=KEEP)
    client.subscribe(topic, qos=1)
    for turn, opened in enumerate([second, first, second, first]):
        publisher.publish(topic, b"in flight %d" % turn, qos=1)
        held = client.expect(wire.PUBLISH)
        assert held.payload == b"in flight %d" % turn
        new = opened(shards)
        assert new.connect(identifier, clean=False, props=KEEP).session_present
        client.expect_error(0x8E)
        again = new.receive()
        assert (again.payload, again.packet_id, again.dup) == (held.payload, held.packet_id, True)
        publisher.publish(topic, b"after %d" % turn, qos=1)
        assert new.receive().payload == b"after %d" % turn
        assert new.ping() == []
        client = new


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("opened", [secure, browser])
def test_queue_of_an_absent_session_is_found(
    shards: Shards, shard: int, opened: Callable[[Shards], Client]
) -> None:
    """A session left over TCP is resumed over another transport with its messages in order."""
    topic = shards.topic()
    identifier = shards.id_on(shard)
    client = shards.connect(V5, identifier, clean=False, props=KEEP)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publishers = [shards.on(0), shards.on(1)]
    for publisher in publishers:
        for number in range(50):
            publisher.publish(topic, b"%d" % number, qos=1)
    for turn in range(4):
        client = opened(shards)
        assert client.connect(identifier, clean=False, props=KEEP).session_present
        if turn == 0:
            got = payloads(client.receive() for _ in range(100))
            assert got == [b"%d" % number for number in range(50)] * 2
        publishers[turn % 2].publish(topic, b"live", qos=1)
        assert client.receive().payload == b"live"
        client.drop()


def test_clean_start_ends_the_session_elsewhere(shards: Shards) -> None:
    """A clean start over TLS discards the session that lives on another shard, will included."""
    for shard in (0, 1):
        topic = shards.topic()
        watcher = shards.on(0)
        watcher.subscribe(topic)
        identifier = shards.id_on(shard)
        will = Will(topic, b"ended", properties=[(wire.WILL_DELAY_INTERVAL, 600)])
        client = shards.connect(V5, identifier, clean=False, props=KEEP, will=will)
        client.subscribe(f"{topic}/x", qos=1)
        client.drop()
        for _ in range(2):
            new = secure(shards)
            assert not new.connect(identifier, clean=True).session_present
            shards.on(1 - shard).publish(f"{topic}/x", b"for nobody", qos=1)
            assert new.ping() == []
            new.disconnect()
        assert watcher.receive().payload == b"ended"


def test_connections_racing_for_one_session(shards: Shards) -> None:
    """Many connections with one identifier at once: one is left, and it works."""
    identifier = shards.id_on(0)
    topic = shards.topic()
    clients = [opened(shards) for opened in (plain, secure, browser) * 4]
    for client in clients:
        client.client_id = identifier
        client.send(wire.connect(V5, identifier, clean=False, props=KEEP))

    def alive(client: Client) -> bool:
        try:
            while True:
                if client.next(0.02).kind == wire.DISCONNECT:
                    return False
        except TimeoutError:
            return not client.closed
        except AssertionError:
            return False

    def one_left() -> list[Client]:
        nonlocal clients
        clients = [client for client in clients if alive(client)]
        assert clients, "no connection is left"
        return clients if len(clients) == 1 else []

    (winner,) = eventually(one_left, "a single connection")
    winner.subscribe(topic, qos=1)
    for shard in (0, 1):
        shards.on(shard).publish(topic, b"%d" % shard, qos=1)
        assert winner.receive().payload == b"%d" % shard


class Wanderer:
    """A persistent session that changes its connection, and what it has been sent so far."""

    def __init__(self, shards: Shards, topic: str, qos: int) -> None:
        self.shards = shards
        self.identifier = shards.client_id()
        self.seen: list[bytes] = []
        self.unreleased: set[int] = set()
        self.client = self.connected(plain)
        self.client.subscribe(topic, qos=qos)

    def connected(self, opened: Callable[[Shards], Client]) -> Client:
        """A new connection to the session, over some transport."""
        client = opened(self.shards)
        assert client.connect(self.identifier, clean=False, props=KEEP).reason == 0
        return client

    def take(self, packet: Packet) -> None:
        """Note and acknowledge, as a client does that keeps its own QoS 2 state."""
        if packet.kind == wire.PUBREL:
            self.unreleased.discard(packet.packet_id)
            self.client.send(wire.acknowledge(wire.PUBCOMP, packet.packet_id))
        elif packet.kind == wire.PUBLISH and packet.qos == 2:
            if packet.packet_id not in self.unreleased:
                self.unreleased.add(packet.packet_id)
                self.seen.append(packet.payload)
            self.client.send(wire.acknowledge(wire.PUBREC, packet.packet_id))
        elif packet.kind == wire.PUBLISH:
            self.seen.append(packet.payload)
            self.client.acknowledge(packet)


@pytest.mark.statement("v5:4.4.0-1", "v4:4.4.0-1", "v5:4.3.3-10", "v5:4.5.0-1")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_sessions_wander_under_load(shards: Shards, qos: int, seed: int) -> None:
    """Sessions are taken over again and again, over any transport, while both shards publish:
    QoS 1 loses nothing, QoS 2 neither loses nor repeats, each publisher's order holds."""
    chance = random.Random(seed)
    topic = shards.topic()
    wanderers = [Wanderer(shards, topic, qos) for _ in range(6)]
    publishers = [shards.on(0), shards.on(1)]
    number = 0
    for _ in range(40):
        for name, publisher in enumerate(publishers):
            publisher.send(
                *(
                    wire.publish(V5, topic, b"%d:%d" % (name, n), qos=qos, packet_id=n + 1)
                    for n in range(number, number + 5)
                )
            )
            if qos == 2:
                publisher.send(
                    *(wire.acknowledge(wire.PUBREL, n + 1) for n in range(number, number + 5))
                )
        number += 5
        for wanderer in chance.sample(wanderers, 2):
            for _ in range(chance.randrange(4)):
                try:
                    wanderer.take(wanderer.client.next(0.001))
                except TimeoutError:
                    break
            if chance.random() < 0.3:
                wanderer.client.drop()
            wanderer.client = wanderer.connected(chance.choice([plain, secure, browser]))
    for name, publisher in enumerate(publishers):
        publisher.publish(topic, b"%d:end" % name, qos=qos, packet_id=60_000)
    expected = [[b"%d:%d" % (name, n) for n in range(number)] for name in (0, 1)]
    for wanderer in wanderers:
        while not {b"0:end", b"1:end"} <= set(wanderer.seen):
            wanderer.take(wanderer.client.next())
        for name in (0, 1):
            mine = [each for each in wanderer.seen if each.startswith(b"%d:" % name)][:-1]
            first = list(dict.fromkeys(mine))
            assert first == expected[name], "lost, or out of order"
            if qos == 2:
                assert mine == first, "a QoS 2 message came twice"


@pytest.mark.parametrize("seed", range(5))
def test_shared_members_come_and_go(shards: Shards, seed: int) -> None:
    """Members leave in every way, with messages unacknowledged, while both shards publish: as long
    as one member is there every QoS 1 message reaches somebody."""
    chance = random.Random(seed)
    topic = shards.topic()

    def join() -> Client:
        opened = chance.choice([plain, secure, browser])
        client = opened(shards)
        props = [(wire.RECEIVE_MAXIMUM, chance.choice([1, 5, 1000]))]
        assert client.connect(shards.client_id(), props=props).reason == 0
        client.subscribe(f"$share/g/{topic}", qos=1)
        return client

    members = [join() for _ in range(4)]
    publishers = [shards.on(0), shards.on(1)]
    seen: set[bytes] = set()
    number = 0

    def drain(member: Client) -> int:
        messages = [packet for packet in member.ping() if packet.kind == wire.PUBLISH]
        for message in messages:
            seen.add(message.payload)
            member.acknowledge(message)
        return len(messages)

    for _ in range(40):
        for name, publisher in enumerate(publishers):
            publisher.send(
                *(
                    wire.publish(V5, topic, b"%d:%d" % (name, n), qos=1, packet_id=n + 1)
                    for n in range(number, number + 10)
                )
            )
        number += 10
        for member in chance.sample(members, 2):
            drain(member)
        leaving = members.pop(chance.randrange(len(members)))
        members.append(join())
        if chance.random() < 0.5:
            leaving.drop()
        else:
            leaving.disconnect()
    for publisher in publishers:
        for _ in range(number):
            assert publisher.take(wire.PUBACK).reason in (0x00, 0x10)
    expected = {b"%d:%d" % (name, n) for name in (0, 1) for n in range(number)}

    def complete() -> bool:
        for member in members:
            drain(member)
        return seen == expected

    eventually(complete, "every message at some member")


# --- losing a shard -------------------------------------------------------------------------------


class Chatter:
    """A publisher and a subscriber that talk all the time, in a thread, and note every gap."""

    def __init__(self, shards: Shards, shard: int) -> None:
        self.topic = shards.topic()
        self.subscriber = shards.on(shard)
        self.subscriber.subscribe(self.topic, qos=1)
        self.publisher = shards.on(shard)
        self.longest = 0.0
        self.count = 0
        self.problem: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()

    def _talk(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self.publisher.publish(self.topic, b"%d" % self.count, qos=1)
                assert self.subscriber.receive().payload == b"%d" % self.count
                self.longest = max(self.longest, time.monotonic() - began)
                self.count += 1
        except BaseException as error:  # noqa: BLE001 (the outermost frame of a thread: shown by the test)
            self.problem = error

    def end(self) -> None:
        """Stop talking; raise what went wrong."""
        self._stop.set()
        self._thread.join(30)
        if self.problem is not None:
            raise self.problem


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_shard_is_back_and_the_other_never_stops(
    node: Broker, shards: Shards, victim: int
) -> None:
    """SIGKILL of one shard: its clients can be back within a second, the others notice nothing."""
    identifier = shards.id_on(victim)
    watcher = shards.on(1 - victim)
    back = shards.topic()
    watcher.subscribe(back, qos=1)
    chatter = Chatter(shards, 1 - victim)
    took = []
    try:
        for attempt in range(3):
            client = shards.connect(V5, identifier)
            pid = node.pids()[f"shard {victim}"]
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            client.expect_closed()

            def reconnected() -> Client | None:
                try:
                    client = shards.open(V5)
                    client.connect(identifier)
                except (AssertionError, OSError):
                    return None
                return client

            client = eventually(reconnected, "the killed shard")
            took.append(time.monotonic() - began)
            # It knows who subscribes on the other shard, and the other knows its subscriptions.
            client.publish(back, b"%d" % attempt, qos=1)
            assert watcher.receive().payload == b"%d" % attempt
            client.subscribe(f"{back}/there", qos=1)
            watcher.publish(f"{back}/there", b"reply", qos=1)
            assert client.receive().payload == b"reply"
            node.wait_ready()
    finally:
        chatter.end()
    # The best of three: a busy machine can only make it longer.
    assert min(took) < 1.0, took
    assert chatter.count > 100
    assert chatter.longest < 1.0, "the other shard stopped"


def test_retained_messages_survive_the_loss_of_a_shard(node: Broker, shards: Shards) -> None:
    """What both shards held is given to the new one by the other."""
    root = shards.topic()
    writers = [shards.on(0), shards.on(1)]
    for number in range(100):
        writers[number % 2].publish(f"{root}/{number}", b"x", qos=1, retain=True)
    identifiers = {shard: shards.id_on(shard) for shard in (0, 1)}
    for victim in (0, 1):
        node.kill_shard(victim)
        node.wait_ready()

        def complete(victim: int = victim) -> bool:
            try:
                reader = shards.connect(V5, identifiers[victim])
                found = shards.retained(V5, f"{root}/#", client=reader)
                reader.disconnect()
            except (AssertionError, OSError):
                return False
            return len({message.topic for message in found}) == 100

        eventually(complete, f"100 retained messages on shard {victim}")


@BOTH_WAYS
def test_slow_subscriber_elsewhere_holds_up_nobody(shards: Shards, here: int, there: int) -> None:
    """A client that does not read, on the other shard, costs the publisher's other readers nothing."""
    topic = shards.topic()
    stuck, reader = shards.on(there), shards.on(there)
    for client in (stuck, reader):
        client.subscribe(Filter(topic, 0))
    publisher = shards.on(here)
    body = bytes(50_000)
    for number in range(0, 2000, 20):
        publisher.send(
            *(wire.publish(V5, topic, b"%d " % n + body) for n in range(number, number + 20))
        )
        for _ in range(20):
            reader.receive()
    assert publisher.ping() == []


@pytest.mark.parametrize("victim", [0, 1])
def test_members_of_a_lost_shard_are_forgotten(node: Broker, shards: Shards, victim: int) -> None:
    """What is published after a shard's loss is dealt to members that are left, and to those who
    come back."""
    topic = shards.topic()
    identifier = shards.id_on(victim)
    lost, left = shards.connect(V5, identifier), shards.on(1 - victim)
    for member in (lost, left):
        member.subscribe(f"$share/g/{topic}", qos=1)
    publisher = shards.on(1 - victim)
    node.kill_shard(victim)
    lost.expect_closed()
    node.wait_ready()
    sent = [b"%d" % number for number in range(50)]
    for each in sent:
        publisher.publish(topic, each, qos=1)
    assert payloads(left.receive() for _ in sent) == sent

    def returned() -> Client | None:
        try:
            return shards.connect(V5, identifier)
        except (AssertionError, OSError):
            return None

    back: Client = eventually(returned, "the lost shard")
    back.subscribe(f"$share/g/{topic}", qos=1)
    for each in sent:
        publisher.publish(topic, each, qos=1)
    got = [back.receive().payload for _ in range(25)] + [left.receive().payload for _ in range(25)]
    assert sorted(got) == sorted(sent)
