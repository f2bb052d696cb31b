"""``python -m tests.spark.kill_stream --rounds 20 --seed 1``: a streaming query into Parquet whose driver is killed.

A writer appends to two queues all the time, their segments roll. A process of its own streams both into Parquet, in
small micro-batches; at a random moment it is killed with everything it started (SIGKILL), and started again from its
checkpoint. At the end the rest is taken with ``availableNow``, and Parquet has to hold every message once, with its own
payload. The last line is the tally; exit 0 when nothing is lost, doubled or wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.spark_queues import SMALL, QueueOnDisk

QUEUES = ("orders", "returns")
BATCH_OFFSETS = 1000
"""Messages per micro-batch: few, so that a kill comes between and within many."""
APPEND_PAUSE_S = 0.08
"""The writer appends some 500 messages a second: about what micro-batches of this size take beside starting again, so
that most messages pass through drivers that are killed."""
KILL_WITHIN_S = 3.0
START_DEADLINE_S = 90.0
END_DEADLINE_S = 600.0


class Writer:
    """Appends to the queues in a thread until it is stopped."""

    def __init__(self, root: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self.queues = [QueueOnDisk(root, queue, options=SMALL) for queue in QUEUES]
        for queue in self.queues:
            queue.fill(1000)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(APPEND_PAUSE_S):
            for queue in self.queues:
                queue.fill(self._chance.randrange(40), per_batch=self._chance.choice((1, 3, 25)))

    def stop(self) -> int:
        """Stop, and say how many messages there are."""
        self._stopped.set()
        self._thread.join()
        for queue in self.queues:
            queue.close()
        return sum(len(queue.messages) for queue in self.queues)


def stream(root: Path, to_the_end: bool) -> None:
    """The driver: runs until it is killed, or until all that is there is in Parquet; then it prints what is there."""
    from fluxmq_spark import register
    from tests.spark.session import session

    spark = session(root / f"session-{os.getpid()}")
    register(spark)
    source = (
        spark.readStream.format("fluxmq")
        .option("path", str(root / "data"))
        .option("queues", ",".join(QUEUES))
        .option("startingOffsets", "earliest")
    )
    if not to_the_end:
        source = source.option("maxOffsetsPerTrigger", str(BATCH_OFFSETS))
    sink = (
        source.load()
        .writeStream.format("parquet")
        .option("path", str(root / "parquet"))
        .option("checkpointLocation", str(root / "checkpoint"))
    )
    if not to_the_end:
        sink.trigger(processingTime="0 seconds").start().awaitTermination()
        return
    sink.trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet(str(root / "parquet")).createOrReplaceTempView("found")
    found = spark.sql(
        "select count(*), count(distinct queue, offset), "
        "count_if(split(cast(payload as string), ' ')[0] <> cast(offset as string)) from found"
    ).first()
    assert found is not None
    rows, once, wrong = found
    print(f"{rows} {once} {wrong}")


def committed(root: Path) -> int:
    """Micro-batches that the checkpoint says are done."""
    with contextlib.suppress(FileNotFoundError):
        return sum(name.isdecimal() for name in os.listdir(root / "checkpoint" / "commits"))
    return 0


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    """A driver in a process group of its own."""
    command = [sys.executable, "-m", "tests.spark.kill_stream", "--stream", str(root), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def run_and_kill(root: Path, chance: random.Random) -> int:
    """One driver, killed at a random moment after its first micro-batch; how many it committed."""
    before = committed(root)
    process = start(root)
    deadline = time.monotonic() + START_DEADLINE_S
    while committed(root) == before:
        if process.poll() is not None:
            raise AssertionError(f"the driver ended by itself:\n{process.communicate()[1]}")
        assert time.monotonic() < deadline, "no micro-batch was committed"
        time.sleep(0.01)
    time.sleep(chance.random() * KILL_WITHIN_S)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return committed(root) - before


def campaign(root: Path, rounds: int, seed: int) -> tuple[str, bool]:
    """Run and kill; the tally, and whether every message is there once."""
    chance = random.Random(seed)
    writer = Writer(root / "data", seed)
    batches = 0
    try:
        for _ in range(rounds):
            batches += run_and_kill(root, chance)
    finally:
        messages = writer.stop()
    last = start(root, "--to-the-end")
    output, errors = last.communicate(timeout=END_DEADLINE_S)
    if last.returncode != 0:
        raise AssertionError(f"the last driver failed:\n{errors}")
    rows, once, wrong = map(int, output.split()[-3:])
    line = (
        f"rounds={rounds} batches={batches} messages={messages} rows={rows} "
        f"lost={messages - once} doubled={rows - once} wrong={wrong}"
    )
    return line, rows == once == messages and wrong == 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The campaign, or one driver of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kill_stream", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--to-the-end", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.stream is not None:
        stream(given.stream, given.to_the_end)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        line, right = campaign(Path(directory), given.rounds, given.seed)
    print(line)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
