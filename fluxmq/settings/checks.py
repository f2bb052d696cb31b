"""What one value of the settings means for another: problems, refusals and notes. Pure; files are looked at in ``load``.

A *problem* makes the file wrong. A *refusal* is a right file asking for what this version cannot do: it loads, and the
start stops with a sentence. A *note* is something the operator should know that stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from fluxmq.settings.clustering import OWN_GROUP_PREFIXES, Raft, RaftGroup, Transport
from fluxmq.settings.problems import Problem
from fluxmq.settings.queue_checks import OWN_GROUP_NAME, queue_notes, queue_problems, replicas
from fluxmq.settings.schema import Settings
from fluxmq.settings.section import Section
from fluxmq.settings.values import addresses_clash, format_duration, format_size

_INHERITED = (
    "replication_factor",
    "min_in_sync_replicas",
    "heartbeat_timeout",
    "election_timeout",
)


def check(settings: Settings) -> list[Problem]:
    """Everything wrong with how the values relate, in the order of the sections."""
    return [
        *_http(settings),
        *_tls(settings),
        *_addresses(settings),
        *_broker(settings),
        *_session(settings),
        *_argon2(settings),
        *_transport(settings.cluster.transport),
        *_raft(settings.cluster.raft),
        *_peers(settings),
        *_storage(settings),
        *queue_problems(settings),
    ]


def refusals(settings: Settings) -> list[str]:
    """Sentences on what the file asks for and this version cannot do; a start stops if there are any."""
    found = []
    if not settings.listeners():
        found.append(
            "No listener is configured: name at least one of server.mqtt.tcp, server.mqtt.tls,"
            " server.mqtt.websocket, server.amqp.tcp and server.amqp.tls."
        )
    if settings.cluster.enabled:
        found.append(
            "cluster.enabled is true, and this version of FluxMQ runs on one node only:"
            " set it to false, or leave the cluster section out."
        )
    return found


def notes(settings: Settings) -> list[str]:
    """Sentences on what the operator should know of a file that is right."""
    found = []
    raft = settings.cluster.raft
    given = sorted(settings.cluster.model_fields_set - {"enabled", "node_id"})
    if raft.enabled and not settings.cluster.enabled:
        given = [name for name in given if name != "raft"]
        found.append(
            "cluster.raft: every replication group is this node alone, since cluster.enabled is false;"
            " no address is opened, and there is one copy of everything."
        )
    if given and not settings.cluster.enabled:
        names = ", ".join(f"cluster.{name}" for name in given)
        found.append(f"{names}: accepted and not used, since cluster.enabled is false.")
    found += queue_notes(settings)
    exposed = [path for path, endpoint in settings.endpoints() if not endpoint.loopback]
    if exposed and settings.auth.anonymous.allow == "always":
        found.append(
            f"{', '.join(exposed)}: anyone who can reach this address may connect without a password,"
            " as auth.anonymous.allow: always says."
        )
    storage, largest = settings.storage, settings.amqp.max_message_size
    room = min(storage.wal_file_bytes // 2, storage.segment_bytes)
    if largest > room and any(path.startswith("server.amqp.") for path, _ in settings.listeners()):
        found.append(
            f"amqp.max_message_size is {format_size(largest)}, and durable queues take messages of up to"
            f" {format_size(room)} (half of storage.wal_file_bytes, and storage.segment_bytes): larger ones are refused."
        )
    for protocol in ("mqtt", "amqp"):
        prefix = f"server.{protocol}."
        plain = [path for path in exposed if path.startswith(prefix) and path != f"{prefix}tls"]
        if plain:
            found.append(
                f"{', '.join(plain)}: passwords and messages cross the network unencrypted;"
                f" {prefix}tls encrypts them."
            )
    return found


def _http(settings: Settings) -> Iterator[Problem]:
    http = settings.server.http
    if http is not None and not http.loopback:
        yield Problem(
            "server.http.addr",
            f"{http.addr} can be reached from other machines, and the HTTP interface asks for no password yet:"
            " use 127.0.0.1",
        )


def _tls(settings: Settings) -> Iterator[Problem]:
    for path, tls in settings.tls_listeners():
        if tls.client_auth != "none" and tls.ca_file is None:
            yield Problem(f"{path}.ca_file", f"is required, since client_auth is {tls.client_auth}")
        if tls.client_auth == "none" and tls.ca_file is not None:
            yield Problem(
                f"{path}.client_auth",
                "must be request or require for ca_file to have a meaning",
            )


def _claims(settings: Settings) -> Iterator[tuple[str, str]]:
    """Every address that this node would open, with its path; of the cluster only what was given."""
    for path, endpoint in settings.endpoints():
        yield f"{path}.addr", endpoint.addr
    cluster = settings.cluster

    def given(section: Section, name: str) -> bool:
        return cluster.enabled or name in section.model_fields_set

    if given(cluster.etcd, "bind_addr"):
        yield "cluster.etcd.bind_addr", cluster.etcd.bind_addr
    if given(cluster.etcd, "client_addr"):
        yield "cluster.etcd.client_addr", cluster.etcd.client_addr
    if given(cluster.transport, "bind_addr"):
        yield "cluster.transport.bind_addr", cluster.transport.bind_addr
    if given(cluster.raft, "bind_addr"):
        yield "cluster.raft.bind_addr", cluster.raft.bind_addr
    for name, group in cluster.raft.groups.items():
        # cluster.raft is the default group, so saying its address again is no second claim.
        same = name == "default" and group.bind_addr == cluster.raft.bind_addr
        if group.bind_addr is not None and not same:
            yield f"cluster.raft.groups.{name}.bind_addr", group.bind_addr


def _addresses(settings: Settings) -> Iterator[Problem]:
    taken: list[tuple[str, str]] = []
    for path, address in _claims(settings):
        for other_path, other in taken:
            if addresses_clash(address, other):
                yield Problem(path, f"{address} clashes with {other_path}, which is {other}")
                break
        taken.append((path, address))


def _broker(settings: Settings) -> Iterator[Problem]:
    broker = settings.broker
    largest = format_size(broker.max_packet_size)
    if broker.max_connect_size > broker.max_packet_size:
        yield Problem(
            "broker.max_connect_size",
            f"may not be above broker.max_packet_size, which is {largest}",
        )
    if broker.max_topic_bytes > broker.max_packet_size:
        yield Problem(
            "broker.max_topic_bytes", f"may not be above broker.max_packet_size, which is {largest}"
        )
    if broker.ring_bytes < 2 * broker.max_packet_size:
        yield Problem(
            "broker.ring_bytes",
            f"must be at least twice broker.max_packet_size, which is {largest},"
            " so that one message can be written while another is read",
        )
    if broker.keep_alive_maximum != int(broker.keep_alive_maximum):
        yield Problem("broker.keep_alive_maximum", "must be whole seconds")


def _session(settings: Settings) -> Iterator[Problem]:
    session = settings.session
    if session.default_expiry_interval > session.max_expiry_interval:
        yield Problem(
            "session.default_expiry_interval",
            "may not be above session.max_expiry_interval,"
            f" which is {format_duration(session.max_expiry_interval)}",
        )


def _argon2(settings: Settings) -> Iterator[Problem]:
    argon2 = settings.auth.argon2
    if argon2.memory_cost < argon2.parallelism * 8192:
        yield Problem(
            "auth.argon2.memory_cost",
            f"must be at least 8KiB per lane, {format_size(argon2.parallelism * 8192)} in all",
        )


def _storage(settings: Settings) -> Iterator[Problem]:
    storage, packet = settings.storage, settings.broker.max_packet_size
    largest = f"so that it holds the largest packet (broker.max_packet_size, {format_size(packet)})"
    for name in ("wal_file_bytes", "segment_bytes"):
        if getattr(storage, name) < 2 * packet:
            yield Problem(
                f"storage.{name}", f"must be at least {format_size(2 * packet)}, {largest}"
            )
    if storage.checkpoint_bytes < 2 * storage.wal_file_bytes:
        yield Problem(
            "storage.checkpoint_bytes",
            "must be at least twice storage.wal_file_bytes,"
            f" which is {format_size(storage.wal_file_bytes)}",
        )
    if storage.index_bytes > storage.segment_bytes:
        yield Problem(
            "storage.index_bytes",
            f"may not be above storage.segment_bytes, which is {format_size(storage.segment_bytes)}",
        )
    uncommitted = settings.queue_manager.uncommitted_bytes
    if 2 * uncommitted > storage.wal_file_bytes:
        yield Problem(
            "queue_manager.uncommitted_bytes",
            "may be at most half of storage.wal_file_bytes,"
            f" which is {format_size(storage.wal_file_bytes)}",
        )


def _transport(transport: Transport) -> Iterator[Problem]:
    if transport.tls_enabled:
        for name in ("tls_cert_file", "tls_key_file", "tls_ca_file"):
            if getattr(transport, name) is None:
                yield Problem(f"cluster.transport.{name}", "is required, since tls_enabled is true")


def _timings(path: str, heartbeat: float, election: float) -> Iterator[Problem]:
    if heartbeat >= election:
        yield Problem(
            f"{path}.election_timeout",
            f"must be above heartbeat_timeout, which is {format_duration(heartbeat)}",
        )


def _raft(raft: Raft) -> Iterator[Problem]:
    yield from replicas("cluster.raft", raft.replication_factor, raft.min_in_sync_replicas)
    yield from _timings("cluster.raft", raft.heartbeat_timeout, raft.election_timeout)
    directories = {raft.data_dir: "cluster.raft.data_dir"} if raft.data_dir is not None else {}
    for name, group in raft.groups.items():
        yield from _group(f"cluster.raft.groups.{name}", name, group, raft)
        same = name == "default" and group.data_dir == raft.data_dir
        if group.data_dir is None or same:
            continue
        if group.data_dir in directories:
            yield Problem(
                f"cluster.raft.groups.{name}.data_dir",
                f"{group.data_dir} is also {directories[group.data_dir]}; every group has its own",
            )
        directories.setdefault(group.data_dir, f"cluster.raft.groups.{name}.data_dir")


def _peers(settings: Settings) -> Iterator[Problem]:
    """A group whose other members this node may not speak to could never agree on anything."""
    raft = settings.cluster.raft
    if settings.cluster.enabled or not raft.enabled:
        return
    named = [("cluster.raft", raft.peers)]
    for name, group in raft.groups.items():
        if group.enabled:
            named.append((f"cluster.raft.groups.{name}", group.peers))
    for path, peers in named:
        if peers:
            yield Problem(
                f"{path}.peers",
                f"names {', '.join(peers)}, and cluster.enabled is false, so that this node is alone",
            )


def _group(path: str, name: str, group: RaftGroup, raft: Raft) -> Iterator[Problem]:
    if name == "default" and not group.enabled:
        yield Problem(f"{path}.enabled", "must be true: the default group cannot be disabled")
    if name.startswith(OWN_GROUP_PREFIXES):
        yield Problem(path, OWN_GROUP_NAME)
    if name != "default" and group.bind_addr is None:
        yield Problem(f"{path}.bind_addr", "is required")
    merged = {
        key: getattr(raft if getattr(group, key) is None else group, key) for key in _INHERITED
    }
    if group.model_fields_set & {"replication_factor", "min_in_sync_replicas"}:
        yield from replicas(path, merged["replication_factor"], merged["min_in_sync_replicas"])
    if group.model_fields_set & {"heartbeat_timeout", "election_timeout"}:
        yield from _timings(path, merged["heartbeat_timeout"], merged["election_timeout"])
