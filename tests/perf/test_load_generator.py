"""The load generator against a tiny broker that counts, and against installed brokers: are its figures true?"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from perf import brokers, idle
from perf.brokers import Broker, BrokerError
from perf.run import Measurement, Run, RunError, Target, Timing
from perf.workload import Workload
from tests.perf.tiny_broker import Faults, TinyBroker

SHORT = Timing(warmup_s=0.1, duration_s=0.3)


def run(port: int, workload: Workload, workers: int = 1, timing: Timing = SHORT) -> Measurement:
    return Run(
        Target("tiny", "127.0.0.1", port, (os.getpid(),)), workload, timing, workers
    ).measure()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_counts_equal_the_brokers(qos: int, version: int) -> None:
    workload = Workload(qos=qos, version=version, window=20, outstanding=500)
    with TinyBroker() as broker:
        found = run(broker.port, workload)
        assert found.counts["sent"] == broker.published == broker.delivered
    assert found.counts["received"] == found.counts["sent"] > 100
    assert found.counts["acknowledged"] == (found.counts["sent"] if qos else 0)
    assert found.lost == found.written_off == 0
    assert all(found.counts[name] == 0 for name in ("gaps", "reordered", "malformed", "spurious"))
    assert found.messages_per_s > 100
    assert found.broker_cpu_us > 0
    assert found.delivery_us["count"] > 0
    assert 0 < found.delivery_us["p50"] <= found.delivery_us["p99"] <= found.delivery_us["max"]
    assert (found.acknowledgement_us["p50"] > 0) == (qos > 0)


@pytest.mark.parametrize(
    "workload",
    [
        Workload(publishers=10, mode="single", outstanding=50),
        Workload(subscribers=10, outstanding=500),
        Workload(publishers=5, subscribers=5, shape="pairs", outstanding=500),
        Workload(qos=1, publishers=10, mode="single", window=1, outstanding=50),
        Workload(qos=1, subscriber_qos=0, outstanding=50),
        Workload(payload=16_384, outstanding=20),
    ],
    ids=["n to 1", "1 to n", "n to n", "window 1", "subscriber QoS", "16 KiB"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_every_shape_is_lossless(workload: Workload, workers: int) -> None:
    with TinyBroker() as broker:
        found = run(broker.port, workload, workers)
        assert found.counts["sent"] == broker.published
        assert found.counts["received"] == broker.delivered == broker.published * workload.fan_out
    assert found.lost == found.counts["reordered"] == 0
    assert found.messages_per_s > 0


def test_a_lossy_broker_is_measured_and_its_loss_reported() -> None:
    with TinyBroker(Faults(lose_every=10)) as broker:
        found = run(broker.port, Workload(outstanding=200))
        assert found.lost == broker.lost > 0
    assert found.lost - 1 <= found.counts["gaps"] <= found.lost


def test_a_reordering_broker_is_noticed() -> None:
    with TinyBroker(Faults(swap_every=50)) as broker:
        found = run(broker.port, Workload(outstanding=200))
    assert found.counts["reordered"] > 0


def test_a_silent_broker_does_not_hold_the_generator() -> None:
    with TinyBroker(Faults(silent_after=50)) as broker:
        timing = Timing(warmup_s=0.1, duration_s=0.6)
        found = run(broker.port, Workload(mode="single", outstanding=100), timing=timing)
    assert found.counts["received"] == 50
    assert found.written_off > 0
    assert found.lost == found.counts["sent"] - 50


def test_a_broker_that_hangs_up_fails_the_run() -> None:
    with (
        TinyBroker(Faults(hang_up_after=100)) as broker,
        pytest.raises(RunError, match=r"closed a connection|Connection reset|Broken pipe"),
    ):
        run(broker.port, Workload())


def test_a_refused_connection_fails_the_run_with_its_code() -> None:
    with (
        TinyBroker(Faults(refuse_connect=True)) as broker,
        pytest.raises(RunError, match="refused with code 0x87"),
    ):
        run(broker.port, Workload())


def test_open_loop_keeps_its_rate() -> None:
    workload = Workload(qos=1, publishers=2, mode="single", rate=500.0)
    with TinyBroker() as broker:
        found = run(broker.port, workload, timing=Timing(0.2, 1.0))
    assert found.lost == 0
    assert found.published_per_s == pytest.approx(500, rel=0.25)


def test_churn_counts_connections() -> None:
    with TinyBroker() as broker:
        found = run(broker.port, Workload(kind="churn", publishers=8, subscribers=0))
        assert broker.connected >= found.counts["received"] > 0
    assert found.acknowledgement_us["p50"] > 0
    assert found.counts["refused"] == 0


def test_idle_connections_stay_open_while_memory_is_read() -> None:
    with TinyBroker() as broker:
        found = idle.measure(Target("tiny", "127.0.0.1", broker.port, (os.getpid(),)), 50)
        assert broker.connected == idle.FIRST_CONNECTIONS + 50
    assert found.pss_total > 0


@pytest.fixture(params=["mosquitto", "nats"])
def peer(request: pytest.FixtureRequest) -> Iterator[Broker]:
    try:
        broker = brokers.start(request.param)
    except BrokerError as error:
        pytest.skip(str(error))
    assert isinstance(broker, Broker)
    yield broker
    broker.stop()


def test_installed_peers_lose_nothing(peer: Broker) -> None:
    protocol = "nats" if peer.name == "nats" else "mqtt"
    shapes = (
        Workload(protocol=protocol),
        Workload(protocol=protocol, subscribers=10, mode="single"),
        Workload(protocol=protocol, publishers=10, outstanding=1000),
        Workload(protocol=protocol, publishers=3, subscribers=3, shape="pairs"),
    )
    for workload in shapes:
        found = Run(peer.target(), workload, SHORT).measure()
        assert found.lost == found.counts["reordered"] == found.counts["unexpected"] == 0
        assert found.messages_per_s > 1000
        assert found.broker_cpu_us > 0


def test_installed_mosquitto_acknowledges_everything() -> None:
    try:
        broker = brokers.start("mosquitto")
    except BrokerError as error:
        pytest.skip(str(error))
    assert isinstance(broker, Broker)
    try:
        for version, qos in ((4, 1), (5, 1), (4, 2), (5, 2)):
            workload = Workload(version=version, qos=qos, outstanding=1000)
            found = Run(broker.target(), workload, SHORT).measure()
            assert found.counts["acknowledged"] == found.counts["received"] > 0
            assert found.lost == found.counts["refused"] == 0
    finally:
        broker.stop()
    assert broker.process.returncode is not None
