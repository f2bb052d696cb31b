"""Checks across settings: problems, refusals and notes. Pure; ``load`` looks at files.

A *problem* makes the file invalid. A *refusal* is a valid file that asks for something this version
cannot do: it loads, and the start stops with a sentence. A *note* tells the operator something and
stops nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from fluxmq.settings.cluster_checks import (
    cluster_notes,
    cluster_problems,
    cluster_refusals,
    plan_problems,
)
from fluxmq.settings.listen_addresses import ListenAddress, clash, listen_addresses
from fluxmq.settings.listeners import SNI_CERTIFICATES_MAX, AnyTlsListener
from fluxmq.settings.login_checks import login_notes, login_problems
from fluxmq.settings.problems import SettingsProblem
from fluxmq.settings.queue_checks import queue_notes, queue_problems
from fluxmq.settings.schema import Settings
from fluxmq.settings.values import format_duration, format_size


def check(settings: Settings) -> list[SettingsProblem]:
    """Return every problem between values, in the order of the sections."""
    found = [
        *_metrics(settings),
        *_tls(settings),
        *_addresses(settings),
        *_broker(settings),
        *_session(settings),
        *_amqp(settings),
        *_argon2(settings),
        *login_problems(settings),
        *cluster_problems(settings),
        *_storage(settings),
        *queue_problems(settings),
        *_tracing(settings),
    ]
    # The groups' plans would only repeat the problems of the sections that they are derived from.
    of_groups = any(problem.path.startswith(("cluster.", "queues[")) for problem in found)
    return found if of_groups else [*found, *plan_problems(settings)]


def refusals(settings: Settings, workers: int = 0) -> list[str]:
    """Return a sentence for each thing the file asks for that this version cannot do; any stops the
    start. ``workers``: number of shards, 0 when unknown."""
    found = []
    if not settings.listeners():
        found.append(
            "No listener is configured: name at least one of server.mqtt.tcp, server.mqtt.tls,"
            " server.mqtt.websocket, server.mqtt.websocket_tls, server.amqp.tcp and server.amqp.tls."
        )
    found += cluster_refusals(settings, workers)
    return found


def notes(settings: Settings, workers: int = 0) -> list[str]:
    """Return sentences that the operator should read about a valid file. ``workers``: number of
    shards, 0 when unknown."""
    found = list(cluster_notes(settings, workers))
    found += queue_notes(settings)
    found += login_notes(settings)
    exposed = [path for path, endpoint in settings.listeners() if not endpoint.loopback]
    if exposed and settings.auth.anonymous.allow == "always":
        found.append(
            f"{', '.join(exposed)}: anyone who can reach this address may connect without a password,"
            " because auth.anonymous.allow is always."
        )
    storage = settings.storage
    room = min(storage.wal_file_bytes // 2, storage.segment_bytes)
    for protocol, name, largest in (
        ("amqp", "amqp.max_message_size", settings.amqp.max_message_size),
        ("mqtt", "broker.max_packet_size", settings.broker.max_packet_size),
    ):
        prefix = f"server.{protocol}."
        if largest > room and any(path.startswith(prefix) for path, _ in settings.listeners()):
            found.append(
                f"{name} is {format_size(largest)}, and durable queues take messages of up to"
                f" {format_size(room)} (half of storage.wal_file_bytes, and storage.segment_bytes): larger ones are refused."
            )
    for protocol in ("mqtt", "amqp"):
        prefix = f"server.{protocol}."
        encrypted = dict(settings.tls_listeners())
        plain = [path for path in exposed if path.startswith(prefix) and path not in encrypted]
        if plain:
            found.append(
                f"{', '.join(plain)}: passwords and messages cross the network unencrypted;"
                f" {prefix}tls encrypts them."
            )
    http = settings.server.http
    if http is not None and not http.loopback:
        found.append(
            "server.http: passwords cross the network unencrypted; server.https encrypts them."
        )
    return found


def _metrics(settings: Settings) -> Iterator[SettingsProblem]:
    metrics = settings.server.metrics
    if metrics is not None and not metrics.loopback and not metrics.without_password:
        yield SettingsProblem(
            "server.metrics.without_password",
            f"must be true, since {metrics.addr} can be reached from other machines",
        )


def _tls(settings: Settings) -> Iterator[SettingsProblem]:
    for path, tls in settings.tls_listeners():
        if tls.client_auth != "none" and tls.ca_file is None:
            yield SettingsProblem(
                f"{path}.ca_file", f"is required, since client_auth is {tls.client_auth}"
            )
        if tls.client_auth == "none" and tls.ca_file is not None:
            yield SettingsProblem(
                f"{path}.client_auth",
                "must be request or require for ca_file to have an effect",
            )
    certificates: dict[str, AnyTlsListener] = dict(settings.tls_listeners())
    if settings.server.https is not None:
        certificates["server.https"] = settings.server.https
    for path, listener in certificates.items():
        if len(listener.sni_certificates) > SNI_CERTIFICATES_MAX:
            yield SettingsProblem(
                f"{path}.sni_certificates", f"may hold at most {SNI_CERTIFICATES_MAX} certificates"
            )


def _addresses(settings: Settings) -> Iterator[SettingsProblem]:
    taken: list[ListenAddress] = []
    for listen_address in listen_addresses(settings):
        if found := clash(listen_address, taken):
            yield SettingsProblem(listen_address.path, found)
        taken.append(listen_address)


def _broker(settings: Settings) -> Iterator[SettingsProblem]:
    broker = settings.broker
    largest = format_size(broker.max_packet_size)
    if broker.max_topic_bytes > broker.max_packet_size:
        yield SettingsProblem(
            "broker.max_topic_bytes", f"may not be above broker.max_packet_size, which is {largest}"
        )
    if broker.keep_alive_maximum != int(broker.keep_alive_maximum):
        yield SettingsProblem("broker.keep_alive_maximum", "must be whole seconds")


def _session(settings: Settings) -> Iterator[SettingsProblem]:
    session = settings.session
    if session.default_expiry_interval > session.max_expiry_interval:
        yield SettingsProblem(
            "session.default_expiry_interval",
            "may not be above session.max_expiry_interval,"
            f" which is {format_duration(session.max_expiry_interval)}",
        )


def _amqp(settings: Settings) -> Iterator[SettingsProblem]:
    amqp = settings.amqp
    for name in ("max_message_size", "max_transaction_bytes"):
        least = getattr(amqp, name)
        if amqp.max_incomplete_bytes < least:
            yield SettingsProblem(
                "amqp.max_incomplete_bytes",
                f"may not be below amqp.{name}, which is {format_size(least)}",
            )


def _argon2(settings: Settings) -> Iterator[SettingsProblem]:
    argon2 = settings.auth.argon2
    if argon2.memory_cost < argon2.parallelism * 8192:
        yield SettingsProblem(
            "auth.argon2.memory_cost",
            f"must be at least 8KiB per lane, {format_size(argon2.parallelism * 8192)} in all",
        )


def _tracing(settings: Settings) -> Iterator[SettingsProblem]:
    if not settings.tracing.endpoint.partition("://")[2].partition("/")[2]:
        yield SettingsProblem(
            "tracing.endpoint", "names no path: collectors take traces at /v1/traces"
        )


def _storage(settings: Settings) -> Iterator[SettingsProblem]:
    storage = settings.storage
    if storage.checkpoint_bytes < 2 * storage.wal_file_bytes:
        yield SettingsProblem(
            "storage.checkpoint_bytes",
            "must be at least twice storage.wal_file_bytes,"
            f" which is {format_size(storage.wal_file_bytes)}",
        )
    if storage.index_bytes > storage.segment_bytes:
        yield SettingsProblem(
            "storage.index_bytes",
            f"may not be above storage.segment_bytes, which is {format_size(storage.segment_bytes)}",
        )
    uncommitted = settings.queue_manager.uncommitted_bytes
    if 2 * uncommitted > storage.wal_file_bytes:
        yield SettingsProblem(
            "queue_manager.uncommitted_bytes",
            "may be at most half of storage.wal_file_bytes,"
            f" which is {format_size(storage.wal_file_bytes)}",
        )
