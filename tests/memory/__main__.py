"""Fill a node beyond its memory, and say how much it held: `python -m tests.memory --room 100MiB --seconds 30`.

Publishers over AMQP with confirms, over AMQP in transactions and over MQTT publish to one queue in memory as fast as they
may; one consumer takes half as much as it could. The node's mark lies `--room` above what it holds at its start. Printed
are the mark, the most that all processes held together, how long publishers were stopped, and what became of the messages.
Ends with 1 when something confirmed was lost, or when more was held than a tenth of a second can bring.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import paho.mqtt.client as paho
from pika.exceptions import AMQPError  # type: ignore[import-untyped]

from fluxmq.settings.values import parse_size
from tests.broker import HOST
from tests.memory.node import DEADLINE, MIB, OVERSHOOT, Node

QUEUE, TOPIC = "memory", "memory"
TRANSACTION = 16
"""Messages of a transaction."""


class Load:
    """Who publishes and consumes. `confirmed` and `taken` are numbers of messages."""

    def __init__(self, node: Node, size: int) -> None:
        self.node = node
        self.size = size
        self.ended = threading.Event()
        self.confirmed: set[int] = set()
        self.taken: set[int] = set()
        self._next = 0
        self._lock = threading.Lock()

    def message(self) -> tuple[int, bytes]:
        """The next message and its number."""
        with self._lock:
            self._next += 1
            return self._next, self._next.to_bytes(8, "big") + bytes(self.size - 8)

    def confirming(self) -> None:
        """Publish one by one, each confirmed."""
        channel = self.node.connect().channel()
        channel.confirm_delivery()
        while not self.ended.is_set():
            number, body = self.message()
            channel.basic_publish("", QUEUE, body)
            self.confirmed.add(number)

    def transacting(self) -> None:
        """Publish in transactions; what is given up by the node is begun again."""
        connection = self.node.connect()
        channel = connection.channel()
        channel.tx_select()
        while not self.ended.is_set():
            numbers = set()
            try:
                for _ in range(TRANSACTION):
                    number, body = self.message()
                    channel.basic_publish("", QUEUE, body)
                    numbers.add(number)
                channel.tx_commit()
                self.confirmed |= numbers
            except AMQPError:
                channel = connection.channel()
                channel.tx_select()

    def over_mqtt(self) -> None:
        """Publish with QoS 1, some at once."""
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "filler", protocol=paho.MQTTv5)
        client.connect(HOST, self.node.broker.port, keepalive=5)
        client.loop_start()
        while not self.ended.is_set():
            sent = [(number, client.publish(TOPIC, body, qos=1)) for number, body in self._some()]
            for number, each in sent:
                each.wait_for_publish(DEADLINE)
                self.confirmed.add(number)
        client.disconnect()
        client.loop_stop()

    def _some(self) -> list[tuple[int, bytes]]:
        return [self.message() for _ in range(TRANSACTION)]

    def consuming(self, drained: threading.Event) -> None:
        """Take messages, slowly while there are publishers; until there are none left after they have ended."""
        channel = self.node.connect().channel()
        while True:
            began = time.monotonic()
            method, _, body = channel.basic_get(QUEUE, auto_ack=True)
            if method is not None:
                self.taken.add(int.from_bytes(body[:8], "big"))
                if not self.ended.is_set():
                    time.sleep(time.monotonic() - began)
            elif drained.is_set():
                return


def run(room: int, seconds: float, size: int) -> int:
    """One run; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), room)
        try:
            return fill(node, seconds, size)
        finally:
            node.close()


def fill(node: Node, seconds: float, size: int) -> int:
    """Fill a node that has just started, and empty it again; the exit code."""
    channel = node.connect().channel()
    channel.queue_declare(QUEUE)
    channel.queue_bind(QUEUE, "amq.topic", TOPIC)
    before = node.peak.now()
    node.set_mark()
    load = Load(node, size)
    drained = threading.Event()
    work = [load.confirming, load.confirming, load.transacting, load.over_mqtt]
    publishers = [threading.Thread(target=each) for each in work]
    consumer = threading.Thread(target=load.consuming, args=(drained,))
    for thread in (*publishers, consumer):
        thread.start()
    stopped = looks = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        looks += 1
        stopped += node.alarm
    load.ended.set()
    for thread in publishers:
        thread.join(DEADLINE)
    drained.set()
    consumer.join(DEADLINE)
    lost = load.confirmed - load.taken
    most, limit = node.peak.bytes, node.mark + OVERSHOOT
    print(f"held at the start    {before / MIB:8.0f} MiB")
    print(f"mark                 {node.mark / MIB:8.0f} MiB")
    print(f"held at most         {most / MIB:8.0f} MiB")
    print(f"held at the end      {node.peak.now() / MIB:8.0f} MiB")
    print(f"publishers stopped   {100 * stopped / max(looks, 1):8.0f} % of the time")
    print(f"confirmed            {len(load.confirmed):8} messages of {size} bytes")
    print(f"confirmed and lost   {len(lost):8}")
    return int(bool(lost) or most > limit)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory", description=__doc__)
    parser.add_argument("--room", default="100MiB", type=parse_size, help="below the mark")
    parser.add_argument("--seconds", default=20.0, type=float)
    parser.add_argument("--size", default="256KiB", type=parse_size, help="of a message")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        return run(options.room, options.seconds, options.size)
    return 1


if __name__ == "__main__":
    sys.exit(main())
