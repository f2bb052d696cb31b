"""Options of reading: what they mean, and that every mistake is named."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.serializers import CPickleSerializer

from fluxmq_spark.errors import OptionError
from fluxmq_spark.options import (
    BATCH,
    EARLIEST,
    EITHER,
    LATEST,
    STREAM,
    Bounds,
    given_options,
    read_options,
)

PATH = {"path": "/data"}


def test_what_is_not_given() -> None:
    """All queues, everything, and nothing forgiven."""
    options = read_options(PATH)
    assert options.queues is None
    assert options.pattern == ".*"
    assert options.starting == Bounds(EARLIEST)
    assert options.ending == Bounds(LATEST)
    assert (options.fail_on_data_loss, options.verify_checksums) == (True, True)
    assert (options.view, options.state, options.columns) == ("messages", "all", None)
    assert (options.min_partitions, options.bytes_per_partition) == (0, 64 << 20)
    assert read_options(PATH, STREAM).starting == Bounds(LATEST)
    sparks = CPickleSerializer()
    assert sparks.loads(sparks.dumps(options)) == options


def test_everything_given() -> None:
    """Case does not matter, neither of names nor of words."""
    options = read_options(
        PATH
        | {
            "QUEUES": " a, b,a ",
            "startingoffsets": '{"a": 7, "b": -2}',
            "endingTimestamp": "2026-09-21T16:13:20.5+02:00",
            "MinPartitions": "3",
            "maxBytesPerPartition": "2m",
            "columns": "payload, offset",
            "includeHeaders": "TRUE",
            "failOnDataLoss": "false",
            "verifyChecksums": "False",
            "group": "workers",
            "state": "Unacknowledged",
            "metricsPath": "/m",
        }
    )
    assert options.queues == ("a", "b")
    assert [options.starting.of(queue) for queue in "abc"] == [7, EARLIEST, EARLIEST]
    assert options.ending.time == 1_790_000_000_500_000
    assert (options.min_partitions, options.bytes_per_partition) == (3, 2 << 20)
    assert options.columns == ("payload", "offset")
    assert (options.fail_on_data_loss, options.verify_checksums) == (False, False)
    assert (options.group, options.state, options.metrics_path) == (
        "workers",
        "unacknowledged",
        "/m",
    )
    assert "state" in options.all_columns()


@pytest.mark.parametrize(
    ("value", "time"),
    [
        ("1790000000000", 1_790_000_000_000_000),
        ("-1", -1000),
        ("2026-09-21", 1_789_948_800_000_000),
        ("2026-09-21T14:13:20", 1_790_000_000_000_000),
        ("2026-09-21 14:13:20.000001Z", 1_790_000_000_000_001),
    ],
)
def test_times(value: str, time: int) -> None:
    """Milliseconds since the epoch, or ISO 8601, UTC unless it says another zone."""
    starting = read_options(PATH | {"startingTimestamp": value}).starting
    assert starting.time == time
    assert datetime.fromtimestamp(time / 1e6, UTC).year in (1969, 2026)


@pytest.mark.parametrize(
    ("value", "size"), [("4096", 4096), ("64k", 65536), ("1G", 1 << 30), ("8 MiB", 8 << 20)]
)
def test_sizes(value: str, size: int) -> None:
    """Bytes, or powers of 1024."""
    assert read_options(PATH | {"maxBytesPerPartition": value}).bytes_per_partition == size


MISTAKES = [
    ({"minPartitions": "0"}, "minPartitions is '0'"),
    ({"minPartitions": "many"}, "minPartitions is 'many'"),
    ({"minPartitions": "100001"}, "minPartitions is '100001'"),
    ({"maxBytesPerPartition": "4095"}, "maxBytesPerPartition is '4095'"),
    ({"maxBytesPerPartition": "1x"}, "maxBytesPerPartition is '1x'"),
    ({"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes': it must be true or false"),
    ({"queue": "a", "queuePattern": "b"}, "queue and queuePattern are given"),
    ({"queue": " "}, "queue is empty"),
    ({"queues": ","}, "queues is ','"),
    ({"queuePattern": "("}, r"queuePattern is '\('"),
    ({"startingOffsets": "latest"}, "startingOffsets is 'latest': nothing would be read"),
    ({"startingOffsets": '{"a": -1}'}, "startingOffsets is .*: nothing would be read"),
    ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest': nothing would be read"),
    ({"startingOffsets": '{"a": -3}'}, "startingOffsets is .*JSON object of offsets"),
    ({"startingOffsets": '{"a": true}'}, "startingOffsets is .*JSON object of offsets"),
    ({"startingOffsets": '{"a": 9223372036854775808}'}, "startingOffsets is"),
    ({"startingOffsets": "{}"}, "startingOffsets is"),
    ({"startingOffsets": "7"}, "startingOffsets is '7'"),
    ({"startingOffsets": "{"}, "startingOffsets is '{'"),
    ({"startingOffsets": "earliest", "startingTimestamp": "0"}, "only one is allowed"),
    ({"endingTimestamp": "tomorrow"}, "endingTimestamp is 'tomorrow'"),
    ({"columns": "offset,colour"}, "there is no column 'colour'"),
    ({"columns": "offset,offset"}, "'offset' is named twice"),
    ({"columns": "headers", "includeHeaders": "false"}, "there is no column 'headers'"),
    ({"columns": "state"}, "there is no column 'state'"),
    ({"state": "lost"}, "state is 'lost'"),
    ({"state": "unacknowledged"}, "state=unacknowledged needs group"),
    ({"state": "dead-lettered", "group": "g"}, "group does not go with state=dead-lettered"),
    ({"view": "colours"}, "view is 'colours'"),
    ({"view": "queues", "group": "g"}, "group is for messages, not for view=queues"),
    ({"view": "queues", "minPartitions": "2"}, "minPartitions is for messages"),
    ({"storageOptions": "[1]"}, "storageOptions is"),
    ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
    ({"pushdown": "true"}, r"unknown: pushdown \(there are path"),
]


@pytest.mark.parametrize(("given", "text"), MISTAKES)
def test_a_mistake_is_named(given: dict[str, str], text: str) -> None:
    """With its value where it has one, and what would be right."""
    with pytest.raises(OptionError, match=text):
        read_options(PATH | given)


def test_all_mistakes_are_named_at_once() -> None:
    """Nobody has to try again for each."""
    given = {
        "minPartitions": "x",
        "state": "lost",
        "bogus": "1",
        "includeHeaders": "2",
        "endingTimestamp": "?",
        "columns": "nix",
    }
    with pytest.raises(OptionError) as caught:
        read_options(given)
    for word in ("path is missing", *given):
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "group"])
def test_what_streams_do_not_have(name: str) -> None:
    """Streams have no end, and what is settled changes while they run."""
    values = {"endingOffsets": "latest", "endingTimestamp": "0", "group": "g"}
    with pytest.raises(OptionError, match=f"{name} is for batch reading"):
        read_options(PATH | {name: values[name]}, STREAM)
    assert read_options(PATH | {name: values[name]}, EITHER).path == "/data"


def test_streams_only() -> None:
    """A limit of micro-batches; states and views are of one moment; latest is a place to start."""
    options = read_options(
        PATH | {"maxOffsetsPerTrigger": "10", "startingOffsets": "latest"}, STREAM
    )
    assert options.max_offsets_per_trigger == 10
    assert read_options(PATH | {"startingOffsets": "latest"}, EITHER).starting.offset == LATEST
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger is '0'"):
        read_options(PATH | {"maxOffsetsPerTrigger": "0"}, STREAM)
    with pytest.raises(OptionError, match="view=queues is for batch reading"):
        read_options(PATH | {"view": "queues"}, STREAM)
    with pytest.raises(OptionError, match="state=unacknowledged is for batch reading"):
        read_options(PATH | {"state": "unacknowledged"}, STREAM)


def test_options_of_python_values() -> None:
    """As `plan` takes them."""
    given = given_options(
        "/data",
        {
            "queues": ["a", "b"],
            "startingOffsets": {"a": 1},
            "failOnDataLoss": False,
            "minPartitions": 4,
        },
    )
    options = read_options(given, BATCH)
    assert options.queues == ("a", "b")
    assert options.starting.of("a") == 1
    assert (options.fail_on_data_loss, options.min_partitions) == (False, 4)
