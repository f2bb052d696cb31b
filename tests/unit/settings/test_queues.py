"""Queues and storage: what loads, what is refused at which path, and what keys mean together."""

from pathlib import Path

import pytest

from fluxmq.settings import Settings, SettingsError, load, notes, refusals
from fluxmq.settings.queues import queue_at

CONFIG = Path(__file__).resolve().parents[3] / "config"
RAFT = "cluster: {raft: {enabled: true, groups: {hot: {bind_addr: '127.0.0.1:7200'}}}}\n"


def written(tmp_path: Path, text: str) -> Settings:
    """The settings in this text."""
    file = tmp_path / "fluxmq.yaml"
    file.write_text(text)
    return load(file, {})


def problems(tmp_path: Path, text: str) -> dict[str, str]:
    """What is wrong with this text: message by path."""
    with pytest.raises(SettingsError) as caught:
        written(tmp_path, text)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_the_shipped_example() -> None:
    settings = load(CONFIG / "queues.yaml", {})
    assert refusals(settings) == []
    durability, alone = sorted(notes(settings), reverse=True)
    assert durability == (
        "queues telemetry: ack_durability is buffered, so a power cut may lose"
        " messages acknowledged in the last 1s."
    )
    assert alone.startswith("cluster.raft: every replication group is this node alone")
    orders, telemetry, payments, scratch = settings.queues
    raft = settings.cluster.raft
    assert [queue.replication_group(raft) for queue in settings.queues] == [
        None,
        None,
        "hot",
        None,
    ]
    assert (orders.deliveries_max, payments.deliveries_max) == (5, 20)
    assert orders.dead_letter_queue == "$dlq/orders"
    assert payments.dead_letter_queue == "$dlq/payments"
    assert telemetry.dead_letter_queue == ""
    assert scratch.dead_letter_queue == "orders"
    assert [settings.ack_durability(queue) for queue in settings.queues] == [
        "fsync",
        "buffered",
        "fsync",
        "fsync",
    ]


def test_a_queue_with_everything_the_founding_documents_name(tmp_path: Path) -> None:
    settings = written(
        tmp_path,
        RAFT
        + """
queues:
  - name: tasks
    topics: ["tasks/#", "$queue/tasks/#"]
    reserved: true
    type: stream
    primary_group: workers
    ack_durability: fsync
    retention: {max_age: 7d, max_length_bytes: 1GiB, max_length_messages: 1000}
    limits: {max_message_size: 10MiB, max_depth: 100000, message_ttl: 168h}
    retry: {max_retries: 10, initial_backoff: 5s, max_backoff: 5m, multiplier: 2.0}
    dlq: {enabled: true, topic: $dlq/tasks}
    replication:
      enabled: true
      group: hot
      replication_factor: 3
      mode: sync
      min_in_sync_replicas: 2
      ack_timeout: 5s
      heartbeat_timeout: 1s
      election_timeout: 3s
      snapshot_interval: 5m
      snapshot_threshold: 8192
queue_manager: {auto_commit_interval: 5s, capture_workers: 4, capture_queue_depth: 1024, capture_drain_timeout: 5s}
""",
    )
    (queue,) = settings.queues
    assert queue.replication_group(settings.cluster.raft) == "hot"
    assert (queue.limits.message_ttl, queue.limits.max_depth) == (604_800, 100_000)
    server = "server: {mqtt: {tcp: {addr: '127.0.0.1:1883'}}}\n"
    assert refusals(written(tmp_path, server + "queues: [{name: q}]")) == []


def test_a_queue_by_its_name_alone(tmp_path: Path) -> None:
    settings = written(tmp_path, "queues: [{name: q}]")
    (queue,) = settings.queues
    assert queue.topics == ()
    assert queue.type == "classic"
    assert settings.ack_durability(queue) == "fsync"
    assert queue.replication_group(settings.cluster.raft) is None
    assert (queue.deliveries_max, queue.dead_letter_queue) == (5, "")
    assert (queue.limits.max_length, queue.limits.max_depth, queue.expires) == (0, 0, 0)
    assert queue.consumer.visibility_timeout == 30
    assert notes(settings) == []


def test_the_storage_section_gives_the_durability(tmp_path: Path) -> None:
    settings = written(
        tmp_path,
        "storage: {queue_ack_durability: buffered, queue_sync_interval: 20ms}\n"
        "queues: [{name: a}, {name: b, ack_durability: fsync}]",
    )
    assert [settings.ack_durability(queue) for queue in settings.queues] == ["buffered", "fsync"]
    (note,) = notes(settings)
    assert note.startswith("queues a: ack_durability is buffered")
    assert note.endswith("20ms.")


def test_where_a_quorum_queue_is_kept(tmp_path: Path) -> None:
    text = "queues: [{name: q, type: quorum}]"
    alone = written(tmp_path, text)
    assert alone.queues[0].replication_group(alone.cluster.raft) is None
    assert notes(alone) == [
        "queues q: type quorum with one copy, since cluster.raft.enabled is false."
    ]
    grouped = written(tmp_path, RAFT + text)
    assert grouped.queues[0].replication_group(grouped.cluster.raft) == "default"


@pytest.mark.parametrize(
    ("queue", "path", "message"),
    [
        (
            "name: $dlq/q",
            "name",
            "'$dlq/q' is not a name; use up to 128 letters, digits, - _ and .",
        ),
        ("name: a/b", "name", "'a/b' is not a name; use up to 128 letters, digits, - _ and ."),
        ("type: ephemeral", "type", "must be one of classic, quorum, stream, not 'ephemeral'"),
        (
            "topics: [a/#, $queue/other/#]",
            "topics[1]",
            "$queue/other/# is not captured: topics of this kind are delivered only where they are addressed",
        ),
        (
            "topics: [$SYS/#]",
            "topics[0]",
            "$SYS/# is not captured: topics of this kind are delivered only where they are addressed",
        ),
        (
            "topics: [$share/g/a]",
            "topics[0]",
            "$share/g/a is not captured: topics of this kind are delivered only where they are addressed",
        ),
        ("primary_group: g", "primary_group", "applies to type stream only"),
        (
            "retry: {initial_backoff: 2s, max_backoff: 1s}",
            "retry.initial_backoff",
            "may not be above max_backoff",
        ),
        (
            "limits: {max_depth: 10, max_length: 10}",
            "limits.max_depth",
            (
                "must be above max_length, which is 10: publishes are refused before overflow could drop"
                " anything"
            ),
        ),
        (
            "limits: {overflow: drop}",
            "limits.overflow",
            "must be one of drop-head, reject-publish, not 'drop'",
        ),
        (
            "consumer: {delivery_limit: 0}",
            "consumer.delivery_limit",
            "must be at least 1, or -1 for no limit",
        ),
        (
            "consumer: {delivery_limit: -2}",
            "consumer.delivery_limit",
            "must be at least -1, not -2",
        ),
        (
            "consumer: {claim_batch: 5000}",
            "consumer.claim_batch",
            "must be at most 4096, not 5000",
        ),
        (
            "replication: {enabled: true}",
            "replication.enabled",
            "needs cluster.raft.enabled, which is false",
        ),
        (
            "replication: {group: a b}",
            "replication.group",
            "'a b' is not a name; use up to 128 letters, digits, - _ and .",
        ),
        (
            "replication: {group: local-1}",
            "replication.group",
            "is a name that only this node's own groups have: they begin with local-, buffered-, ephemeral-",
        ),
        (
            "replication: {heartbeat_timeout: 3s, election_timeout: 1s}",
            "replication.election_timeout",
            "must be above heartbeat_timeout, which is 3s",
        ),
        (
            "replication: {replication_factor: 1}",
            "replication.min_in_sync_replicas",
            "may not be above replication_factor, which is 1",
        ),
        (
            "{type: quorum, ack_durability: buffered}",
            "ack_durability",
            "must be fsync for a quorum queue",
        ),
        (
            "{type: quorum, deliver_before_sync: true}",
            "deliver_before_sync",
            "must be false for type quorum",
        ),
        (
            "{type: stream, deliver_before_sync: true}",
            "deliver_before_sync",
            "must be false for type stream",
        ),
        (
            "dlq: {enabled: true, topic: dead/q}",
            "dlq.topic",
            (
                "'dead/q' is not the address of a queue, $dlq/<name> or $queue/<name>: a dead letter leaves"
                " its queue once another queue has stored it"
            ),
        ),
        (
            "dlq: {enabled: true, topic: $queue/q}",
            "dlq.topic",
            "is the queue itself: its dead letters would never end",
        ),
        (
            "dlq: {enabled: true, topic: $queue/x}",
            "dlq.topic",
            "x is not in queues, and a queue made on demand is kept in memory only",
        ),
        ("dlq: {topic: ''}", "dlq.topic", "must be a non-empty string, not ''"),
    ],
)
def test_mistakes_of_one_queue(tmp_path: Path, queue: str, path: str, message: str) -> None:
    fields = queue if queue.startswith("{") else "{" + queue + "}"
    named = fields if "name:" in fields else fields.replace("{", "{name: q, ", 1)
    assert problems(tmp_path, f"queues: [{named}]") == {f"queues[0].{path}": message}


def test_limits_that_do_not_contradict(tmp_path: Path) -> None:
    settings = written(
        tmp_path,
        "queues: [{name: a, limits: {max_depth: 11, max_length: 10}},"
        " {name: b, limits: {max_depth: 10, max_length: 10, overflow: reject-publish}},"
        " {name: c, consumer: {delivery_limit: -1}}]",
    )
    assert [queue.deliveries_max for queue in settings.queues] == [5, 5, -1]


def test_mistakes_of_replication(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        RAFT
        + """
storage: {queue_ack_durability: buffered}
queues:
  - {name: a, ack_durability: fsync, replication: {enabled: true, group: cold}}
  - {name: b, replication: {enabled: true, group: hot}}
  - {name: c, ack_durability: fsync, replication: {enabled: true}}
  - {name: d, ack_durability: fsync, replication: {group: cold}}
  - {name: e, ack_durability: fsync, deliver_before_sync: true, replication: {enabled: true}}
""",
    )
    assert found == {
        "queues[0].replication.group": "cold is not in cluster.raft.groups, and"
        " cluster.raft.auto_provision_groups is false",
        "queues[1].ack_durability": "must be fsync for a replicated queue",
        "queues[4].deliver_before_sync": "must be false for a replicated queue",
    }
    cold = "queues: [{name: a, replication: {enabled: true, group: cold}}]"
    opened = RAFT.replace("enabled: true,", "enabled: true, auto_provision_groups: true,")
    settings = written(tmp_path, opened + cold)
    assert settings.queues[0].replication_group(settings.cluster.raft) == "cold"
    disabled = RAFT.replace("bind_addr", "enabled: false, bind_addr")
    hot = cold.replace("cold", "hot")
    assert problems(tmp_path, disabled + hot) == {
        "queues[0].replication.group": "hot is not enabled: cluster.raft.groups.hot.enabled is false"
    }


def test_a_node_alone_has_no_peers(tmp_path: Path) -> None:
    raft = """
cluster:
  enabled: false
  raft:
    enabled: true
    peers: {b: "b:7100"}
    groups:
      hot: {bind_addr: "127.0.0.1:7200", peers: {b: "b:7200", c: "c:7200"}}
      off: {enabled: false, bind_addr: "127.0.0.1:7300", peers: {b: "b:7300"}}
      local-1: {bind_addr: "127.0.0.1:7400"}
"""
    assert problems(tmp_path, raft) == {
        "cluster.raft.peers": "names b, but cluster.enabled is false: this node is on its own",
        "cluster.raft.groups.hot.peers": "names b, c, but cluster.enabled is false: this node"
        " is on its own",
        "cluster.raft.groups.local-1": "is a name that only this node's own groups have: they begin with local-, buffered-, ephemeral-",
    }
    transport = """enabled: true
  etcd: {endpoints: ["http://127.0.0.1:2379"]}
  transport: {peers: {b: "b:7948", c: "c:7948"}}
  raft"""
    together = raft.replace("enabled: false\n  raft", transport)
    together = together.replace('{b: "b:7100"}', '{b: "b:7100", c: "c:7100"}')
    assert set(problems(tmp_path, together)) == {"cluster.raft.groups.local-1"}


def test_names_are_unique(tmp_path: Path) -> None:
    assert problems(tmp_path, "queues: [{name: a}, {name: b}, {name: a}]") == {
        "queues[2].name": "a is also queues[0]"
    }


def test_dead_letters_do_not_come_back(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
queues:
  - {name: before, dlq: {enabled: true, topic: $queue/a}}
  - {name: a, dlq: {enabled: true, topic: $queue/b}}
  - {name: b, dlq: {enabled: true, topic: $queue/c}}
  - {name: c, dlq: {enabled: true, topic: $queue/a}}
  - {name: d, dlq: {enabled: true, topic: $queue/e}}
  - {name: e, dlq: {topic: $queue/d}}
""",
    )
    assert found == {"queues[1].dlq.topic": "makes a dead-letter cycle: a to b to c to a"}


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("$dlq/a", "$dlq/a"),
        ("$queue/a", "a"),
        ("$queue/a/key", None),
        ("$queue/", None),
        ("$dlq/+", None),
        ("$queue/#", None),
        ("a", None),
        ("", None),
        ("$queue/\0", None),
        ("$dlq/" + "x" * 70_000, None),
    ],
)
def test_addresses_of_dead_letters(topic: str, name: str | None) -> None:
    assert queue_at(topic) == (name or "")


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (
            "storage: {checkpoint_bytes: 100MiB}",
            "storage.checkpoint_bytes",
            "must be at least twice storage.wal_file_bytes, which is 64MiB",
        ),
        (
            "storage: {segment_bytes: 2MiB, index_bytes: 4MiB}",
            "storage.index_bytes",
            "may not be above storage.segment_bytes, which is 2MiB",
        ),
        (
            "queue_manager: {uncommitted_bytes: 40MiB}",
            "queue_manager.uncommitted_bytes",
            "may be at most half of storage.wal_file_bytes, which is 64MiB",
        ),
        (
            "storage: {segment_bytes: 5000000}",
            "storage.segment_bytes",
            "must be a multiple of 4KiB, not 5000000",
        ),
        (
            "queue_manager: {local_groups: 0}",
            "queue_manager.local_groups",
            "must be at least 1, not 0",
        ),
    ],
)
def test_mistakes_of_storage(tmp_path: Path, text: str, path: str, message: str) -> None:
    assert problems(tmp_path, text) == {path: message}


def test_defaults_of_storage_and_queue_manager() -> None:
    settings = Settings()
    storage, common = settings.storage, settings.queue_manager
    assert (storage.wal_file_bytes, storage.segment_bytes, storage.index_bytes) == (
        64 << 20,
        64 << 20,
        64 << 10,
    )
    assert (storage.checkpoint_bytes, storage.checkpoint_interval) == (256 << 20, 60)
    assert (storage.segment_age, storage.queue_sync_interval) == (3600, 1)
    assert (storage.queue_ack_durability, storage.min_free_bytes) == ("fsync", 256 << 20)
    assert (common.local_groups, common.ephemeral_expiry) == (8, 300)
    assert (common.max_ephemeral_queues, common.ephemeral_max_bytes) == (10_000, 64 << 20)
    assert (common.uncommitted_bytes, common.cache_bytes) == (8 << 20, 64 << 20)
