"""The generator's side of clusters: addresses, settings, who leads, cases, clients that outlive a node, what is asked."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from fluxmq.settings.load import load
from fluxmq.settings.plans import GroupPlans
from perf import amqp, amqp_brokers, catch_up, cluster_brokers, failover, handshake, queue
from perf.__main__ import parser
from perf.brokers import HOST, Broker, BrokerError
from perf.cases import shard_of
from perf.catch_up import CatchUp, Phase
from perf.cluster_brokers import (
    FLUXMQ,
    FLUXMQ_FOLLOWER,
    FLUXMQ_FORWARD,
    FLUXMQ_REPLICATE,
    NAMES,
    Fluxmq,
    placed,
    shared_cores,
)
from perf.cluster_cases import CLUSTER_CASES, STREAM
from perf.cluster_nodes import (
    NODE_PORTS,
    NODES,
    PORTS_FROM,
    Addresses,
    Node,
    Shape,
    leading,
    node_name,
    placement,
    samples,
    settings,
)
from perf.compare import CaseResult, Plan, taking_part
from perf.copier import copying
from perf.disk import Disk, SyncTime
from perf.failover import Failover, Kill, Sent, Taken
from perf.run import RunError
from perf.stubborn import Confirms, Consumer, Publisher
from perf.workload import Workload

DISK = Disk("ext4", (SyncTime(4096, 80.0, 120.0), SyncTime(65_536, 90.0, 150.0)))
ABOUT = {"time": "now", "processor": "p", "cores": 2, "kernel": "k", "python": "3.11"}
QUANTILES = {"count": 1.0, "p50": 100.0, "p99": 900.0, "max": 1000.0}


def every_shape() -> list[Shape]:
    swept = [cluster_brokers.swept(count) for count in cluster_brokers.COUNTS]
    apart = [cluster_brokers.hot_and_cold(workers) for workers in (1, 2)]
    return [cluster_brokers.STANDARD, cluster_brokers.COPIES, *swept, *apart]


@pytest.mark.parametrize("shape", every_shape(), ids=lambda shape: f"{len(shape.listed())} queues")
def test_the_nodes_of_a_cluster_agree(shape: Shape, tmp_path: Path) -> None:
    addresses = [Addresses(PORTS_FROM + index * NODE_PORTS) for index in range(NODES)]
    given = [settings(addresses, index, shape, tmp_path / node_name(index)) for index in range(3)]
    made = []
    for index, content in enumerate(given):
        path = tmp_path / f"{index}.yaml"
        path.write_text(json.dumps(content))
        made.append(load(path, {}))
    plans = [GroupPlans(each) for each in made]
    for group in {group for _, group in shape.listed()} | {"default"}:
        members = [each.of(group).members for each in plans]
        assert members[0] == members[1] == members[2]
        assert len(members[0]) == NODES
        own = [each.of(group).bind_addr for each in plans]
        assert sorted(own) == sorted(member.address for member in members[0])
    assert len({each.of("default").bind_addr for each in plans}) == NODES
    modes = {q.name: q.replication.distribution_mode for q in made[0].queues}
    assert {name for name, mode in modes.items() if mode == "replicate"} == set(shape.copied)


@pytest.mark.parametrize("name", sorted(CLUSTER_CASES))
def test_clients_of_every_broker_find_their_queues(name: str) -> None:
    case = CLUSTER_CASES[name]
    shapes = {
        "standard": cluster_brokers.STANDARD,
        "copies": cluster_brokers.COPIES,
        "hot and cold": cluster_brokers.hot_and_cold(2),
    }
    for broker in case.brokers():
        work = case.workload_for(broker)
        work.check()
        held = NAMES[broker].held
        shape = shapes.get(held)
        if held.endswith("groups"):
            shape = cluster_brokers.swept(int(held.split()[0]))
        if shape is not None:
            queues = dict(shape.listed())
            groups = {queues[work.queue_name(index)] for index in range(work.subscribers)}
            together = broker in cluster_brokers.GATHERED.values()
            assert len(groups) == (1 if together else work.subscribers)


def test_peers_are_chosen_by_the_first_word_of_their_names() -> None:
    case = CLUSTER_CASES["cluster_w500"]
    ours = ["fluxmq-cluster", "fluxmq-cluster-mqtt"]
    assert sorted(taking_part(case, ("rabbitmq",))) == [*ours, "rabbitmq-cluster"]
    assert sorted(taking_part(case, ("nats-cluster",))) == [*ours, "nats-cluster"]
    options = parser().parse_args(["cluster", "--quick", "--peers", "rabbitmq,nats,lavinmq"])
    assert options.quick
    assert sorted(taking_part(case, options.peers.split(","))) == sorted(case.brokers())


def test_clusters_do_not_take_cores() -> None:
    with pytest.raises(BrokerError, match="themselves"):
        cluster_brokers.start(cluster_brokers.FLUXMQ, "0")


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (range(1), [None, None, None]),
        (range(3), [None, None, None]),
        (range(4), ["0", "1", "2"]),
        (range(8), ["0,1", "2,3", "4,5"]),
    ],
)
def test_nodes_are_spread_over_the_cores(cores: range, expected: list[str | None]) -> None:
    assert placement(list(cores)) == expected


def test_the_higher_term_leads() -> None:
    def page(term: int, leads: int, group: str = "g") -> str:
        lines = [f'fluxmq_raft_term{{group="{group}",shard="0"}} {term}']
        return "\n".join([*lines, f'fluxmq_raft_leader{{group="{group}",shard="0"}} {leads}.0'])

    told = {"a": samples(page(7, 1)), "b": samples(page(8, 1)), "c": samples(page(9, 0))}
    assert leading(told) == {"g": "b"}
    assert leading({"a": samples("# HELP x\nfluxmq_x 1\n"), "c": samples(page(9, 0))}) == {}


def test_clients_live_on_the_shard_of_their_group() -> None:
    for shard in (0, 1):
        work = placed(cluster_brokers.HOT_LOAD, shard, 2)
        names = (work.publisher_ids[0], f"perf-{work.subscriber_ids[0]}")
        assert [shard_of()(name.encode(), 2) for name in names] == [shard, shard]


def test_hot_and_cold_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(cores: int) -> tuple[int, tuple[int, ...]]:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
        workers = cluster_brokers.workers_apart()
        return workers, shared_cores(cluster_brokers.hot_and_cold(workers))

    assert shared(1) == (1, ())  # nothing to pin to
    assert shared(2) == shared(7) == (2, (0, 1))  # the same two on every node
    assert shared(8) == (2, ())  # two of its own on every node
    assert shared_cores(cluster_brokers.STANDARD) == ()


def test_a_copier_has_its_core_and_ends_with_what_it_is_beside() -> None:
    core = min(os.sched_getaffinity(0))
    with copying([core]) as pid:
        while os.sched_getaffinity(pid) != {core}:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            assert ended is None
        said = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert said[2:4] == [b"perf.copier", str(core).encode()]
    assert not Path(f"/proc/{pid}").exists()


def test_a_copier_that_ended_was_beside_nothing() -> None:
    def beside() -> None:
        with copying([]) as pid:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(RunError, match="ended before"):
        beside()


def test_nodes_start_on_the_cores_they_are_given(tmp_path: Path) -> None:
    def command(shape: Shape, cores: str | None) -> list[str]:
        return Node(0, Addresses(PORTS_FROM), tmp_path, cores).command(shape)

    given = command(cluster_brokers.hot_and_cold(2), "4,6")
    assert given[:3] == ["taskset", "-c", "4,6"]
    assert {"--pin=hot=4", "--pin=cold=6"} < set(given)
    assert "--bind" not in given
    assert command(Shape(), None)[-2:] == ["--bind", "never"]


def test_a_cluster_speaks_what_it_is_measured_with() -> None:
    with pytest.raises(RunError, match="nats"):
        Fluxmq.ports(object.__new__(Fluxmq), "nats")


def test_only_pauses_that_are_watched_count() -> None:
    confirms = Confirms()
    for moment in (1.0, 1.1, 5.0):
        confirms.came(moment)
    confirms.watch(5.5)
    confirms.came(7.0)
    confirms.came(7.25)
    assert confirms.longest == 2.0  # since 5.0: the one that was on


def kept(late: int = 0, lost: int = 0) -> Taken:
    return Taken("consumer over AMQP", 10, lost, late, 0, 2, QUANTILES)


def test_a_failover_is_judged_by_losses_order_and_the_pause() -> None:
    fine = Failover(10, 1.0, Kill("node1", 5, {"a": 1.5, "b": 0.2}))
    fine.sent, fine.taken = [Sent("publisher over AMQP", 1, 0, 2, 0.1, QUANTILES)], [kept()]
    assert fine.faults() == []
    slow = Failover(10, 1.0, Kill("node2", 5, {"a": failover.GAP_MAX_S + 0.1}))
    slow.taken, slow.problems = [kept(late=3, lost=2)], ["reset"]
    words = ("2 messages lost", "3 out", "2.10 s")
    assert all(word in fault for word, fault in zip(words, slow.faults(), strict=True))
    page = failover.page([fine, slow], ABOUT, DISK)
    assert f"median {median([1.5, 2.1]):.2f} s, most 2.10 s" in page
    assert "round 2: reset" in page
    assert "| 2 | node2 | 5 |" in page
    assert fine.plain()["faults"] == []


def test_catching_up_is_judged_by_the_load_and_by_what_is_fetched_again() -> None:
    def phase(name: str, p99: float) -> Phase:
        return Phase(name, 1.0, 0.001, {**QUANTILES, "p99": p99})

    found = CatchUp(1_000_000, 1.0, 1.0, 2.0, 5.0, 1e6, 5.0, 0.0)
    found.phases = [
        phase(catch_up.BEFORE, 100.0),
        phase(catch_up.RESTART, 150.0),
        phase(catch_up.DURING, 199.0),
    ]
    assert found.faults() == []
    assert found.bytes_per_s == 250_000
    assert "1.99 times" in catch_up.page(found, ABOUT, DISK)
    found.again = 100_001
    found.phases[2] = phase(catch_up.DURING, 201.0)
    assert len(found.faults()) == 2
    assert found.plain()["restart_factor"] == 1.5


@pytest.mark.parametrize(
    ("text", "expected"), [("1GB", 10**9), ("20MB", 20 * 10**6), ("1.5kiB", 1536), ("7", 7)]
)
def test_sizes(text: str, expected: int) -> None:
    assert catch_up.size(text) == expected
    assert parser().parse_args(["catch_up", "--bytes", text]).bytes == expected


def test_no_size() -> None:
    with pytest.raises(ValueError, match="1GB"):
        catch_up.size("a lot")


def test_the_loopback_interface_is_found() -> None:
    table = "head\n  eth0: 5 1 0\n    lo: 123 9 0 0\n"
    assert catch_up.loopback_bytes(table) == 123
    with pytest.raises(RunError):
        catch_up.loopback_bytes("eth0: 1")


def test_a_page_of_clusters_says_what_was_done_for_a_confirm() -> None:
    results = [CaseResult(CLUSTER_CASES["cluster_w500"])]
    about = {
        **ABOUT,
        "generator_compiled": True,
        "python_optimised": True,
        "peers": {"nats": "nats-server: v2"},
    }
    plan = Plan(("cluster_w500",), ("nats",), 1)
    page = queue.page(results, plan, about, DISK, queue.CLUSTER)
    assert "a majority synced" in page
    assert "4 KiB p50 80" in page
    assert "not measured" in page


# --- against a broker ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One node of FluxMQ over AMQP."""
    started = amqp_brokers.start_fluxmq("fluxmq-amqp", None)
    yield started
    started.stop()


class Relay(threading.Thread):
    """Passes on about so many bytes, both ways together; then it ends the connection, and takes no other."""

    def __init__(self, port: int, bytes_max: int) -> None:
        super().__init__()
        self.listener = socket.create_server((HOST, 0))
        self.port = int(self.listener.getsockname()[1])
        self.broker_port, self.left = port, bytes_max

    def run(self) -> None:
        client, _ = self.listener.accept()
        self.listener.close()
        with client, handshake.dial(HOST, self.broker_port) as broker:
            upwards = threading.Thread(target=self._pass, args=(client, broker))
            upwards.start()
            self._pass(broker, client)
            upwards.join()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while self.left > 0 and (part := source.recv(16_384)):
                sink.sendall(part)
                self.left -= len(part)
            for each in (source, sink):
                each.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other direction has ended the connection.
            self.left = 0


def test_clients_lose_nothing_with_their_connections(broker: Broker) -> None:
    work: Workload = STREAM.changed(shape="all", window=100, topic="stubborn")
    with handshake.dial(HOST, broker.port) as connection:
        amqp.open_channel(connection)
        amqp.declare(connection, work.queue_name(0), "")
    relays = [Relay(broker.port, 500_000) for _ in range(2)]
    clients = (
        Publisher(work, 0, [relays[0].port, broker.port], 5000),
        Consumer(work, 0, [relays[1].port, broker.port], 5000, 1),
    )
    for thread in (*relays, *clients):
        thread.start()
    for thread in (*clients, *relays):
        thread.join(60)
        assert not thread.is_alive()
    publisher, consumer = clients
    assert publisher.done
    assert consumer.missing() == consumer.late == 0
    assert consumer.connections == publisher.connections == 2
    assert 0 < publisher.repeated <= 200
    assert consumer.repeated() > 0
    assert publisher.latency.total > 0


def test_the_hop_and_both_ways_of_distribution_are_measured() -> None:
    """S2-33: clients at a node that leads and at one that does not, and a consumer that is sent what it reads or has
    it there."""
    hop = CLUSTER_CASES["cluster_w500_follower"]
    assert (hop.subject, hop.also[0]) == (FLUXMQ_FOLLOWER, FLUXMQ)
    ways = CLUSTER_CASES["cluster_distribution"]
    assert (ways.subject, ways.also[0]) == (FLUXMQ_REPLICATE, FLUXMQ_FORWARD)
