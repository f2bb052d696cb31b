"""The jobs as they are run: on files of the broker's own log, and once with a broker that publishes are for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pika  # type: ignore[import-untyped]
import pytest

from fluxmq.model.batches import BatchMessage
from fluxmq.model.group_states import GROUPS_NAME, WORK, ConsumerGroupState, QueueGroups
from fluxmq.model.group_states import encode as encode_groups
from fluxmq.model.properties import Item, PropertyKind, Value
from fluxmq.model.properties import encode as encode_properties
from fluxmq_spark import exports
from fluxmq_spark.catalog import find_queues, read_log
from fluxmq_spark.jobs import audit, dead_letters, export_parquet, queue_report, replay
from fluxmq_spark.storage import storage_of
from tests.broker import HOST, BrokerFactory, free_ports, own_broker
from tests.spark_queues import EPOCH_US, QueueOnDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["own_broker"]

DEAD = "$dlq/orders"


def dead_letter(offset: int, reason: bytes) -> BatchMessage:
    items = [
        Item(PropertyKind.CONTENT_TYPE, b"text/plain"),
        Item(PropertyKind.HEADER, Value("S", b"red"), b"colour"),
        Item(PropertyKind.DEAD_REASON, reason),
        Item(PropertyKind.DEAD_QUEUE, b"orders"),
        Item(PropertyKind.DEAD_KEY, b"shop/%d" % (offset % 2)),
        Item(PropertyKind.DEAD_TIME, EPOCH_US + offset),
    ]
    return BatchMessage(
        b"shop/1", encode_properties(items), b"letter %d" % offset, EPOCH_US + offset
    )


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory: a queue with a group that lags, its dead letters, and one whose name is no directory's."""
    root = tmp_path / "data"
    made = [QueueOnDisk(root, name) for name in ("orders", DEAD, "söme/queue 7")]
    made[0].fill(4000, size=100)
    made[0].fill(1000, size=1000, key=b"$queue/orders/de")
    made[1].append([dead_letter(at, b"rejected") for at in range(5)])
    made[1].append([dead_letter(at, b"expired") for at in range(5, 8)])
    made[2].fill(300)
    group = ConsumerGroupState("billing", WORK, "", 3000, 2, ((10, 19, 1),), (), 10, 10, 0, True)
    state = encode_groups(QueueGroups(EPOCH_US + 5_000_000, 0, 5000, (group,)))
    (made[0].directory / GROUPS_NAME).write_bytes(state)
    yield root
    for each in made:
        each.close()


def report_of(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_export(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """Runs add what is new, readers see every message once, and what a crashed run left is gone."""
    out = str(tmp_path / "out")
    words = ["--path", str(data), "--output", out, "--rows-per-file", "700", "--quiet"]
    assert export_parquet.main([*words, "--queue", "orders", "--to", "1234"]) == 0
    left = tmp_path / "out" / "queue=orders" / "date=2026-09-21" / "part-crashed-0.parquet"
    left.write_bytes(b"half a file")
    assert export_parquet.main(words) == 0
    assert not left.exists()
    assert export_parquet.main(words) == 0
    directory = exports.ExportDirectory(out)
    assert [len(each.queues) for each in directory.manifests()] == [1, 3]
    columns = ["queue", "offset", "timestamp", "address", "key", "payload", "publisher"]
    exported = exports.read(spark, out)
    source = spark.read.format("fluxmq").load(str(data))
    rows = {tuple(row) for row in exported.select(columns).collect()}
    assert rows == {tuple(row) for row in source.select(columns).collect()}
    assert exported.count() == len(rows) == 5000 + 8 + 300
    assert {row["queue"] for row in exported.select("queue").distinct().collect()} == {
        *("orders", DEAD, "söme/queue 7"),
    }
    letters = exports.read(spark, out, [DEAD]).where("headers['colour'] = 'red'")
    assert letters.where("properties['content_type'] = 'text/plain'").count() == 8
    assert spark.read.parquet(out).count() == 5308


def test_report_and_dead_letters(
    spark: SparkSession, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts, sizes, addresses and lag are those of the files; pictures and JSON are written."""
    out = tmp_path / "report"
    assert queue_report.main(["--path", str(data), "--output", str(out), "--quiet"]) == 0
    told = report_of(capsys)
    assert "orders/eu" in told
    found = json.loads((out / "report.json").read_text())
    totals = {each["queue"]: each for each in found["queues"]}
    assert totals["orders"]["messages"] == 5000
    assert (totals["orders"]["first_offset"], totals["orders"]["next_offset"]) == (0, 5000)
    sizes = {each["queue"]: each for each in found["sizes"]}["orders"]
    assert (sizes["messages"], sizes["bytes"], sizes["largest"]) == (5000, 1_400_000, 1000)
    assert 100 <= sizes["p50"] <= 101
    assert sizes["p90"] == sizes["p99"] == 1000
    assert [each["messages"] for each in found["addresses"][:2]] == [4000, 1000]
    rates = found["rates"]["messages_per_second"]["orders"]
    assert sum(rates.values()) * found["rates"]["step_seconds"] == pytest.approx(5000)
    (group,) = found["groups"]
    assert (group["group"], group["lag_messages"], group["pending"]) == ("billing", 2010, 10)
    assert {each.name for each in out.iterdir()} == {
        *("report.json", "queues.csv", "rates.csv", "addresses.csv", "groups.csv"),
        *("rate.png", "sizes.png", "lag.png"),
    }
    words = ["--path", str(data), "--queue", "orders", "--headers-only", "--quiet"]
    assert queue_report.main([*words, "--from", "4995"]) == 0
    told = report_of(capsys)
    assert "10" in next(line for line in told.splitlines() if line.startswith("orders")).split()
    assert "Busiest" not in told
    out = tmp_path / "dead"
    assert dead_letters.main(["--path", str(data), "--output", str(out), "--quiet"]) == 0
    told = report_of(capsys)
    assert "8 dead letters" in told
    causes = json.loads((out / "dead_letters.json").read_text())["causes"]
    assert [(each["reason"], each["source"], each["letters"]) for each in causes] == [
        *(("rejected", "orders", 5), ("expired", "orders", 3)),
    ]
    assert (out / "causes.png").exists()
    words = ["--path", str(data), "--queue", "orders", "--redrive", "--dry-run", "--quiet"]
    assert dead_letters.main([*words, "--reason", "expired"]) == 0
    told = report_of(capsys)
    assert "Would be published" in told
    assert "$queue/orders/shop/1" in told
    assert "producer id redrive/$dlq/orders/5-7/expired/orders" in told


def test_audit(
    spark: SparkSession, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sound directory and its copy have no findings; what is changed in either is named."""
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    assert audit.main(["--path", str(data), "--path", str(copy), "--quiet"]) == 0
    assert "No problems found." in report_of(capsys)
    segments = sorted((copy / "groups" / "default" / "queues" / "orders").glob("*.seg"))
    assert len(segments) > 5
    changed = bytearray(segments[1].read_bytes())
    changed[6000] ^= 1
    segments[1].write_bytes(changed)
    segments[3].unlink()
    out = tmp_path / "audit"
    words = ["--path", str(data), "--path", str(copy), "--queue", "orders"]
    assert audit.main([*words, "--output", str(out), "--quiet"]) == 1
    told = report_of(capsys)
    findings = json.loads((out / "audit.json").read_text())["findings"]
    kinds = {(each["kind"], each["node"]) for each in findings}
    assert kinds == {
        *(("damage", str(copy)), ("gap", str(copy)), ("differs", str(data))),
    }
    damage = next(each for each in findings if each["kind"] == "damage")
    assert f"{segments[1]}, byte " in damage["text"]
    assert int(segments[3].name[:20]) == next(
        each["offset"] for each in findings if each["kind"] == "gap"
    )
    assert f"none in {copy}" in told


def committed(root: Path, queue: str) -> int:
    storage, where = storage_of(str(root))
    (files,) = [each for each in find_queues(storage, where) if each.queue == queue]
    log = read_log(storage, files)
    return 0 if log is None else log.head.committed


def test_publishing_again(
    spark: SparkSession,
    data: Path,
    tmp_path: Path,
    own_broker: BrokerFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Replay and redrive put messages into a broker's queue, a second run none of them again."""
    (port,) = free_ports(1)
    settings = {
        "server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}},
        "queues": [{"name": "orders"}],
    }
    broker = own_broker(settings=settings)
    url = f"amqp://guest:guest@{HOST}:{port}/"
    words = ["--path", str(data), "--queue", "orders", "--from", "3990", "--to", "4010", "--quiet"]
    words += ["--target-queue", "orders", "--url", url]
    for _ in range(2):
        assert replay.main([*words, "--keep-keys", "--rate", "1000"]) == 0
    assert "guest:guest" not in report_of(capsys)
    again = ["--path", str(data), "--queue", "orders", "--redrive", "--url", url, "--quiet"]
    for _ in range(2):
        assert dead_letters.main(again) == 0
    out = str(tmp_path / "out")
    assert export_parquet.main(["--path", str(data), "--output", out, "--quiet"]) == 0
    from_files = ["--parquet", out, "--queue", "orders", "--to", "30", "--target-queue", "orders"]
    assert replay.main([*from_files, "--url", url, "--quiet"]) == 0
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    told = channel.queue_declare("orders", passive=True)
    assert told.method.message_count == 20 + 8 + 30
    _, first, payload = channel.basic_get("orders", auto_ack=True)
    assert first.headers["x-replayed-from"] == "orders/3990"
    assert payload.startswith(b"3990 ")
    keys = []
    for _ in range(27):
        method, properties, payload = channel.basic_get("orders", auto_ack=True)
        keys.append(method.routing_key)
    assert keys[8:10] == ["$queue/orders/orders/eu", "$queue/orders/de"]
    assert keys[-1] == "$queue/orders/shop/1"
    assert payload == b"letter 7"
    assert properties.headers["x-redriven-from"] == f"{DEAD}/7"
    assert properties.headers["colour"] == "red"
    assert properties.content_type == "text/plain"
    connection.close()
    assert committed(broker.config.parent / "data", "orders") >= 28
