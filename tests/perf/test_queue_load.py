"""The generator's side of durable queues: codecs, running numbers, windows, figures and pages; peers where installed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf import amqp, backlog, brokers, cases, codec, compare, disk, durable, jetstream, queue
from perf.__main__ import parser
from perf.backlog import BacklogMeasurement, Restart
from perf.brokers import Broker, BrokerError
from perf.codec import Histogram, TagSender
from perf.compare import CaseResult, Plan
from perf.dialects import DIALECTS
from perf.disk import Disk, SyncTime
from perf.queue_cases import QUEUE_CASES, adapted
from perf.run import Measurement, Run, Timing
from perf.workload import Workload, WorkloadError

pytestmark = pytest.mark.usefixtures("fresh_fonts")

BUFFER = 1 << 16
SIZE = 64
DURABLE = Workload(protocol="queue", qos=1, shape="pairs", version=5)


def plain() -> ModuleType:
    """The inner loop uncompiled, whatever this process runs."""
    loaded: dict[str, ModuleType] = {}
    for name in ("_hot_client", "_hot_queue"):
        path = Path(codec.__file__).with_name(f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"plain{name}", path)
        assert spec is not None
        assert spec.loader is not None
        loaded[name] = importlib.util.module_from_spec(spec)
        if name == "_hot_queue":
            # Its classes extend those of the first, uncompiled as well.
            source = path.read_text().replace("perf._hot_client", "plain_hot_client")
            sys.modules["plain_hot_client"] = loaded["_hot_client"]
            exec(compile(source, str(path), "exec"), loaded[name].__dict__)
        else:
            spec.loader.exec_module(loaded[name])
    return loaded["_hot_queue"]


PLAIN = plain()
FORMS = pytest.mark.parametrize("form", [codec, PLAIN], ids=["as installed", "uncompiled"])


def histogram(form: Any) -> Any:
    """A histogram of the same form as the classes under test."""
    if form is codec:
        return Histogram()
    return sys.modules["plain_hot_client"].Histogram()


def amqp_sender(form: Any = codec, window: int = 10) -> TagSender:
    template = amqp.publish_template("q", SIZE)
    made: TagSender = form.TagSender(*template, window, window, 0, histogram(form))
    return made


def jetstream_sender(form: Any = codec, window: int = 10) -> TagSender:
    template = jetstream.template("s", jetstream.inbox(0), SIZE)
    made: TagSender = form.TagSender(*template, window, window, 0, histogram(form))
    return made


def receiver(form: Any, kind: str, sender: Any = None, each: bool = False) -> Any:
    middle = each if kind == "AmqpReceiver" else 4
    buffers = bytearray(BUFFER), bytearray(BUFFER)
    return getattr(form, kind)(*buffers, middle, sender, histogram(form), 0 if sender else 1)


def feed(target: Any, data: bytes, cuts: list[int], now: int = 5000) -> bytes:
    """Feed a stream cut at these places, as a socket would give it; the replies."""
    replies, tail, at = b"", b"", 0
    for cut in [*sorted(cuts), len(data)]:
        part = tail + data[at:cut]
        at = max(at, cut)
        target.inbound[: len(part)] = part
        done = target.feed(len(part), now, True)
        replies += bytes(target.outbound[: target.out_length])
        tail = part[done:]
    assert not tail
    return replies


def head(sequence: int, size: int = SIZE) -> bytes:
    return struct.pack("<qII", 1000, 0, sequence) + bytes(size - 16)


def deliver(tag: int, body: bytes, frame_max: int = 1 << 16) -> bytes:
    """basic.deliver with its header and body frames."""
    arguments = amqp.short("c") + struct.pack(">QB", tag, 0) + amqp.short("") + amqp.short("q")
    found = amqp.method(1, (60, 60), arguments)
    found += amqp.frame(amqp.HEADER, 1, struct.pack(">HHQH", 60, 0, len(body), 0))
    for at in range(0, len(body), frame_max):
        found += amqp.frame(amqp.BODY, 1, body[at : at + frame_max])
    return found


def ack(tag: int, multiple: bool) -> bytes:
    return amqp.method(1, (60, 80), struct.pack(">QB", tag, multiple))


def pub_ack(tag: int, body: str = '{"stream":"s","seq":1}') -> bytes:
    return f"MSG {jetstream.inbox(0)}.{tag:010d} 1 {len(body)}\r\n{body}\r\n".encode()


CUTS = st.lists(st.integers(0, 400), max_size=6)


# --- what is sent --------------------------------------------------------------------------------------------------


@FORMS
def test_an_amqp_message_is_three_frames_with_a_stamped_body(form: Any) -> None:
    sender = amqp_sender(form)
    length = sender.prepare(2, 77, 5)
    sent, kinds, at = bytes(sender.chunk[:length]), [], 0
    bodies = []
    while at < length:
        kind, channel, size = struct.unpack_from(">BHI", sent, at)
        assert (channel, sent[at + 7 + size]) == (1, 0xCE)
        kinds.append(kind)
        if kind == amqp.BODY:
            bodies.append(sent[at + 7 : at + 7 + size])
        at += size + 8
    assert kinds == [amqp.METHOD, amqp.HEADER, amqp.BODY] * 2
    assert [struct.unpack_from("<qII", body) for body in bodies] == [(77, 0, 0), (82, 0, 1)]
    assert all(len(body) == SIZE for body in bodies)


@FORMS
def test_a_jetstream_message_carries_its_number(form: Any) -> None:
    sender = jetstream_sender(form)
    sender.next_tag = sender.low = 41
    sent = bytes(sender.chunk[: sender.prepare(2, 77, 0)])
    assert sent.startswith(f"PUB s _INBOX.perf0.{41:010d} {SIZE}\r\n".encode())
    assert f"_INBOX.perf0.{42:010d} ".encode() in sent
    assert sent.endswith(b"\r\n")


def test_amqp_method_frames() -> None:
    assert amqp.close()[:1] == b"\x01"
    assert amqp.method(0, (10, 41)) == b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x29\xce"
    assert amqp.table({"a": "b"}) == b"\x00\x00\x00\x08\x01aS\x00\x00\x00\x01b"
    with pytest.raises(ValueError, match="255"):
        amqp.short("x" * 256)


# --- what is received ------------------------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("each", [False, True])
def test_amqp_deliveries_are_counted_and_acknowledged(form: Any, each: bool) -> None:
    target = receiver(form, "AmqpReceiver", each=each)
    stream = b"".join(deliver(tag, head(tag - 1)) for tag in (1, 2, 3))
    replies = feed(target, stream, [])
    expected = [ack(1, False), ack(2, False), ack(3, False)] if each else [ack(3, True)]
    assert replies == b"".join(expected)
    assert (target.publishes, target.payload_bytes, target.lost) == (3, 3 * SIZE, 0)
    assert (target.unexpected, target.malformed) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(CUTS, st.sampled_from([20, 64, 1000]))
def test_amqp_deliveries_in_any_pieces(cuts: list[int], frame_max: int) -> None:
    for form in (codec, PLAIN):
        target = receiver(form, "AmqpReceiver", each=True)
        stream = b"".join(deliver(tag, head(tag - 1), frame_max) for tag in (1, 2))
        stream += amqp.frame(8, 0, b"")
        replies = feed(target, stream, [min(cut, len(stream)) for cut in cuts])
        assert replies == ack(1, False) + ack(2, False)
        assert (target.publishes, target.lost, target.malformed) == (2, 0, 0)


@FORMS
def test_amqp_gaps_and_surprises_are_counted(form: Any) -> None:
    target = receiver(form, "AmqpReceiver")
    feed(target, deliver(1, head(0)) + deliver(2, head(5)) + amqp.method(1, (20, 40)), [])
    assert (target.lost, target.unexpected) == (4, 1)
    feed(target, deliver(3, head(6))[:-1] + b"!", [])
    assert target.malformed == 1


@FORMS
def test_amqp_confirms_settle_one_or_all_before(form: Any) -> None:
    sender = amqp_sender(form)
    target = receiver(form, "AmqpReceiver", sender)
    sender.prepare(6, 1000, 0)
    feed(target, ack(3, False) + ack(2, True), [])
    assert (sender.acknowledged, sender.in_flight, sender.low) == (3, 3, 4)
    feed(target, amqp.method(1, (60, 120), struct.pack(">QB", 4, 0)), [])
    assert (sender.refused, sender.acknowledged) == (1, 4)
    feed(target, ack(6, True) + ack(6, True), [])
    assert (sender.acknowledged, sender.in_flight, sender.spurious) == (6, 0, 1)


@FORMS
def test_jetstream_deliveries_are_acknowledged_one_by_one(form: Any) -> None:
    target = receiver(form, "JetStreamReceiver")
    reply = "$JS.ACK.s.perf.1.1.1.1700000000000000000.0"
    front = f"MSG perf.deliver.s 2 {reply} {SIZE}\r\n".encode()
    stream = b"".join(front + head(number) + b"\r\n" for number in (0, 1))
    assert feed(target, stream + b"PING\r\n", [10, 70]) == (
        f"PUB {reply} 0\r\n\r\n".encode() * 2 + b"PONG\r\n"
    )
    assert (target.publishes, target.lost, target.unexpected) == (2, 0, 0)


@FORMS
def test_a_jetstream_delivery_without_reply_subject_is_unexpected(form: Any) -> None:
    target = receiver(form, "JetStreamReceiver")
    assert feed(target, f"MSG a 2 {SIZE}\r\n".encode() + head(0) + b"\r\n", []) == b""
    assert target.unexpected == 1


@settings(max_examples=60, deadline=None)
@given(CUTS, st.permutations([1, 2, 3, 4]))
def test_jetstream_confirms_in_any_order_and_pieces(cuts: list[int], order: list[int]) -> None:
    for form in (codec, PLAIN):
        sender = jetstream_sender(form)
        target = receiver(form, "JetStreamReceiver", sender)
        sender.prepare(4, 1000, 0)
        stream = b"".join(pub_ack(tag) for tag in order)
        feed(target, stream, [min(cut, len(stream)) for cut in cuts])
        assert (sender.acknowledged, sender.in_flight, sender.low) == (4, 0, 5)
        assert (sender.spurious, sender.refused) == (0, 0)


@FORMS
def test_a_jetstream_error_is_a_refusal(form: Any) -> None:
    sender = jetstream_sender(form)
    target = receiver(form, "JetStreamReceiver", sender)
    sender.prepare(1, 1000, 0)
    feed(target, pub_ack(1, '{"error":{"code":503}}'), [])
    assert (sender.refused, sender.in_flight) == (1, 0)


@FORMS
def test_numbers_in_flight_never_share_a_place(form: Any) -> None:
    """Number 1 stays unconfirmed: others go on, to twice the window and no further."""
    sender = amqp_sender(form, window=4)
    target = receiver(form, "AmqpReceiver", sender)
    sender.prepare(4, 1000, 0)
    for confirmed in range(2, 9):
        feed(target, ack(confirmed, False), [])
        sender.prepare(sender.room(), 1000, 0)
    assert sender.room() == 0
    assert sender.next_tag - sender.low == 2 * 4
    feed(target, ack(1, False), [])
    assert sender.room() > 0
    assert sender.spurious == 0


# --- workloads, cases, pages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"qos": 0},
        {"shape": "all", "subscribers": 2},
        {"protocol": "smtp"},
        {"subscriber_protocol": "smtp"},
    ],
)
def test_workloads_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    DURABLE.check()
    with pytest.raises(WorkloadError):
        DURABLE.changed(**changes).check()


def test_every_case_has_a_workload_for_each_of_its_brokers() -> None:
    for case in QUEUE_CASES.values():
        for name in case.brokers():
            workload = case.workload_for(name)
            workload.check()
            assert workload.durable
            assert name in durable.STARTERS
            assert Workload.from_json(workload.to_json()) == workload
            template = DIALECTS[workload.protocol].template(workload, 0)
            assert template.message[template.payload_at :][16:].startswith(codec.FILLER[:9])


def test_one_queue_gets_the_window_of_all_queues() -> None:
    many = QUEUE_CASES["queue_64_groups"].workload
    one = adapted(many, durable.FLUXMQ)
    assert (one.publishers, one.subscribers) == (1, 1)
    assert one.window == many.window * many.publishers
    assert adapted(many, durable.FLUXMQ_GROUPS) == many


def test_the_configuration_spreads_queues_over_groups(tmp_path: Path) -> None:
    alone = durable.fluxmq_settings(1, 2, tmp_path)
    assert "cluster" not in alone
    assert [each["name"] for each in alone["queues"]] == ["perf-0"]
    apart = durable.fluxmq_settings(1, 2, tmp_path, 4, 4)
    assert {each["replication"]["group"] for each in apart["queues"]} == {"g0", "g1", "g2", "g3"}
    assert apart["cluster"]["raft"]["enabled"]
    together = durable.fluxmq_settings(1, 2, tmp_path, 4, 1)
    assert {each["replication"]["group"] for each in together["queues"]} == {"g0"}


def test_the_disk_is_measured_where_data_will_be(tmp_path: Path) -> None:
    mounts = "/dev/a / ext4 rw 0 0\ntmpfs /fast tmpfs rw 0 0\n/dev/b /fast/slow xfs rw 0 0\n"
    assert disk.file_system(Path("/var"), mounts) == "ext4"
    assert disk.file_system(Path("/fast/x"), mounts) == "tmpfs"
    assert disk.file_system(Path("/fast/slow/x"), mounts) == "xfs"
    assert disk.file_system(Path("/faster"), mounts) == "ext4"
    found = disk.measure(tmp_path, rounds=5)
    assert [sync.size for sync in found.syncs] == [4096, 65_536]
    assert all(0 < sync.p50_us <= sync.p99_us for sync in found.syncs)
    assert "fdatasync: 4 KiB p50" in found.sentence()


def test_quantiles_of_few_values() -> None:
    assert disk.at([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert disk.at([1.0], 0.99) == 1.0


def measurement(rate: float, confirm_us: float = 100.0) -> Measurement:
    quantiles = {"count": 1.0, "p50": confirm_us, "p99": 2 * confirm_us}
    return Measurement(
        *("x", 1.0, rate, rate, 2.0, 0.5, 0.25, 0, 0),
        counts={"reordered": 0},
        delivery_us=quantiles,
        acknowledgement_us=quantiles,
    )


def backlogged(restart_s: float, growth: int) -> BacklogMeasurement:
    starts = (Restart("a clean stop", 1.0, 1.5), Restart("SIGKILL", 1.2, restart_s))
    return BacklogMeasurement("fluxmq-queue", 1000, 2.0, 5000, growth, growth // 2, 0.5, starts)


def test_a_comparison_is_judged_and_written(tmp_path: Path) -> None:
    streamed = CaseResult(QUEUE_CASES["queue_stream"])
    streamed.results = {
        durable.FLUXMQ: [measurement(300_000)],
        durable.RABBIT_AMQP: [measurement(40_000)],
        durable.JETSTREAM: [measurement(200_000)],
    }
    streamed.missing = {durable.RABBIT_MQTT: "not installed"}
    kept = CaseResult(QUEUE_CASES["queue_backlog"], {durable.FLUXMQ: [backlogged(11.0, 1000)]})
    results = [streamed, kept]
    place = Disk("ext4", (SyncTime(4096, 100.0, 300.0), SyncTime(65_536, 150.0, 400.0)))
    for result in results:
        result.disk = place.plain()
        result.ratios = compare.ratios(result.case, result.results)
    verdicts = {
        (ratio.metric, ratio.against): ratio.verdict
        for r in results
        for ratio in r.ratios
        if ratio.goal
    }
    assert verdicts == {
        (cases.THROUGHPUT, None): "pass",
        (cases.THROUGHPUT, durable.RABBIT_AMQP): "pass",
        (cases.THROUGHPUT, durable.JETSTREAM): "fail",
        (cases.RESTART, None): "fail",
        (cases.BACKLOG_MEMORY, None): "aim",
    }
    queue.write(results, Plan(("queue_stream",), ()), place, tmp_path, "q")
    page = (tmp_path / "q.md").read_text()
    assert "4 KiB p50 100 µs p99 300 µs" in page
    assert "100 / 300" in page
    assert "| SIGKILL | 1.20 | 11.00 |" in page
    assert "rabbitmq-mqtt is missing: not installed" in page
    record = json.loads((tmp_path / "q.json").read_text())
    assert record["disk"]["file_system"] == "ext4"
    assert record["cases"][1]["rounds"][durable.FLUXMQ][0]["restart_s"] == 11.0


@FORMS
def test_marks_tell_lost_late_and_repeated_messages_apart(form: Any) -> None:
    buffers = bytearray(BUFFER), bytearray(BUFFER)
    receiver = form.AmqpReceiver(*buffers, 0, None, histogram(form), 2)
    with pytest.raises(ValueError, match="a byte for each"):
        receiver.mark(bytearray(12), 7)
    marks = bytearray(12)
    receiver.mark(marks, 6)
    data = b""
    for publisher, number in ((0, 0), (1, 0), (0, 1), (0, 3), (0, 2), (0, 1), (1, 9), (1, 1)):
        body = struct.pack("=qII", 1, publisher, number) + codec.payload(SIZE)[16:]
        fields = amqp.short("c") + bytes(9) + amqp.short("") + amqp.short("q")
        header = struct.pack(">HHQH", 60, 0, len(body), 0)
        data += amqp.method(1, (60, 60), fields) + amqp.frame(amqp.HEADER, 1, header)
        data += amqp.frame(amqp.BODY, 1, body)
    buffers[0][: len(data)] = data
    assert receiver.feed(len(data), 0, False) == len(data)
    assert list(marks) == [1, 2, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    # 2 after 3, and 1 after 9, which has no byte.
    assert receiver.late == 2


def test_a_subject_that_is_missing_is_a_fault() -> None:
    found = CaseResult(QUEUE_CASES["queue_5k"], missing={durable.FLUXMQ: "why", "jetstream": "x"})
    assert queue.faults(found) == ["fluxmq-queue could not be measured: why"]


def test_memory_is_that_of_the_process_that_grew_most() -> None:
    before = {1: (100, 50), 2: (1000, 900)}
    assert backlog.grown(before, {1: (400, 60), 2: (1100, 990), 3: (9999, 9999)}) == (300, 10)
    assert backlog.grown({}, {1: (1, 1)}) == (0, 0)


def test_the_command_line_knows_the_cases() -> None:
    options = parser().parse_args(["queue", "--cases", "queue_stream,nonsense"])
    assert isinstance(options, argparse.Namespace)
    with pytest.raises(WorkloadError, match="nonsense"):
        queue.main(options)


# --- against brokers -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[durable.FLUXMQ, durable.JETSTREAM, durable.JETSTREAM_SYNC])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    try:
        started = brokers.start(request.param)
    except BrokerError as error:
        if request.param == durable.FLUXMQ:
            raise
        pytest.skip(str(error))
    assert isinstance(started, Broker)
    yield started
    started.stop()


def test_durable_queues_lose_nothing_under_load(broker: Broker) -> None:
    for case in ("queue_stream", "queue_5k"):
        workload = QUEUE_CASES[case].workload_for(broker.name)
        found = Run(broker.target(), workload, Timing(0.2, 0.5)).measure()
        assert found.lost == found.counts["reordered"] == found.counts["unexpected"] == 0
        assert found.counts["refused"] == found.counts["spurious"] == 0
        assert found.counts["acknowledged"] == found.counts["sent"] == found.counts["received"]
        assert found.messages_per_s > 500
        assert found.acknowledgement_us["p50"] > 0


def test_a_backlog_is_there_after_a_clean_stop_and_after_a_kill() -> None:
    found = backlog.measure(messages=20_000)
    assert [start.after for start in found.restarts] == ["a clean stop", "SIGKILL"]
    assert all(0 < start.ready_s <= start.first_delivery_s for start in found.restarts)
    assert found.data_bytes > 20_000 * 256
    assert found.empty_start_s > 0
