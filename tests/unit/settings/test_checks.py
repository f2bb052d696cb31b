"""What is refused at the start, what is only said, and that the shipped files load."""

from pathlib import Path

import pytest

from fluxmq.settings import DEFAULT_CONFIG, Settings, SettingsError, load, notes, refusals

CONFIG = Path(__file__).resolve().parents[3] / "config"
CERTIFICATES = Path(__file__).resolve().parents[2] / "certificates"


def written(tmp_path: Path, text: str) -> Settings:
    """The settings in this text."""
    file = tmp_path / "fluxmq.yaml"
    file.write_text(text)
    return load(file, {})


def test_the_shipped_single_node_file() -> None:
    settings = load(CONFIG / "single-node.yaml", {})
    assert refusals(settings) == []
    assert notes(settings) == []
    assert {path: listener.addr for path, listener in settings.endpoints()} == {
        "server.mqtt.tcp": "127.0.0.1:1883",
        "server.mqtt.websocket": "127.0.0.1:8083",
        "server.amqp.tcp": "127.0.0.1:5672",
        "server.http": "127.0.0.1:15672",
    }
    assert settings.server.mqtt.websocket is not None
    assert settings.server.mqtt.websocket.path == "/mqtt"
    assert settings.storage.data_dir == "./data"


def test_the_shipped_single_node_file_says_the_defaults() -> None:
    shipped = load(CONFIG / "single-node.yaml", {})
    assert [queue.name for queue in shipped.queues] == ["orders"]
    same = shipped.model_copy(update={"server": Settings().server, "queues": ()})
    assert same == Settings()


def test_the_shipped_tls_file(tmp_path: Path) -> None:
    for name, source in (("server.pem",) * 2, ("server.key",) * 2, ("clients-ca.pem", "ca.pem")):
        (tmp_path / name).write_bytes((CERTIFICATES / source).read_bytes())
    settings = load(CONFIG / "tls.yaml", {"FLUXMQ_TLS": str(tmp_path)})
    assert refusals(settings) == []
    assert notes(settings) == []
    assert settings.server.mqtt.tls is not None
    assert settings.server.mqtt.tls.client_auth == "request"


def test_metrics_without_a_password_have_to_be_meant(tmp_path: Path) -> None:
    """The setting is required on an address that other machines reach."""
    text = "server: {metrics: {addr: %s}}"
    assert written(tmp_path, text % '"127.0.0.1:15692"').server.metrics is not None
    with pytest.raises(SettingsError) as refused:
        written(tmp_path, text % '":15692"')
    assert [each.path for each in refused.value.problems] == ["server.metrics.without_password"]
    assert written(tmp_path, text % '":15692", without_password: true').server.metrics is not None


# The two YAML examples of the founding documents, with their indentation restored.
FOUNDING_GROUPS = """\
cluster:
  raft:
    enabled: true
    auto_provision_groups: false
    # Base (default) group settings
    bind_addr: "127.0.0.1:7100"
    data_dir: "/tmp/fluxmq/raft"
    peers: {}
    groups:
      default:
        # Optional overrides for the default group
        bind_addr: "127.0.0.1:7100"
        data_dir: "/tmp/fluxmq/raft"
        peers: {}
      hot:
        bind_addr: "127.0.0.1:7200"
        data_dir: "/tmp/fluxmq/raft/groups/hot"
        peers: {}
"""
FOUNDING_CLUSTER = """\
cluster:
  enabled: true
  node_id: "broker-1"

  etcd:
    data_dir: "/tmp/fluxmq/etcd"
    bind_addr: "0.0.0.0:2380"
    client_addr: "0.0.0.0:2379"
    initial_cluster: "broker-1=http://0.0.0.0:2380"
    bootstrap: true
    hybrid_retained_size_threshold: 1024

  transport:
    bind_addr: "0.0.0.0:7948"
    peers: {}

  raft:
    enabled: false
    write_policy: "forward"
    distribution_mode: "forward"
"""


@pytest.mark.parametrize(
    ("text", "shipped"),
    [(FOUNDING_GROUPS, "founding-raft-groups.yaml"), (FOUNDING_CLUSTER, "founding-cluster.yaml")],
)
def test_founding_examples_load_verbatim(tmp_path: Path, text: str, shipped: str) -> None:
    settings = written(tmp_path, text)
    assert (CONFIG / shipped).read_text().endswith(text)
    assert load(CONFIG / shipped, {}) == settings


def test_what_the_founding_examples_say(tmp_path: Path) -> None:
    """S1-03."""
    raft = written(tmp_path, FOUNDING_GROUPS).cluster.raft
    assert raft.enabled
    assert not raft.auto_provision_groups
    assert raft.groups["hot"].bind_addr == "127.0.0.1:7200"
    assert raft.groups["default"].data_dir == raft.data_dir == "/tmp/fluxmq/raft"
    cluster = written(tmp_path, FOUNDING_CLUSTER).cluster
    assert cluster.enabled
    assert cluster.etcd is not None
    assert cluster.etcd.hybrid_retained_size_threshold == 1024
    assert cluster.raft.write_policy == cluster.raft.distribution_mode == "forward"


@pytest.mark.parametrize("shipped", ["founding-raft-groups.yaml", "founding-cluster.yaml"])
def test_founding_examples_start_with_the_default_listeners(shipped: str) -> None:
    settings = load(CONFIG / shipped, {})
    assert refusals(settings) == []
    assert settings.server == load(DEFAULT_CONFIG, {}).server


def test_a_cluster_of_one_node_stays_on_loopback(tmp_path: Path) -> None:
    """S1-20: nobody else could connect. A node that names others is refused instead, and one that
    has said that the network is trusted keeps its addresses."""
    one = written(tmp_path, FOUNDING_CLUSTER)
    etcd = one.cluster.etcd
    assert etcd is not None
    assert one.cluster.transport.bind_addr == "127.0.0.1:7948"
    assert (etcd.bind_addr, etcd.client_addr) == ("127.0.0.1:2380", "127.0.0.1:2379")
    assert etcd.initial_cluster == "broker-1=http://127.0.0.1:2380"
    assert sum("opened on loopback only" in note for note in notes(one)) == 1
    trusted = FOUNDING_CLUSTER.replace("peers: {}", "allow_plaintext: true")
    assert written(tmp_path, trusted).cluster.transport.bind_addr == "0.0.0.0:7948"
    groups = """
    bind_addr: ":7100"
    groups: {hot: {bind_addr: "[::]:7200"}, cold: {bind_addr: "10.1.2.3:7300"}}
"""
    named = written(tmp_path, FOUNDING_CLUSTER.replace("enabled: false", "enabled: true") + groups)
    assert named.cluster.raft.bind_addr == "127.0.0.1:7100"
    assert named.cluster.raft.groups["hot"].bind_addr == "127.0.0.1:7200"
    (refusal,) = refusals(named)
    assert refusal.startswith("cluster.raft.groups.cold.bind_addr: between nodes")


def test_refusals(tmp_path: Path) -> None:
    with_peer = FOUNDING_CLUSTER.replace("peers: {}", 'peers: {broker-2: "10.0.0.2:7948"}')
    no_listener, plaintext = refusals(written(tmp_path, f"server: {{}}\n{with_peer}"))
    assert no_listener.startswith("No listener is configured")
    assert plaintext.startswith(
        "cluster.transport.bind_addr, cluster.etcd.bind_addr, cluster.etcd.client_addr,"
        " cluster.transport.peers.broker-2: between nodes, plaintext is allowed on"
    )
    assert len(refusals(written(tmp_path, "server: {http: {addr: '127.0.0.1:1'}}"))) == 1
    assert refusals(written(tmp_path, "server: {mqtt: {websocket: {addr: '127.0.0.1:1'}}}")) == []


def test_notes(tmp_path: Path) -> None:
    assert notes(written(tmp_path, FOUNDING_GROUPS)) == [
        (
            "cluster.raft: every replication group is this node alone, since cluster.enabled is false;"
            " no address is opened, and there is one copy of everything."
        )
    ]
    off = FOUNDING_GROUPS.replace("enabled: true", "enabled: false")
    assert notes(written(tmp_path, off)) == [
        "cluster.raft: accepted and not used, since cluster.enabled is false."
    ]
    exposed = "server: {mqtt: {tcp: {addr: ':1883'}}}\n"
    (plain,) = notes(written(tmp_path, exposed))
    assert plain.startswith("server.mqtt.tcp: passwords and messages cross the network unencrypted")
    amqp = "server: {amqp: {tcp: {addr: '127.0.0.1:5672'}}}\n"
    assert notes(written(tmp_path, amqp)) == []
    (large,) = notes(written(tmp_path, amqp + "amqp: {max_message_size: 33MiB}"))
    assert large.startswith("amqp.max_message_size is 33MiB, and durable queues take")
    mqtt = "server: {mqtt: {tcp: {addr: 'localhost:1883'}}}\nstorage: {segment_bytes: 8MiB}"
    (small,) = notes(written(tmp_path, mqtt))
    assert small.startswith(
        "broker.max_packet_size is 16MiB, and durable queues take messages of up to 8MiB"
    )
    anyone, again = notes(written(tmp_path, exposed + "auth: {anonymous: {allow: always}}"))
    assert anyone.startswith("server.mqtt.tcp: anyone who can reach this address may connect")
    assert again == plain
    local = "server: {mqtt: {tcp: {addr: 'localhost:1883'}}}\nauth: {anonymous: {allow: always}}"
    assert notes(written(tmp_path, local)) == []


def test_a_collector_takes_traces_at_a_path(tmp_path: Path) -> None:
    text = "tracing: {enabled: true, endpoint: 'http://collector:4318%s'}"
    for path in ("", "/"):
        with pytest.raises(SettingsError) as refused:
            written(tmp_path, text % path)
        assert [each.path for each in refused.value.problems] == ["tracing.endpoint"]
    assert written(tmp_path, text % "/v1/traces").tracing.enabled
