"""Percentiles, ratios, tables, pictures, workloads: everything between a count and a verdict."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf import brokers, cases, compare, handshake, lavinmq, plots, processes, report
from perf.__main__ import main, parser
from perf.__main__ import workload as chosen_workload
from perf.board import PUBLISHED, READY, SENT, STATE, WAITING, Board
from perf.cases import CASES, Case, Goal, on_two_shards
from perf.codec import Histogram
from perf.compare import CaseResult, Plan
from perf.idle import IdleMeasurement
from perf.micro import Benchmark, all_benchmarks, run_all, timed
from perf.percentiles import cell_top, merged, quantile, sparse, summary
from perf.run import Measurement, split
from perf.workload import Workload, WorkloadError


def measurement(rate: float, latency_us: float = 10.0, cpu: float = 1.0) -> Measurement:
    histogram = Histogram()
    histogram.record(int(latency_us * 1000), 100)
    cells = sparse(histogram.counts)
    return Measurement(
        target="x",
        seconds=1.0,
        messages_per_s=rate,
        published_per_s=rate,
        broker_cpu_us=cpu,
        broker_cores=0.5,
        generator_cores=0.5,
        lost=0,
        written_off=0,
        counts={"reordered": 0},
        delivery_us=summary(cells),
        acknowledgement_us=summary({}),
        delivery_cells=cells,
    )


CASE = Case("c", "a case", Workload(), (Goal(cases.THROUGHPUT, cases.MOSQUITTO, 2, 4),))


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantiles_agree_with_a_sorted_list(values: list[int], fraction: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value, 1)
    exact = sorted(values)[max(0, -int(-fraction * len(values) // 1) - 1)]
    assert exact <= quantile(sparse(histogram.counts), fraction) <= exact * 1.01


def test_quantiles_agree_with_hdrhistogram() -> None:
    hdrh = pytest.importorskip("hdrh.histogram")
    ours, theirs = Histogram(), hdrh.HdrHistogram(1, 10**10, 3)
    for number in range(1, 20_000):
        value = number * number % 7_919_317 + 1
        ours.record(value, 1)
        theirs.record_value(value)
    cells = sparse(ours.counts)
    for percent in (50.0, 90.0, 99.0, 99.9):
        expected = theirs.get_value_at_percentile(percent)
        assert quantile(cells, percent / 100) == pytest.approx(expected, rel=0.02)


def test_cells_do_not_overlap() -> None:
    tops = [cell_top(cell) for cell in range(4480)]
    assert all(low < high for low, high in itertools.pairwise(tops))


def test_merged_histograms_are_their_sum() -> None:
    assert merged([{1: 2, 5: 1}, {5: 3}]) == {1: 2, 5: 4}
    assert quantile({}, 0.5) == 0
    assert summary({})["p99"] == 0


def test_ratios_are_paired_by_round() -> None:
    results: dict[str, list[compare.Result]] = {
        "fluxmq": [measurement(300), measurement(100), measurement(900)],
        "mosquitto": [measurement(100), measurement(50), measurement(100)],
    }
    found = compare.ratios(CASE, results)
    first = found[0]
    assert (first.middle, first.low, first.high) == (3.0, 2.0, 9.0)
    assert first.verdict == "pass"
    assert all(ratio.goal is None for ratio in found[1:])
    assert {ratio.metric for ratio in found} >= {cases.CPU, cases.DELIVERY_P50}


@pytest.mark.parametrize(
    ("metric", "value", "verdict"),
    [
        (cases.THROUGHPUT, 1.9, "fail"),
        (cases.THROUGHPUT, 2.0, "pass"),
        (cases.THROUGHPUT, 4.0, "aim"),
        (cases.CPU, 2.1, "fail"),
        (cases.CPU, 2.0, "pass"),
        (cases.CPU, 1.0, "aim"),
    ],
)
def test_verdicts(metric: str, value: float, verdict: str) -> None:
    aim = 1.0 if metric == cases.CPU else 4.0
    ratio = compare.Ratio("a", "b", metric, value, value, value, Goal(metric, "b", 2.0, aim))
    assert ratio.verdict == verdict


def test_a_loss_is_a_fault_however_fast_it_was() -> None:
    quick = measurement(300)
    quick.lost, quick.counts["reordered"] = 3, 1
    found = CaseResult(CASE, {"fluxmq": [quick, quick], "mosquitto": [quick]})
    assert found.faults() == ["lost 6 messages", "reordered 2 messages"]
    assert CaseResult(CASE, {"fluxmq": [measurement(1)]}).faults() == []


def test_a_goal_that_was_not_measured_is_listed() -> None:
    assert report.goal_rows([CaseResult(CASE)])[0][-1] == "not measured"


def test_what_is_missing_has_no_ratio() -> None:
    assert compare.ratios(CASE, {"fluxmq": [measurement(1)]}) == []
    assert compare.taking_part(CASE, []) == ["fluxmq"]
    assert compare.taking_part(CASE, ["mosquitto"]) == ["fluxmq", "mosquitto"]


def test_a_comparison_is_written_whole(tmp_path: Path) -> None:
    case = CaseResult(CASE, {"fluxmq": [measurement(300)], "mosquitto": [measurement(100)]})
    case.ratios = compare.ratios(CASE, case.results)
    idle_case = CASES["idle"]
    memory: list[compare.Result] = [IdleMeasurement("fluxmq", 10, 7000.0, 7100.0, 0.0, 9000.0, 1)]
    idle = CaseResult(idle_case, {"fluxmq": memory}, {"mosquitto": "why\nnot installed"})
    idle.ratios = compare.ratios(idle_case, idle.results)
    plan = Plan(("c", "idle"), ("mosquitto",))
    written = report.write_comparison([case, idle], plan, tmp_path, "name")
    assert [path.name for path in written] == ["name.json", "name.md"]
    record = json.loads((tmp_path / "name.json").read_text())
    assert record["cases"][0]["ratios"][0]["verdict"] == "pass"
    assert record["cases"][0]["rounds"]["fluxmq"][0]["messages_per_s"] == 300
    page = (tmp_path / "name.md").read_text()
    goal = "| a case | throughput | mosquitto | 3 | 3 to 3 | ≥ 2 | ≥ 4 | pass |"
    assert goal in page
    assert "| - | 7,000 | 7,000 to 7,000 | ≤ 6,144 | ≤ 6,144 | FAIL |" in page
    assert "mosquitto is missing: not installed" in page
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.usefixtures("fresh_fonts")
def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    case = CaseResult(CASE, {"fluxmq": [measurement(300)], "mosquitto": [measurement(100)]})
    case.ratios = compare.ratios(CASE, case.results)
    assert plots.ratios(tmp_path / "ratios.png", [case])
    assert plots.latency(tmp_path / "latency.png", "x", [measurement(1)])
    for name in ("ratios.png", "latency.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert not plots.ratios(tmp_path / "none.png", [])


def test_latency_curves_stretch_the_tail() -> None:
    across, up = plots.curve({10: 90, 200: 9, 300: 1})
    assert across == pytest.approx([1.0, 10.0, 100.0])
    assert up == sorted(up)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_cases_are_sound(case: Case) -> None:
    case.workload.check()
    assert Workload.from_json(case.workload.to_json()) == case.workload
    for goal in case.goals:
        assert goal.met(goal.aim, goal.least), "the aim is stricter than the least"
    for broker in case.brokers():
        case.workload_for(broker).check()


def test_client_ids_are_placed_on_two_shards() -> None:
    placement = cases.shard_of()
    placed = on_two_shards(Workload(publishers=3, subscribers=3), placement)
    placed.check()
    assert [placement(name.encode(), 2) for name in placed.publisher_ids] == [0, 0, 0]
    assert [placement(name.encode(), 2) for name in placed.subscriber_ids] == [1, 1, 1]
    assert placed.client_id("p", 2) == placed.publisher_ids[2]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "other"},
        {"qos": 3},
        {"subscriber_qos": 3},
        {"version": 3},
        {"publishers": 0},
        {"subscribers": 0},
        {"shape": "pairs", "publishers": 2},
        {"mode": "other"},
        {"payload": 15},
        {"window": 0},
        {"outstanding": 0},
        {"rate": -1.0},
        {"protocol": "nats", "qos": 1},
        {"protocol": "nats", "kind": "churn"},
        {"publisher_ids": ("a", "b")},
    ],
)
def test_senseless_workloads_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError):
        Workload().changed(**changes).check()


def test_unknown_workload_fields_are_refused() -> None:
    with pytest.raises(WorkloadError, match="unknown fields: colour"):
        Workload.from_json('{"colour": 1}')


def test_chunks_leave_room_for_a_second_one() -> None:
    assert Workload().chunk_messages(270) == 242
    assert Workload(mode="single").chunk_messages(270) == 1
    assert Workload(subscribers=100, outstanding=1000).chunk_messages(270) == 5
    assert Workload(subscribers=100, outstanding=10).deliveries_max() == 100
    assert Workload(payload=1 << 20, outstanding=10**6).deliveries_max() == 16


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 9])
def test_every_client_belongs_to_one_worker(workers: int) -> None:
    workload = Workload(publishers=4, subscribers=3)
    shares = split(workload, workers)
    assert sorted(p for publishers, _ in shares for p in publishers) == [0, 1, 2, 3]
    assert sorted(s for _, subscribers in shares for s in subscribers) == [0, 1, 2]
    assert 1 <= len(shares) <= workers
    if workers > 1:
        assert all(not publishers or not subscribers for publishers, subscribers in shares)


def test_boards_are_shared_and_wake_sleepers() -> None:
    board = Board.create(2)
    other = Board.open(os.dup(board.fd), [os.dup(fd) for fd in board.wake_fds])
    try:
        other.words[other.place(1, SENT)] = 7
        assert board.total(SENT) == 7
        assert not board.reached(READY)
        for worker in range(2):
            other.words[other.place(worker, STATE)] = PUBLISHED
        assert board.reached(READY)
        board.wake_others(1)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(board.wake_fds[0])
        other.words[other.place(0, WAITING)] = 1
        board.wake_others(1)
        assert os.eventfd_read(board.wake_fds[0]) == 1
    finally:
        other.close()
        board.close()
    with pytest.raises(ValueError, match="1 to 64"):
        Board.create(65)


def test_costs_are_summed_over_the_tree() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as parent:
        deadline = time.monotonic() + 10
        while len(found := processes.tree([parent.pid])) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found[0] == parent.pid
        assert len(found) == 2
        held = processes.memory(found)
        assert held.pss > processes.memory(found[1:]).pss > 0
        assert held.rss >= held.pss
    assert processes.tree([parent.pid]) == []
    assert processes.cpu_seconds([parent.pid]) == 0


def test_versions_stand_beside_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "lavinmq"
    binary.write_text("#!/bin/sh\necho 2.9.1\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    brokers.version.cache_clear()
    try:
        assert brokers.version("lavinmq") == "lavinmq 2.9.1"
        assert brokers.labelled("lavinmq") == "lavinmq 2.9.1"
    finally:
        brokers.version.cache_clear()
    assert brokers.labelled("artemis-amqp10") == "artemis-amqp10"
    built = "PGO" if brokers.optimised() else "no PGO"
    expected = f"fluxmq-amqp (Python {platform.python_version()}, {built})"
    assert brokers.labelled("fluxmq-amqp") == expected


def test_a_peer_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(brokers.BrokerError, match="lavinmq is not on PATH"):
        lavinmq.start(None)


def test_processor_time_grows_with_work() -> None:
    before = processes.cpu_seconds([os.getpid()])
    deadline = time.monotonic() + 10
    while processes.cpu_seconds([os.getpid()]) < before + 0.03 and time.monotonic() < deadline:
        sum(range(100_000))
    assert processes.cpu_seconds([os.getpid()]) >= before + 0.03


def test_receive_maximum_is_found_among_other_properties() -> None:
    reason = b"\x1f\x00\x02ok"
    user = b"\x26\x00\x01a\x00\x01b"
    assert handshake.receive_maximum(reason + user + b"\x24\x01" + b"\x21\x00\x14") == 20
    assert handshake.receive_maximum(b"\x24\x01") == 65_535


def test_options_change_a_cases_workload() -> None:
    options = parser().parse_args(["mqtt", "--case", "q1_w100", "--payload", "64", "--rate", "10"])
    assert chosen_workload(options) == CASES["q1_w100"].workload.changed(payload=64, rate=10.0)
    options = parser().parse_args(["nats", "--subscribers", "3"])
    assert chosen_workload(options) == Workload(protocol="nats", subscribers=3)


def test_the_command_line_says_why_it_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--cases", "nonsense"]) == 2
    assert "no such case: nonsense" in capsys.readouterr().err
    assert main(["cases"]) == 0
    assert "q0_1to100" in capsys.readouterr().out


@pytest.mark.parametrize("benchmark", list(all_benchmarks(10)), ids=lambda one: one.name)
def test_micro_benchmarks_do_what_they_say(benchmark: Benchmark) -> None:
    assert timed(benchmark, 0.0).ns_per_item > 0


def test_a_micro_benchmark_that_does_less_is_noticed() -> None:
    with pytest.raises(AssertionError, match="did 1 of 2"):
        timed(Benchmark("x", 2, lambda: 1), 0.0)
    assert run_all(0.0, 3)[0].cells()[0].startswith("scan")
