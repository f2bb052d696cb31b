"""Watches the certificate files of a node: reloads what has changed, and tells how long it is valid.

Files are looked at once a minute and on SIGHUP, here alone; shards load certificates again when
this process tells them to, after it has tried them itself. Files that cannot be used leave the
previous certificates in use, are logged once and counted, and are tried again when they change: a
certificate and its key are seldom replaced in the same moment.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fluxmq.cluster.errors import ClusterError
from fluxmq.cluster.security import Security
from fluxmq.control.peers import Peer, answers_of
from fluxmq.ipc.door_messages import RELOAD_CERTIFICATES, CertificatesReloaded
from fluxmq.logs import get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.net.certificates import ListenerCertificates, facts_of
from fluxmq.net.tls import TlsSettingsError
from fluxmq.settings.clustering import ClusterSettings
from fluxmq.settings.listeners import AnyTlsListener, ClientTlsListener
from fluxmq.settings.schema import Settings

if TYPE_CHECKING:
    from fluxmq.control.etcd.client import EtcdClient

CHECK_SECONDS: Final = 60.0
"""Interval of looks at the files: a few system calls each."""
WARN_BEFORE_SECONDS: Final = 14 * 86_400.0
"""Remaining validity below which a certificate is warned of: ACME clients renew at 30 days."""
WARN_AGAIN_SECONDS: Final = 86_400.0
SHARD_SECONDS: Final = 10.0
"""Time for shards to load certificates."""

_log = get_logger(__name__)

FileState = tuple[int, ...]
"""Identity, times and size of a file; empty for a missing one."""


@dataclass(slots=True)
class WatchedFiles:
    """The TLS files of a listener, or of the transport between nodes.

    ``path``: its settings; ``certificates``: files of certificates, the first being the default;
    ``files``: all files; ``reload`` loads them, or raises TlsSettingsError or ClusterError and
    changes nothing.
    """

    path: str
    certificates: tuple[str, ...]
    files: tuple[str, ...]
    reload: Callable[[], object]
    state: tuple[FileState, ...] = field(init=False)
    expires: dict[str, float] = field(default_factory=dict)
    succeeded: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self.state = self.look()

    def look(self) -> tuple[FileState, ...]:
        """Return the present state of the files."""
        return tuple(map(_state, self.files))


def of_listener(path: str, listener: AnyTlsListener, reload: Callable[[], object]) -> WatchedFiles:
    """Return the files of a listener, which ``reload`` loads."""
    pairs = (listener, *listener.sni_certificates)
    files = [name for pair in pairs for name in (pair.cert_file, pair.key_file)]
    if isinstance(listener, ClientTlsListener) and listener.ca_file is not None:
        files.append(listener.ca_file)
    return WatchedFiles(path, tuple(pair.cert_file for pair in pairs), tuple(files), reload)


def of_client_listeners(settings: Settings) -> list[WatchedFiles]:
    """Return the files of the listeners that shards serve; loading them here tries them."""

    def trial(listener: ClientTlsListener) -> Callable[[], object]:
        return lambda: ListenerCertificates(listener)

    found = settings.tls_listeners()
    return [of_listener(path, listener, trial(listener)) for path, listener in found]


def of_transport(
    cluster: ClusterSettings, reload: Callable[[], object] | None = None
) -> list[WatchedFiles]:
    """Return the files of the transport between nodes; none without TLS. ``reload``: of this
    process's own connections, if it has any."""
    transport = cluster.transport
    if not cluster.enabled or not transport.tls_enabled:
        return []
    files = transport.tls_cert_file, transport.tls_key_file, transport.tls_ca_file
    named = tuple(name for name in files if name is not None)
    load = reload or (lambda: Security.of(cluster))
    return [WatchedFiles("cluster.transport", named[:1], named, load)]


class CertificateWatch:
    """The watched files of a node, and the time until their certificates expire."""

    def __init__(
        self,
        shards: Callable[[], Sequence[Peer]],
        now: Callable[[], float],
        interval: float = CHECK_SECONDS,
    ) -> None:
        """``now``: the wall clock, as Unix time; ``interval``: seconds between looks."""
        self._shards = shards
        self._now = now
        self._interval = interval
        self._watched: list[WatchedFiles] = []
        self._warned: dict[tuple[str, str], float] = {}
        self._changed = False
        self._task: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def add(self, watched: Sequence[WatchedFiles]) -> None:
        """Watch these files, which have just been loaded."""
        for each in watched:
            self._watched.append(each)
            self._read_facts(each)
        if self._watched and self._task is None:
            self._warn()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()

    def greeted(self, peer: Peer) -> None:
        """Tell a shard that has connected: it may have loaded its certificates before they
        changed."""
        if self._changed and peer.hello is not None and peer.hello.role == "shard":
            self._tell([peer])

    def gone(self, _peer: Peer) -> None:
        """Do nothing: a shard that connects again is told again."""

    def check(self, *, unchanged: bool = False) -> None:
        """Load the certificates whose files have changed; ``unchanged``: the others too."""
        reloaded = [each for each in self._watched if self._reload(each, unchanged)]
        if reloaded:
            self._changed = True
            self._tell(self._shards())
        self._warn()

    def samples(self) -> Iterator[Sample]:
        """Yield expiry and numbers of reloads."""
        for each in self._watched:
            for name, expires in each.expires.items():
                labels = {"listener": each.path, "certificate": name}
                yield "fluxmq_tls_certificate_expiry_seconds", labels, expires
            for result, count in (("success", each.succeeded), ("failure", each.failed)):
                labels = {"listener": each.path, "result": result}
                yield "fluxmq_tls_certificate_reloads_total", labels, count

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            self.check()

    def _reload(self, each: WatchedFiles, unchanged: bool) -> bool:
        """Load the certificates of a listener if they have changed; return whether that was done."""
        state = each.look()
        if state == each.state and not unchanged:
            return False
        each.state = state
        try:
            each.reload()
        except (TlsSettingsError, ClusterError) as problem:
            each.failed += 1
            _log.error(
                "certificates not reloaded, the previous ones stay in use: %s",
                problem,
                extra={"listener": each.path},
            )
            return False
        each.succeeded += 1
        self._read_facts(each)
        _log.info("certificates reloaded", extra={"listener": each.path})
        return True

    def _read_facts(self, each: WatchedFiles) -> None:
        each.expires = {}
        for name in each.certificates:
            try:
                each.expires[name] = facts_of(name).expires
            except TlsSettingsError as problem:  # OpenSSL is less strict
                _log.warning("expiry unknown: %s", problem, extra={"listener": each.path})

    def _warn(self) -> None:
        """Warn of certificates that expire soon, once a day."""
        now = self._now()
        for each in self._watched:
            for name, expires in each.expires.items():
                key = (each.path, name)
                left = expires - now
                if left >= WARN_BEFORE_SECONDS:
                    self._warned.pop(key, None)
                elif now >= self._warned.get(key, -WARN_AGAIN_SECONDS) + WARN_AGAIN_SECONDS:
                    self._warned[key] = now
                    text = "certificate has expired" if left < 0 else "certificate expires soon"
                    _log.log(
                        logging.WARNING,
                        text,
                        extra={
                            "listener": each.path,
                            "certificate": name,
                            "days_left": int(left // 86_400),
                        },
                    )

    def _tell(self, shards: Sequence[Peer]) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(shards))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _ask(self, shards: Sequence[Peer]) -> None:
        answers = await answers_of(
            shards, RELOAD_CERTIFICATES, {}, SHARD_SECONDS, CertificatesReloaded
        )
        for peer, answer in zip(shards, answers, strict=True):
            if answer is None:
                # It connects again, and is told then; otherwise the next change reaches it.
                _log.warning("%s has not confirmed new certificates", peer.name)


def _state(name: str) -> FileState:
    try:
        found = os.stat(name)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def renew_certificates(cluster: ClusterSettings, clients: Sequence[EtcdClient]) -> None:
    """Show others new certificates from now on. Raises ClusterError for files that cannot be used."""
    Security.of(cluster)
    if not clients:
        return
    from fluxmq.control.etcd.client import EtcdError, credentials_of

    try:
        credentials = credentials_of(cluster)
    except EtcdError as problem:  # they have vanished since
        raise ClusterError(str(problem)) from problem
    assert credentials is not None, "files are watched with TLS only"
    for client in clients:
        client.renew(credentials)
