"""The generator's side of AMQP: frames, acknowledgements, cycles of churn, the suite; short runs against FluxMQ."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perf import amqp, amqp_brokers, amqp_churn, amqp_idle, cases, drain, queue
from perf.__main__ import parser
from perf.amqp_cases import AMQP_CASES, CHURN, ONE
from perf.amqp_idle import AmqpIdleMeasurement
from perf.brokers import Broker, BrokerError
from perf.codec import AmqpReceiver, Histogram
from perf.compare import CaseResult, figure, ratios
from perf.lavinmq import LAVINMQ
from perf.run import Run, Timing
from perf.workload import CHURNS, Workload, WorkloadError

BUFFER = 1 << 18
SHORT = Timing(0.1, 0.4)


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """Kinds and payloads of whole frames."""
    found = []
    while data:
        kind, _, size = struct.unpack_from(">BHI", data)
        assert data[7 + size] == 0xCE
        found.append((kind, data[7 : 7 + size]))
        data = data[8 + size :]
    return found


def delivery(tag: int, body: bytes) -> bytes:
    """The frames of one delivery."""
    fields = amqp.short("c") + struct.pack(">QB", tag, 0) + amqp.short("") + amqp.short("q")
    header = amqp.frame(amqp.HEADER, 1, struct.pack(">HHQH", 60, 0, len(body), 0))
    return amqp.method(1, (60, 60), fields) + header + amqp.frame(amqp.BODY, 1, body)


def acknowledged(receiver: Any, outbound: bytearray, data: bytes) -> list[tuple[int, bool]]:
    """Feed one read; the acknowledgements that it made, as tag and ``multiple``."""
    receiver.inbound[: len(data)] = data
    receiver.feed(len(data), 0, False)
    sent = bytes(outbound[: receiver.out_length])
    return [(struct.unpack(">Q", p[4:12])[0], bool(p[12])) for _, p in frames(sent)]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (0, [(7, True)]),
        (1, [(tag, False) for tag in range(1, 8)]),
        (3, [(3, True), (6, True)]),
        (50, []),
    ],
)
def test_acknowledgements_every_so_many(every: int, expected: list[tuple[int, bool]]) -> None:
    outbound = bytearray(BUFFER)
    receiver = AmqpReceiver(bytearray(BUFFER), outbound, every, None, Histogram(), 0)
    data = b"".join(delivery(tag, b"x" * 16) for tag in range(1, 8))
    assert acknowledged(receiver, outbound, data) == expected


def test_what_is_not_whole_is_not_acknowledged() -> None:
    outbound = bytearray(BUFFER)
    receiver = AmqpReceiver(bytearray(BUFFER), outbound, 0, None, Histogram(), 0)
    begun = delivery(2, b"x" * 16)[:40]
    assert acknowledged(receiver, outbound, delivery(1, b"x" * 16) + begun) == [(1, True)]


def test_a_large_message_has_several_body_frames() -> None:
    message, payload_at, _ = amqp.publish_template("q", 1 << 20)
    method, header, *bodies = frames(message)
    assert (method[0], header[0]) == (amqp.METHOD, amqp.HEADER)
    assert struct.unpack_from(">Q", header[1], 4)[0] == 1 << 20
    assert sum(len(payload) for _, payload in bodies) == 1 << 20
    assert max(len(payload) for _, payload in bodies) == amqp.FRAME_MAX - 8
    assert message[payload_at : payload_at + 16] == bytes(16)


def test_tables_of_strings_and_integers() -> None:
    assert amqp.table({"a": "b", "n": 5}) == bytes.fromhex(
        "0000000f 0161 53 00000001 62 016e 49 00000005"
    )


def test_cycles_make_and_take_away() -> None:
    for what in CHURNS[1:]:
        made, gone = amqp_churn.cycle(what, "name")
        assert [kind for kind, _ in frames(made[0] + gone[0])] == [amqp.METHOD] * 2
        assert made[1] != gone[1]
    assert len(amqp_churn.greeting()) == 4


def test_the_suite_is_of_one_piece() -> None:
    assert all(case.name == name and name.startswith("amqp_") for name, case in AMQP_CASES.items())
    for case in AMQP_CASES.values():
        for broker in case.brokers():
            case.workload_for(broker).check()
    asked = {(name, g.against, g.least) for name, c in AMQP_CASES.items() for g in c.goals}
    assert ("amqp_w500", amqp_brokers.STREAM, 4) in asked
    assert ("amqp_5k", amqp_brokers.QUORUM, 0.6) in asked
    assert ("amqp_w1", LAVINMQ, 1.4) in asked


def test_workloads_that_make_no_sense() -> None:
    for changes in (
        {"queue_type": "other"},
        {"churn_of": "other"},
        {"ack_every": 5000},
        {"shape": "all", "subscribers": 2, "publishers": 2},
    ):
        with pytest.raises(WorkloadError):
            ONE.changed(**changes).check()


def test_all_publishers_may_have_one_queue() -> None:
    work: Workload = AMQP_CASES["amqp_50x4"].workload
    assert {work.queue_name(index) for index in range(work.publishers)} == {"perf-0"}


def test_options() -> None:
    options = parser().parse_args(["amqp", "--cases", "amqp_w1", "--connections", "5"])
    assert (options.command, options.name, options.connections) == ("amqp", "amqp", 5)
    assert queue.SUITES["amqp"].cases is AMQP_CASES


def test_idle_figures_stand_on_the_page(tmp_path: Path) -> None:
    result = CaseResult(AMQP_CASES["amqp_idle"])
    measured = AmqpIdleMeasurement("fluxmq-amqp", 10, 4096.0, 100.0, 20, 512.0, 50.0, 1.5)
    result.results["fluxmq-amqp"] = [measured]
    assert queue.idle_rows(result) == [
        ["fluxmq-amqp", "10", "4,096", "100", "20", "512", "50", "1.50"]
    ]
    assert figure(measured, cases.RESTART) == 1.5
    assert ratios(result.case, result.results) == []
    assert measured.plain()["queues"] == 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """FluxMQ over AMQP."""
    started = amqp_brokers.start_fluxmq("fluxmq-amqp", None)
    yield started
    started.stop()


def test_an_installed_lavinmq_loses_nothing() -> None:
    try:
        started = amqp_brokers.STARTERS[LAVINMQ](None)
    except BrokerError as error:
        pytest.skip(str(error))
    try:
        for name in ("amqp_w500", "amqp_w1", "amqp_50x4"):
            work = AMQP_CASES[name].workload_for(LAVINMQ)
            assert work.queue_type == "classic"
            found = Run(started.target(), work, SHORT).measure()
            assert found.counts["received"] == found.counts["acknowledged"] > 0
            assert found.lost == found.counts["reordered"] == found.counts["refused"] == 0
    finally:
        started.stop()
    assert started.process.returncode is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["amqp_w500", "amqp_50x4", "amqp_10", "amqp_ack50", "amqp_1m", "amqp_5k"]
)
def test_a_short_run(broker: Broker, name: str) -> None:
    work = AMQP_CASES[name].workload_for(broker.name)
    found = Run(broker.target(), work, SHORT).measure()
    assert found.counts["received"] == found.counts["acknowledged"] == found.counts["sent"] > 0
    assert [found.counts[kind] for kind in ("reordered", "unexpected", "malformed", "refused")] == [
        0
    ] * 4
    assert found.lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("what", CHURNS)
def test_short_churn(broker: Broker, what: str) -> None:
    found = Run(
        broker.target(), CHURN.changed(churn_of=what, publishers=2), Timing(0.1, 1.5)
    ).measure()
    assert found.counts["received"] > 0
    assert found.counts["refused"] == 0


@pytest.mark.slow
def test_a_short_drain(broker: Broker) -> None:
    found = drain.measure(broker.target(), ONE, messages=3000)
    assert found.counts["received"] == 3000
    assert found.delivery_us["count"] == 3000


@pytest.mark.slow
def test_idle_connections_queues_and_a_start(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_idle, "FIRST", 2)
    monkeypatch.setattr(amqp_idle, "SETTLE_S", 0.05)
    found = amqp_idle.measure(broker, "quorum", connections=5, queues=5)
    assert (found.connections, found.queues) == (5, 5)
    assert 0 < found.start_s < 60
