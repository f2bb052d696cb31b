"""``python -m tests.spark.live --messages 10000000``: everything confirmed is read back, while the broker goes on.

A broker with small segments; half of the messages over MQTT 5, half over AMQP 0.9.1, each to a stream of its own. When
all are confirmed, publishers go on to append to the same streams and to a third whose retention removes its oldest
segments all the time, and Spark reads: every message that was confirmed has to be there at the offset that is its
number, once, with the payload and headers that were sent. Of the third what is still there has to be right, removed
segments are skipped. The last line is the tally; exit 0 when nothing is missing or wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pyarrow  # type: ignore[import-untyped]
import pyarrow.compute  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from fluxmq.model.segments import newest_head
from tests.broker import Broker, free_ports, running_broker
from tests.spark.flood import DIGITS, FILLERS, SIZES, fillers

STREAMS = {"mqtt": "live-mqtt", "amqp": "live-amqp"}
CHURN = "live-churn"
CHURN_BYTES = "8MiB"
SEGMENT_BYTES = "2MiB"
RESULT = "queue string, rows long, wrong long, offsets long, squares long, first long, last long"
SQUARES_MODULO = (1 << 31) - 1
HEAD_DEADLINE_S = 30.0
MEANWHILE = 2000
"""Messages per second to each queue while Spark reads: enough to roll and remove segments, and processors for Spark."""


class Reading(NamedTuple):
    """What was read of one queue. ``offsets`` and ``squares``: their sums, the latter modulo a prime."""

    rows: int
    wrong: int
    offsets: int
    squares: int
    first: int
    last: int


def settings(amqp_port: int) -> dict[str, Any]:
    """Streams on disk, in two replication groups, whose segments are small."""
    endless = {"type": "stream", "limits": {"message_ttl": "0s"}}
    churning = {**endless, "retention": {"max_length_bytes": CHURN_BYTES}}
    return {
        "server": {"amqp": {"tcp": {"addr": f"127.0.0.1:{amqp_port}"}}},
        "storage": {"segment_bytes": SEGMENT_BYTES},
        "queues": [
            *({"name": name, **endless} for name in STREAMS.values()),
            {"name": CHURN, **churning},
        ],
    }


def publisher(
    stack: ExitStack, protocol: str, port: int, queue: str, count: int, rate: int = 0
) -> Any:
    """A process of ``tests.spark.flood``, ended with the stack."""
    numbers = str(count), str(rate)
    command = [sys.executable, "-m", "tests.spark.flood", protocol, str(port), queue, *numbers]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def confirmed(process: Any) -> int:
    """Wait for a publisher; how many messages were confirmed."""
    output, _ = process.communicate()
    if process.returncode != 0:
        raise AssertionError(f"a publisher failed: {process.args}")
    return int(output.split()[-1])


def check(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Compare every row with what its offset says it has to be; runs in Spark's workers."""
    ends = fillers()
    columns = numpy.arange(ends.shape[1])
    for batch in batches:
        if not batch.num_rows:
            continue
        numbers = batch.column("offset").to_numpy()
        payload = batch.column("payload")
        sizes = SIZES[numbers % len(SIZES)]
        found = pyarrow.compute.binary_length(payload).to_numpy()
        named = pyarrow.compute.map_lookup(batch.column("headers"), "n", "first")
        source = pyarrow.compute.map_lookup(batch.column("headers"), "source", "first")
        digits = pyarrow.compute.utf8_lpad(
            pyarrow.array(numbers).cast(pyarrow.string()), DIGITS, "0"
        )
        right = (found == sizes) & _true(pyarrow.compute.equal(named, digits))
        right &= _true(pyarrow.compute.equal(source, "flood"))
        if (found == sizes).all():
            expected = ends[numbers % FILLERS]
            expected[:, :8] = numbers.astype("<u8").view(numpy.uint8).reshape(-1, 8)
            wanted = expected[columns < sizes[:, None]].tobytes()
            right &= _bytes(payload) == wanted
        for queue in pyarrow.compute.unique(batch.column("queue")).to_pylist():
            mine = _true(pyarrow.compute.equal(batch.column("queue"), queue))
            offsets = numbers[mine]
            remainders = offsets % SQUARES_MODULO
            yield pyarrow.RecordBatch.from_pylist(
                [
                    {
                        "queue": queue,
                        "rows": len(offsets),
                        "wrong": int((~right[mine]).sum()),
                        "offsets": int(offsets.sum()),
                        "squares": int((remainders * remainders % SQUARES_MODULO).sum()),
                        "first": int(offsets.min()),
                        "last": int(offsets.max()),
                    }
                ]
            )


def _bytes(column: Any) -> bytes:
    """All values of a binary column, one after the other."""
    ends = numpy.frombuffer(column.buffers()[1], numpy.int32)[column.offset :][: len(column) + 1]
    data: bytes = column.buffers()[2].slice(ends[0], ends[-1] - ends[0]).to_pybytes()
    return data


def _true(values: Any) -> numpy.ndarray[Any, numpy.dtype[numpy.bool_]]:
    """Of booleans, nulls counting as false."""
    found: numpy.ndarray[Any, numpy.dtype[numpy.bool_]] = values.fill_null(False).to_numpy(
        zero_copy_only=False
    )
    return found


def tally(frame: DataFrame) -> dict[str, Reading]:
    """What is in a DataFrame of messages, by queue."""
    frame = frame.select("queue", "offset", "headers", "payload").mapInArrow(check, RESULT)
    frame.createOrReplaceTempView("checked")
    rows = frame.sparkSession.sql(
        "select queue, sum(rows), sum(wrong), sum(offsets), sum(squares), min(first), max(last) "
        "from checked group by queue"
    ).collect()
    return {row[0]: Reading(*(int(value) for value in row[1:])) for row in rows}


def expected(count: int) -> Reading:
    """The reading of a queue that holds just the messages 0 to ``count`` - 1."""
    squares = sum(
        int((part * part % SQUARES_MODULO).sum())
        for first in range(0, count, 1 << 20)
        for part in [numpy.arange(first, min(first + (1 << 20), count)) % SQUARES_MODULO]
    )
    return Reading(count, 0, count * (count - 1) // 2, squares, 0, count - 1)


def head_of(data: Path, queue: str) -> Any:
    """The head of a queue's log."""
    (path,) = data.glob(f"groups/*/queues/{queue}/head")
    return newest_head(path.read_bytes())


def wait_for_heads(data: Path, counts: dict[str, int]) -> None:
    """Wait until what is confirmed may be read: the head is up to a tenth of a second behind."""
    deadline = time.monotonic() + HEAD_DEADLINE_S
    while any(head_of(data, queue).committed < count for queue, count in counts.items()):
        assert time.monotonic() < deadline, "the heads do not say what was confirmed"
        time.sleep(0.02)


def campaign(
    spark: SparkSession, broker: Broker, amqp_port: int, data: Path, messages: int
) -> tuple[str, bool]:
    """Publish, read while more is published; the tally, and whether all was right."""
    ports = {"mqtt": broker.port, "amqp": amqp_port}
    with ExitStack() as stack:
        began = time.monotonic()
        processes = {
            queue: publisher(stack, protocol, ports[protocol], queue, messages // 2)
            for protocol, queue in STREAMS.items()
        }
        counts = {queue: confirmed(process) for queue, process in processes.items()}
        published_in = time.monotonic() - began
        wait_for_heads(data, counts)
        running = [
            publisher(stack, protocol, ports[protocol], queue, 0, rate)
            for protocol, queue, rate in (
                ("mqtt", CHURN, 4 * MEANWHILE),
                *((protocol, queue, MEANWHILE) for protocol, queue in STREAMS.items()),
            )
        ]
        wait_for_heads(data, {CHURN: 1, **{queue: count + 1 for queue, count in counts.items()}})
        before = {queue: head_of(data, queue) for queue in (CHURN, *counts)}
        reader = spark.read.format("fluxmq").option("path", str(data))
        began = time.monotonic()
        frame = (
            reader.option("queues", ",".join(counts))
            .option("endingOffsets", json.dumps(counts))
            .load()
        )
        found = tally(frame)
        read_in = time.monotonic() - began
        churn = tally(
            spark.read.format("fluxmq")
            .option("path", str(data))
            .option("queue", CHURN)
            .option("failOnDataLoss", "false")
            .load()
        ).get(CHURN, Reading(0, 0, 0, 0, 0, 0))
        after = {queue: head_of(data, queue) for queue in (CHURN, *counts)}
        for process in running:
            assert process.poll() is None, "a publisher ended while messages were read"
            process.terminate()
        for process in running:
            confirmed(process)
    missing = sum(counts.values()) - sum(reading.rows for reading in found.values())
    wrong = sum(reading.wrong for reading in found.values()) + churn.wrong
    same = all(found.get(queue) == expected(count) for queue, count in counts.items())
    appended = sum(after[queue].committed - before[queue].committed for queue in after)
    rolled = sum(after[queue].segment != before[queue].segment for queue in after)
    line = (
        f"confirmed={sum(counts.values())} in {published_in:.0f} s, read back in {read_in:.0f} s: "
        f"missing={missing} wrong={wrong} as sent={'yes' if same else 'no'}; meanwhile "
        f"appended={appended} queues rolled={rolled} "
        f"removed={after[CHURN].start - before[CHURN].start} churn rows={churn.rows}"
    )
    return line, same and not wrong and churn.rows > 0


def run(spark: SparkSession, messages: int, directory: Path) -> tuple[str, bool]:
    """The campaign with a broker of its own in a directory."""
    (amqp_port,) = free_ports(1)
    with running_broker(directory, workers=2, settings=settings(amqp_port)) as broker:
        return campaign(spark, broker, amqp_port, directory / "data", messages)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it with a session of its own."""
    from tests.spark.session import session

    parser = argparse.ArgumentParser(prog="python -m tests.spark.live", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--directory", type=Path, default=None, help="where the broker's data is")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        line, right = run(session(Path(directory)), given.messages, Path(directory))
    print(line)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
