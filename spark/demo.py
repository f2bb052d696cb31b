"""Spark over a broker at work: ``make spark-demo``, or ``python spark/demo.py --help``.

Starts a broker in a directory of its own, publishes a million messages of several shapes over MQTT
and AMQP, lets consumer groups take some and reject a few, and then, while the broker runs, reports
on the queues, looks at the dead letters, exports everything to Parquet, reads it back, and audits
the files. The broker is stopped and its directory removed at the end; reports and pictures stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pika  # type: ignore[import-untyped]

from fluxmq_spark import exports
from fluxmq_spark.catalog import find_queues, read_log
from fluxmq_spark.jobs import arguments, audit, dead_letters, export_parquet, queue_report
from fluxmq_spark.jobs.console import Console, plural, seconds
from fluxmq_spark.jobs.session import session
from fluxmq_spark.storage import storage_of

HOST = "127.0.0.1"
NAME = "spark-demo"

WINDOW = 4000
"""Messages of an MQTT publisher under way without an acknowledgement."""

CHUNK = 500
"""Messages that leave in one send."""

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 40.0
FILES_DEADLINE_S = 30.0

GROUPS_INTERVAL_S = 2.5
"""The broker writes what consumer groups have about once a second."""

PUBLISHED = ("telemetry", "orders", "jobs")

Message = tuple[str, bytes, dict[str, str]]


# --- the broker ------------------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True)
class Broker:
    """A running broker. `data`: its data directory."""

    mqtt: int
    amqp: int
    data: Path

    @property
    def url(self) -> str:
        """URL for AMQP clients."""
        return f"amqp://guest:guest@{HOST}:{self.amqp}/"


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """A broker with two queues of its settings file, stopped at the end."""
    mqtt, amqp, http = free_ports(3)
    settings = {
        "server": {
            "mqtt": {"tcp": {"addr": f"{HOST}:{mqtt}"}},
            "amqp": {"tcp": {"addr": f"{HOST}:{amqp}"}},
            "http": {"addr": f"{HOST}:{http}"},
        },
        "session": {"max_inflight_messages": 65_535},
        "storage": {"data_dir": str(folder / "data"), "segment_bytes": "16MiB"},
        "log": {"level": "warning", "format": "text"},
        "queues": [
            {"name": "orders", "topics": ["shop/+/orders/#"], "dlq": {"enabled": True}},
            {"name": "telemetry", "topics": ["sensors/#"], "type": "stream"},
        ],
    }
    path = folder / "broker.json"
    path.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "fluxmq.supervisor.main", "--config", str(path)]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen([*command, "--workers", "1"], stdout=log, stderr=log)
    try:
        wait_until(lambda: is_ready(http, process), START_DEADLINE_S, "the broker to be ready")
        yield Broker(mqtt, amqp, folder / "data")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()


def is_ready(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Return whether the broker reports that it is ready. Raises `RuntimeError` when it has
    exited."""
    if process.poll() is not None:
        raise RuntimeError(f"the broker ended with exit code {process.returncode}")
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://{HOST}:{port}/ready") as page,
    ):
        return bool(page.status == 200)
    return False


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Wait for something. Raises `TimeoutError`."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {deadline_s:.0f} s for {what}")
        time.sleep(0.05)


# --- messages --------------------------------------------------------------------------------------------------------


def telemetry(count: int) -> Iterator[Message]:
    """Readings of 400 sensors: some 60 bytes each."""
    chance = random.Random(1)
    for number in range(count):
        sensor = chance.randrange(400)
        payload = f'{{"sensor":{sensor},"reading":{chance.gauss(20, 4):.2f},"number":{number}}}'
        yield f"sensors/hall-{sensor % 8}/{sensor}", payload.encode(), {}


def orders(count: int) -> Iterator[Message]:
    """Orders of 12 shops, few of them large, with user properties."""
    chance = random.Random(2)
    for number in range(count):
        shop = min(chance.randrange(12), chance.randrange(12))
        lines = max(1, int(chance.paretovariate(1.6)))
        items = [{"article": chance.randrange(10_000), "pieces": chance.randrange(1, 5)}] * min(
            lines, 200
        )
        payload = json.dumps({"order": number, "items": items}).encode()
        properties = {"country": chance.choice(("de", "fr", "se", "pl")), "version": "3"}
        yield f"shop/{shop}/orders/{chance.choice(('new', 'new', 'changed'))}", payload, properties


def jobs(count: int) -> Iterator[Message]:
    """Work for a queue that AMQP clients declared."""
    chance = random.Random(3)
    for number in range(count):
        kind = chance.choice(("mail", "invoice", "thumbnail"))
        payload = json.dumps({"job": number, "kind": kind, "text": "x" * chance.randrange(800)})
        yield "jobs", payload.encode(), {"kind": kind}


# --- MQTT ------------------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    """A string as MQTT has it."""
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def packet(kind: int, body: bytes) -> bytes:
    """A packet with its length."""
    length, size = len(body), bytearray()
    while length >= 0x80:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes([kind]) + bytes(size) + body


def publish_packet(identifier: int, message: Message) -> bytes:
    """A PUBLISH of MQTT 5 at QoS 1."""
    topic, payload, properties = message
    pairs = b"".join(b"\x26" + text(name) + text(value) for name, value in properties.items())
    # Fewer than 128 bytes of properties, whose length is then one byte.
    body = text(topic) + struct.pack(">H", identifier) + bytes([len(pairs)]) + pairs + payload
    return packet(0x32, body)


def publish_mqtt(port: int, client: str, messages: Iterator[Message]) -> int:
    """Publish at QoS 1 and return how many were acknowledged, which is all. Raises `RuntimeError`
    for a refusal."""
    sent = acknowledged = 0
    rest = b""
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(packet(0x10, text("MQTT") + b"\x05\x02\x00\x00\x00" + text(client)))
        if connection.recv(65_536)[:1] != b"\x20":
            raise RuntimeError("the broker did not accept the connection")
        ended = False
        while not ended or acknowledged < sent:
            while not ended and sent - acknowledged <= WINDOW - CHUNK:
                chunk = [
                    publish_packet((sent + at) % 65_535 + 1, message)
                    for at, message in zip(range(CHUNK), messages, strict=False)
                ]
                ended = len(chunk) < CHUNK
                sent += len(chunk)
                connection.sendall(b"".join(chunk))
            if acknowledged < sent:
                rest, count = acknowledgements(rest + connection.recv(1 << 18))
                acknowledged += count
        connection.sendall(b"\xe0\x00")
    return acknowledged


def acknowledgements(data: bytes) -> tuple[bytes, int]:
    """Return the rest of received bytes, and the number of PUBACKs in them."""
    at = count = 0
    while at + 2 <= len(data) and at + 2 + data[at + 1] <= len(data):
        size = data[at + 1]
        if data[at] != 0x40 or (size > 2 and data[at + 4] >= 0x80):
            raise RuntimeError(f"the broker refused a message: {data[at : at + 2 + size].hex()}")
        at += 2 + size
        count += 1
    if not data:
        raise RuntimeError("the broker closed the connection")
    return data[at:], count


# --- AMQP ------------------------------------------------------------------------------------------------------------


def publish_amqp(url: str, messages: Iterator[Message]) -> int:
    """Publish to the default exchange in transactions of a chunk each; returns how many, when all
    are on disk."""
    done = 0
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        channel = connection.channel()
        channel.queue_declare("failed-jobs", durable=True)
        channel.queue_declare(
            "jobs",
            durable=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed-jobs"},
        )
        channel.tx_select()
        for key, payload, headers in messages:
            properties = pika.BasicProperties(content_type="application/json", headers=headers)
            channel.basic_publish("", key, payload, properties)
            done += 1
            if done % CHUNK == 0:
                channel.tx_commit()
        channel.tx_commit()
    return done


def consume(url: str, queue: str, count: int, *, every: int = 0, group: str = "") -> None:
    """Take messages of a queue, or read a stream as a group; of a queue's reject one of `every`."""
    details = {"x-stream-offset": "first", "x-consumer-group": group} if group else {}
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=CHUNK)
        taken = channel.consume(queue, arguments=details, inactivity_timeout=10)
        for number, (method, _, _) in enumerate(taken, 1):
            if method is None:
                raise RuntimeError(f"{queue} gave {number - 1} messages and no more")
            if every and number % every == 0:
                channel.basic_nack(method.delivery_tag, requeue=False)
            elif number % 100 == 0 or number >= count or (every and number % every == every - 1):
                channel.basic_ack(method.delivery_tag, multiple=True)
            if number >= count:
                break
    finally:
        # pika gives back what it still holds, which a stream does not take: that connection is closed already.
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def together(*works: Callable[[], object]) -> list[object]:
    """Do things at the same time; returns their results, or raises the first error."""
    results: list[object] = [None] * len(works)
    errors: list[BaseException] = []

    def do(at: int, work: Callable[[], object]) -> None:
        try:
            results[at] = work()
        except BaseException as error:  # noqa: BLE001 -- raised again below
            errors.append(error)

    threads = [threading.Thread(target=do, args=each) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


# --- the demo --------------------------------------------------------------------------------------------------------


def fill(console: Console, running: Broker, count: int) -> int:
    """Publish and consume; returns how many messages were confirmed."""
    began = time.monotonic()
    work = count // 10
    of_orders = count * 3 // 10
    numbers = together(
        lambda: publish_mqtt(running.mqtt, "gateway", telemetry(count - work - of_orders)),
        lambda: publish_mqtt(running.mqtt, "shops", orders(of_orders)),
        lambda: publish_amqp(running.url, jobs(work)),
    )
    confirmed = sum(each for each in numbers if isinstance(each, int))
    took = time.monotonic() - began
    console.write(
        f"{plural(confirmed, 'message')} confirmed in {seconds(took)}: {confirmed / took:,.0f} a second"
    )
    consume(running.url, "orders", of_orders // 6, every=1000)
    consume(running.url, "jobs", work // 5, every=500)
    consume(running.url, "telemetry", count // 25, group="archive")
    return confirmed


def committed(data: Path) -> int:
    """Return the number of messages in the queues' files."""
    storage, root = storage_of(str(data))
    logs = [read_log(storage, files) for files in find_queues(storage, root)]
    return sum(log.head.committed for log in logs if log is not None)


def look(console: Console, running: Broker, output: Path, confirmed: int) -> None:
    """Run the jobs on the files of the running broker."""
    path = str(running.data)
    words: Sequence[tuple[Callable[[Sequence[str]], int], list[str]]] = (
        (queue_report.main, ["--path", path, "--top", "10", "--output", str(output / "report")]),
        (
            dead_letters.main,
            [
                *("--path", path, "--queue", "orders", "--dead-letter-queue", "failed-jobs"),
                *("--samples", "2", "--output", str(output / "dead-letters")),
            ],
        ),
        (export_parquet.main, ["--path", path, "--output", str(output / "parquet")]),
        (audit.main, ["--path", path]),
    )
    with session(NAME, None) as spark:
        for main, given in words:
            name = main.__module__.rpartition(".")[2]
            console.write(f"\n$ {name}.py {' '.join(given)}")
            code = main(given)
            if code != 0:
                raise RuntimeError(f"{name} ended with exit code {code}")
        console.write(
            "\n>>> fluxmq_spark.exports.read(spark, DIR).groupBy('queue', 'date').count()"
        )
        rows = exports.read(spark, str(output / "parquet"))
        found = rows.groupBy("queue", "date").count().orderBy("queue", "date").collect()
        console.table(
            ("queue", "date", "count"), [(row["queue"], row["date"], row["count"]) for row in found]
        )
    (manifest,) = exports.ExportDirectory(str(output / "parquet")).manifests()
    ranges = [manifest.queues[name] for name in PUBLISHED]
    exported, settled = sum(each.rows for each in ranges), sum(each.first for each in ranges)
    if exported + settled != confirmed:
        raise RuntimeError(f"{exported:,} exported, {settled:,} settled, {confirmed:,} confirmed")
    console.write(
        f"\n{confirmed:,} confirmed = {exported:,} exported + {settled:,} that consumers had settled before,"
        " which work queues let go of"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit code."""
    parser = arguments.Parser(
        NAME, "Fill a broker with a million messages, and look at its files with Spark."
    )
    parser.add_argument(
        "--messages",
        type=arguments.positive,
        default=1_000_000,
        help="how many (default: 1,000,000)",
    )
    parser.add_argument(
        "--output",
        default=os.path.join("build", "spark-demo"),
        help="directory for reports, pictures and Parquet; what is there from before is removed (default: build/spark-demo)",
    )
    options = parser.parse_args(words)
    console = Console(NAME)
    output = Path(options.output)
    if output.exists():
        shutil.rmtree(output)
    output.mkdir(parents=True)
    with (
        tempfile.TemporaryDirectory(prefix="fluxmq-spark-demo-") as folder,
        broker(Path(folder)) as running,
    ):
        console.note(f"the broker is in {folder}")
        with console.stage(f"publishing {plural(options.messages, 'message')}, consuming some"):
            confirmed = fill(console, running, options.messages)
        wait_until(lambda: committed(running.data) >= confirmed, FILES_DEADLINE_S, "the files")
        time.sleep(GROUPS_INTERVAL_S)
        look(console, running, output, confirmed)
    console.write(f"\nReports, pictures and Parquet are in {output}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
