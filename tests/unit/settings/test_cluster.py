"""The cluster section: what is wrong with it, what is refused at the start, what the operator is told."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from fluxmq.settings import Settings, SettingsError, load, notes, refusals
from fluxmq.settings.cluster_checks import GROUPS_PER_SHARD
from fluxmq.settings.listen_addresses import SHARD_PORTS

TESTS = Path(__file__).resolve().parents[2]
CERTIFICATES = TESTS / "certificates"
CLUSTER = TESTS.parent / "config" / "cluster"
HEAD = """
server: {mqtt: {tcp: {addr: "127.0.0.1:21883"}}}
cluster:
  enabled: true
  node_id: a
"""
ETCD = '  etcd: {endpoints: ["http://127.0.0.1:2379"]}'
RAFT = (
    HEAD
    + ETCD
    + """
  transport: {bind_addr: "127.0.0.1:21900", peers: {b: "127.0.0.1:1", c: "127.0.0.1:2"}}
  raft:
    enabled: true
    bind_addr: "127.0.0.1:21100"
    peers: {b: "127.0.0.1:23100", c: "127.0.0.1:25100"}
"""
)
"""A node of three, to which lines of cluster.raft may be added."""


def written(tmp_path: Path, text: str) -> Settings:
    """The settings in this text."""
    file = tmp_path / "fluxmq.yaml"
    file.write_text(text)
    return load(file, {})


def problems(tmp_path: Path, text: str) -> dict[str, str]:
    """What is wrong with this text: message by path."""
    with pytest.raises(SettingsError) as caught:
        written(tmp_path, text)
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert len(found) == len(caught.value.problems), "one problem per place"
    return found


@pytest.mark.parametrize("node", [1, 2, 3])
def test_the_shipped_files(node: int) -> None:
    settings = load(CLUSTER / f"node{node}.yaml", {})
    assert refusals(settings, workers=1) == []
    assert notes(settings, workers=1) == []
    assert settings.cluster.node_id == f"node{node}"
    assert settings.storage.data_dir == f"data/node{node}"
    assert [(queue.name, queue.type) for queue in settings.queues] == [
        ("orders", "classic"),
        ("events", "stream"),
        ("hot-orders", "classic"),
    ]
    raft = settings.cluster.raft
    assert [queue.replication_group(raft) for queue in settings.queues] == [
        "default",
        "default",
        "hot",
    ]


def test_the_shipped_files_differ_in_names_and_places_only() -> None:
    every = [load(CLUSTER / f"node{index}.yaml", {}) for index in (1, 2, 3)]
    same = [
        settings.model_dump(
            exclude={
                "server": True,
                "storage": {"data_dir"},
                "cluster": {
                    "node_id": True,
                    "transport": {"bind_addr", "peers"},
                    "etcd": {"bind_addr", "client_addr"},
                    "raft": {
                        "bind_addr": True,
                        "peers": True,
                        "groups": {"hot": {"bind_addr", "peers"}},
                    },
                },
            }
        )
        for settings in every
    ]
    assert same[0] == same[1] == same[2]
    addresses = [address.addr for settings in every for _, address in settings.endpoints()]
    assert len(set(addresses)) == 9


def test_a_node_of_three_is_all_right(tmp_path: Path) -> None:
    """S1-02, S1-04, S1-20."""
    settings = written(tmp_path, RAFT)
    assert refusals(settings) == notes(settings) == []


@pytest.mark.parametrize(
    ("more", "path", "message"),
    [
        (
            "groups: {hot: {bind_addr: ':21901'}}",
            "groups.hot.bind_addr",
            (
                ":21901 clashes with cluster.transport.bind_addr, which is 127.0.0.1:21900"
                " and takes 64 ports, one for each shard"
            ),
        ),
        (
            "groups: {hot: {bind_addr: ':21200', peers: {d: 'd:1', b: 'b:1'}}}",
            "groups.hot.peers",
            (
                "names b, d, and cluster.transport.peers b, c:"
                " the nodes of a group must be peers of the transport"
            ),
        ),
        (
            "groups: {_meta: {bind_addr: ':21200'}}",
            "groups._meta",
            "is not a group any more: topology and users are in etcd, see cluster.etcd",
        ),
        (
            "groups: {hot: {bind_addr: ':21200', peers: {b: 'b:1', c: 'b:1'}}}",
            "groups.hot.peers.c",
            "b:1 is also that of b",
        ),
        (
            "groups: {hot: {bind_addr: ':21200', min_in_sync_replicas: 2, peers: {}, replication_factor: 1}}",
            "groups.hot.min_in_sync_replicas",
            "may not be above replication_factor, which is 1",
        ),
        (
            "groups: {hot: {bind_addr: ':21200', min_in_sync_replicas: 3, peers: {b: '127.0.0.1:3'}}}",
            "groups.hot.min_in_sync_replicas",
            "may not be above the number of nodes that have the group, which is 2",
        ),
        (
            "replication_factor: 5\nmin_in_sync_replicas: 4",
            "min_in_sync_replicas",
            "may not be above the number of nodes that have the group, which is 3",
        ),
        (
            (
                "data_dir: /x\ngroups: {hot: {bind_addr: ':21200', data_dir: /x/groups/cold},"
                " cold: {bind_addr: ':21201'}}"
            ),
            "groups.cold.data_dir",
            "/x/groups/cold is also the directory of group hot; every group has its own",
        ),
        (
            "data_dir: /x\ngroups: {hot: {bind_addr: ':21200', data_dir: /x/}}",
            "groups.hot.data_dir",
            "/x/ is also cluster.raft.data_dir; every group has its own",
        ),
        (
            "data_dir: data",
            "data_dir",
            "data is taken by storage.data_dir, data; leave it out to keep the group there",
        ),
        (
            "groups: {hot: {bind_addr: ':21200', data_dir: data/groups/hot}}",
            "groups.hot.data_dir",
            "data/groups/hot is taken by storage.data_dir, data; leave it out to keep the group there",
        ),
    ],
)
def test_mistakes_of_groups(tmp_path: Path, more: str, path: str, message: str) -> None:
    text = RAFT + indent(more, "    ") + "\n"
    assert problems(tmp_path, text) == {f"cluster.raft.{path}": message}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            RAFT.replace("peers: {b", "peers: {a: '127.0.0.1:3', b"),
            {
                "cluster.transport.peers.a": "is this node itself (cluster.node_id); peers are the other nodes",
                "cluster.raft.peers.a": "is this node itself (cluster.node_id); peers are the other nodes",
            },
        ),
        (
            RAFT.replace(', c: "127.0.0.1:25100"', ""),
            {
                "cluster.raft.peers": "names b, and cluster.transport.peers b, c:"
                " the nodes of a group must be peers of the transport"
            },
        ),
        (
            RAFT.replace('b: "127.0.0.1:1", c: "127.0.0.1:2"', ""),
            {
                "cluster.raft.peers": "names b, c, and cluster.transport.peers nobody:"
                " the nodes of a group must be peers of the transport"
            },
        ),
        (
            HEAD + "  transport: {bind_addr: ':65473'}",
            {
                "cluster.transport.bind_addr": "needs 64 ports, one for each shard, but port 65536 does not exist"
            },
        ),
        (
            RAFT + "    heartbeat_timeout: 1s\n    election_timeout: 1s",
            {"cluster.raft.election_timeout": "must be above heartbeat_timeout, which is 1s"},
        ),
        (
            RAFT
            + "    groups: {hot: {bind_addr: ':21200', election_timeout: 2s}}\n"
            + "queues: [{name: q, replication: {enabled: true, group: hot, heartbeat_timeout: 2500ms}},"
            " {name: r, replication: {enabled: true, group: hot, heartbeat_timeout: 2s}}]",
            {
                "cluster.raft.groups.hot.election_timeout": "of group hot, including its queues' overrides,"
                " is 2s, and must be above heartbeat_timeout, which is 2s"
            },
        ),
        (
            RAFT.replace(ETCD, ""),
            {
                "cluster.etcd": "is required: the nodes of a cluster keep topology, users and sessions in it."
                " For a member of etcd on this node, set bind_addr, client_addr and initial_cluster;"
                " for one that runs elsewhere, endpoints"
            },
        ),
        (
            RAFT + "queues: [{name: q, replication: {enabled: true, replication_factor: 5}}]",
            {
                "queues[0].replication.replication_factor": "may not be above the copies of its group"
                " default, of which there are 3"
            },
        ),
        (
            RAFT.replace("21100", "65000")
            + "    auto_provision_groups: true\n"
            + "queues: [{name: q, replication: {enabled: true, group: z}}]",
            {
                "queues[0].replication.group": "z would have a port 987 above that of"
                " cluster.raft.bind_addr, 127.0.0.1:65000, which is out of range: give it a bind_addr in"
                " cluster.raft.groups"
            },
        ),
        (
            HEAD + "  etcd: {initial_cluster: 'a=http://127.0.0.1:2380,c=https://127.0.0.1:2'}",
            {
                "cluster.etcd.initial_cluster": "https://127.0.0.1:2 must begin with http://, since"
                " cluster.transport.tls_enabled is false",
            },
        ),
        (
            HEAD + "  etcd: {initial_cluster: 'b=http://127.0.0.1:2380'}",
            {
                "cluster.etcd.initial_cluster": "names b, and not this node, a: name it, or set"
                " cluster.etcd.endpoints for a node without a member",
            },
        ),
        (
            RAFT.replace(ETCD, "  etcd: {}"),
            {"cluster.etcd.initial_cluster": "is required, since there are other nodes: b, c"},
        ),
        (
            HEAD + "  etcd: {endpoints: ['http://127.0.0.1:1', 'https://127.0.0.1:2']}",
            {
                "cluster.etcd.endpoints[1]": "https://127.0.0.1:2 must begin with http://, since"
                " cluster.transport.tls_enabled is false",
            },
        ),
        (
            RAFT
            + "    groups: {hot: {enabled: false}}\n"
            + "queues: [{name: q, replication: {enabled: true, group: hot}}]",
            {
                "queues[0].replication.group": "hot is not enabled: cluster.raft.groups.hot.enabled is false"
            },
        ),
    ],
)
def test_mistakes_of_clusters(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    assert problems(tmp_path, text) == expected


def test_a_group_may_be_on_the_others_only(tmp_path: Path) -> None:
    elsewhere = "    groups: {hot: {enabled: false, peers: {b: '127.0.0.1:3', c: '127.0.0.1:4'}}}\n"
    queue = "queues: [{name: q, replication: {enabled: true, group: hot}}]"
    assert notes(written(tmp_path, RAFT + elsewhere + queue)) == []


@pytest.mark.parametrize("handling", ["pause_minority", "autoheal", "ignore"])
def test_the_start_warns_of_partition_handling_that_loses_messages(
    tmp_path: Path, handling: str
) -> None:
    """S3-07: mirrored queues lose what one side of a partition has confirmed, and quorum queues do not."""
    settings = written(tmp_path, HEAD + f"  cluster_partition_handling: {handling}")
    assert settings.cluster.cluster_partition_handling == handling
    found = [each for each in notes(settings) if "partition" in each]
    assert len(found) == (handling != "pause_minority")
    for note in found:
        assert note.startswith(f"cluster.cluster_partition_handling is {handling}: ")
        assert note.endswith("Quorum queues do not follow it.")
    wrong = HEAD + "  cluster_partition_handling: pause"
    assert list(problems(tmp_path, wrong)) == ["cluster.cluster_partition_handling"]


def test_a_node_runs_a_member_of_etcd_unless_there_are_endpoints(tmp_path: Path) -> None:
    assert written(tmp_path, HEAD).cluster.member is None
    own = written(tmp_path, HEAD + "  etcd: {}")
    assert refusals(own) == []
    assert own.cluster.member is own.cluster.etcd
    assert own.cluster.etcd is not None
    assert own.cluster.members(own.cluster.etcd) == {"a": "http://127.0.0.1:2380"}
    elsewhere = written(tmp_path, HEAD + "  etcd: {endpoints: ['http://127.0.0.1:2379']}")
    assert refusals(elsewhere) == []
    assert elsewhere.cluster.member is None
    off = written(tmp_path, HEAD.replace("true", "false") + "  etcd: {}")
    assert refusals(off) == []
    assert off.cluster.member is None


def test_addresses_of_etcd_need_tls_beyond_this_machine(tmp_path: Path) -> None:
    for section, paths in (
        (
            "{bind_addr: '10.0.0.1:2380', client_addr: '10.0.0.1:2379'}",
            ("bind_addr", "client_addr"),
        ),
        ("{endpoints: ['http://127.0.0.1:1', 'http://10.0.0.1:2379']}", ("endpoints[1]",)),
    ):
        (sentence,) = refusals(written(tmp_path, HEAD + f"  etcd: {section}"))
        assert sentence.startswith(
            ", ".join(f"cluster.etcd.{path}" for path in paths) + ": between"
        )


def test_operators_are_told_of_settings_of_etcd_without_effect(tmp_path: Path) -> None:
    def noted(section: str) -> list[str]:
        found = notes(written(tmp_path, HEAD + f"  etcd: {section}"))
        return [each for each in found if each.startswith("cluster.etcd")]

    assert noted("{}") == []
    assert noted("{hybrid_retained_size_threshold: 2048}") == []
    (member,) = noted("{endpoints: ['http://127.0.0.1:2379'], bootstrap: false, data_dir: x}")
    assert member.startswith("cluster.etcd.bootstrap, cluster.etcd.data_dir: not used")
    two = "a=http://127.0.0.1:2380,b=http://127.0.0.1:2381"
    (even,) = noted(f"{{initial_cluster: '{two}'}}")
    assert "2 members stand the loss of 0, no more than 1 would" in even


def test_who_has_appends_kept_where_their_queue_is_not_led_is_told_what_that_means(
    tmp_path: Path,
) -> None:
    local = written(tmp_path, RAFT + "    write_policy: local\n")
    assert refusals(local) == []
    (note,) = (each for each in notes(local) if "write_policy" in each)
    assert "on this node's disk alone" in note
    for policy in ("forward", "reject"):
        other = written(tmp_path, RAFT + f"    write_policy: {policy}\n")
        assert not any("write_policy" in each for each in notes(other))


def test_more_shards_than_ports(tmp_path: Path) -> None:
    settings = written(tmp_path, RAFT)
    assert refusals(settings, SHARD_PORTS) == []
    (sentence,) = refusals(settings, SHARD_PORTS + 1)
    assert sentence == (
        "cluster.enabled is true: a node of a cluster has at most 64 shards, and --workers asks for 65."
    )
    assert refusals(load(CLUSTER.parent / "single-node.yaml", {}), SHARD_PORTS + 1) == []


def test_plaintext_between_machines_is_asked_for(tmp_path: Path) -> None:
    open_ = RAFT.replace('b: "127.0.0.1:1"', 'b: "host-b:1"').replace("127.0.0.1:21100", ":21100")
    open_ += "    groups: {hot: {bind_addr: '0.0.0.0:21200', peers: {c: '10.0.0.3:1'}}}\n"
    (sentence,) = refusals(written(tmp_path, open_))
    paths = (
        "cluster.raft.bind_addr, cluster.raft.groups.hot.bind_addr, cluster.transport.peers.b,"
        " cluster.raft.groups.hot.peers.c: between nodes, plaintext is allowed on loopback"
    )
    assert sentence.startswith(paths)
    allowed = open_.replace("transport: {", "transport: {allow_plaintext: true, ")
    settings = written(tmp_path, allowed)
    assert refusals(settings) == []
    plain, even = notes(settings)
    assert plain.startswith("cluster.transport.allow_plaintext: traffic between nodes is")
    assert even == "replication group hot: 2 copies stand the loss of 0, no more than 1 would."


def test_tls_between_nodes(tmp_path: Path) -> None:
    secure = RAFT.replace("127.0.0.1:21100", ":21100").replace("http:", "https:")

    def tls(certificate: str, key: str, authority: str) -> str:
        files = (
            f"tls_enabled: true, allow_plaintext: true, tls_cert_file: {CERTIFICATES / certificate},"
            f" tls_key_file: {CERTIFICATES / key}, tls_ca_file: {CERTIFICATES / authority}, "
        )
        return secure.replace("transport: {", f"transport: {{{files}")

    settings = written(tmp_path, tls("server.pem", "server.key", "ca.pem"))
    assert refusals(settings) == []
    assert notes(settings) == [
        "cluster.transport.allow_plaintext: not used, since tls_enabled is true."
    ]
    found = problems(tmp_path, tls("server.pem", "ca.pem", "server.key"))
    assert set(found) == {"cluster.transport.tls_cert_file", "cluster.transport.tls_ca_file"}
    assert found["cluster.transport.tls_cert_file"].startswith("cannot be used with tls_key_file")
    assert found["cluster.transport.tls_ca_file"].startswith("holds no certificates")
    nothing = secure.replace("transport: {", "transport: {tls_enabled: true, ")
    assert set(problems(tmp_path, nothing)) == {
        "cluster.transport.tls_cert_file",
        "cluster.transport.tls_key_file",
        "cluster.transport.tls_ca_file",
    }


def test_settings_that_are_not_used_are_named(tmp_path: Path) -> None:
    routing = RAFT.replace(
        "transport: {", "transport: {route_batch_max_delay: 1ms, route_batch_max_size: 1, "
    )
    (note,) = notes(written(tmp_path, routing))
    assert note.startswith(
        "cluster.transport.route_batch_max_delay: not used: a shard routes what one turn"
    )
    (alone, note) = notes(written(tmp_path, HEAD))
    assert alone.startswith("cluster: no other node is named")
    assert note.startswith("cluster.raft.enabled is false: nothing is replicated")


def test_how_many_copies_there_are_is_said(tmp_path: Path) -> None:
    """S1-21."""
    alone = HEAD + ETCD + "\n  raft: {enabled: true, groups: {hot: {bind_addr: ':21200'}}}\n"
    (note,) = notes(written(tmp_path, alone))
    assert note.startswith("replication groups default, hot: one copy, because they have one node")
    queue = "queues: [{name: q, replication: {enabled: true, replication_factor: 2}}]"
    (note,) = notes(written(tmp_path, RAFT + queue))
    assert note == (
        "queues[0].replication.replication_factor is 2; the queue has 3 copies, as its group default has."
    )


def test_many_groups_for_few_shards(tmp_path: Path) -> None:
    groups = "".join(
        f"      g{index}: {{bind_addr: '127.0.0.1:{21200 + index}'}}\n"
        for index in range(2 * GROUPS_PER_SHARD)
    )
    settings = written(tmp_path, RAFT + "    groups:\n" + groups)
    (note,) = notes(settings, workers=2)
    assert note.startswith("cluster.raft: 17 replication groups on 2 shards, more than 8 on each")
    assert notes(settings, workers=3) == []
    assert notes(settings) == []
