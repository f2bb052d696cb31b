"""The watch on certificate files: what is reloaded when, what is logged and counted, and expiry."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxmq.control.certificates import (
    WARN_AGAIN_SECONDS,
    WARN_BEFORE_SECONDS,
    CertificateWatch,
    of_client_listeners,
    of_listener,
    of_transport,
)
from fluxmq.ipc.door_messages import RELOAD_CERTIFICATES
from fluxmq.ipc.messages import ProcessHello
from fluxmq.net.certificates import ListenerCertificates
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.listeners import TlsListener
from fluxmq.settings.schema import Settings
from tests.certificate_maker import Authority, replace

DAY = 86_400.0
CLUSTER = Path(__file__).parents[2] / "certificates" / "cluster"


class Shard:
    """A shard's connection, as far as the watch uses it."""

    def __init__(self, role: str = "shard") -> None:
        self.hello = ProcessHello(role, 0, 1)
        self.name = f"{role}-0"
        self.asked: list[str] = []
        self.told = asyncio.Event()

    async def ask(self, kind: str, _body: Any, _seconds: float) -> dict[str, object]:
        self.asked.append(kind)
        self.told.set()
        return {}


class Watched:
    """A listener with two certificates, its watch, and a clock."""

    def __init__(self, directory: Path, days: float = 365.0) -> None:
        self.authority = Authority(directory)
        default = self.authority.issue("default", days=days)
        self.listener = TlsListener(
            addr="127.0.0.1:8883",
            cert_file=default.cert_file,
            key_file=default.key_file,
            sni_certificates=(self.authority.issue("other", "other.example.com"),),
        )
        self.held = ListenerCertificates(self.listener)
        self.shard = Shard()
        self.now = self.expiry()
        self.watch = CertificateWatch(lambda: [self.shard], lambda: self.now)  # type: ignore[list-item]
        self.now -= days * DAY

    def expiry(self) -> float:
        """When the default certificate in the file expires."""
        from fluxmq.net.certificates import facts_of

        return facts_of(self.listener.cert_file).expires

    def start(self) -> None:
        self.watch.add([of_listener("server.mqtt.tls", self.listener, self.held.reload)])

    def numbers(self) -> dict[str, float]:
        return {
            f"{name} {labels.get('result') or Path(labels['certificate']).name}": value
            for name, labels, value in self.watch.samples()
        }


def run(scenario: Callable[[Watched], Any], directory: Path, days: float = 365.0) -> None:
    async def whole() -> None:
        watched = Watched(directory, days)
        watched.start()
        await scenario(watched)
        await watched.watch.stop()

    asyncio.run(whole())


async def settle() -> None:
    """Let the tasks run that ask shards."""
    for _ in range(4):
        await asyncio.sleep(0)


def content(path: Path) -> bytes:
    return path.read_bytes()


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == level]


def test_changed_files_are_reloaded_and_shards_told(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        context = watched.held.context
        watched.watch.check()
        await settle()
        assert watched.held.context is context
        assert watched.shard.asked == []
        watched.authority.issue("other", "new.example.com")
        watched.watch.check()
        await settle()
        assert watched.held.context is not context
        assert watched.shard.asked == [RELOAD_CERTIFICATES]
        watched.watch.check()
        await settle()
        assert watched.shard.asked == [RELOAD_CERTIFICATES]
        assert watched.numbers()["fluxmq_tls_certificate_reloads_total success"] == 1

    run(scenario, tmp_path)


def test_files_are_looked_at_from_time_to_time(tmp_path: Path) -> None:
    async def whole() -> None:
        watched = Watched(tmp_path)
        watched.watch = CertificateWatch(
            lambda: [watched.shard],  # type: ignore[list-item]
            lambda: watched.now,
            interval=0.0,
        )
        watched.start()
        watched.authority.issue("default")
        async with asyncio.timeout(10):
            await watched.shard.told.wait()
        assert watched.numbers()["fluxmq_tls_certificate_reloads_total success"] >= 1
        await watched.watch.stop()
        before = dict(watched.numbers())
        watched.authority.issue("default")
        await settle()
        assert watched.numbers() == before

    asyncio.run(whole())


def test_a_request_reloads_unchanged_files(tmp_path: Path) -> None:
    """SIGHUP."""

    async def scenario(watched: Watched) -> None:
        context = watched.held.context
        watched.watch.check(unchanged=True)
        await settle()
        assert watched.held.context is not context
        assert watched.shard.asked == [RELOAD_CERTIFICATES]

    run(scenario, tmp_path)


def test_a_shard_that_connects_later_is_told_of_earlier_changes(tmp_path: Path) -> None:
    """It may have read the files before they changed."""

    async def scenario(watched: Watched) -> None:
        late, acceptor = Shard(), Shard("acceptor")
        watched.watch.greeted(late)  # type: ignore[arg-type]
        watched.watch.check(unchanged=True)
        watched.watch.greeted(late)  # type: ignore[arg-type]
        watched.watch.greeted(acceptor)  # type: ignore[arg-type]
        await settle()
        assert late.asked == [RELOAD_CERTIFICATES]
        assert acceptor.asked == []

    run(scenario, tmp_path)


def test_bad_files_keep_what_there_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are logged once and counted, and tried again when they change again."""

    async def scenario(watched: Watched) -> None:
        context, key = watched.held.context, Path(watched.listener.key_file)
        good = content(key)
        replace(key, b"nonsense")
        watched.watch.check()
        watched.watch.check()
        await settle()
        assert watched.held.context is context
        assert watched.shard.asked == []
        [line] = lines(caplog, logging.ERROR)
        assert line.startswith("certificates not reloaded, the previous ones stay in use")
        assert "default.pem" in line
        os.unlink(key)
        watched.watch.check()
        assert watched.numbers()["fluxmq_tls_certificate_reloads_total failure"] == 2
        replace(key, good)
        watched.watch.check()
        assert watched.held.context is not context
        assert watched.numbers()["fluxmq_tls_certificate_reloads_total success"] == 1

    run(scenario, tmp_path)


def test_expiry_is_reported_for_every_certificate(tmp_path: Path) -> None:
    async def scenario(watched: Watched) -> None:
        numbers = watched.numbers()
        assert numbers["fluxmq_tls_certificate_expiry_seconds default.pem"] == watched.expiry()
        assert "fluxmq_tls_certificate_expiry_seconds other.pem" in numbers
        watched.authority.issue("default", days=700)
        watched.watch.check()
        renewed = watched.numbers()["fluxmq_tls_certificate_expiry_seconds default.pem"]
        assert renewed == watched.expiry()
        assert renewed > numbers["fluxmq_tls_certificate_expiry_seconds default.pem"] + 300 * DAY

    run(scenario, tmp_path)


def test_a_certificate_that_expires_soon_is_warned_of_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(watched: Watched) -> None:
        said = lambda: lines(caplog, logging.WARNING)  # noqa: E731
        expires = watched.expiry()
        watched.now = expires - WARN_BEFORE_SECONDS
        watched.watch.check()
        assert said() == []
        watched.now += 1
        watched.watch.check()
        watched.now += WARN_AGAIN_SECONDS - 1
        watched.watch.check()
        assert said() == ["certificate expires soon"]
        assert caplog.records[-1].__dict__["days_left"] == 13
        watched.now += 1
        watched.watch.check()
        assert said() == ["certificate expires soon"] * 2
        watched.now = expires + 1
        watched.watch.check()
        assert said()[2:] == ["certificate has expired"]
        watched.authority.issue("default", days=700)
        watched.watch.check()
        watched.now += WARN_AGAIN_SECONDS
        watched.watch.check()
        assert len(said()) == 3

    run(scenario, tmp_path, days=300.0)


def test_client_listeners_are_tried_without_serving_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    files = {"cert_file": pair.cert_file, "key_file": pair.key_file}
    settings = Settings.model_validate_json(
        Settings.model_validate(
            {"server": {"mqtt": {"tls": {"addr": "127.0.0.1:8883", **files}}}}
        ).model_dump_json()
    )
    [watched] = of_client_listeners(settings)
    assert watched.path == "server.mqtt.tls"
    watched.reload()
    replace(Path(pair.cert_file), b"")
    with pytest.raises(Exception, match=r"server\.pem"):
        watched.reload()


def test_the_transport_between_nodes_is_watched_where_it_has_tls() -> None:
    plain = ClusterSettings.model_validate({"enabled": True, "node_id": "node1"})
    assert of_transport(plain) == []
    transport = {
        "tls_enabled": True,
        "tls_cert_file": str(CLUSTER / "node1.pem"),
        "tls_key_file": str(CLUSTER / "node1.key"),
        "tls_ca_file": str(CLUSTER / "ca.pem"),
    }
    cluster = plain.model_validate({"enabled": True, "node_id": "node1", "transport": transport})
    [watched] = of_transport(cluster)
    assert watched.path == "cluster.transport"
    assert len(watched.files) == 3
    watched.reload()
